//! The names of nodes, and the closest match for a misspelt word.

/// The maximum length of a node's name in bytes. A name becomes a metric label and part of file names.
pub const NAME_MAX: usize = 64;

/// Checks a node's name: it must match `[a-z][a-z0-9_-]*` and have at most [`NAME_MAX`] characters.
pub fn check(name: &str) -> Result<(), String> {
    let mut chars = name.chars();
    if !chars.next().is_some_and(|c| c.is_ascii_lowercase()) {
        return Err("a node's name must begin with a letter from a to z".to_owned());
    }
    if let Some(c) = chars.find(|c| !is_of_name(*c)) {
        return Err(format!(
            "a node's name consists of letters from a to z, digits, `_` and `-`, not `{c}`"
        ));
    }
    if name.len() > NAME_MAX {
        return Err(format!("a node's name has at most {NAME_MAX} characters"));
    }
    Ok(())
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-')
}

/// Longer words are not compared, because they are rarely typing errors, and the time of a comparison grows with the square of the length.
const WORD_MAX: usize = 64;

/// Returns the candidate that a misspelt word most likely means; `None` if no candidate is close enough.
///
/// At most a third of the letters may be wrong. Two swapped neighbours count as one error. Case does not matter, and `-` equals `_`.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = fold(word);
    let length = word.chars().count();
    if length == 0 || length > WORD_MAX {
        return None;
    }
    let limit = length.div_ceil(3);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= WORD_MAX)
        .map(|candidate| (strsim::osa_distance(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn fold(word: &str) -> String {
    word.to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_is_lower_case_letters_digits_and_dashes() {
        for good in ["a", "fleet", "web_2", "kafka-out"] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in ["", "2web", "Web", "a.b", "ä", "a b", "-a", &"a".repeat(65)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_close_word_is_suggested_and_a_distant_one_is_not() {
        let words = ["inputs", "tags", "path", "rotate", "size_max"];
        for (word, wanted) in [
            ("input", Some("inputs")),
            ("Inputs", Some("inputs")),
            ("tgas", Some("tags")),
            ("size-max", Some("size_max")),
            ("rotation", Some("rotate")),
            ("zzz", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words), wanted, "{word}");
        }
    }

    #[test]
    fn swapped_neighbours_count_as_one_error() {
        assert_eq!(nearest("tga", ["tag"]), Some("tag"));
        assert_eq!(nearest("gat", ["tag"]), None);
    }
}
