//! Checks that comments, texts and documents are plain English: they avoid phrases that stop an English reader.

use crate::tree::{File, files};

/// Phrases to avoid, and what to write instead. They match whole words, in upper or lower case.
const AVOID: &[(&str, &str)] = &[
    ("so many", "a number, or `this many`"),
    ("so much", "an amount, or `this much`"),
    ("so long", "a time, or `this long`"),
    ("is told", "reports, receives, is notified"),
    ("are told", "report, receive, are notified"),
    ("is said", "is reported, is logged"),
    ("are said", "are reported, are logged"),
    ("under way", "in flight"),
    ("makes room", "evicts, frees space"),
    ("make room", "evict, free space"),
    ("of its own", "its own X, separate, dedicated"),
    ("of their own", "their own X, separate, dedicated"),
    ("by itself", "on its own, independently"),
    ("by themselves", "on their own, independently"),
    ("folder", "directory"),
    ("folders", "directories"),
    ("nobody", "no peer, no user, no task"),
    ("somebody", "a peer, a user, a task"),
    ("comes to", "reaches, becomes"),
    ("goes on", "continues"),
    ("tries again", "retries"),
    ("is tried again", "is retried"),
    ("for good", "permanently"),
    ("in vain", "without success"),
    ("the like", "similar ones"),
    ("a moment ago", "recently, just now"),
];

/// Words that must not open a sentence, because a reader has to guess the noun that they stand for.
const HEADLESS: &[(&str, &str)] = &[
    ("who", "name the peer, the user, the task"),
    ("whoever", "name the peer, the user, the task"),
    ("what", "name the thing"),
    ("whatever", "name the thing"),
    ("else", "otherwise"),
];

/// One piece of prose: a block of comments, a string, a name of a test, a paragraph.
#[derive(Debug, PartialEq)]
struct Piece {
    line: usize,
    text: String,
    /// Whether `text` begins where a sentence begins.
    opens: bool,
}

/// The comments, strings and names of tests of Rust code.
fn pieces_of_rust(code: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut line, mut rest) = (1, code);
    // The line of the previous comment; 0 if there is none. A comment on the next line belongs to the same piece.
    let mut comment = 0;
    while let Some(first) = rest.chars().next() {
        let length = token(rest);
        let text = &rest[..length];
        match first {
            '/' if text.starts_with("//") => {
                let text = text.trim_start_matches(['/', '!']).trim();
                match pieces.last_mut() {
                    Some(last) if comment + 1 == line && !text.is_empty() => {
                        last.text.push(' ');
                        last.text.push_str(text);
                    }
                    _ => pieces.push(Piece {
                        line,
                        text: text.to_owned(),
                        opens: true,
                    }),
                }
                comment = if text.is_empty() { 0 } else { line };
            }
            '"' | 'r' | 'b' if length > 1 && text.ends_with(['"', '#']) => pieces.push(Piece {
                line,
                text: text.replace("\\n", " ").replace("\\\n", " "),
                opens: false,
            }),
            'f' if text == "fn" => {
                let name = rest[length..].trim_start();
                let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                let text = name[..end.unwrap_or(0)].replace('_', " ");
                // A name of more than three words is the name of a test, and is read as a sentence.
                let opens = text.split(' ').count() > 3;
                pieces.push(Piece { line, text, opens });
            }
            _ => {}
        }
        line += text.matches('\n').count();
        rest = &rest[length..];
    }
    pieces
}

/// The length in bytes of the token at the beginning of `code`: a comment, a string, a character literal, a word, or any other
/// single character.
fn token(code: &str) -> usize {
    let bytes = code.as_bytes();
    let quoted = |start: usize| {
        let mut at = start;
        while at < bytes.len() && bytes[at] != b'"' {
            at += 1 + usize::from(bytes[at] == b'\\');
        }
        (at + 1).min(bytes.len())
    };
    let raw = |start: usize| {
        let hashes = bytes[start..]
            .iter()
            .take_while(|byte| **byte == b'#')
            .count();
        let opened = bytes.get(start + hashes) == Some(&b'"');
        let end = format!("\"{}", "#".repeat(hashes));
        let body = start + hashes + 1;
        opened.then(|| {
            code[body..]
                .find(&end)
                .map_or(code.len(), |at| body + at + end.len())
        })
    };
    let word = || {
        let end = code.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        end.unwrap_or(code.len())
    };
    match bytes {
        [b'/', b'/', ..] => code.find('\n').unwrap_or(code.len()),
        [b'"', ..] => quoted(1),
        [b'b', b'"', ..] => quoted(2),
        [b'r', b'"' | b'#', ..] => raw(1).unwrap_or_else(word),
        [b'b', b'r', b'"' | b'#', ..] => raw(2).unwrap_or_else(word),
        // A character literal, or else the quote of a lifetime.
        [b'\'', b'\\', ..] => code[3.min(code.len())..].find('\'').map_or(1, |at| at + 4),
        [b'\'', ..] => {
            let character = code[1..].chars().next().map_or(0, char::len_utf8);
            let closed = bytes.get(1 + character) == Some(&b'\'');
            if closed { character + 2 } else { 1 }
        }
        [first, ..] if first.is_ascii_alphanumeric() || *first == b'_' => word(),
        _ => code.chars().next().map_or(1, char::len_utf8),
    }
}

