//! The JSON schema of the option `where`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Condition, Where};

impl JsonSchema for Where {
    fn schema_name() -> Cow<'static, str> {
        "Where".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = generator.subschema_for::<Condition>();
        json_schema!({
            "description": "A map of tests such as { .level: [error, fatal], .ms: { gt: 500 } }, all of which must pass; or a text: a VRL condition",
            "anyOf": [map, { "type": "string" }],
        })
    }
}

impl JsonSchema for Condition {
    fn schema_name() -> Cow<'static, str> {
        "Condition".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<Self>();
        let test = generator.subschema_for::<FieldTest>();
        json_schema!({
            "description": "Tests of fields (.level), of the tag and of values of the batch (host); any, all and not combine them",
            "type": "object",
            "patternProperties": {
                "^(any|all)$": { "type": "array", "items": one },
                "^not$": one,
                "^[.]": test,
            },
            "additionalProperties": test,
        })
    }
}

/// The schema of the value after the name of a field.
struct FieldTest;

impl JsonSchema for FieldTest {
    fn schema_name() -> Cow<'static, str> {
        "FieldTest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let test = generator.subschema_for::<Self>();
        let scalar = json_schema!({ "type": ["string", "number", "boolean", "null"] });
        let some = json_schema!({ "anyOf": [scalar, { "type": "array", "items": scalar }] });
        let texts = json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
        let bound = json_schema!({ "type": ["string", "number"] });
        json_schema!({
            "description": "A value, a list of values of which one must be equal, or operators, all of which must pass",
            "anyOf": [
                some,
                {
                    "type": "object",
                    "properties": {
                        "eq": some, "ge": bound, "gt": bound, "le": bound, "lt": bound,
                        "glob": texts, "regex": texts, "exists": { "type": "boolean" },
                        "not": test,
                        "any": { "type": "array", "items": test },
                        "all": { "type": "array", "items": test },
                    },
                    "additionalProperties": false,
                },
            ],
        })
    }
}
