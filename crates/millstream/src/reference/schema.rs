//! The JSON Schema of a whole configuration, for editors and for tools that write configurations.
//!
//! The settings are at the top. Each section maps names to nodes, and the `type` of a node selects the schema of its component. A
//! scalar may be written as `${NAME}`, which is a text until the variable is substituted. The schema of a number, a boolean or a choice
//! therefore also allows such a text.

use millstream_config::{Section, Settings};
use millstream_net::Block;
use millstream_pipeline::node::Component;
use serde_json::{Map, Value, json};

use crate::registry;

/// The whole schema.
pub fn whole() -> Value {
    let mut defs = Map::new();
    let mut root = schemars::schema_for!(Settings).to_value();
    settle(&mut root, "#/$defs/settings/$defs/");
    let mut own = root["$defs"].take();
    if let Some(tls) = own.pointer_mut("/Api/properties/tls") {
        tls["type"] = json!(["string", "object", "null"]);
        tls["anyOf"] = json!([{ "type": ["string", "null"] }, { "$ref": "#/$defs/tls" }]);
    }
    defs.insert("settings".to_owned(), json!({ "$defs": own }));
    let mut properties = root["properties"].take();
    for section in Section::ALL {
        properties[section.name()] = nodes(section, &mut defs);
    }
    properties["tls"] = certificates(&mut defs);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Millstream",
        "description": "A configuration of Millstream: settings, and nodes by name in their sections.",
        "type": "object",
        "properties": properties,
        "patternProperties": { "^x-": { "description": "Free: a place for YAML anchors." } },
        "additionalProperties": false,
        "$defs": defs,
    })
}

/// The schema of the section `tls`. It maps names to blocks of certificates, and the option `tls` of a node may be such a name.
fn certificates(defs: &mut Map<String, Value>) -> Value {
    let mut block = schemars::schema_for!(Block).to_value();
    settle(&mut block, "#/$defs/tls/$defs/");
    if let Some(object) = block.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
    }
    defs.insert("tls".to_owned(), block);
    json!({
        "description": "Names to certificates: a node's option `tls` may be such a name.",
        "type": ["object", "null"],
        "propertyNames": { "pattern": "^[a-z][a-z0-9_-]*$", "maxLength": millstream_config::names::NAME_MAX },
        "additionalProperties": { "$ref": "#/$defs/tls" },
    })
}

/// The schema of a section, which maps names to nodes.
fn nodes(section: Section, defs: &mut Map<String, Value>) -> Value {
    let of_section = registry::all().filter(|c| registry::section(c) == section.name());
    let components: Vec<_> = of_section.collect();
    let mut cases = Vec::new();
    for component in &components {
        let id = format!("{}.{}", section.name(), component.name);
        cases.push(json!({
            "if": { "properties": { "type": { "const": component.name } }, "required": ["type"] },
            "then": { "$ref": format!("#/$defs/{id}") },
        }));
        defs.insert(id.clone(), node(component, section, &id));
    }
    let names = components
        .iter()
        .map(|component| json!({ "const": component.name, "description": component.summary }));
    let mut node = json!({
        "type": "object",
        "properties": { "type": { "description": "What the node is.", "oneOf": names.collect::<Vec<_>>() } },
        "required": ["type"],
        "allOf": cases,
    });
    // `allOf` must not be empty. A section without components allows no node.
    if components.is_empty() {
        node = json!(false);
    }
    json!({
        "description": format!("Names to {}.", section.name()),
        "type": ["object", "null"],
        "propertyNames": { "pattern": "^[a-z][a-z0-9_-]*$", "maxLength": millstream_config::names::NAME_MAX },
        "additionalProperties": node,
    })
}

