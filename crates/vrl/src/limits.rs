//! Limits of a program's text, which are checked before it is compiled. The compiler and the program that it makes recurse for each
//! level of an expression, and an index in a path makes all elements up to it.
//!
//! The text is read once, from its beginning to its end, without memory in proportion to it. So this also holds for texts that are no
//! programs.

use crate::{
    Diagnostic,
    functions::bounded::{INDEX_MAX, INDEX_MIN},
};

/// The maximum length of a program in bytes.
const LENGTH_MAX: usize = 1 << 20;
/// The deepest nesting of brackets in a program.
const NESTING_MAX: usize = 128;
/// The deepest nesting of expressions: brackets, and the operators, assignments and branches in front of each other.
const DEPTH_MAX: usize = 256;
/// The maximum number of parts of a path.
const PARTS_MAX: usize = 128;

/// The operators by how strongly they bind, beginning with the weakest. A chain of one kind nests a level per operator.
const KINDS: usize = 8;
const BRANCH: usize = 0;
const NOT: usize = 7;

/// Returns an error if the text is too long, nests too deep or has an index that is too large.
pub(crate) fn exceeded(text: &str) -> Option<Diagnostic> {
    if text.len() > LENGTH_MAX {
        return Some(Diagnostic::error(
            text,
            0..1,
            &format!(
                "a program may have {LENGTH_MAX} bytes, and this one has {}",
                text.len()
            ),
            "divide it into several processors",
        ));
    }
    let mut scan = Scan {
        text,
        bytes: text.as_bytes(),
        at: 0,
        before: b'\n',
        levels: vec![Level::default()],
        path: Path::default(),
    };
    while scan.at < scan.bytes.len() {
        let start = scan.at;
        if let Err((message, help)) = scan.step() {
            // Each step begins with an ASCII character, except for characters that have no meaning.
            return Some(Diagnostic::error(text, start..start + 1, &message, help));
        }
    }
    None
}

/// The error and the advice.
type Exceeded = (String, &'static str);

/// The expression between two brackets, as far as it was read.
#[derive(Default)]
struct Level {
    /// Whether the bracket is `{`. In it, a line end separates expressions, as it does outside of all brackets.
    is_block: bool,
    /// The number of assignments in each other.
    assignments: usize,
    /// The operators of each kind in the current chain, and in the longest one.
    chains: [(usize, usize); KINDS],
    /// The depth of the levels around this one.
    outside: usize,
}

impl Level {
    fn depth(&self) -> usize {
        let chains = self.chains.iter();
        let chains: usize = chains.map(|(now, longest)| now.max(longest)).sum();
        self.outside + self.assignments + chains
    }

    /// Adds an operator. It ends the chains of those that bind more strongly.
    fn add(&mut self, kind: usize) {
        for (now, longest) in &mut self.chains[kind + 1..] {
            *longest = (*longest).max(*now);
            *now = 0;
        }
        self.chains[kind].0 += 1;
    }
}

/// The path that was read last: the number of its parts, and the sum of its indexes.
#[derive(Default)]
struct Path {
    parts: usize,
    elements: u64,
}

struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// The last byte that was neither white space nor in a comment.
    before: u8,
    /// The brackets that are open. Never empty.
    levels: Vec<Level>,
    path: Path,
}

