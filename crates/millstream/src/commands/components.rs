//! `millstream components` and `millstream example`: the parts of a pipeline, with their options and examples.

use clap::Args;
use millstream_config::{Section, names};
use millstream_pipeline::node::Component;

use crate::{
    exit,
    page::{self, columns, list},
    reference::{pages, readme},
    registry,
};

/// The example of an aggregator: receives from a fleet, keeps on disk, writes files.
const AGGREGATOR: &str = include_str!("../../../../examples/aggregator.yaml");
/// The example of an agent: tails files, keeps on disk, forwards.
const AGENT: &str = include_str!("../../../../examples/agent.yaml");

/// List all sources, processors, channels and sinks, or show the page of one type with every option. The pages config, tags,
/// templates and secrets describe what all types share.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream components               every source, processor, channel and sink, with one sentence
  millstream components file          what the sink `file` does, its options, what it promises
  millstream components sources/forward
  millstream components config        the settings at the top, the options that nodes share, sizes and times
  millstream components tags          where tags come from, and tag patterns
  millstream components templates     the forms of templates, and the names of values
  millstream components secrets       values from the environment, from files and from systemd

Exit codes: 0 shown, 64 there is no such type or page")]
pub struct Components {
    /// A type such as `file`, or a page: `config`, `tags`, `templates`, `secrets`. If both a source and a sink have the type, both are
    /// shown; `sinks/forward` selects the sink.
    #[arg(value_name = "TYPE|PAGE")]
    type_: Option<String>,
}

/// Print a complete configuration to start from.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream example aggregator > millstream.yaml
  millstream example sinks/forward

Exit codes: 0 shown, 64 there is no such example")]
pub struct Example {
    /// `agent`, `aggregator`, or a type of component such as `tail` or `sinks/forward`.
    #[arg(value_name = "TYPE|agent|aggregator")]
    name: String,
}

impl Components {
    /// Prints the list or the pages; returns the exit code.
    pub fn execute(self) -> u8 {
        let Some(name) = self.type_ else {
            return page::print(&listing());
        };
        if let Some(page) = pages::find(&name) {
            return page::print(&pages::render(page));
        }
        let found = named(&name);
        if found.is_empty() {
            return unknown(&name, &pages::ALL.map(|page| page.name));
        }
        let pages: Vec<_> = found.into_iter().map(readme::render).collect();
        page::print(&pages.join("\n"))
    }
}

impl Example {
    /// Shows; returns the exit code.
    pub fn execute(self) -> u8 {
        match self.name.as_str() {
            "aggregator" => return page::print(AGGREGATOR),
            "agent" => return page::print(AGENT),
            _ => {}
        }
        match &named(&self.name)[..] {
            [] => unknown(&self.name, &["agent", "aggregator"]),
            [one] => page::print(one.example),
            several => {
                let names = several
                    .iter()
                    .map(|component| format!("`{}`", address(component)));
                let names: Vec<_> = names.collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let text = format!("`{}` can mean {}: name one", self.name, list(&names));
                page::complain(&text, exit::USAGE)
            }
        }
    }
}

/// All components by section.
fn listing() -> String {
    let mut out = String::new();
    for section in Section::ALL {
        let of_section = registry::all().filter(|c| registry::section(c) == section.name());
        let rows = of_section.map(|c| vec![c.name.to_owned(), c.summary.to_owned()]);
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() {
            out.push_str(&format!("{}\n{}\n", section.name(), columns(2, &rows, &[])));
        }
    }
    let rows = pages::ALL.map(|page| vec![page.name.to_owned(), page.summary.to_owned()]);
    out.push_str(&format!("pages\n{}\n", columns(2, &rows, &[])));
    out.push_str("`millstream components TYPE` shows a type with its options, or a page; `millstream example TYPE` shows how a type is used.\n");
    out
}

/// The components that an argument names.
fn named(word: &str) -> Vec<&'static Component> {
    let all = registry::all();
    all.filter(|component| component.name == word || address(component) == word)
        .collect()
}

/// The unique name of a component: its directory.
fn address(component: &Component) -> String {
    format!("{}/{}", registry::section(component), component.name)
}

fn unknown(name: &str, more: &[&str]) -> u8 {
    let known: Vec<_> = registry::all().map(|c| c.name).collect();
    let words = known.iter().chain(more).copied();
    let text = match names::nearest(name, words) {
        Some(nearest) => format!("there is no `{name}`; did you mean `{nearest}`?"),
        None => format!("there is no `{name}`; `millstream components` lists what there is"),
    };
    page::complain(&text, exit::USAGE)
}
