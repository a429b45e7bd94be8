//! Text for people: paragraphs that are wrapped, columns that are aligned, and the standard output they go to.

use std::{io::Write, time::Duration};

use millstream_config::{Period, Size};

use crate::exit;

/// Characters of a line. Fixed, so that what is pasted into a ticket or a test looks as it did on the screen.
pub const WIDTH: usize = 100;

/// Wraps a text: the first line begins with `first`, the others are indented as far. A word is never broken.
pub fn paragraph(first: &str, text: &str) -> String {
    let indent = width(first);
    let mut out = first.to_owned();
    let mut column = indent;
    for word in text.split_whitespace() {
        if column > indent && column + 1 + width(word) > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        }
        if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width(word);
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Rows with aligned columns, two spaces apart; the last column is wrapped. Columns named in `right` are aligned to the
/// right, as numbers are.
pub fn columns(indent: usize, rows: &[Vec<String>], right: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = " ".repeat(indent);
        for (at, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[at] - width(cell));
            if right.contains(&at) {
                line.push_str(&format!("{gap}{cell}  "));
            } else if at + 1 < count {
                line.push_str(&format!("{cell}{gap}  "));
            } else {
                out.push_str(&paragraph(&line, cell));
                line.clear();
            }
        }
        if !line.is_empty() {
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    out
}

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    text.chars().count()
}

/// `a`, `a and b`, `a, b and c`.
pub fn list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// `1 sink`, `2 sinks`.
pub fn count(number: usize, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

/// Bytes with a binary unit and one digit behind the point, rounded down: `5.8GiB`.
pub fn bytes(bytes: u64) -> String {
    Size::bytes(bytes).rounded()
}

/// `1 234 567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// A time as it is written in the configuration: `3m10s`.
pub fn period(time: Duration) -> String {
    Period::millis(u32::try_from(time.as_millis()).unwrap_or(u32::MAX)).to_string()
}

/// Writes to the standard output; the exit code. Whoever reads it may have gone (`| head`): that is no failure.
pub fn print(text: &str) -> u8 {
    let _ = std::io::stdout().write_all(text.as_bytes());
    exit::DRAINED
}

/// Writes a line to stderr; `code` comes back. Nothing can be done if stderr is gone.
pub fn complain(text: &str, code: u8) -> u8 {
    let _ = writeln!(std::io::stderr(), "{text}");
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_keeps_its_words_and_its_indent() {
        let text = paragraph("  x  ", &"word ".repeat(30));
        assert_eq!(text.split_whitespace().count(), 31);
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.len() <= WIDTH && first.starts_with("  x  word"));
        assert!(rest.starts_with("     word"));
        assert_eq!(paragraph("- ", ""), "-\n");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [bytes(0), bytes(1536), bytes(6_319_125_504)],
            ["0B", "1.5KiB", "5.8GiB"]
        );
        assert_eq!(
            [grouped(7), grouped(1234), grouped(1_234_567)],
            ["7", "1 234", "1 234 567"]
        );
        assert_eq!(period(Duration::from_secs(190)), "3m10s");
    }

    #[test]
    fn numbers_stand_at_the_right() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = columns(1, &[row(["a", "7", "x"]), row(["bcd", "42", ""])], &[1]);
        assert_eq!(text, " a     7  x\n bcd  42\n");
    }
}
