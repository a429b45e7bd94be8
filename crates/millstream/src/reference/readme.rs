//! A component's README as text for the terminal, with its options from the schema and its example in full.

use millstream_pipeline::node::Component;

use super::options;
use crate::{
    page::{WIDTH, columns, paragraph, width},
    registry,
};

/// Where the generated table of options begins in a README.
pub const OPTIONS_BEGIN: &str = "<!-- options -->";
/// Where it ends.
pub const OPTIONS_END: &str = "<!-- /options -->";

/// The page of a component.
pub fn render(component: &Component) -> String {
    let kind = registry::section(component).trim_end_matches('s');
    let mut out = format!("{} ({kind})\n", component.name.to_uppercase());
    out.push_str(&paragraph("", component.summary));
    let mut page = Page {
        component,
        out,
        words: String::new(),
        table: Vec::new(),
    };
    page.walk();
    page.out
}

struct Page<'a> {
    component: &'a Component,
    out: String,
    /// The paragraph or list item that is being read.
    words: String,
    /// The table that is being read, without its line of dashes.
    table: Vec<Vec<String>>,
}

impl Page<'_> {
    fn walk(&mut self) {
        let (mut is_code, mut is_generated) = (false, false);
        for line in self.component.readme.lines() {
            let text = line.trim();
            if text.starts_with("```") {
                self.flush();
                is_code = !is_code;
            } else if is_code {
                self.out.push_str(&format!("    {line}\n"));
            } else if text == OPTIONS_BEGIN {
                is_generated = true;
                let rows = options::rows((self.component.schema)().as_value());
                self.out.push_str(&options::text(&rows));
            } else if text == OPTIONS_END {
                is_generated = false;
            } else if !is_generated {
                self.line(text);
            }
        }
        self.flush();
    }

    fn line(&mut self, text: &str) {
        if text.is_empty() || text.starts_with("<!--") {
            self.flush();
        } else if let Some(title) = text.strip_prefix("## ") {
            self.flush();
            self.out
                .push_str(&format!("\n{}\n\n", title.to_uppercase()));
        } else if text.starts_with("# ") {
            self.flush();
        } else if text.contains("(example.yaml)") {
            self.flush();
            for line in self.component.example.lines() {
                self.out.push_str(format!("    {line}").trim_end());
                self.out.push('\n');
            }
        } else if text.starts_with('|') {
            self.row(text);
        } else {
            if text.starts_with("- ") {
                self.flush();
            }
            self.words.push_str(&plain(text));
            self.words.push(' ');
        }
    }

    fn row(&mut self, text: &str) {
        let inner = text.trim_matches('|').replace("\\|", "\u{1}");
        let cells = inner.split('|').map(|cell| {
            let cell = cell.trim().replace('\u{1}', "|");
            plain(&cell)
        });
        let cells: Vec<_> = cells.collect();
        let is_rule = cells
            .iter()
            .all(|cell| cell.chars().all(|c| "-: ".contains(c)));
        if !is_rule {
            self.table.push(cells);
        }
    }

    fn flush(&mut self) {
        let words = std::mem::take(&mut self.words);
        match words.strip_prefix("- ") {
            Some(item) => self.out.push_str(&paragraph("  - ", item)),
            None if words.is_empty() => {}
            None => {
                self.gap();
                self.out.push_str(&paragraph("  ", &words));
            }
        }
        let table = std::mem::take(&mut self.table);
        self.out.push_str(&shown(&table));
    }

    /// Paragraphs that follow each other are a line apart.
    fn gap(&mut self) {
        if !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }
}

/// A table with aligned columns if all but its last column are narrow, else row by row.
fn shown(table: &[Vec<String>]) -> String {
    let narrow = |row: &Vec<String>| {
        let most = row.len().saturating_sub(1);
        row.iter().take(most).map(|cell| width(cell)).sum::<usize>() < WIDTH / 2
    };
    if table.iter().all(narrow) {
        return columns(2, table, &[]);
    }
    let rows = table.iter().skip(1).map(|row| match row.split_first() {
        Some((first, rest)) => paragraph(&format!("  {first}: "), &rest.join("; ")),
        None => String::new(),
    });
    rows.collect()
}

/// `[text](address)` becomes `text`, `**text**` too.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let link = after
            .split_once("](")
            .and_then(|(name, tail)| Some((name, tail.split_once(')')?.1)));
        out.push_str(before);
        match link {
            Some((name, tail)) if !name.contains('[') => {
                out.push_str(name);
                rest = tail;
            }
            _ => {
                out.push('[');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out.replace("**", "")
}
