//! Names of topics: which a broker takes, and which a list of names and patterns means.

use regex::RegexSet;

use crate::{Error, Kind};

/// The longest name of a topic that a broker takes.
const TOPIC_BYTES_MAX: usize = 249;

/// What is wrong with the name of a topic, if anything: Kafka takes 1 to 249 of `a-z A-Z 0-9 . _ -`, but not `.` or `..`.
pub fn topic_fault(name: &[u8]) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > TOPIC_BYTES_MAX {
        return Some("it has more than 249 characters");
    }
    if name == b"." || name == b".." {
        return Some("it is `.` or `..`");
    }
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (!name.iter().all(good)).then_some("only letters, digits, `.`, `_` and `-` may stand in it")
}

/// Names and patterns of topics.
pub struct Topics {
    names: Vec<String>,
    patterns: RegexSet,
}

impl Topics {
    /// Of a list in which what begins with `^` is a pattern.
    ///
    /// # Errors
    /// A pattern that is none, a name that cannot be.
    pub fn new(list: &[String]) -> Result<Self, Error> {
        let (patterns, names): (Vec<String>, Vec<String>) =
            list.iter().cloned().partition(|text| text.starts_with('^'));
        if let Some((name, fault)) = names
            .iter()
            .find_map(|name| Some((name, topic_fault(name.as_bytes())?)))
        {
            let text = format!("`{name}` is no name of a topic: {fault}");
            return Err(Error::new(Kind::Settings, text));
        }
        let patterns = RegexSet::new(patterns);
        let patterns = patterns.map_err(|error| Error::new(Kind::Settings, error.to_string()))?;
        Ok(Self { names, patterns })
    }

    /// Whether this topic is meant.
    pub fn takes(&self, topic: &str) -> bool {
        self.names.iter().any(|name| name == topic) || self.patterns.is_match(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_broker_refuses_are_known() {
        for good in ["a", "logs.web-1_x", "A9", "..."] {
            assert_eq!(topic_fault(good.as_bytes()), None, "{good}");
        }
        let long = "x".repeat(250);
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a:b", "a\n", &long] {
            assert!(topic_fault(bad.as_bytes()).is_some(), "{bad}");
        }
    }

    #[test]
    fn names_are_taken_as_they_are_and_patterns_as_patterns() {
        let list = ["logs".to_owned(), "^web[.].*".to_owned()];
        let topics = Topics::new(&list).unwrap();
        for (topic, taken) in [
            ("logs", true),
            ("logs2", false),
            ("web.a", true),
            ("web", false),
        ] {
            assert_eq!(topics.takes(topic), taken, "{topic}");
        }
        assert!(Topics::new(&["^(".to_owned()]).is_err());
        assert!(Topics::new(&["a b".to_owned()]).is_err());
    }
}
