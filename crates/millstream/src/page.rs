//! Text for people: wrapped paragraphs, aligned columns, and output to stdout and stderr.

use std::{
    io::{IsTerminal, Write},
    ops::RangeInclusive,
    sync::OnceLock,
    time::Duration,
};

use millstream_config::{Period, Size};

use crate::{
    exit,
    visible::{visible, visible_lines},
};

/// The line length if the output is not a terminal.
const WIDTH: usize = 100;
/// The smallest and largest line length that a terminal can set.
const WIDTHS: RangeInclusive<usize> = 60..=120;

static LINE_WIDTH: OnceLock<usize> = OnceLock::new();

/// Adapts the line length to the terminal, if stdout is one.
pub fn fit_terminal() {
    if let Some(columns) = terminal_columns() {
        let width = columns.clamp(*WIDTHS.start(), *WIDTHS.end());
        LINE_WIDTH.get_or_init(|| width);
    }
}

/// The width of the terminal, if stdout is one.
pub fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// The line length in characters.
pub fn line_width() -> usize {
    *LINE_WIDTH.get().unwrap_or(&WIDTH)
}

/// Wraps a text. The first line begins with `first`; the other lines are indented by its width. Words are never broken.
pub fn paragraph(first: &str, text: &str) -> String {
    wrapped(first, text, line_width())
}

