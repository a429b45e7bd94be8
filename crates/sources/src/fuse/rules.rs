//! The rules. The path at which a file is opened determines the rule that the file follows, and the tag of its records.

use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use jiff::tz::TimeZone;
use millstream_record::{Time, Values};
use millstream_wire::{
    record::{Record, TimedRecord},
    template::{Renderer, Shared, Template},
};

use super::{
    cutter::{Boundaries, RecordEnd},
    exec::Exec,
    filter::Filter,
};
use crate::tagging::{Tagging, batch_template, shown};

/// The values that the templates of `tag` and `tee` may use.
pub(super) const NAMES: [&str; 2] = ["host", "path"];
/// The values of batches: [`NAMES`] and `pid`, the process that wrote the records, if that process is known.
pub(super) const VALUES: &[&str] = &[NAMES[0], NAMES[1], "pid"];

/// The largest number of parts, such as `.1` or `.gz`, in a suffix that log rotation adds to a name.
const SUFFIX_PARTS_MAX: usize = 8;

/// A checked rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub paths: GlobSet,
    /// The directories before the first wildcard of each pattern. They are created at the start.
    pub directories: Vec<String>,
    /// For each pattern, a path that it matches.
    pub samples: Vec<String>,
    pub tag: Tagging,
    pub boundaries: Arc<Boundaries>,
    pub filter: Filter,
    pub tee: Option<CopyPath>,
    pub exec: Option<Exec>,
    /// Whether the records are sent to the next channels. Otherwise they are only copied.
    pub ships: bool,
}

impl Rule {
    /// Whether the rule drops or changes records.
    pub(super) fn filters(&self) -> bool {
        !self.filter.is_empty()
    }
}

/// The paths that the file at `path` may have had before log rotation added a suffix: `app.log` for `app.log.1`. The longest path
/// comes first.
fn originals(path: &str) -> impl Iterator<Item = &str> {
    let name_at = path.rfind('/').map_or(0, |slash| slash + 1);
    let ends = path.char_indices().rev();
    ends.take_while(move |(at, _)| *at > name_at)
        .filter(|(_, char)| !char.is_alphanumeric())
        .take(SUFFIX_PARTS_MAX)
        .map(|(at, _)| &path[..at])
}

/// All rules.
#[derive(Debug)]
pub(super) struct Rules {
    pub rules: Vec<Arc<Rule>>,
    /// The rule of files that no other rule matches.
    pub default: Arc<Rule>,
    /// The names of files that are not shipped.
    pub left_out: GlobSet,
}

impl Rules {
    /// The rule of a file: the first rule that matches its path, with one exception. If log rotation renames a file, the records
    /// that are then written under the new name must not escape the filters of the original rule. So a file whose path is an
    /// original path with a suffix (`app.log.1` for `app.log`) follows the rule of the original path if that rule drops or changes
    /// records. The exception does not apply if the first rule that matches the path with the suffix does not match the original
    /// path, because that rule is meant for the new name.
    pub(super) fn of(&self, path: &str) -> Arc<Rule> {
        let named = self.first(path);
        for original in originals(path) {
            if let Some(rule) = self.first(original).filter(|rule| rule.filters())
                && named.is_none_or(|named| named.paths.is_match(original))
            {
                return rule.clone();
            }
        }
        named.unwrap_or(&self.default).clone()
    }

    /// Whether the name of a file says that it is not shipped.
    pub(super) fn leaves_out(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.left_out.is_match(name)
    }

    fn first(&self, path: &str) -> Option<&Arc<Rule>> {
        self.rules.iter().find(|rule| rule.paths.is_match(path))
    }

    /// All rules, including the default rule.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter().chain([&self.default])
    }
}

/// Where the copies of a rule lead back into the mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The copies reach the rule that makes them.
    Circle,
    /// The copies follow a rule that joins lines. Nothing would end the last record of such a copy.
    Joins,
}