/// The options of a component, together with those that every node of its section has.
fn node(component: &Component, section: Section, id: &str) -> Value {
    let mut schema = (component.schema)().to_value();
    settle(&mut schema, &format!("#/$defs/{id}/$defs/"));
    let texts = |what: &str| json!({ "description": what, "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
    let mut properties = Map::new();
    properties.insert("type".to_owned(), json!({ "const": component.name }));
    let mut required = vec![json!("type")];
    if section != Section::Sources {
        properties.insert(
            "inputs".to_owned(),
            texts("The nodes it takes from: names, ports (`NAME.rejected`) or globs of them."),
        );
        properties.insert(
            "tags".to_owned(),
            texts("Takes only these tags: `*` is one part, `**` any number (`web.**` takes `web` too), `{a,b}` a choice, `!` excludes."),
        );
        required.push(json!("inputs"));
    }
    if section == Section::Processors {
        properties.insert("tests".to_owned(), tests());
    }
    if section == Section::Sinks {
        properties.insert("behind".to_owned(), behind());
    }
    if matches!(section, Section::Processors | Section::Sinks) {
        properties.extend(tasks());
    }
    if let Some(own) = schema["properties"].as_object() {
        properties.extend(own.clone());
    }
    if let Some(own) = schema["required"].as_array() {
        required.extend(own.clone());
    }
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
        object.insert("description".to_owned(), json!(component.summary));
        object.insert("properties".to_owned(), Value::Object(properties));
        object.insert("required".to_owned(), Value::Array(required));
        object.insert("additionalProperties".to_owned(), json!(false));
    }
    schema
}

/// The option `behind` of a sink: how far the sink may be behind the disk channel that it reads.
fn behind() -> Value {
    json!({
        "description": "How far the sink may be behind its disk channel: the bytes that it has not settled (`size`) and the age of the oldest \
            record (`age`); 0 = no limit. At the limit, `then: block` makes the sources wait, and `then: skip` drops the oldest records for \
            this sink only, counts and logs them.",
        "type": "object",
        "properties": {
            "size": { "type": ["string", "integer"], "default": 0 },
            "age": { "type": ["string", "integer"], "default": 0 },
            "then": { "enum": ["block", "skip"], "default": "block" },
        },
        "additionalProperties": false,
    })
}

/// The options for the parallel tasks of a processor or sink.
fn tasks() -> [(String, Value); 2] {
    let parallelism = json!({
        "description": "Number of parallel tasks of the node, each on its own thread. Default: a processor runs on the thread that read the \
            batch, and a sink behind a memory channel has one task for each data thread. A sink behind a disk channel always has one.",
        "type": ["integer", "string"],
        "minimum": 1,
        "maximum": 256,
    });
    let partition = json!({
        "description": "How records are distributed among the tasks: `same` keeps the order of each source, `shuffle` sends batches to the tasks \
            in turn, `broadcast` sends all records to every task, and a template such as `\"{.user}\"` sends records with the same text \
            to the same task, in order.",
        "type": "string",
        "default": "same",
    });
    [
        ("parallelism".to_owned(), parallelism),
        ("partition".to_owned(), partition),
    ]
}

/// The option `tests` of a processor: its cases.
fn tests() -> Value {
    let records = |what: &str| json!({ "description": what, "type": "array", "items": { "type": ["object", "string"] } });
    json!({
        "description": "Cases that `millstream test` runs: records that enter the processor, and those that leave it. A record is a \
            map of fields, in which `%tag`, `%time` and names such as `%host` are metadata, or the text of a line.",
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "name": { "description": "Name in the report. Default: its number.", "type": "string" },
                "tag": { "description": "Tag of the given records.", "type": "string", "default": "test" },
                "from": {
                    "description": "Node that the records enter, if they pass other nodes on the way to this processor.",
                    "type": "string",
                },
                "given": records("Records that enter."),
                "expect": {
                    "description": "Records that leave, in their order; of a processor with several ports a map of ports. \
                        Nothing leaves by a port that is not named.",
                    "anyOf": [
                        records("Records of the port `NAME`."),
                        { "type": "object", "additionalProperties": records("Records of a port.") },
                    ],
                },
                "rejected": records("Records, as they came in, that leave by `NAME.rejected`."),
            },
            "required": ["given", "expect"],
            "additionalProperties": false,
        },
    })
}

/// Makes references absolute, and allows a text with a variable for every number, boolean and choice.
fn settle(schema: &mut Value, defs: &str) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(to)) = map.get_mut("$ref")
                && let Some(name) = to.strip_prefix("#/$defs/")
            {
                *to = format!("{defs}{name}");
            }
            for inner in map.values_mut() {
                settle(inner, defs);
            }
            if is_other_scalar(map) {
                let keep = ["description", "default", "examples"];
                let (outer, inner): (Map<_, _>, Map<_, _>) = std::mem::take(map)
                    .into_iter()
                    .partition(|(key, _)| keep.contains(&key.as_str()));
                *map = outer;
                map.insert(
                    "anyOf".to_owned(),
                    json!([inner, { "type": "string", "pattern": "\\$\\{" }]),
                );
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|inner| settle(inner, defs)),
        _ => {}
    }
}

/// Whether the schema describes a number, a boolean or a choice. A text with a variable would not match such a schema.
fn is_other_scalar(map: &Map<String, Value>) -> bool {
    let named = |value: &Value| matches!(value.as_str(), Some("integer" | "number" | "boolean"));
    let by_type = match map.get("type") {
        Some(Value::Array(all)) => all.iter().any(named),
        Some(one) => named(one),
        None => false,
    };
    let is_choice = |all: &Value| {
        let all = all.as_array();
        all.is_some_and(|all| !all.is_empty() && all.iter().all(|one| one.get("const").is_some()))
    };
    by_type
        || map.get("enum").is_some_and(Value::is_array)
        || map.get("oneOf").is_some_and(is_choice)
}
