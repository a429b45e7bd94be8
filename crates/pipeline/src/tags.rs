//! Tag patterns: which batches a consumer takes.
//!
//! `*` matches one part between dots. `**` matches any number of parts, including none: `web.**` matches `web`, as in Fluentd. `{a,b}`
//! matches either alternative. A leading `!` excludes the tags that the rest of the pattern matches. A list of patterns takes a tag if
//! both of the following hold: no excluding pattern matches the tag, and an including pattern matches it or the list has no including
//! pattern.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The option `tags` of a consumer, or of several steps that a batch passes one after the other.
#[derive(Clone, Debug)]
pub struct TagFilter(Vec<Patterns>);

#[derive(Clone, Debug)]
struct Patterns {
    /// As written in the configuration.
    texts: Vec<String>,
    includes: GlobSet,
    excludes: GlobSet,
    takes_rest: bool,
}

impl TagFilter {
    /// Reads patterns as written in the configuration; an error names the invalid pattern.
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
            // Path globs work on tags once dots and slashes are swapped: dots separate the parts of a tag as slashes separate the parts of
            // a path.
            let glob = GlobBuilder::new(&with_parent(&exchange(glob)))
                .literal_separator(true)
                .empty_alternates(true)
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

    /// Whether the consumer takes batches with this tag.
    pub fn takes(&self, tag: &str) -> bool {
        let tag = exchange(tag);
        self.0.iter().all(|patterns| {
            (patterns.takes_rest || patterns.includes.is_match(&tag))
                && !patterns.excludes.is_match(&tag)
        })
    }

    /// Combines two filters. The result takes the tags that both filters take. `None` takes all tags.
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

/// Two filters are equal if their patterns are written the same.
impl PartialEq for TagFilter {
    fn eq(&self, other: &Self) -> bool {
        let texts = |filter: &Self| {
            let lists = filter.0.iter();
            lists
                .map(|patterns| patterns.texts.clone())
                .collect::<Vec<_>>()
        };
        texts(self) == texts(other)
    }
}

impl Eq for TagFilter {}

/// Shows the patterns as written in the configuration: `web.**, !web.debug`.
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

/// Returns a path glob in which every alternative that ends in `/**` also matches the path before the slash: `web/**` becomes
/// `web{,/**}`.
fn with_parent(glob: &str) -> String {
    let (mut out, mut depth, mut rest) = (String::new(), 0usize, glob);
    while let Some(letter) = rest.chars().next() {
        let ends =
            |behind: &&str| behind.is_empty() || (depth > 0 && behind.starts_with([',', '}']));
        if let Some(behind) = rest.strip_prefix("/**").filter(ends) {
            out.push_str("{,/**}");
            rest = behind;
            continue;
        }
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        out.push(letter);
        rest = &rest[letter.len_utf8()..];
    }
    out
}

/// Swaps dots and slashes.
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
    fn two_stars_at_the_end_take_the_parent_too() {
        for tag in ["web", "web.a", "web.a.b"] {
            assert!(takes(&["web.**"], tag), "{tag}");
            assert!(takes(&["{db.**,web.**}"], tag), "{tag}");
            assert!(takes(&["{db,web}.**"], tag), "{tag}");
            assert!(!takes(&["**", "!web.**"], tag), "{tag}");
        }
        assert!(takes(&["web.**", "db"], "db"));
        assert!(takes(&["web.**.log"], "web.log"));
        for tag in ["webs", "webs.a", "my.web", ""] {
            assert!(!takes(&["web.**"], tag), "{tag}");
        }
        assert!(!takes(&["web.*"], "web"));
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
    fn an_invalid_pattern_is_named_in_the_error() {
        assert!(TagFilter::new(["a{b"]).unwrap_err().contains("a{b"));
    }
}