impl Rules {
    /// The first rule whose copies go wrong, found with one path for each pattern. A path that behaves differently is found when a
    /// file is opened.
    pub(super) fn wrong_way(&self, mount: &Path) -> Option<(usize, Way)> {
        let rules = self.rules.iter().enumerate();
        let mut found = rules.filter_map(|(index, rule)| {
            let mut ways = rule
                .samples
                .iter()
                .filter_map(|path| self.way(rule, path, mount));
            Some((index, ways.next()?))
        });
        found.next()
    }

    fn way(&self, rule: &Arc<Rule>, path: &str, mount: &Path) -> Option<Way> {
        let mut taken = vec![rule.clone()];
        let mut path = path.to_owned();
        while let Some(copy) = taken.last()?.tee.as_ref() {
            path = inside(mount, &copy.render("", &path, "host"))?;
            let next = self.of(&path);
            if !matches!(next.boundaries.end, RecordEnd::Line | RecordEnd::Write) {
                return Some(Way::Joins);
            }
            if taken.iter().any(|rule| Arc::ptr_eq(rule, &next)) {
                return Some(Way::Circle);
            }
            taken.push(next);
        }
        None
    }
}

/// The path below the mount of a copy at `path`. `None` if the copy is not below the mount.
pub(super) fn inside(mount: &Path, path: &str) -> Option<String> {
    let absolute = std::path::absolute(path).ok()?;
    let mut plain = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    let below = plain.strip_prefix(mount).ok()?;
    Some(below.to_string_lossy().into_owned())
}

/// A path that a pattern matches.
pub(super) fn sample(pattern: &str) -> String {
    let mut path = String::new();
    let mut letters = pattern.trim_start_matches('/').chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '*' => {
                while letters.next_if_eq(&'*').is_some() {}
                path.push('x');
            }
            '?' => path.push('x'),
            '\\' => path.extend(letters.next()),
            // The first alternative, or the first letter of a class.
            '{' | '[' => {
                let close = if letter == '{' { '}' } else { ']' };
                let all: String = letters
                    .by_ref()
                    .take_while(|other| *other != close)
                    .collect();
                match letter {
                    '{' => path.push_str(all.split(',').next().unwrap_or_default()),
                    _ => path.extend(all.chars().find(|letter| !['!', '^'].contains(letter))),
                }
            }
            letter => path.push(letter),
        }
    }
    path
}

/// Compiles the patterns of a rule.
pub(super) fn patterns<'a>(paths: impl Iterator<Item = &'a str>) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for path in paths {
        let glob = GlobBuilder::new(path.trim_start_matches('/'))
            .literal_separator(true)
            .backslash_escape(true)
            .build();
        set.add(glob.map_err(|error| format!("`{path}` is not a path pattern: {}", error.kind()))?);
    }
    set.build().map_err(|error| error.to_string())
}

/// The directories before the first wildcard of a pattern. `None` if there are none.
pub(super) fn directories_of(pattern: &str) -> Option<String> {
    let (directories, _) = pattern.trim_start_matches('/').rsplit_once('/')?;
    let plain: Vec<_> = directories
        .split('/')
        .take_while(|part| !part.contains(['*', '?', '[', '{', '\\']))
        .filter(|part| !["", ".", ".."].contains(part))
        .collect();
    (!plain.is_empty()).then(|| plain.join("/"))
}

/// The values of a file: [`NAMES`].
pub(super) fn values(path: &str, host: &str) -> Values {
    let mut values = Values::new();
    values.set("host", host);
    values.set("path", &*shown(path));
    values
}

/// The path of a copy: a template, or a directory.
#[derive(Debug)]
pub(super) struct CopyPath(Template);

