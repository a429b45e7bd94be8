//! Which rule a file follows, and what it is tagged with: decided by its path when it is opened.

use std::{path::Path, sync::Arc};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use jiff::tz::TimeZone;
use millstream_record::{Time, Values};
use millstream_wire::{
    record::{Record, TimedRecord},
    template::{Renderer, Shared, Template},
};

use super::{cutter::How, filter::Filter};
use crate::tagging::{Tagging, batch_template};

/// Names that a tag and a `tee` can ask for.
pub(super) const NAMES: [&str; 2] = ["host", "path"];
/// The same with what is known of most records: the process that wrote them.
pub(super) const VALUES: &[&str] = &[NAMES[0], NAMES[1], "pid"];

/// A suffix that rotation adds has at most this many parts.
const SUFFIX_PARTS_MAX: usize = 8;

/// A checked rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub paths: GlobSet,
    /// Directories that the patterns name without a wildcard: they are there from the start.
    pub directories: Vec<String>,
    pub tag: Tagging,
    pub how: Arc<How>,
    pub filter: Filter,
    pub tee: Option<Text>,
    pub exec: Option<Vec<String>>,
}

impl Rule {
    /// Whether something that is written does not go through, or not as it is.
    pub(super) fn filters(&self) -> bool {
        !self.filter.is_empty()
    }
}

/// The paths that `path` extends by a suffix, as a rotated name does; the longest first.
fn originals(path: &str) -> impl Iterator<Item = &str> {
    let name_at = path.rfind('/').map_or(0, |slash| slash + 1);
    let cuts = path.char_indices().rev();
    cuts.take_while(move |(at, _)| *at > name_at)
        .filter(|(_, char)| !char.is_alphanumeric())
        .take(SUFFIX_PARTS_MAX)
        .map(|(at, _)| &path[..at])
}

/// All rules, and the one for files that none of them names.
#[derive(Debug)]
pub(super) struct Rules {
    pub rules: Vec<Arc<Rule>>,
    pub rest: Arc<Rule>,
}

impl Rules {
    /// The rule of a file: the first that matches. What a rule filters must not leave by another one under a rotated name: where the
    /// path extends one (`app.log.1`) whose rule filters, and no rule names this path apart from that one, it follows that rule.
    pub(super) fn of(&self, path: &str) -> Arc<Rule> {
        let named = self.first(path);
        for original in originals(path) {
            if let Some(rule) = self.first(original).filter(|rule| rule.filters())
                && named.is_none_or(|named| named.paths.is_match(original))
            {
                return rule.clone();
            }
        }
        named.unwrap_or(&self.rest).clone()
    }

    fn first(&self, path: &str) -> Option<&Arc<Rule>> {
        self.rules.iter().find(|rule| rule.paths.is_match(path))
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter().chain([&self.rest])
    }
}

/// The patterns of a rule.
pub(super) fn patterns<'a>(paths: impl Iterator<Item = &'a str>) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for path in paths {
        let glob = GlobBuilder::new(path.trim_start_matches('/'))
            .literal_separator(true)
            .backslash_escape(true)
            .build();
        set.add(glob.map_err(|error| format!("`{path}` is no path pattern: {}", error.kind()))?);
    }
    set.build().map_err(|error| error.to_string())
}

/// The directories that stand in front of the first wildcard of a pattern.
pub(super) fn directories_of(pattern: &str) -> Option<String> {
    let (directories, _) = pattern.trim_start_matches('/').rsplit_once('/')?;
    let plain: Vec<_> = directories
        .split('/')
        .take_while(|part| !part.contains(['*', '?', '[', '{', '\\']))
        .filter(|part| !["", ".", ".."].contains(part))
        .collect();
    (!plain.is_empty()).then(|| plain.join("/"))
}

/// What is known of a file: [`NAMES`].
pub(super) fn values(path: &str, host: &str) -> Values {
    let mut values = Values::new();
    values.set("host", host);
    values.set("path", path);
    values
}

/// The path of a copy: a template of what is known of a file.
#[derive(Debug)]
pub(super) struct Text(Template);

impl Text {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        batch_template(text, &NAMES).map(Self)
    }

    /// Values are parts of a path and cannot leave their directory.
    pub(super) fn render(&self, node: &str, path: &str, host: &str) -> String {
        // The directory is the template's own, so the file's path goes on in it.
        if self.0.as_str().ends_with('/') {
            return Path::new(self.0.as_str())
                .join(path)
                .to_string_lossy()
                .into_owned();
        }
        let shared = Shared {
            tag: node,
            values: &values(path, host),
        };
        let event = TimedRecord {
            time: Time::now(),
            record: Record::None,
        };
        let mut out = Vec::new();
        // All names were checked, so no value can be missing.
        let _ = Renderer::path(&self.0, TimeZone::UTC).render(shared, event, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_named_after_the_path() {
        let copy = |text| Text::new(text).unwrap().render("drop", "app/x.log", "h");
        assert_eq!(copy("/copies/{path}"), "/copies/app_x.log");
        assert_eq!(copy("/copies/"), "/copies/app/x.log");
        assert!(Text::new("{.field}").is_err());
        assert!(Text::new("{pid}").unwrap_err().contains("pid"));
    }

    #[test]
    fn a_rotated_name_follows_the_rule_that_filters_the_original() {
        let rule = |path: &str, deny: &str| {
            let deny = (!deny.is_empty()).then_some(deny);
            Arc::new(Rule {
                paths: patterns([path].into_iter()).unwrap(),
                directories: Vec::new(),
                tag: Tagging::new(Some(path), &NAMES).unwrap(),
                how: Arc::new(How {
                    end: super::super::cutter::End::Line,
                    line_max: 1,
                    too_long: crate::framing::TooLong::Split,
                }),
                filter: Filter::new([].into_iter(), deny.into_iter(), [].into_iter()).unwrap(),
                tee: None,
                exec: None,
            })
        };
        let rules = Rules {
            rules: vec![
                rule("audit/*.log", "secret"),
                rule("audit/*.gz", ""),
                rule("plain/*.log", ""),
                rule("**", ""),
            ],
            rest: rule("", ""),
        };
        let place = |path: &str| {
            let found = rules.of(path);
            rules
                .rules
                .iter()
                .position(|rule| Arc::ptr_eq(rule, &found))
        };
        for path in [
            "audit/a.log",
            "audit/a.log.1",
            "audit/a.log-20261122",
            "audit/a.log.1.xz",
        ] {
            assert_eq!(place(path), Some(0), "{path}");
        }
        // A rule that names it, and not the original, is meant.
        assert_eq!(place("audit/a.log.1.gz"), Some(1));
        assert_eq!(place("plain/a.log"), Some(2));
        assert_eq!(place("plain/a.log.1"), Some(3));
        assert_eq!(place("audit/other"), Some(3));
    }

    #[test]
    fn directories_of_patterns_are_known() {
        assert_eq!(directories_of("audit/*.log"), Some("audit".to_owned()));
        assert_eq!(directories_of("/a/b/**/c"), Some("a/b".to_owned()));
        assert_eq!(directories_of("*/x"), None);
        assert_eq!(directories_of("x.log"), None);
        assert_eq!(directories_of("../x/y"), Some("x".to_owned()));
    }
}