impl Scan<'_> {
    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(b'\n')
    }

    /// The end of the bytes from `at` on that are all `of` a kind.
    fn end(&self, at: usize, of: impl Fn(u8) -> bool) -> usize {
        let rest = self.bytes.get(at..).unwrap_or_default();
        let length = rest.iter().position(|byte| !of(*byte));
        at + length.unwrap_or(rest.len())
    }

    /// Reads a word, a literal, an operator, a bracket or white space.
    fn step(&mut self) -> Result<(), Exceeded> {
        let (start, byte) = (self.at, self.byte(self.at));
        let follows_directly = start > 0 && !self.byte(start - 1).is_ascii_whitespace();
        if !follows_directly {
            self.path = Path::default();
        }
        let before = std::mem::replace(&mut self.before, byte);
        match byte {
            b'#' => {
                self.before = before;
                self.at = self.end(start, |byte| byte != b'\n');
            }
            b'\n' => {
                self.at += 1;
                self.line_end(before);
            }
            b' ' | b'\t' | b'\r' => {
                self.before = before;
                self.at += 1;
            }
            b'"' => return self.quoted(b'"'),
            b's' | b'r' | b't' if self.byte(start + 1) == b'\'' => {
                self.at += 1;
                return self.quoted(b'\'');
            }
            b'.' => {
                self.at += 1;
                return self.part(0);
            }
            b'[' if follows_directly && (is_word(before) || b")]}\".".contains(&before)) => {
                return match self.index() {
                    Some(index) => self.part(index),
                    None => self.open(false),
                };
            }
            b'(' | b'[' => return self.open(false),
            b'{' => return self.open(true),
            b')' | b']' | b'}' => self.close(),
            b';' | b',' => {
                self.at += 1;
                self.separate(byte == b';');
            }
            b'!' if self.byte(start + 1) == b'(' && is_word(before) => self.at += 1,
            b'!' | b'?' | b'|' | b'&' | b'=' | b'<' | b'>' | b'+' | b'-' | b'*' | b'/' => {
                return self.operator();
            }
            byte if is_word(byte) => return self.word(),
            _ => {
                // Other characters of any language.
                self.at += 1;
                while !self.text.is_char_boundary(self.at) {
                    self.at += 1;
                }
            }
        }
        Ok(())
    }

    fn level(&mut self) -> &mut Level {
        // The list is never empty.
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    fn deep(&mut self, depth: usize) -> Result<(), Exceeded> {
        match self.level().depth() + depth > DEPTH_MAX {
            true => Err((
                format!(
                    "this nests deeper than {DEPTH_MAX} levels of brackets, operators and `else if`"
                ),
                "put a part of it into a variable; `includes([1, 2, 3], .field)` replaces a long chain of `||`, and an object that \
                 is read with `get` replaces a long chain of `else if`",
            )),
            false => Ok(()),
        }
    }

    fn open(&mut self, is_block: bool) -> Result<(), Exceeded> {
        self.at += 1;
        if self.levels.len() > NESTING_MAX {
            let message = format!("brackets nest deeper than {NESTING_MAX} levels");
            return Err((message, "put a part of it into a variable"));
        }
        self.path = Path::default();
        let outside = self.level().depth() + 1;
        self.levels.push(Level {
            is_block,
            outside,
            ..Level::default()
        });
        self.deep(0)
    }

    fn close(&mut self) {
        self.at += 1;
        if self.levels.len() > 1 {
            self.levels.pop();
        }
    }

    /// A separator of expressions. A comma does not separate the targets of an assignment.
    fn separate(&mut self, is_whole: bool) {
        let level = self.level();
        level.chains = Default::default();
        if is_whole {
            level.assignments = 0;
        }
    }

    /// A line end separates expressions, except after an operator and before `else`.
    fn line_end(&mut self, before: u8) {
        let is_outside = self.levels.len() == 1;
        let continues = b"!?|&=<>+-*/,".contains(&before);
        if (is_outside || self.level().is_block) && !continues && !self.else_follows() {
            self.separate(true);
        } else {
            self.before = before;
        }
    }

    /// Whether the next word is `else`.
    fn else_follows(&self) -> bool {
        let mut at = self.at;
        loop {
            at = self.end(at, |byte| byte.is_ascii_whitespace());
            match self.byte(at) {
                b'#' => at = self.end(at, |byte| byte != b'\n'),
                _ => return self.text.get(at..).is_some_and(|it| it.starts_with("else")),
            }
        }
    }

    /// Reads a literal. Each template in a text is an operand of a sum.
    fn quoted(&mut self, quote: u8) -> Result<(), Exceeded> {
        let start = self.at + 1;
        let mut at = start;
        while at < self.bytes.len() && self.byte(at) != quote {
            at += 1 + usize::from(self.byte(at) == b'\\');
        }
        let text = self.bytes.get(start..at).unwrap_or_default();
        let templates = text.windows(2).filter(|two| two == b"{{").count();
        self.at = (at + 1).min(self.bytes.len());
        self.before = quote;
        match quote {
            b'"' => self.deep(2 * templates),
            _ => Ok(()),
        }
    }

    fn word(&mut self) -> Result<(), Exceeded> {
        let end = self.end(self.at, is_word);
        let word = self.text.get(self.at..end).unwrap_or_default();
        self.at = end;
        if matches!(word, "else" | "return" | "abort") {
            self.level().add(BRANCH);
            return self.deep(0);
        }
        Ok(())
    }

    fn operator(&mut self) -> Result<(), Exceeded> {
        let end = match self.byte(self.at) {
            // `!` can be repeated.
            b'!' => self.at + 1 + usize::from(self.byte(self.at + 1) == b'='),
            // A minus can be the sign of a number behind another operator.
            b'-' => self.at + 1,
            _ => self.end(self.at, |byte| b"?|&=<>+*/".contains(&byte)),
        };
        let operator = self.text.get(self.at..end).unwrap_or_default();
        self.at = end;
        self.before = self.byte(end - 1);
        let kind = match operator {
            "=" | "|=" => {
                let level = self.level();
                level.assignments += 1;
                level.chains = Default::default();
                return self.deep(0);
            }
            "??" => 1,
            "||" | "&&" => 2,
            "==" | "!=" => 3,
            "<" | ">" | "<=" | ">=" => 4,
            "|" => 5,
            "+" | "-" => 6,
            "!" => NOT,
            _ => NOT - 1,
        };
        self.level().add(kind);
        self.deep(0)
    }

    /// Counts a part of a path, which makes `elements` elements of an array.
    fn part(&mut self, elements: i64) -> Result<(), Exceeded> {
        self.path.parts += 1;
        self.path.elements += elements.unsigned_abs();
        if elements < INDEX_MIN || self.path.elements > INDEX_MAX {
            let message = format!(
                "the indexes of a path may be {INDEX_MAX} together, and each at least {INDEX_MIN}"
            );
            let help = "an index makes all elements of the array up to it; use an object with names instead";
            return Err((message, help));
        }
        if self.path.parts > PARTS_MAX {
            let message = format!("a path may have {PARTS_MAX} parts");
            return Err((message, "put a part of it into a variable"));
        }
        Ok(())
    }

    /// Reads `[NUMBER]`; `None` if the bracket holds anything else.
    fn index(&mut self) -> Option<i64> {
        let is_blank = |byte: u8| byte.is_ascii_whitespace();
        let start = self.end(self.at + 1, is_blank);
        let sign = usize::from(self.byte(start) == b'-');
        let digits = self.end(start + sign, |byte| byte.is_ascii_digit() || byte == b'_');
        let end = self.end(digits, is_blank);
        let number: String = self.text.get(start..digits)?.replace('_', "");
        let has_digits = number.len() > sign;
        if self.byte(end) != b']' || !has_digits {
            return None;
        }
        self.at = end + 1;
        self.before = b']';
        let out_of_range = if sign == 1 { i64::MIN } else { i64::MAX };
        Some(number.parse().unwrap_or(out_of_range))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'@' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a program, and the column at which it shows it.
    fn error(text: &str) -> Option<(String, usize)> {
        exceeded(text).map(|error| (error.message, error.span.start))
    }

    fn repeated(before: &str, part: &str, count: usize, after: &str) -> String {
        format!("{before}{}{after}", part.repeat(count))
    }

    #[test]
    fn programs_that_the_compiler_cannot_bear_are_refused_by_their_text() {
        for text in [
            ".p[100000000] = 1".to_owned(),
            ".p[-30000] = 1".to_owned(),
            ".p[-1025] = 1".to_owned(),
            ".x = .p[65536]".to_owned(),
            ".x = p[ 99_999_999 ]".to_owned(),
            "del(.a.\"b c\"[9999999999999999999999])".to_owned(),
            "exists(.a[40000][30000])".to_owned(),
            "f(x)[70000]".to_owned(),
            repeated(".x = ", "!", 5000, "true"),
            repeated(".x = ", "! ", 5000, "true"),
            repeated(
                "if .a == 0 { .b = 0 }",
                " else if .a == 1 { .b = 1 }",
                600,
                "",
            ),
            repeated(
                "if .a == 0 { .b = 0 }",
                "\n# no\n else if .a == 1 { .b = 1 }",
                600,
                "",
            ),
            repeated(".x = .a", " + .a", 5000, ""),
            repeated(".x = .a", " +\n .a", 5000, ""),
            repeated(".x = true", " || .a == 1", 5000, ""),
            repeated(".x = .a", " ?? .a", 5000, ""),
            repeated("", ".x = ", 5000, "1"),
            repeated("", "a, b = ", 5000, "to_int(.x)"),
            repeated(".x = \"", "{{ a }}", 5000, "\""),
            repeated("", ".a", 5000, " = 1"),
            repeated(".x = .a", "[0]", 5000, ""),
            repeated("", "return ", 5000, "1"),
            repeated(".x = ", "[", 5000, ""),
            repeated(".x = ", "(1 + ", 200, "1"),
            repeated(".x = ", "{\"a\": ", 200, ""),
        ] {
            let start: String = text.chars().take(40).collect();
            assert!(error(&text).is_some(), "{start}");
        }
    }

    #[test]
    fn ordinary_programs_are_within_the_limits() {
        for text in [
            ".x = [100000000, -30000, 70_000]".to_owned(),
            ".x = [ 100000000 ]; .y = includes([70000], .z)".to_owned(),
            ".x = .p[65535]; .y = .p[65535]; .z = .p[-1024]".to_owned(),
            "# .p[100000000] = 1".to_owned(),
            ".x = s'p[100000000] !!!!' + r'[0-9]{9}' + \"\\\"p[100000000]\"".to_owned(),
            repeated("", ".a = .b + 1\n", 50_000, ""),
            repeated("", ".a = to_int!(.b); ", 50_000, ""),
            repeated(
                "if .a { .b = 1 }\n",
                "if .a { .b = 1 } else { .b = 2 }\n",
                10_000,
                "",
            ),
            repeated(".x = [", "a.b == 1 || !c, ", 10_000, "]"),
            repeated(".x = {", "\"a\": -1 - -1,\n", 10_000, "\"b\": 1}"),
            repeated(".x = .a == 0", " || .a == 1", 250, ""),
            repeated("", ".a = \"{{ a }} {{ b }}\"\n", 1000, ""),
            repeated(
                "if .a == 0 { .b = 0 }",
                " else if .a == 1 { .b = 1 }",
                200,
                "",
            ),
            "é = ü ! 'ß'".to_owned(),
        ] {
            let start: String = text.chars().take(40).collect();
            assert_eq!(error(&text), None, "{start}");
        }
    }

    #[test]
    fn the_error_shows_where_the_limit_is_exceeded() {
        let (message, at) = error("if true {\n  .p[100000000] = 1\n}").unwrap();
        assert!(message.contains("65535 together"), "{message}");
        assert_eq!(at, 14);
        let (message, at) = error(&repeated("x = ", "!", 300, "true")).unwrap();
        assert!(message.contains("deeper than 256"), "{message}");
        assert_eq!(at, 4 + 255);
    }
}