fn wrapped(first: &str, text: &str, most: usize) -> String {
    let indent = width(first);
    let mut out = first.to_owned();
    let mut column = indent;
    for word in text.split_whitespace() {
        if column > indent && column + 1 + width(word) > most {
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

/// Rows with aligned columns, two spaces apart. The last column is wrapped. The columns whose indices are in `right` are aligned to the
/// right, as numbers should be. A cell is one line: control characters in it are escaped.
pub fn columns(indent: usize, rows: &[Vec<String>], right: &[usize]) -> String {
    let cells = |row: &Vec<String>| row.iter().map(|cell| visible(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in &rows {
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

/// A table with lines of at most `most` characters; the first row is the header. If the cells need longer lines, the widest columns are
/// wrapped. Words are never broken, so lines with long words may exceed `most`.
pub fn table(indent: usize, rows: &[Vec<String>], most: usize) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |at: usize| rows.iter().filter_map(move |row| row.get(at));
    let words = |at| cells(at).flat_map(|cell| cell.split_whitespace());
    let mut widths: Vec<usize> = (0..count)
        .map(|at| cells(at).map(|cell| width(cell)).max().unwrap_or(0))
        .collect();
    let least: Vec<usize> = (0..count)
        .map(|at| words(at).map(width).max().unwrap_or(0))
        .collect();
    let gaps = indent + 2 * count.saturating_sub(1);
    while gaps + widths.iter().sum::<usize>() > most {
        let wide = (0..count).filter(|at| widths[*at] > least[*at]);
        let Some(widest) = wide.max_by_key(|at| widths[*at]) else {
            break;
        };
        widths[widest] -= 1;
    }
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells.map(|(cell, most)| wrapped("", cell, *most)).collect();
        push_row(&mut out, indent, &cells, &widths);
        if number == 0 {
            let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
            push_row(&mut out, indent, &rule, &widths);
        }
    }
    out
}

/// Appends a row whose cells have several lines.
fn push_row(out: &mut String, indent: usize, cells: &[String], widths: &[usize]) {
    let lines = cells.iter().map(|cell| cell.lines().count()).max();
    for number in 0..lines.unwrap_or(0) {
        let mut line = " ".repeat(indent);
        for (cell, most) in cells.iter().zip(widths) {
            let text = cell.lines().nth(number).unwrap_or_default();
            let gap = " ".repeat(most.saturating_sub(width(text)) + 2);
            line.push_str(&format!("{text}{gap}"));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// The number of terminal columns of a text.
pub fn width(text: &str) -> usize {
    text.chars().count()
}

/// Joins words: `a`, `a and b`, `a, b and c`.
pub fn list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A number and a noun: `1 sink`, `2 sinks`.
pub fn count(number: usize, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

/// Bytes with a binary unit and one digit after the point, rounded down: `5.8GiB`.
pub fn bytes(bytes: u64) -> String {
    Size::bytes(bytes).rounded()
}

/// A number with its digits in groups of three: `1 234 567`.
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

/// A duration as written in the configuration: `3m10s`.
pub fn period(time: Duration) -> String {
    let whole = |number: u128| u32::try_from(number);
    let period = match (whole(time.as_millis()), whole(time.as_secs().into())) {
        (Ok(millis), _) => Period::millis(millis),
        // A duration of more than seven weeks does not fit into 32 bits as milliseconds.
        (Err(_), seconds) => Period::secs(seconds.unwrap_or(u32::MAX)),
    };
    period.to_string()
}

/// A character of a name, encoded for the path of a URL.
pub fn coded(letter: char) -> String {
    match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => letter.to_string(),
        other => {
            let mut bytes = [0; 4];
            let bytes = other.encode_utf8(&mut bytes).bytes();
            bytes.map(|byte| format!("%{byte:02X}")).collect()
        }
    }
}

/// Writes a page to stdout with control characters escaped, and returns the exit code of success. It is not a failure if the reader closes
/// its end of a pipe (`| head`).
pub fn print(text: &str) -> u8 {
    let _ = std::io::stdout().write_all(visible_lines(text).as_bytes());
    exit::DRAINED
}

/// The colour of a line in a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// The default colour.
    None,
    /// For text that was expected but not found, or that reports an error.
    Red,
    /// For text that was found.
    Green,
}

/// Writes lines as [`print`] does, in their colours if stdout is a terminal.
pub fn print_coloured(lines: &[(Colour, String)]) -> u8 {
    let mut stdout = std::io::stdout();
    let is_terminal = stdout.is_terminal();
    let mut out = String::new();
    for (colour, line) in lines {
        let line = visible(line);
        match colour {
            Colour::Red if is_terminal => out.push_str(&format!("\x1b[31m{line}\x1b[0m\n")),
            Colour::Green if is_terminal => out.push_str(&format!("\x1b[32m{line}\x1b[0m\n")),
            _ => out.push_str(&format!("{line}\n")),
        }
    }
    let _ = stdout.write_all(out.as_bytes());
    exit::DRAINED
}

/// Writes a line to stderr with control characters escaped, and returns `code`. A closed stderr is ignored.
pub fn complain(text: &str, code: u8) -> u8 {
    let _ = writeln!(std::io::stderr(), "{}", visible_lines(text));
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
        assert!(first.len() <= line_width() && first.starts_with("  x  word"));
        assert!(rest.starts_with("     word"));
        assert_eq!(paragraph("- ", ""), "-\n");
    }

    #[test]
    fn sizes_have_units_digits_are_grouped_and_durations_are_short() {
        assert_eq!(
            [bytes(0), bytes(1536), bytes(6_319_125_504)],
            ["0B", "1.5KiB", "5.8GiB"]
        );
        assert_eq!(
            [grouped(7), grouped(1234), grouped(1_234_567)],
            ["7", "1 234", "1 234 567"]
        );
        assert_eq!(period(Duration::from_secs(190)), "3m10s");
        assert_eq!(period(Duration::from_secs(86_400 * 365)), "365d");
    }

    #[test]
    fn a_table_wraps_its_widest_columns_and_stays_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let long = "many words in a cell";
        let rows = [row(["a", "what", "n"]), row(["key", long, "1"])];
        assert_eq!(
            table(1, &rows, 20),
            " a    what         n\n ---  -----------  -\n key  many words   1\n      in a cell\n"
        );
        assert_eq!(table(1, &rows, 40).lines().count(), 3);
        // The longest word is wider than the table may be.
        assert!(table(1, &rows, 5).contains("words"));
    }

    #[test]
    fn names_are_coded_for_a_path() {
        let path: String = "a-b/é?".chars().map(coded).collect();
        assert_eq!(path, "a-b%2F%C3%A9%3F");
    }

    #[test]
    fn columns_of_numbers_are_aligned_to_the_right() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = columns(1, &[row(["a", "7", "x"]), row(["bcd", "42", ""])], &[1]);
        assert_eq!(text, " a     7  x\n bcd  42\n");
    }
}
