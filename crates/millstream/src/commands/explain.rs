//! `millstream explain`: shows the graph of a configuration and its delivery guarantees.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{
    config,
    explain::{Explained, dot, mermaid, text},
    page,
};

/// Show the graph of a configuration and what it promises. Starts nothing.
///
/// For every path from a source to a sink it shows the promise (exactly once, at least once or at most once) with the reason, when a
/// sender gets its answer, and which nodes wait when a sink cannot write.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream explain millstream.yaml
  millstream explain --format mermaid millstream.yaml > graph.mmd
  millstream explain --format dot millstream.yaml | dot -Tsvg > graph.svg

Exit codes: 0 shown, 78 wrong configuration")]
pub struct Explain {
    /// Configuration files and directories (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A page of text.
    Text,
    /// A flow chart that many wikis and forges can draw.
    Mermaid,
    /// A graph for Graphviz.
    Dot,
}

impl Explain {
    /// Explains; returns the exit code.
    pub fn execute(self) -> u8 {
        let loaded = match config::read(&self.config) {
            Ok(loaded) => loaded,
            Err(problems) => return config::complain(&problems),
        };
        config::show(&loaded.warnings);
        let explained = Explained::new(&loaded.plan);
        page::print(&match self.format {
            Format::Text => text::render(&explained),
            Format::Mermaid => mermaid::render(&explained),
            Format::Dot => dot::render(&explained),
        })
    }
}
