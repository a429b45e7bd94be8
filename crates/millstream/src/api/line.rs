//! The status as one log line.

use serde_json::Value;

use super::order::in_flow;

/// Returns the line. It has the verdict, then each node with its state and its numbers of records, in the
/// direction of the flow.
pub fn of(status: &Value) -> String {
    let verdict = status["verdict"].as_str().unwrap_or("?");
    let nodes: Vec<String> = in_flow(status).into_iter().map(words).collect();
    let up = &status["uptime_seconds"];
    format!("status: {verdict}, up {up} s; {}", nodes.join("; "))
}

/// Returns `NAME (TYPE) STATE, in N, out N`, without the numbers that the node does not count.
fn words(node: &Value) -> String {
    let text = |name: &str| node[name].as_str().unwrap_or("?").to_owned();
    let mut out = format!("{} ({}) {}", text("name"), text("type"), text("state"));
    for (word, meters) in [
        ("in", &["records_received"][..]),
        ("out", &["records_sent", "records_settled"][..]),
    ] {
        let counted = meters
            .iter()
            .filter_map(|meter| node["meters"][meter].as_u64());
        if let Some(records) = counted.max() {
            out.push_str(&format!(", {word} {records}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::of;

    #[test]
    fn nodes_are_listed_in_the_direction_of_the_flow() {
        let status = json!({
            "verdict": "unhealthy",
            "uptime_seconds": 7,
            "nodes": [
                { "name": "out", "section": "sink", "type": "file", "state": "retrying",
                  "meters": { "records_received": 5, "records_settled": 3 } },
                { "name": "in", "section": "source", "type": "tail", "state": "running", "meters": { "records_sent": 5 } },
            ],
        });
        let line =
            "status: unhealthy, up 7 s; in (tail) running, out 5; out (file) retrying, in 5, out 3";
        assert_eq!(of(&status), line);
    }
}
