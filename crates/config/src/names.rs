//! The names that users give to nodes, and the nearest of several words to a wrong one.

/// Bytes of the longest node name; it becomes a metric label and part of file names.
pub const NAME_MAX: usize = 64;

/// Says what is wrong with a node's name, if anything: it must be `[a-z][a-z0-9_-]*`, at most [`NAME_MAX`] long.
pub fn check(name: &str) -> Result<(), String> {
    let mut chars = name.chars();
    if !chars.next().is_some_and(|c| c.is_ascii_lowercase()) {
        return Err("a node's name begins with a letter from a to z".to_owned());
    }
    if let Some(c) = chars.find(|c| !is_of_name(*c)) {
        return Err(format!(
            "a node's name has letters from a to z, digits, `_` and `-`, not `{c}`"
        ));
    }
    if name.len() > NAME_MAX {
        return Err(format!("a node's name has at most {NAME_MAX} letters"));
    }
    Ok(())
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-')
}

/// Words longer than this are not compared: nobody mistypes them, and the work grows with the square.
const WORD_MAX: usize = 64;

/// The candidate that a mistyped word was most likely meant to be, if any is near enough: a third of its letters wrong,
/// neighbours swapped counting as one, upper and lower case and `-` for `_` as none.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = fold(word);
    if word.is_empty() || word.len() > WORD_MAX {
        return None;
    }
    let limit = word.len().div_ceil(3);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= WORD_MAX)
        .map(|candidate| (distance(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn fold(word: &str) -> Vec<char> {
    word.chars()
        .map(|c| {
            if c == '-' {
                '_'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect()
}

/// Edits (insert, delete, replace, swap of neighbours) from one word to the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
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
    fn the_nearest_word_is_found_and_a_far_one_is_not() {
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
    fn swapped_neighbours_count_once() {
        let chars = |s: &str| s.chars().collect::<Vec<_>>();
        assert_eq!(distance(&chars("tgas"), &chars("tags")), 1);
        assert_eq!(distance(&chars("kitten"), &chars("sitting")), 3);
        assert_eq!(distance(&chars(""), &chars("abc")), 3);
    }
}
