//! Tag patterns: which batches a consumer takes.
//!
//! `*` stands for one part between dots, `**` for any number of parts (also none), `{a,b}` for either, a leading `!`
//! excludes. A list takes a tag if any including pattern matches it (none given: all) and no excluding one does.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The option `tags` of a consumer, or of several one behind the other.
#[derive(Clone, Debug)]
pub struct TagFilter(Vec<Patterns>);

#[derive(Clone, Debug)]
struct Patterns {
    /// As they stand in the configuration.
    texts: Vec<String>,
    includes: GlobSet,
    excludes: GlobSet,
    takes_rest: bool,
}

impl TagFilter {
    /// From patterns as they stand in the configuration; the error names the pattern at fault.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let (mut includes, mut excludes) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        let (mut takes_rest, mut texts) = (true, Vec::new());
        for pattern in patterns {
            texts.push(pattern.to_owned());
            let (set, glob) = match pattern.strip_prefix('!') {
                Some(rest) => (&mut excludes, rest),
                None => {
                    takes_rest = false;
                    (&mut includes, pattern)
                }
            };
            // Dots part a tag as slashes part a path, so the globs of paths serve with the two exchanged.
            let glob = GlobBuilder::new(&exchange(glob))
                .literal_separator(true)
                .build();
            set.add(
                glob.map_err(|error| format!("`{pattern}` is no tag pattern: {}", error.kind()))?,
            );
        }
        let build = |set: GlobSetBuilder| set.build().map_err(|error| error.to_string());
        Ok(Self(vec![Patterns {
            texts,
            includes: build(includes)?,
            excludes: build(excludes)?,
            takes_rest,
        }]))
    }

    /// Whether a batch with this tag is for the consumer.
    pub fn takes(&self, tag: &str) -> bool {
        let tag = exchange(tag);
        self.0.iter().all(|patterns| {
            (patterns.takes_rest || patterns.includes.is_match(&tag))
                && !patterns.excludes.is_match(&tag)
        })
    }

    /// Takes what both take; None takes all.
    pub fn both(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(Self(mut one)), Some(Self(other))) => {
                one.extend(other);
                Some(Self(one))
            }
            (one, other) => one.or(other),
        }
    }
}

/// The patterns as they stand in the configuration: `web.**, !web.debug`.
impl fmt::Display for TagFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists: Vec<_> = self
            .0
            .iter()
            .map(|patterns| patterns.texts.join(", "))
            .collect();
        f.write_str(&lists.join(" and "))
    }
}

/// Dots for slashes and slashes for dots.
fn exchange(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c == '.' {
                '/'
            } else if c == '/' {
                '.'
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::TagFilter;

    fn takes(patterns: &[&str], tag: &str) -> bool {
        TagFilter::new(patterns.iter().copied()).unwrap().takes(tag)
    }

    #[test]
    fn one_star_is_one_part_and_two_are_any_number() {
        assert!(takes(&["web.*"], "web.a"));
        assert!(!takes(&["web.*"], "web.a.b"));
        assert!(takes(&["web.**"], "web.a.b"));
        assert!(takes(&["**"], "anything.at.all"));
        assert!(takes(&["drop.**"], "drop.a/b.log"));
    }

    #[test]
    fn braces_choose_and_an_exclamation_mark_excludes() {
        assert!(takes(&["{web,app}.*"], "app.x"));
        assert!(!takes(&["!web.**"], "web.a"));
        assert!(takes(&["!web.**"], "app.a"));
        assert!(!takes(&["**", "!web.**"], "web.a"));
    }

    #[test]
    fn a_filter_is_shown_as_it_was_written() {
        let one = TagFilter::new(["web.**", "!web.debug"]).unwrap();
        let two = TagFilter::new(["app"]).unwrap();
        assert_eq!(
            TagFilter::both(Some(one), Some(two)).unwrap().to_string(),
            "web.**, !web.debug and app"
        );
    }

    #[test]
    fn a_pattern_that_is_none_is_named() {
        assert!(TagFilter::new(["a{b"]).unwrap_err().contains("a{b"));
    }
}
