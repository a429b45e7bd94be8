//! Filters and rewrites records: `allow`, `deny` and `rewrite` of a rule.
//!
//! Expressions see a line without its line end (`\n` or `\r\n`); the line end is appended afterwards. Nothing is allocated per
//! line.

use regex::bytes::{CaptureLocations, Regex};

/// The filters of a rule.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// The first one that matches a record lets it through, after its replacement.
    allow: Vec<(Regex, Option<Vec<Part>>)>,
    deny: Vec<Regex>,
    rewrite: Vec<(Regex, Vec<Part>)>,
}

/// A piece of a replacement.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Group(usize),
}

/// The result of filtering lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filtered {
    /// The lines that passed the filter, after rewriting.
    pub text: Vec<u8>,
    /// The number of lines that passed the filter.
    pub left: u32,
    /// The number of lines that were dropped.
    pub dropped: u32,
}

fn regex(text: &str) -> Result<Regex, String> {
    // The regex crate limits the compiled size and runs in linear time.
    let pattern = millstream_wire::ruby::without_slashes(text)?;
    Regex::new(&pattern).map_err(|error| format!("`{text}` is not a regular expression: {error}"))
}

impl Filter {
    pub(super) fn new<'a>(
        allow: impl Iterator<Item = (&'a str, Option<&'a str>)>,
        deny: impl Iterator<Item = &'a str>,
        rewrite: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, String> {
        let rewrite = rewrite.map(|(pattern, replacement)| {
            let regex = regex(pattern)?;
            let parts = parts(replacement, &regex)?;
            Ok::<_, String>((regex, parts))
        });
        let allow = allow.map(|(pattern, replacement)| {
            let regex = regex(pattern)?;
            let parts = replacement.map(|text| parts(text, &regex)).transpose()?;
            Ok::<_, String>((regex, parts))
        });
        Ok(Self {
            allow: allow.collect::<Result<_, _>>()?,
            deny: deny.map(regex).collect::<Result<_, _>>()?,
            rewrite: rewrite.collect::<Result<_, _>>()?,
        })
    }

    /// Whether the filter passes every record unchanged.
    pub(super) fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty() && self.rewrite.is_empty()
    }

    /// Whether the filter lets a record through. Returns the number of the entry of `allow` that lets it through; 0 if there are
    /// no such entries.
    fn allows(&self, record: &[u8]) -> Option<usize> {
        let mut entries = self.allow.iter();
        let entry = match self.allow.is_empty() {
            true => 0,
            false => entries.position(|(regex, _)| regex.is_match(record))?,
        };
        let is_denied = self.deny.iter().any(|regex| regex.is_match(record));
        (!is_denied).then_some(entry)
    }

    /// Filters all lines of `text`, which ends with a newline.
    pub(super) fn lines(&self, text: &[u8]) -> Filtered {
        let mut filtered = Filtered::default();
        filtered.text.reserve(text.len());
        let mut work = Work::new(self);
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', text) {
            let line = &text[start..end];
            start = end + 1;
            let (line, end) = match line.strip_suffix(b"\r") {
                Some(line) => (line, &b"\r\n"[..]),
                None => (line, &b"\n"[..]),
            };
            let Some(entry) = self.allows(line) else {
                filtered.dropped += 1;
                continue;
            };
            filtered.left += 1;
            work.rewrite(entry, line, &mut filtered.text);
            filtered.text.extend_from_slice(end);
        }
        filtered
    }

    /// Filters a record that may hold newlines. Returns `None` if the record is dropped.
    pub(super) fn record(&self, record: &[u8]) -> Option<Vec<u8>> {
        let entry = self.allows(record)?;
        let mut out = Vec::with_capacity(record.len());
        Work::new(self).rewrite(entry, record, &mut out);
        Some(out)
    }
}

/// An expression, the replacement of each match, and memory for its groups.
type Replacement<'a> = (&'a Regex, &'a [Part], CaptureLocations);

/// Rewrites lines, one after the other. All lines share the memory for the offsets of capture groups and for intermediate
/// results.
struct Work<'a> {
    /// The replacements of `allow`, by number of the entry.
    allow: Vec<Option<Replacement<'a>>>,
    rewrite: Vec<Replacement<'a>>,
    line: Vec<u8>,
    next: Vec<u8>,
}

impl<'a> Work<'a> {
    fn new(filter: &'a Filter) -> Self {
        let with_groups = |regex: &'a Regex, parts: &'a [Part]| {
            let groups = regex.capture_locations();
            (regex, parts, groups)
        };
        let allow = filter.allow.iter();
        let rewrite = filter.rewrite.iter();
        Self {
            allow: allow
                .map(|(regex, parts)| Some(with_groups(regex, parts.as_deref()?)))
                .collect(),
            rewrite: rewrite
                .map(|(regex, parts)| with_groups(regex, parts))
                .collect(),
            line: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Appends a line with all replacements applied, one after the other: that of the entry of `allow`, then those of `rewrite`.
    fn rewrite(&mut self, entry: usize, line: &[u8], out: &mut Vec<u8>) {
        let first = self.allow.get_mut(entry).and_then(Option::as_mut);
        if first.is_none() && self.rewrite.is_empty() {
            out.extend_from_slice(line);
            return;
        }
        self.line.clear();
        self.line.extend_from_slice(line);
        for (regex, parts, groups) in first.into_iter().chain(&mut self.rewrite) {
            self.next.clear();
            replace_all(regex, parts, groups, &self.line, &mut self.next);
            std::mem::swap(&mut self.line, &mut self.next);
        }
        out.extend_from_slice(&self.line);
    }
}

fn replace_all(
    regex: &Regex,
    parts: &[Part],
    groups: &mut CaptureLocations,
    line: &[u8],
    out: &mut Vec<u8>,
) {
    let (mut at, mut copied) = (0, 0);
    while at <= line.len()
        && let Some(whole) = regex.captures_read_at(groups, line, at)
    {
        out.extend_from_slice(&line[copied..whole.start()]);
        for part in parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Group(group) => {
                    let place = groups.get(*group).map(|(start, end)| &line[start..end]);
                    out.extend_from_slice(place.unwrap_or_default());
                }
            }
        }
        copied = whole.end();
        at = if whole.is_empty() { copied + 1 } else { copied };
    }
    out.extend_from_slice(&line[copied..]);
}

