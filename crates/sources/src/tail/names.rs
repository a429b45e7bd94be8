//! The names that log rotation makes: `app.log.1`, `app.log-20261128`, `app-20261128.log`, `20261128-app.log`.
//!
//! Equal content does not prove that a file is a copy of another one: two runs of a job may write the same lines. So a file
//! counts as a copy only if its name can come from the name of the original, too.

use std::{os::unix::ffi::OsStrExt, path::Path};

/// Words that rotation uses instead of a number or a date.
const WORDS: [&[u8]; 8] = [
    b"old", b"bak", b"backup", b"copy", b"orig", b"prev", b"save", b"saved",
];

/// Whether rotation may have given this name to the file `original`, or to a copy of it. The directories do not matter, because
/// rotated files may be kept in another one. An equal name in another directory is no rotated name.
pub(super) fn is_rotated(path: &Path, original: &Path) -> bool {
    let name = |path: &Path| path.file_name().map(|name| name.as_bytes().to_vec());
    let (Some(name), Some(of)) = (name(path), name(original)) else {
        return false;
    };
    if let Some(suffix) = name.strip_prefix(&of[..]) {
        return suffix.first().is_some_and(|first| is_separator(*first));
    }
    if let Some(prefix) = name.strip_suffix(&of[..]) {
        return prefix.last().is_some_and(|last| is_separator(*last)) && is_label(prefix);
    }
    // Before one of the extensions.
    let dots = (1..of.len()).filter(|at| of[*at] == b'.');
    dots.into_iter().any(|dot| {
        let rest = name.strip_prefix(&of[..dot]);
        let label = rest.and_then(|rest| rest.strip_suffix(&of[dot..]));
        let first = label.and_then(<[u8]>::first);
        first.is_some_and(|first| is_separator(*first)) && label.is_some_and(is_label)
    })
}

/// Whether the name of `path` is that of `original` with a dot and a number.
pub(super) fn is_numbered(path: &Path, original: &Path) -> bool {
    let Some(suffix) = path
        .as_os_str()
        .as_bytes()
        .strip_prefix(original.as_os_str().as_bytes())
    else {
        return false;
    };
    let number = suffix.strip_prefix(b".");
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

fn is_separator(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric()
}

/// Whether a part of a name is a number, a date, or one of [`WORDS`].
fn is_label(text: &[u8]) -> bool {
    let mut parts = text
        .split(|byte| is_separator(*byte))
        .filter(|part| !part.is_empty())
        .peekable();
    let is_number = |part: &[u8]| {
        part.iter()
            .all(|byte| byte.is_ascii_digit() || b"TZ".contains(byte))
    };
    parts.peek().is_some() && parts.all(|part| is_number(part) || WORDS.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_number_a_date_or_a_suffix_is_rotated_and_a_sibling_is_not() {
        let is = |path: &str, original: &str| is_rotated(path.as_ref(), original.as_ref());
        for name in [
            "/a/app.log.1",
            "/old/app.log.1.gz",
            "/a/app.log-20261128",
            "/a/app.log~",
            "/a/app.1.log",
            "/a/app-20261128.log",
            "/a/app-2026-11-28T10-00-00Z.log",
            "/a/app.old.log",
            "/a/20261128-app.log",
            "/a/copy.app.log",
        ] {
            assert!(is(name, "/a/app.log"), "{name}");
        }
        assert!(is("/a/app.1.log.txt", "/a/app.log.txt"));
        for name in [
            "/a/app.log",
            "/b/app.log",
            "/a/app2.log",
            "/a/webapp.log",
            "/a/web-app.log",
            "/a/app-errors.log",
            "/a/app-.log",
            "/a/app.log2",
            "/a/other.log",
        ] {
            assert!(!is(name, "/a/app.log"), "{name}");
        }
        assert!(!is("/a/job-2.log", "/a/job-1.log"));
        assert!(!is("/a/job-10.log", "/a/job-1.log"));
        assert!(!is("/a/app.log", "/a/app.log.1"));
        assert!(!is("/a/..log", "/a/.log"));
        let is = |path: &str| is_numbered(path.as_ref(), "/a/app.log".as_ref());
        assert!(is("/a/app.log.12") && !is("/a/app.log.") && !is("/a/app.log-1"));
    }
}
