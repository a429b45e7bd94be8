//! Renders documentation as text for the terminal. A page is either the README of a component, with its options from the schema and
//! its whole example, or a page of `docs/`.

use millstream_pipeline::node::Component;

use super::options::{self, Row};
use crate::{
    page::{line_width, paragraph, table},
    registry,
};

/// The line before the generated table of options in a README.
pub const OPTIONS_BEGIN: &str = "<!-- options -->";
/// The line after the table.
pub const OPTIONS_END: &str = "<!-- /options -->";

/// The page of a component.
pub fn render(component: &Component) -> String {
    let kind = registry::section(component).trim_end_matches('s');
    let mut out = format!("{} ({kind})\n", component.name.to_uppercase());
    out.push_str(&paragraph("", component.summary));
    let address = format!("{}s/{}", kind, component.name);
    Page {
        markdown: component.readme,
        options: options::rows((component.schema)().as_value()),
        example: Some((&address, component.example)),
        out,
        ..Page::default()
    }
    .render()
}

/// A page of documentation. `options` replace the table of options in `markdown`.
pub fn render_page(name: &str, markdown: &str, options: Vec<Row>) -> String {
    Page {
        markdown,
        options,
        out: format!("{}\n", name.to_uppercase()),
        ..Page::default()
    }
    .render()
}

#[derive(Default)]
struct Page<'a> {
    markdown: &'a str,
    options: Vec<Row>,
    /// The component's name for `millstream example`, and its example.
    example: Option<(&'a str, &'a str)>,
    out: String,
    /// The paragraph or list item that is being read.
    words: String,
    /// The table that is being read, without its line of dashes.
    table: Vec<Vec<String>>,
}

impl Page<'_> {
    fn render(mut self) -> String {
        let (mut is_code, mut is_generated) = (false, false);
        for line in self.markdown.lines() {
            let text = line.trim();
            if let Some(language) = text.strip_prefix("```") {
                self.flush();
                is_code = !is_code;
                if is_code {
                    self.caption(language);
                } else {
                    self.out.push('\n');
                }
            } else if is_code {
                self.code(line);
            } else if text == OPTIONS_BEGIN {
                is_generated = true;
                self.out.push_str(&options::text(&self.options));
            } else if text == OPTIONS_END {
                is_generated = false;
            } else if !is_generated {
                self.line(text);
            }
        }
        self.flush();
        self.out.truncate(self.out.trim_end().len());
        self.out.push('\n');
        self.out
    }

    /// Announces what the following code is: a configuration, or a file of another program.
    fn caption(&mut self, language: &str) {
        self.gap();
        let caption = match language {
            "" => return,
            "yaml" => "In the configuration".to_owned(),
            "sh" => "In a shell".to_owned(),
            file => format!("In {file}"),
        };
        self.out.push_str(&format!("  {caption}:\n\n"));
    }

    fn code(&mut self, line: &str) {
        self.out.push_str(format!("    {line}").trim_end());
        self.out.push('\n');
    }

    fn line(&mut self, text: &str) {
        if text.is_empty() || text.starts_with("<!--") {
            self.flush();
        } else if let Some(title) = text.strip_prefix("## ") {
            self.flush();
            self.gap();
            self.out.push_str(&format!("{}\n\n", title.to_uppercase()));
        } else if text.starts_with("# ") {
            self.flush();
        } else if let (Some((before, behind)), Some(_)) = (split_example(text), self.example) {
            self.words(before);
            self.flush();
            self.example();
            self.words(behind);
        } else if text.starts_with('|') {
            self.row(text);
        } else {
            if text.starts_with("- ") {
                self.flush();
            }
            self.words(text);
        }
    }

    fn words(&mut self, text: &str) {
        if !text.is_empty() {
            self.words.push_str(&plain(text));
            self.words.push(' ');
        }
    }

    /// Adds the whole example of the component.
    fn example(&mut self) {
        let Some((address, example)) = self.example else {
            return;
        };
        self.gap();
        let caption = format!("  `millstream example {address}` prints it:\n\n");
        self.out.push_str(&caption);
        example.lines().for_each(|line| self.code(line));
        self.out.push('\n');
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
        let rows = std::mem::take(&mut self.table);
        if !rows.is_empty() {
            self.gap();
            self.out.push_str(&table(2, &rows, line_width()));
        }
    }

    /// Ends the output with an empty line, before a new block.
    fn gap(&mut self) {
        if !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }
}

/// The texts before and after the sentence that links to the example: `See [example.yaml](example.yaml).`
fn split_example(text: &str) -> Option<(&str, &str)> {
    let (before, behind) = text.split_once("[example.yaml](example.yaml)")?;
    let before = before.trim_end();
    let before = before.strip_suffix("See").unwrap_or(before).trim_end();
    let behind = behind.strip_prefix(['.', ':']).unwrap_or(behind);
    Some((before, behind.trim_start()))
}

/// Markdown as plain text: `[text](address)` and `**text**` become `text`. Text in back quotes is unchanged.
fn plain(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let pieces = pieces.map(|(number, piece)| match number % 2 {
        0 => without_links(piece).replace("**", ""),
        _ => piece.to_owned(),
    });
    pieces.collect::<Vec<_>>().join("`")
}

fn without_links(text: &str) -> String {
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
    out
}