/// The paragraphs of a document.
fn pieces_of_text(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let continues = open && !line.starts_with(['-', '*', '|', '#']);
        match pieces.last_mut() {
            Some(last) if continues && !line.is_empty() => {
                last.text.push(' ');
                last.text.push_str(line);
            }
            _ => pieces.push(Piece {
                line: number + 1,
                text: line
                    .trim_start_matches(['#', '-', '*', '|', ' '])
                    .to_owned(),
                // A heading may be a question without a question mark.
                opens: !line.starts_with('#'),
            }),
        }
        open = !line.is_empty();
    }
    pieces
}

/// The comments of a script, each on the line that it has in the script.
fn comments_of_script(script: &str) -> String {
    let comment = |line: &str| match line.trim_start().strip_prefix('#') {
        Some(comment) => format!("{}\n", comment.trim_start()),
        None => line
            .split_once("## ")
            .map_or("\n".to_owned(), |(_, help)| format!("{help}\n")),
    };
    script.lines().map(comment).collect()
}

/// The words of a text in lower case, and whether each opens a sentence.
fn words(text: &str) -> Vec<(String, bool)> {
    let mut words = Vec::new();
    let mut ended = true;
    for part in text.split_whitespace() {
        let word: String = part
            .trim_matches(|c: char| !c.is_alphanumeric())
            .to_lowercase();
        if !word.is_empty() {
            // A name in back quotes may open a sentence.
            words.push((word, ended && !part.starts_with('`')));
        }
        ended = part.ends_with(['.', '!', '?']) || part.ends_with(".\"") || part.ends_with(".)");
    }
    words
}

/// The phrases to avoid in a piece, each with what to write instead.
fn faults(piece: &Piece) -> Vec<(&'static str, &'static str)> {
    let words = words(&piece.text);
    let mut found = Vec::new();
    for (turn, instead) in AVOID {
        let turn_words: Vec<&str> = turn.split(' ').collect();
        let is_turn = |window: &[(String, bool)]| {
            window
                .iter()
                .zip(&turn_words)
                .all(|((word, _), turn)| word == turn)
        };
        if words.windows(turn_words.len()).any(is_turn) {
            found.push((*turn, *instead));
        }
    }
    let is_question = piece.text.ends_with('?');
    for (number, (word, opens)) in words.iter().enumerate() {
        let opens = *opens && (number > 0 || piece.opens);
        let headless = HEADLESS.iter().find(|(headless, _)| headless == word);
        if let (true, false, Some((word, instead))) = (opens, is_question, headless) {
            found.push((*word, *instead));
        }
    }
    found
}

fn is_checked(file: &&File) -> bool {
    // This file contains all phrases to avoid.
    file.path != "crates/millstream/tests/tidy/prose.rs"
}

#[test]
fn comments_texts_and_documents_are_plain_english() {
    let mut found = Vec::new();
    for file in files(&[".rs", ".md", ".sh", "Makefile", ".ci/run"])
        .iter()
        .filter(is_checked)
    {
        let pieces = match file.path.rsplit_once('.') {
            Some((_, "rs")) => pieces_of_rust(&file.text),
            Some((_, "md")) => pieces_of_text(&file.text),
            _ => pieces_of_text(&comments_of_script(&file.text)),
        };
        for piece in pieces {
            for (turn, instead) in faults(&piece) {
                let (path, line) = (&file.path, piece.line);
                let text: String = piece.text.chars().take(100).collect();
                found.push(format!("{path}:{line}: `{turn}` ({instead}): {text}"));
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} phrases to replace by plain English:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn phrases_to_avoid_are_found_in_comments_names_strings_and_documents() {
    let code = "/// What is no record.\n/// It makes\n/// room.\nfn who_only_connects_goes_on() {}\n\
        let a = 'x'; let b: &'static str = \"so many\"; // else\nlet c = r#\"a \"folder\"\"#;";
    let found: Vec<(usize, &str)> = pieces_of_rust(code)
        .iter()
        .flat_map(|piece| {
            faults(piece)
                .into_iter()
                .map(|(turn, _)| (piece.line, turn))
        })
        .collect();
    let expected = [
        (1, "makes room"),
        (1, "what"),
        (4, "goes on"),
        (4, "who"),
        (5, "so many"),
        (5, "else"),
        (6, "folder"),
    ];
    assert_eq!(found, expected);
    let text = "# What it does\n\nIt knows what it has.\nOtherwise it goes\non. Who knows?\n\n- Who stays.";
    let found: Vec<(usize, &str)> = pieces_of_text(text)
        .iter()
        .flat_map(|piece| {
            faults(piece)
                .into_iter()
                .map(|(turn, _)| (piece.line, turn))
        })
        .collect();
    assert_eq!(found, [(3, "goes on"), (7, "who")]);
}