impl CopyPath {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        batch_template(text, &NAMES).map(Self)
    }

    /// The beginning of every path, up to the first value. The last part of it may be incomplete.
    pub(super) fn beginning(&self) -> &str {
        let text = self.0.as_str();
        let end = text.find('{').unwrap_or(text.len());
        match text[..end].rfind('/') {
            Some(slash) if end < text.len() => &text[..=slash],
            _ => &text[..end],
        }
    }

    /// The path of the copy of one file. In a template, each value becomes a single part of the path, so no value can lead out of
    /// the directory that the template names.
    pub(super) fn render(&self, node: &str, path: &str, host: &str) -> String {
        // The template names a directory: the file's whole path is appended.
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
        let record = TimedRecord {
            time: Time::now(),
            record: Record::None,
            metadata: &[],
        };
        let mut out = Vec::new();
        // The names of values in the template were checked at the start, so no value can be missing.
        let _ = Renderer::path(&self.0, TimeZone::UTC).render(shared, record, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_named_after_the_path_of_the_file() {
        let copy = |text| {
            CopyPath::new(text)
                .unwrap()
                .render("drop", "app/x.log", "h")
        };
        assert_eq!(copy("/copies/{path}"), "/copies/app_x.log");
        assert_eq!(copy("/copies/"), "/copies/app/x.log");
        assert!(CopyPath::new("{.field}").is_err());
        assert!(CopyPath::new("{pid}").unwrap_err().contains("pid"));
    }

    #[test]
    fn a_rotated_name_follows_the_rule_that_filters_the_original() {
        let rule = |path: &str, deny: &str| {
            let deny = (!deny.is_empty()).then_some(deny);
            Arc::new(Rule {
                paths: patterns([path].into_iter()).unwrap(),
                directories: Vec::new(),
                samples: Vec::new(),
                tag: Tagging::new(Some(path), &NAMES).unwrap(),
                boundaries: Arc::new(Boundaries {
                    end: super::super::cutter::RecordEnd::Line,
                    line_max: 1,
                    too_long: crate::framing::TooLong::Split,
                    cr: crate::framing::Cr::Drop,
                }),
                filter: Filter::new([].into_iter(), deny.into_iter(), [].into_iter()).unwrap(),
                tee: None,
                exec: None,
                ships: true,
            })
        };
        let rules = Rules {
            rules: vec![
                rule("audit/*.log", "secret"),
                rule("audit/*.gz", ""),
                rule("plain/*.log", ""),
                rule("**", ""),
            ],
            default: rule("", ""),
            left_out: patterns([].into_iter()).unwrap(),
        };
        let place = |path: &str| {
            let rule = rules.of(path);
            rules
                .rules
                .iter()
                .position(|other| Arc::ptr_eq(other, &rule))
        };
        for path in [
            "audit/a.log",
            "audit/a.log.1",
            "audit/a.log-20261122",
            "audit/a.log.1.xz",
        ] {
            assert_eq!(place(path), Some(0), "{path}");
        }
        // A rule that matches the path with the suffix, but not the original path, takes precedence.
        assert_eq!(place("audit/a.log.1.gz"), Some(1));
        assert_eq!(place("plain/a.log"), Some(2));
        assert_eq!(place("plain/a.log.1"), Some(3));
        assert_eq!(place("audit/other"), Some(3));
    }

    #[test]
    fn a_sample_matches_its_pattern() {
        for pattern in [
            "a/*.log",
            "**",
            "a/**/b",
            "x?[a-c].{log,txt}",
            "/a/[!b]*",
            "a\\*b",
        ] {
            let path = sample(pattern);
            let set = patterns([pattern].into_iter()).unwrap();
            assert!(
                set.is_match(&path) || pattern.contains('!'),
                "{pattern}: {path}"
            );
        }
    }

    #[test]
    fn a_copy_is_inside_the_mount_however_it_is_named() {
        let mount = Path::new("/mnt/logs");
        let inside = |path| inside(mount, path);
        assert_eq!(inside("/mnt/logs/a/b"), Some("a/b".to_owned()));
        assert_eq!(inside("/mnt/./x/../logs//a"), Some("a".to_owned()));
        assert_eq!(inside("/mnt/logs/../a"), None);
        assert_eq!(inside("/mnt/logs2/a"), None);
    }

    #[test]
    fn the_directories_before_a_wildcard_are_created_at_the_start() {
        assert_eq!(directories_of("audit/*.log"), Some("audit".to_owned()));
        assert_eq!(directories_of("/a/b/**/c"), Some("a/b".to_owned()));
        assert_eq!(directories_of("*/x"), None);
        assert_eq!(directories_of("x.log"), None);
        assert_eq!(directories_of("../x/y"), Some("x".to_owned()));
    }
}
