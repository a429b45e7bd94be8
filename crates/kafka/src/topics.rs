//! Names of topics: validity, and lists of names and patterns.

use regex::RegexSet;

use crate::{Error, Kind};

/// The longest topic name that a broker accepts, in bytes.
const TOPIC_BYTES_MAX: usize = 249;

/// The error in a topic's name, if any. Kafka accepts 1 to 249 of the characters `a-z A-Z 0-9 . _ -`, except `.` and `..`.
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
    (!name.iter().all(good)).then_some("only letters, digits, `.`, `_` and `-` are allowed in it")
}

/// Names and patterns of topics.
pub struct Topics {
    names: Vec<String>,
    patterns: RegexSet,
}

impl Topics {
    /// Parses a list in which patterns begin with `^`.
    ///
    /// # Errors
    ///
    /// An invalid pattern or name.
    pub fn new(list: &[String]) -> Result<Self, Error> {
        let (patterns, names): (Vec<String>, Vec<String>) =
            list.iter().cloned().partition(|text| text.starts_with('^'));
        if let Some((name, fault)) = names
            .iter()
            .find_map(|name| Some((name, topic_fault(name.as_bytes())?)))
        {
            let text = format!("`{name}` is not a valid topic name: {fault}");
            return Err(Error::new(Kind::Settings, text));
        }
        let patterns = RegexSet::new(patterns);
        let patterns = patterns.map_err(|error| Error::new(Kind::Settings, error.to_string()))?;
        Ok(Self { names, patterns })
    }

    /// Whether the list includes this topic.
    pub fn takes(&self, topic: &str) -> bool {
        self.names.iter().any(|name| name == topic) || self.patterns.is_match(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_topic_names_are_rejected() {
        for good in ["a", "logs.web-1_x", "A9", "..."] {
            assert_eq!(topic_fault(good.as_bytes()), None, "{good}");
        }
        let long = "x".repeat(250);
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a:b", "a\n", &long] {
            assert!(topic_fault(bad.as_bytes()).is_some(), "{bad}");
        }
    }

    #[test]
    fn names_match_exactly_and_patterns_match_as_regular_expressions() {
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
