//! The option `success`: which answers mean that the server has stored a request.
//!
//! Some servers answer 200 and report the failure in a header (ClickHouse) or in the body (Splunk, behind some proxies). Without the
//! option every 2xx is a success.

use std::{borrow::Cow, collections::BTreeMap, ops::RangeInclusive};

use hyper::{HeaderMap, StatusCode, header::HeaderName};
use regex::bytes::Regex;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Error},
};

/// The properties of an answer that means that the server has stored the request. All parts must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Success {
    /// Statuses, such as `[200, 204]` or `[200-299]`. Default: every 2xx.
    status: Option<Vec<Statuses>>,
    /// Headers: `false` if the answer must not have the header, `true` if it must have it, a regular expression that the value must
    /// match, or `{ not: REGEX }`.
    header: BTreeMap<Header, Rule>,
    /// Body: a regular expression that it must match, or `{ not: REGEX }`.
    body: Option<Rule>,
    /// Treatment of a request whose answer has a status of `status`, but does not fulfil `header` and `body`; likewise with a 2xx that
    /// is not in `status`.
    otherwise: Otherwise,
}

/// Treatment of a request that has not succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Otherwise {
    /// It is retried, as after a 5xx.
    #[default]
    Retry,
    /// It is refused, as after a 400: its parts are sent separately until the refused records are found.
    Reject,
}

impl Success {
    /// Whether an answer means that the server has stored the request. `None`: its status has another meaning.
    ///
    /// # Errors
    /// Says which part of the option the answer does not fulfil.
    pub(super) fn verdict(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Option<Result<(), String>> {
        let number = status.as_u16();
        let is_listed = match &self.status {
            None => status.is_success(),
            Some(listed) => listed.iter().any(|statuses| statuses.0.contains(&number)),
        };
        match is_listed {
            true => Some(self.holds(headers, body)),
            false if status.is_success() => {
                Some(Err("the status is not in `success.status`".to_owned()))
            }
            false => None,
        }
    }

    fn holds(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
        for (Header(name), rule) in &self.header {
            let values = headers.get_all(name).iter();
            let values: Vec<&[u8]> = values.map(|value| value.as_bytes()).collect();
            rule.holds(&values)
                .map_err(|why| format!("the header `{name}` {why}"))?;
        }
        match &self.body {
            None => Ok(()),
            Some(rule) => rule.holds(&[body]).map_err(|why| format!("the body {why}")),
        }
    }

    pub(super) fn otherwise(&self) -> Otherwise {
        self.otherwise
    }
}

/// A status, or a range of statuses.
#[derive(Clone, Debug)]
struct Statuses(RangeInclusive<u16>);

impl<'de> Deserialize<'de> for Statuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            One(u16),
            Text(String),
        }
        let range = match Written::deserialize(deserializer)? {
            Written::One(status) => Some(status..=status),
            Written::Text(text) => {
                let (first, last) = text.split_once('-').unwrap_or((&text, &text));
                let parse = |text: &str| text.trim().parse().ok();
                parse(first).zip(parse(last)).map(|(a, b)| a..=b)
            }
        };
        let is_status = |range: &RangeInclusive<u16>| {
            !range.is_empty() && *range.start() >= 200 && *range.end() < 600
        };
        match range.filter(is_status) {
            Some(range) => Ok(Self(range)),
            None => Err(D::Error::custom(
                "expected a status from 200 to 599, or a range such as 200-299",
            )),
        }
    }
}

impl JsonSchema for Statuses {
    fn schema_name() -> Cow<'static, str> {
        "Statuses".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer" }, { "type": "string" }] })
    }
}

/// The name of a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Header(String);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match HeaderName::try_from(&text) {
            Ok(name) => Ok(Self(name.as_str().to_owned())),
            Err(_) => Err(D::Error::custom(format!("`{text}` is not a header name"))),
        }
    }
}

impl JsonSchema for Header {
    fn schema_name() -> Cow<'static, str> {
        "Header".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<String>()
    }
}

/// A condition for a header or the body.
#[derive(Clone, Debug)]
enum Rule {
    There(bool),
    Matches(Regex),
    Not(Regex),
}

