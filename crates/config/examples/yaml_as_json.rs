//! Prints the value of a YAML file as the configuration reader understands it, as JSON. `tests/suites.py` compares it with the
//! results of yaml-test-suite.

use std::{env, fs, io::Write, process::ExitCode};

use millstream_config::{Node, Value};

fn main() -> ExitCode {
    let Some(path) = env::args().nth(1) else {
        return failed("usage: yaml_as_json FILE");
    };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return failed(&format!("{path}: {error}")),
    };
    let printed = match Node::parse(&path, &text) {
        Ok(node) => writeln!(std::io::stdout(), "{}", json(&node)),
        Err(problems) => return failed(&problems.render(false)),
    };
    printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null | Value::Invalid => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Integer(value) => serde_json::Number::from_i128(*value)
            .map_or_else(|| value.to_string().into(), serde_json::Value::Number),
        Value::Float(value) => (*value).into(),
        Value::Text(text) => text.text.as_str().into(),
        Value::List(nodes) => nodes.iter().map(json).collect(),
        Value::Map(map) => map
            .entries
            .iter()
            .map(|(key, node)| (key.text.clone(), json(node)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}

fn failed(why: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{why}");
    ExitCode::FAILURE
}