/// Parses a replacement: `$1`, `${1}`, `$name` and `${name}` are groups, `$$` is a dollar.
fn parts(replacement: &str, regex: &Regex) -> Result<Vec<Part>, String> {
    if replacement.contains('\n') {
        return Err(
            "a replacement cannot contain a newline: a line must stay one record".to_owned(),
        );
    }
    let mut parts = Vec::new();
    let mut left = replacement;
    while let Some((text, behind)) = left.split_once('$') {
        parts.push(Part::Text(text.as_bytes().to_vec()));
        if let Some(behind) = behind.strip_prefix('$') {
            parts.push(Part::Text(b"$".to_vec()));
            left = behind;
            continue;
        }
        let (name, behind) = match behind.strip_prefix('{') {
            Some(braced) => braced
                .split_once('}')
                .ok_or_else(|| format!("`{replacement}`: a brace is not closed"))?,
            None => {
                let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                behind.split_at(end.unwrap_or(behind.len()))
            }
        };
        let by_name = || regex.capture_names().position(|group| group == Some(name));
        let group = name.parse::<usize>().ok().or_else(by_name);
        match group.filter(|group| *group < regex.captures_len()) {
            Some(group) => parts.push(Part::Group(group)),
            None => {
                return Err(format!(
                    "`{replacement}`: the expression has no group `{name}`; a dollar is written $$"
                ));
            }
        }
        left = behind;
    }
    parts.push(Part::Text(left.as_bytes().to_vec()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(allow: &[&str], deny: &[&str], rewrite: &[(&str, &str)]) -> Filter {
        Filter::new(
            allow.iter().map(|allow| (*allow, None)),
            deny.iter().copied(),
            rewrite.iter().copied(),
        )
        .unwrap()
    }

    fn text(filter: &Filter, text: &str) -> (String, u32) {
        let filtered = filter.lines(text.as_bytes());
        let text = String::from_utf8(filtered.text).unwrap();
        (text, filtered.dropped)
    }

    #[test]
    fn allowed_lines_pass_unless_they_are_denied() {
        let both = filter(&["^A", "^B"], &["secret$"], &[]);
        let lines = "A 1\nC 2\r\nB secret\r\nB 3\r\nA secret \n";
        assert_eq!(text(&both, lines), ("A 1\nB 3\r\nA secret \n".into(), 2));
        let deny = filter(&[], &["x"], &[]);
        assert_eq!(text(&deny, "a\nx\n\n"), ("a\n\n".into(), 1));
    }

    #[test]
    fn the_first_entry_of_allow_that_matches_decides_and_its_replacement_is_applied() {
        let allow = [
            ("^keep", None),
            (r"user=(\w+)", Some("user=<$1>")),
            ("user=", Some("never")),
            ("^ERR", Some("E")),
        ];
        let deny = ["secret"].into_iter();
        let rewrite = [("<", "[")].into_iter();
        let filter = Filter::new(allow.into_iter(), deny, rewrite).unwrap();
        let lines = "keep user=a\nx user=b\r\nERR user=\nother\nuser=secret\nERR <\n";
        let expected = "keep user=a\nx user=[b>\r\nERR never\nE [\n";
        assert_eq!(text(&filter, lines), (expected.into(), 2));
        assert_eq!(
            filter.record(b"user=x\nuser=y").unwrap(),
            b"user=[x>\nuser=[y>"
        );
        let new = |to| {
            Filter::new(
                [("a", Some(to))].into_iter(),
                [].into_iter(),
                [].into_iter(),
            )
        };
        assert!(new("$1").unwrap_err().contains("no group"));
    }

    #[test]
    fn replacements_are_applied_in_order_and_keep_the_line_end() {
        let both = filter(
            &[],
            &[],
            &[(r"(?P<user>\w+)@(\w+)", "$2:${user}$$"), ("b", "[$0]")],
        );
        assert_eq!(text(&both, "a@b c@d\r\nb\n").0, "[b]:a$ d:c$\r\n[b]\n");
        let empty = filter(&[], &[], &[("x*", "-")]);
        assert_eq!(text(&empty, "axb\n").0, "-a--b-\n");
        assert_eq!(both.record(b"1\nb").unwrap(), b"1\n[b]");
    }

    #[test]
    fn a_replacement_with_an_unknown_group_is_refused() {
        let new = |to| Filter::new([].into_iter(), [].into_iter(), [("a", to)].into_iter());
        assert!(new("$1").unwrap_err().contains("no group `1`"));
        assert!(new("${x").unwrap_err().contains("not closed"));
        assert!(new("a\nb").unwrap_err().contains("newline"));
    }
}
