//! The verdict on an instance, as `status` and `top` print it: healthy or not, the problems with their consequences, and when channels
//! will be full.

use std::time::Duration;

use serde_json::Value;

use crate::page::period;

/// A line about a problem or one of its consequences.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The node, its state, and for how long.
    pub head: String,
    /// The reason.
    pub why: String,
}

/// The verdict in a word, in capital letters unless everything is well.
pub fn word(status: &Value) -> String {
    match text(&status["verdict"]) {
        "healthy" => "healthy".to_owned(),
        other => other.to_uppercase(),
    }
}

/// The problems, each followed by its consequences, then the conditions of the process itself.
pub fn lines(status: &Value) -> Vec<Line> {
    let mut lines = Vec::new();
    for problem in list(&status["problems"]) {
        lines.push(line("", "node", problem));
        let below = list(&problem["consequences"]);
        lines.extend(below.map(|it| line("  so ", "node", it)));
    }
    let own = list(&status["conditions"]);
    lines.extend(own.map(|it| line("", "what", it)));
    lines
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn line(begin: &str, name: &str, it: &Value) -> Line {
    let held = it["seconds"].as_u64().map_or(String::new(), |seconds| {
        format!(" for {}", period(Duration::from_secs(seconds)))
    });
    let (name, state) = (text(&it[name]), text(&it["state"]));
    Line {
        head: format!("{begin}{name} {state}{held}: "),
        why: text(&it["why"]).to_owned(),
    }
}

/// When a channel or its disk will be full: `14m`, or `14m (disk)`. Empty if neither fills up.
pub fn full_in(node: &Value) -> String {
    let full = &node["full_in"];
    let Some(seconds) = full["seconds"].as_u64() else {
        return String::new();
    };
    // It is an estimate: two digits are enough.
    let rounded = match seconds {
        0..120 => seconds,
        120..7200 => seconds / 60 * 60,
        _ => seconds / 3600 * 3600,
    };
    let time = period(Duration::from_secs(rounded));
    match text(&full["of"]) {
        "disk" => format!("{time} (disk)"),
        _ => time,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn causes_come_before_their_consequences_and_the_process_comes_last() {
        let status = json!({
            "verdict": "unhealthy",
            "problems": [{ "node": "out", "state": "failed", "why": "damaged", "consequences": [
                { "node": "kept", "state": "blocked", "seconds": 75, "why": "full" }] }],
            "conditions": [{ "what": "log", "state": "losing", "seconds": 1, "why": "stderr hangs" }],
        });
        let shown: Vec<_> = lines(&status)
            .into_iter()
            .map(|line| line.head + &line.why)
            .collect();
        let expected = [
            "out failed: damaged",
            "  so kept blocked for 1m15s: full",
            "log losing for 1s: stderr hangs",
        ];
        assert_eq!(shown, expected);
        assert_eq!(word(&status), "UNHEALTHY");
        assert_eq!(word(&json!({ "verdict": "healthy" })), "healthy");
    }

    #[test]
    fn the_time_until_a_channel_is_full_is_rounded() {
        let full = |seconds: u64, of: &str| {
            full_in(&json!({ "full_in": { "seconds": seconds, "of": of } }))
        };
        assert_eq!(full(75, "channel"), "1m15s");
        assert_eq!(full(881, "channel"), "14m");
        assert_eq!(full(7900, "disk"), "2h (disk)");
        assert_eq!(full_in(&json!({})), "");
    }
}
