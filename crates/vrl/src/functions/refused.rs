//! Functions that are refused, each with its reason and what to use instead.

use vrl::{
    compiler::{
        Function,
        function::{ArgumentList, Compiled, Example, FunctionCompileContext, Parameter},
        state::TypeState,
        value::kind,
    },
    diagnostic::{DiagnosticMessage, Label, Note, Span},
};

const CLOCK: &str = "it takes the year from the clock, so a replay could differ; use parse_regex and parse_timestamp with the year of %time";
const BACKTRACKING: &str = "grok patterns backtrack, so one record could stop the pipeline; use parse_regex, or the processor `parse` with `as: regex`";
const ENVIRONMENT: &str =
    "the environment is substituted in the configuration: write ${NAME} in the text of the program";
const NETWORK: &str =
    "a program must not wait for the network; use the processor `exec` for look-ups";
const TABLES: &str = "there are no enrichment tables; use the processor `exec` for look-ups";
const SECRETS: &str =
    "there are no secrets of an event; use ${NAME} or ${file:PATH} in the configuration";
const CRYPTO: &str = "it is not built in; use the processor `exec`";
const FILES: &str = "a program must not read files; use the processor `exec`";
const VECTOR: &str = "it exists in Vector only, and has no effect here";

/// Functions of the crate `vrl` that are refused.
const REFUSED: &[(&str, &str)] = &[
    (
        "decode_lz4",
        "it allocates as much as the data announces; use the processor `exec`",
    ),
    (
        "log",
        "a program must not log, because it runs for every record; put the text into a field",
    ),
    ("parse_grok", BACKTRACKING),
    ("parse_groks", BACKTRACKING),
    ("parse_klog", CLOCK),
];

/// Returns the reason why a function of the crate `vrl` is refused, or `None` if it is allowed.
pub(super) fn of(name: &str) -> Option<&'static str> {
    let (_, why) = REFUSED.iter().find(|(refused, _)| *refused == name)?;
    Some(why)
}

/// A function that is not compiled in, and is refused with a reason.
#[derive(Clone, Debug)]
pub(super) struct Absent {
    pub name: &'static str,
    why: &'static str,
    parameters: &'static [Parameter],
}

/// An optional parameter that takes any value.
const fn any(name: &'static str) -> Parameter {
    Parameter::optional(name, kind::ANY, "")
}

const fn absent(name: &'static str, why: &'static str, parameters: &'static [Parameter]) -> Absent {
    Absent {
        name,
        why,
        parameters,
    }
}

const VALUE: &[Parameter] = &[any("value"), any("variant"), any("algorithm"), any("seed")];
const CIPHER: &[Parameter] = &[
    any("plaintext"),
    any("ciphertext"),
    any("algorithm"),
    any("key"),
    any("iv"),
];
const ADDRESS: &[Parameter] = &[any("ip"), any("key"), any("mode")];
const TABLE: &[Parameter] = &[
    any("table"),
    any("condition"),
    any("select"),
    any("case_sensitive"),
    any("wildcard"),
];
const KEY: &[Parameter] = &[any("key"), any("secret")];
const SCHEMA: &[Parameter] = &[
    any("value"),
    any("schema_definition"),
    any("ignore_unknown_formats"),
];
const PROTO: &[Parameter] = &[
    any("value"),
    any("desc_file"),
    any("message_type"),
    any("allow_lossy_string_coercion"),
];

/// Functions that only Vector has, and functions of the crate `vrl` whose Cargo features are disabled in this build.
pub(super) const ABSENT: &[Absent] = &[
    absent("get_env_var", ENVIRONMENT, &[any("name")]),
    absent(
        "get_hostname",
        "the machine's name differs from host to host; use %host, where the record was written",
        &[],
    ),
    absent(
        "get_timezone_name",
        "the machine's zone differs from host to host; name the zone in the program",
        &[],
    ),
    absent(
        "dns_lookup",
        NETWORK,
        &[any("value"), any("qtype"), any("class"), any("options")],
    ),
    absent("reverse_dns", NETWORK, &[any("value")]),
    absent(
        "http_request",
        NETWORK,
        &[
            any("url"),
            any("method"),
            any("headers"),
            any("body"),
            any("http_proxy"),
            any("https_proxy"),
            any("redact_headers"),
        ],
    ),
    absent("get_enrichment_table_record", TABLES, TABLE),
    absent("find_enrichment_table_records", TABLES, TABLE),
    absent("get_secret", SECRETS, KEY),
    absent("set_secret", SECRETS, KEY),
    absent("remove_secret", SECRETS, KEY),
    absent(
        "set_semantic_meaning",
        VECTOR,
        &[any("target"), any("meaning")],
    ),
    absent("encode_proto", FILES, PROTO),
    absent("parse_proto", FILES, PROTO),
    absent("validate_json_schema", FILES, SCHEMA),
    absent(
        "parse_etld",
        FILES,
        &[any("value"), any("plus_parts"), any("psl")],
    ),
    absent("encrypt", CRYPTO, CIPHER),
    absent("decrypt", CRYPTO, CIPHER),
    absent("encrypt_ip", CRYPTO, ADDRESS),
    absent("decrypt_ip", CRYPTO, ADDRESS),
    absent("crc", CRYPTO, VALUE),
    absent(
        "hmac",
        CRYPTO,
        &[any("value"), any("key"), any("algorithm")],
    ),
    absent("md5", CRYPTO, VALUE),
    absent("seahash", CRYPTO, VALUE),
    absent("sha1", CRYPTO, VALUE),
    absent("sha2", CRYPTO, VALUE),
    absent("sha3", CRYPTO, VALUE),
    absent("xxhash", CRYPTO, VALUE),
];

impl Function for Absent {
    fn identifier(&self) -> &'static str {
        self.name
    }

    fn usage(&self) -> &'static str {
        self.why
    }

    fn category(&self) -> &'static str {
        "System"
    }

    fn return_kind(&self) -> u16 {
        kind::ANY
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.parameters
    }

    fn compile(
        &self,
        _state: &TypeState,
        context: &mut FunctionCompileContext,
        _arguments: ArgumentList,
    ) -> Compiled {
        Err(error(self.name, self.why, context.span()))
    }
}

/// Returns the error for a call of a refused function. `why` is the reason and, after `; `, an alternative.
pub(super) fn error(
    name: &'static str,
    why: &'static str,
    span: Span,
) -> Box<dyn DiagnosticMessage> {
    let (reason, instead) = why.split_once("; ").unwrap_or((why, ""));
    Box::new(Refusal {
        text: format!("`{name}` cannot be used here"),
        reason,
        instead,
        span,
    })
}

#[derive(Debug)]
struct Refusal {
    text: String,
    reason: &'static str,
    instead: &'static str,
    span: Span,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

impl DiagnosticMessage for Refusal {
    /// 0, because this error has no code in VRL.
    fn code(&self) -> usize {
        0
    }

    fn labels(&self) -> Vec<Label> {
        vec![Label::primary(self.reason, self.span)]
    }

    fn notes(&self) -> Vec<Note> {
        match self.instead {
            "" => Vec::new(),
            instead => vec![Note::Hint(instead.to_owned())],
        }
    }
}
