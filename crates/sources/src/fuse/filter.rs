//! What a rule lets through and what it makes of it: `allow`, `deny` and `rewrite`.
//!
//! Pure. A line is looked at without its line end (`\n` or `\r\n`), which is put back. Nothing is allocated for a line.

use regex::bytes::{CaptureLocations, Regex};

/// The filters of a rule.
#[derive(Debug, Default)]
pub(super) struct Filter {
    allow: Vec<Regex>,
    deny: Vec<Regex>,
    rewrite: Vec<(Regex, Vec<Part>)>,
}

/// A piece of a replacement.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Group(usize),
}

/// What was made of some lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filtered {
    /// The lines that are left, as they are now.
    pub text: Vec<u8>,
    /// How many are left.
    pub left: u32,
    /// How many are not.
    pub dropped: u32,
}

fn regex(text: &str) -> Result<Regex, String> {
    // A limit on the compiled size is the regex crate's own; it runs in linear time.
    Regex::new(text).map_err(|error| format!("`{text}` is no regular expression: {error}"))
}

impl Filter {
    pub(super) fn new<'a>(
        allow: impl Iterator<Item = &'a str>,
        deny: impl Iterator<Item = &'a str>,
        rewrite: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, String> {
        let rewrite = rewrite.map(|(pattern, replacement)| {
            let regex = regex(pattern)?;
            let parts = parts(replacement, &regex)?;
            Ok::<_, String>((regex, parts))
        });
        Ok(Self {
            allow: allow.map(regex).collect::<Result<_, _>>()?,
            deny: deny.map(regex).collect::<Result<_, _>>()?,
            rewrite: rewrite.collect::<Result<_, _>>()?,
        })
    }

    /// Whether everything goes through as it is.
    pub(super) fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty() && self.rewrite.is_empty()
    }

    /// Whether a record goes through.
    pub(super) fn takes(&self, record: &[u8]) -> bool {
        (self.allow.is_empty() || self.allow.iter().any(|regex| regex.is_match(record)))
            && !self.deny.iter().any(|regex| regex.is_match(record))
    }

    /// Every line of `text`, which ends with a newline.
    pub(super) fn lines(&self, text: &[u8]) -> Filtered {
        let mut found = Filtered::default();
        found.text.reserve(text.len());
        let mut work = Work::new(self);
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', text) {
            let line = &text[start..end];
            start = end + 1;
            let (line, end) = match line.strip_suffix(b"\r") {
                Some(line) => (line, &b"\r\n"[..]),
                None => (line, &b"\n"[..]),
            };
            if !self.takes(line) {
                found.dropped += 1;
                continue;
            }
            found.left += 1;
            work.rewrite(line, &mut found.text);
            found.text.extend_from_slice(end);
        }
        found
    }

    /// One record that may hold anything; None if it does not go through.
    pub(super) fn record(&self, record: &[u8]) -> Option<Vec<u8>> {
        self.takes(record).then(|| {
            let mut out = Vec::with_capacity(record.len());
            Work::new(self).rewrite(record, &mut out);
            out
        })
    }
}

/// A filter at work: the places of groups and the text between two rewritings are used again.
struct Work<'a> {
    rewrite: Vec<(&'a Regex, &'a [Part], CaptureLocations)>,
    line: Vec<u8>,
    next: Vec<u8>,
}

impl<'a> Work<'a> {
    fn new(filter: &'a Filter) -> Self {
        let rewrite = filter.rewrite.iter();
        Self {
            rewrite: rewrite
                .map(|(regex, parts)| (regex, &parts[..], regex.capture_locations()))
                .collect(),
            line: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Appends the line as the rewritings leave it, one after the other. A newline in a replacement becomes a space: a line
    /// stays one line.
    fn rewrite(&mut self, line: &[u8], out: &mut Vec<u8>) {
        if self.rewrite.is_empty() {
            out.extend_from_slice(line);
            return;
        }
        self.line.clear();
        self.line.extend_from_slice(line);
        for (regex, parts, groups) in &mut self.rewrite {
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
        && let Some(found) = regex.captures_read_at(groups, line, at)
    {
        out.extend_from_slice(&line[copied..found.start()]);
        for part in parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Group(group) => {
                    let place = groups.get(*group).map(|(start, end)| &line[start..end]);
                    out.extend_from_slice(place.unwrap_or_default());
                }
            }
        }
        copied = found.end();
        at = if found.is_empty() { copied + 1 } else { copied };
    }
    out.extend_from_slice(&line[copied..]);
}

/// `$1`, `${1}`, `$name`, `${name}`; `$$` is a dollar.
fn parts(replacement: &str, regex: &Regex) -> Result<Vec<Part>, String> {
    if replacement.contains('\n') {
        return Err("a replacement cannot hold a newline: a line stays one record".to_owned());
    }
    let mut parts = Vec::new();
    let mut rest = replacement;
    while let Some((text, behind)) = rest.split_once('$') {
        parts.push(Part::Text(text.as_bytes().to_vec()));
        if let Some(behind) = behind.strip_prefix('$') {
            parts.push(Part::Text(b"$".to_vec()));
            rest = behind;
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
        rest = behind;
    }
    parts.push(Part::Text(rest.as_bytes().to_vec()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(allow: &[&str], deny: &[&str], rewrite: &[(&str, &str)]) -> Filter {
        Filter::new(
            allow.iter().copied(),
            deny.iter().copied(),
            rewrite.iter().copied(),
        )
        .unwrap()
    }

    fn text(filter: &Filter, text: &str) -> (String, u32) {
        let found = filter.lines(text.as_bytes());
        (String::from_utf8(found.text).unwrap(), found.dropped)
    }

    #[test]
    fn allowed_lines_go_through_unless_they_are_denied() {
        let both = filter(&["^A", "^B"], &["secret$"], &[]);
        let lines = "A 1\nC 2\r\nB secret\r\nB 3\r\nA secret \n";
        assert_eq!(text(&both, lines), ("A 1\nB 3\r\nA secret \n".into(), 2));
        let deny = filter(&[], &["x"], &[]);
        assert_eq!(text(&deny, "a\nx\n\n"), ("a\n\n".into(), 1));
    }

    #[test]
    fn rewritings_follow_each_other_and_keep_the_line_end() {
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
    fn a_group_that_is_not_there_is_refused() {
        let new = |to| Filter::new([].into_iter(), [].into_iter(), [("a", to)].into_iter());
        assert!(new("$1").unwrap_err().contains("no group `1`"));
        assert!(new("${x").unwrap_err().contains("not closed"));
        assert!(new("a\nb").unwrap_err().contains("newline"));
    }
}