impl Rule {
    /// Checks the values of a header, or the body.
    fn holds(&self, values: &[&[u8]]) -> Result<(), String> {
        let is_matched = |regex: &Regex| values.iter().any(|value| regex.is_match(value));
        match self {
            Self::There(true) if values.is_empty() => Err("is missing".to_owned()),
            Self::There(false) if !values.is_empty() => Err("is there".to_owned()),
            Self::Matches(regex) if !is_matched(regex) => Err(format!("does not match `{regex}`")),
            Self::Not(regex) if is_matched(regex) => Err(format!("matches `{regex}`")),
            _ => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Negated {
            not: String,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            There(bool),
            Text(String),
            Not(Negated),
        }
        let written = Written::deserialize(deserializer).map_err(|_| {
            D::Error::custom("expected `true`, `false`, a regular expression or `{ not: REGEX }`")
        })?;
        let regex = |text: String| Regex::new(&text).map_err(de::Error::custom);
        Ok(match written {
            Written::There(there) => Self::There(there),
            Written::Text(text) => match text.as_str() {
                "true" => Self::There(true),
                "false" => Self::There(false),
                _ => Self::Matches(regex(text)?),
            },
            Written::Not(Negated { not }) => Self::Not(regex(not)?),
        })
    }
}

impl JsonSchema for Rule {
    fn schema_name() -> Cow<'static, str> {
        "SuccessRule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "boolean" },
            { "type": "string" },
            { "type": "object",
              "properties": { "not": { "type": "string", "description": "Regular expression that must not match." } },
              "required": ["not"], "additionalProperties": false },
        ] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn success(options: &str) -> Success {
        serde_json::from_str(options).unwrap()
    }

    fn verdict(
        rules: &Success,
        status: u16,
        headers: &[(&'static str, &str)],
        body: &str,
    ) -> Option<Result<(), String>> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        rules.verdict(status, &map, body.as_bytes())
    }

    #[test]
    fn an_answer_is_a_success_only_if_status_header_and_body_fit() {
        let rules = success(
            r#"{"status": [200, "204-206"], "header": {"X-Exception": false, "X-Id": true, "X-Mode": "^live", "X-Proxy": {"not": "cache"}},
                "body": {"not": "(?i)exception"}}"#,
        );
        let good = [("x-id", "7"), ("x-mode", "live-1"), ("x-proxy", "direct")];
        let verdict =
            |status, headers: &[(&'static str, &str)], body| verdict(&rules, status, headers, body);
        assert_eq!(verdict(200, &good, "ok"), Some(Ok(())));
        assert_eq!(verdict(205, &good, ""), Some(Ok(())));
        for (status, more, body, why) in [
            (201, None, "", "status"),
            (200, Some(("x-exception", "241")), "", "is there"),
            (200, Some(("x-mode", "test")), "", "does not match"),
            (200, Some(("x-proxy", "a cache")), "", "matches"),
            (200, None, "Code: 241. DB::Exception: memory", "the body"),
        ] {
            let mut headers = good.to_vec();
            headers.extend(more);
            let Some(Err(text)) = verdict(status, &headers, body) else {
                panic!("{why}: it is a success")
            };
            assert!(text.contains(why), "{text}");
        }
        assert!(verdict(200, &good[1..], "").unwrap().is_err());
        assert_eq!(verdict(503, &good, ""), None);
    }

    #[test]
    fn a_status_that_is_no_2xx_can_be_a_success() {
        let rules = success(r#"{"status": [409]}"#);
        assert_eq!(verdict(&rules, 409, &[], ""), Some(Ok(())));
    }

    #[test]
    fn wrong_rules_are_refused() {
        for bad in [
            r#"{"status": [99]}"#,
            r#"{"status": ["299-200"]}"#,
            r#"{"header": {"no header": true}}"#,
            r#"{"body": "("}"#,
            r#"{"body": {"none": "x"}}"#,
            r#"{"otherwise": "drop"}"#,
        ] {
            assert!(serde_json::from_str::<Success>(bad).is_err(), "{bad}");
        }
    }
}
