//! The pages of `docs/` that belong to no component, but to the whole configuration.

use millstream_config::Settings;

use super::{
    options::{self, Row},
    readme,
};

/// A page.
pub struct Page {
    /// Its name for `millstream components`. The file is `docs/NAME.md`.
    pub name: &'static str,
    /// Its content in one sentence.
    pub summary: &'static str,
    /// The content of the file.
    pub markdown: &'static str,
    /// The options that it lists.
    pub options: fn() -> Vec<Row>,
}

/// All pages.
pub const ALL: [Page; 4] = [
    Page {
        name: "config",
        summary: "The settings at the top, the options that nodes share, sizes and times, files.",
        markdown: include_str!("../../../../docs/config.md"),
        options: settings,
    },
    Page {
        name: "tags",
        summary: "Where tags come from, and the patterns of the option `tags`.",
        markdown: include_str!("../../../../docs/tags.md"),
        options: Vec::new,
    },
    Page {
        name: "templates",
        summary: "`{tag}`, `{.field}`, `{time}` and strftime: what they show, and the names of values.",
        markdown: include_str!("../../../../docs/templates.md"),
        options: Vec::new,
    },
    Page {
        name: "secrets",
        summary: "Values from the environment, from files and from systemd.",
        markdown: include_str!("../../../../docs/secrets.md"),
        options: Vec::new,
    },
];

/// The page of this name.
pub fn find(name: &str) -> Option<&'static Page> {
    ALL.iter().find(|page| page.name == name)
}

/// A page as text for the terminal.
pub fn render(page: &Page) -> String {
    readme::render_page(page.name, page.markdown, (page.options)())
}

fn settings() -> Vec<Row> {
    options::rows(schemars::schema_for!(Settings).as_value())
}
