//! Tests of reading nodes: the values, and the problems, which are reported together.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;

use serde::Deserialize;

use crate::parse::parse;
use crate::{Node, OneOrMany, Period, Problems, Secret, Size, Source, fields};

fn node(text: &str) -> Node {
    let mut problems = Vec::new();
    let node = parse(&Source::new("t.yaml", text, 0), &mut problems);
    assert_eq!(problems, []);
    node.unwrap()
}

fn errors<T: serde::de::DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
    let problems = node(text).read::<T>().unwrap_err();
    let short: Vec<String> = problems
        .iter()
        .map(|p| {
            let help = p.help.as_deref().map(|h| format!(" ({h})"));
            format!(
                "{}:{}+{} {}{}",
                p.place.line,
                p.place.column,
                p.place.length,
                p.message,
                help.unwrap_or_default()
            )
        })
        .collect();
    short.join("\n")
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Config {
    path: PathBuf,
    listen: OneOrMany<String>,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    size: Size,
    #[serde(default)]
    idle: Option<Period>,
    #[serde(default)]
    framing: Framing,
    #[serde(default)]
    nested: Nested,
    #[serde(default)]
    flag: bool,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Nested {
    key: Option<Secret>,
    workers: Option<NonZeroU16>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Framing {
    #[default]
    Lines,
    Cri,
    Multiline {
        start: String,
        wait: Period,
    },
}

#[test]
fn a_node_reads_as_its_type() {
    let config: Config = node(
        "{ path: /a, listen: tcp://x, port: 80, size: 1KiB, idle: 5s, flag: true, labels: { a: b },\n  \
         framing: { multiline: { start: '^a', wait: 1s } }, nested: { key: abc, workers: 2 } }",
    )
    .read()
    .unwrap();
    assert_eq!(config.listen.0, ["tcp://x"]);
    assert_eq!(config.size, Size::kib(1));
    assert_eq!(config.idle, Some(Period::secs(5)));
    assert_eq!(config.nested.key.unwrap().expose(), "abc");
    let wait = Period::secs(1);
    let start = "^a".to_owned();
    assert_eq!(config.framing, Framing::Multiline { start, wait });
}

#[test]
fn one_value_or_a_list_both_read_as_a_list() {
    #[derive(Deserialize)]
    struct A {
        a: OneOrMany<u16>,
    }
    assert_eq!(node("a: 1").read::<A>().unwrap().a.0, [1]);
    assert_eq!(node("a: [1, 2]").read::<A>().unwrap().a.0, [1, 2]);
    assert!(node("a: []").read::<A>().unwrap().a.is_empty());
}

#[test]
fn all_problems_of_a_node_are_reported_together() {
    let text = "port: 99999\nlistn: x\nsize: 10\nidle: soon\nflag: yes\nframing: line\nnested:\n  keys: 1\n  workers: 0\nlabels: { a: 1, b: 2 }\n";
    assert_eq!(
        errors::<Config>(text),
        "1:7+5 `port` must be a whole number from 0 to 65535, found the number 99999\n\
         2:1+5 unknown option `listn` (did you mean `listen`?)\n\
         3:7+2 `size`: 10 has no unit: did you mean 10B or 10KiB?\n\
         4:7+4 `idle`: `soon` is not a duration: write numbers with units, such as 500ms, 10s, 1h30m or 7d\n\
         5:7+3 `flag` must be `true` or `false`, found the text `yes` (write `true`, without quotes)\n\
         6:10+4 unknown value `line` (did you mean `lines`?)\n\
         8:3+4 unknown option `keys` (did you mean `key`?)\n\
         9:12+1 `workers` must be a whole number from 1 to 65535, found the number 0\n\
         10:14+1 `a` must be a text, found the number 1 (put it in quotes: \"1\")\n\
         10:20+1 `b` must be a text, found the number 2 (put it in quotes: \"2\")\n\
         1:1+0 the option `path` is missing"
    );
}

#[test]
fn a_template_without_quotes_is_reported_with_the_quoted_form() {
    assert_eq!(
        errors::<Config>("{ path: {tag}, listen: [] }"),
        "1:9+5 `path` must be a path, found a map (a text with `{` must be in quotes: \"{tag}\")"
    );
}

#[test]
fn a_wrong_choice_is_reported_with_the_possible_ones() {
    let with =
        |framing: &str| errors::<Config>(&format!("{{ path: a, listen: b, framing: {framing} }}"));
    assert_eq!(
        with("3"),
        "1:32+1 `framing` must be one of `lines`, `cri`, `multiline`, found the number 3"
    );
    assert_eq!(
        with("multiline"),
        "1:32+9 `framing`: `multiline` needs a value: { multiline: ... }"
    );
    assert_eq!(
        with("{ lines: {}, cri: {} }"),
        "1:32+22 `framing` must be exactly one of `lines`, `cri`, `multiline`, found a map"
    );
    assert_eq!(
        with("{ multilin: {} }"),
        "1:34+8 unknown value `multilin` (did you mean `multiline`?)"
    );
    assert_eq!(
        with("{ multiline: { strat: x } }"),
        "1:47+5 unknown option `strat` (did you mean `start`?)\n\
         1:45+12 the option `wait` is missing"
    );
    assert_eq!(
        with("{ lines: 3 }"),
        "1:41+1 `lines`: `lines` takes no value"
    );
}

#[test]
fn a_list_is_not_accepted_as_a_map_of_options() {
    assert_eq!(
        errors::<Config>("{ path: a, listen: b, nested: [x] }"),
        "1:31+3 `nested` must be a map of options, found a list"
    );
}

#[test]
fn an_option_without_a_value_is_reported() {
    assert_eq!(
        errors::<Config>("path: a\nlisten: b\nport:\n"),
        "3:1+4 `port` has no value, it must be a whole number from 0 to 65535 \
         (leave the line out to get the default, if there is one)"
    );
}

#[test]
fn a_secret_of_the_wrong_type_is_not_repeated() {
    assert_eq!(
        errors::<Config>("{ path: a, listen: b, nested: { key: 123456 } }"),
        "1:38+6 `key` must be a secret text, found a number (put it in quotes)"
    );
    assert_eq!(
        errors::<Config>(
            "{ path: a, listen: b, labels: { API_KEY: 12345, X-Token: {hunter2}, b: 1 } }"
        ),
        "1:42+5 `API_KEY` must be a text, found a number (put it in quotes)\n\
         1:58+9 `X-Token` must be a text, found a map\n\
         1:72+1 `b` must be a text, found the number 1 (put it in quotes: \"1\")"
    );
    let secret = Secret::new("abc");
    assert_eq!(format!("{secret} {secret:?}"), "*** ***");
    assert_eq!(serde_json::to_string(&secret).unwrap(), "\"***\"");
}

#[test]
fn the_names_in_a_secret_map_are_not_repeated() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its errors matter")]
    struct Outer {
        token: Nested,
    }
    assert_eq!(
        errors::<Outer>("token: { hunter2: 1 }"),
        "1:10+7 unknown option `***` (possible here: `key`, `workers`)"
    );
}

#[test]
fn an_option_without_a_stand_in_does_not_hide_other_problems() {
    #[derive(Debug, Deserialize)]
    #[serde(try_from = "String")]
    struct Strict;
    impl TryFrom<String> for Strict {
        type Error = String;
        fn try_from(text: String) -> Result<Self, String> {
            Err(format!("not {text}"))
        }
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its errors matter")]
    struct Outer {
        inner: Inner,
        number: u16,
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its errors matter")]
    struct Inner {
        strict: Strict,
    }
    assert_eq!(
        errors::<Outer>("inner: { strict: x }\nnumber: y\n"),
        "1:18+1 `strict`: not x\n2:9+1 `number` must be a whole number from 0 to 65535, found the text `y`"
    );
}

#[test]
fn shared_options_are_removed_and_still_count_as_known() {
    #[derive(Debug, Deserialize)]
    struct Common {
        inputs: OneOrMany<String>,
    }
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rest {
        #[serde(default)]
        path: String,
    }
    assert_eq!(fields::<Common>(), ["inputs"]);
    let mut options = node("{ type: file, inputs: a, path: b }");
    assert_eq!(options.take("type").unwrap().1.as_text(), Some("file"));
    assert_eq!(options.take_part::<Common>().unwrap().inputs.0, ["a"]);
    assert_eq!(options.read::<Rest>().unwrap().path, "b");

    let mut options = node("{ input: a }");
    assert_eq!(
        options.take_part::<Common>().unwrap_err()[0].message,
        "the option `inputs` is missing"
    );
    let unknown = options.read::<Rest>().unwrap_err();
    assert_eq!(unknown[0].help.as_deref(), Some("did you mean `inputs`?"));
}

#[test]
fn untagged_types_are_read_and_their_problems_have_a_place() {
    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    enum Tls {
        On(bool),
        Name(#[expect(dead_code, reason = "only its errors matter")] String),
    }
    #[derive(Debug, Deserialize)]
    struct Outer {
        tls: Tls,
    }
    assert!(matches!(
        node("tls: true").read::<Outer>().unwrap().tls,
        Tls::On(true)
    ));
    assert_eq!(
        errors::<Outer>("tls: [1]"),
        "1:6+3 `tls` can be written in several ways, but not as a list"
    );
}

#[test]
fn problems_are_rendered_with_a_caret() {
    let problems = node("path: /x\nlisten: a\nprot: 1\n")
        .read::<Config>()
        .unwrap_err();
    assert_eq!(
        Problems(problems).render(false),
        "t.yaml:3:1: error: unknown option `prot`\n  3 | prot: 1\n    | ^^^^\n  help: did you mean `port`?\n"
    );
}
