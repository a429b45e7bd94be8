//! The age of the oldest record that a node has not settled, from the answer of `/status`: one number for `status`, `top` and the page.

use std::time::Duration;

use serde_json::Value;

/// Returns the age, of a channel that of its slowest consumer. `None`: nothing waits, or the node does not measure it.
pub fn of(node: &Value, status: &Value) -> Option<Duration> {
    let meter = |name: &str| node["meters"][name].as_u64().filter(|it| *it > 0);
    let seconds = match node["section"].as_str() {
        Some("channel") => {
            let received = meter("oldest_record_timestamp_seconds")?;
            status["time"].as_u64()?.saturating_sub(received)
        }
        _ => meter("unsettled_age_seconds")?,
    };
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_channel_and_its_sink_show_the_same_age() {
        let node = |section: &str, meter: &str, value: u64| json!({ "section": section, "meters": { meter: value } });
        let status = json!({ "time": 1000 });
        let age = |node| of(&node, &status).map(|age| age.as_secs());
        assert_eq!(
            age(node("channel", "oldest_record_timestamp_seconds", 990)),
            Some(10)
        );
        assert_eq!(
            age(node("channel", "oldest_record_timestamp_seconds", 0)),
            None
        );
        assert_eq!(age(node("sink", "unsettled_age_seconds", 10)), Some(10));
        assert_eq!(age(node("source", "records_sent", 10)), None);
    }
}
