//! The whole configuration as a tree, and its parts: the settings, and the nodes with their sections, names and types.

use crate::names;
use crate::node::{Key, Node, Value};
use crate::problem::{Problem, Problems};
use crate::settings::Settings;
use crate::tls;
use crate::words::Word;

/// All files as one map, without the top-level names `x-...`.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The map at the top.
    pub root: Node,
}

/// The four kinds of nodes, each a section of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// Where records enter.
    Sources,
    /// How records are changed on the way.
    Processors,
    /// Where records are buffered.
    Channels,
    /// Where records leave.
    Sinks,
}

impl Section {
    /// All sections, in the direction of the flow.
    pub const ALL: [Self; 4] = [Self::Sources, Self::Processors, Self::Channels, Self::Sinks];

    /// Its name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sources => "sources",
            Self::Processors => "processors",
            Self::Channels => "channels",
            Self::Sinks => "sinks",
        }
    }

    /// The noun for one of its nodes.
    #[must_use]
    pub fn noun(self) -> &'static str {
        match self {
            Self::Sources => "source",
            Self::Processors => "processor",
            Self::Channels => "channel",
            Self::Sinks => "sink",
        }
    }

    /// The section with this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }
}

/// One node of the file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its section.
    pub section: Section,
    /// The name that the user gave it.
    pub name: Key,
    /// Its type, with the place where it is written.
    pub kind: Key,
    /// Its options, without `type`.
    pub options: Node,
}

/// The parts of a configuration.
#[derive(Clone, Debug)]
#[must_use]
pub struct Sections {
    /// The settings at the top level; the defaults if they cannot be read.
    pub settings: Settings,
    /// The nodes that have a name and a type, by section in the direction of the flow, then in the order of the file.
    pub nodes: Vec<Entry>,
    /// The setting `api` as it is written, except that a name in its option `tls` is replaced by the block of that name.
    pub api: Option<Node>,
    /// Problems with settings, names and types.
    pub problems: Problems,
}

impl Tree {
    /// The names of all nodes of a section, including those with errors.
    pub fn names(&self, section: Section) -> impl Iterator<Item = &str> {
        let nodes = self.root.get(section.name()).map(Node::entries);
        nodes
            .unwrap_or_default()
            .iter()
            .map(|(name, _)| name.text.as_str())
    }

    /// Divides the tree into settings and nodes.
    pub fn sections(&self) -> Sections {
        let mut root = self.root.clone();
        let mut problems = Vec::new();
        let mut nodes: Vec<Entry> = Vec::new();
        for section in Section::ALL {
            let Some((_, node)) = root.take(section.name()) else {
                continue;
            };
            entries_of(section, node, &mut nodes, &mut problems);
        }
        let certificates = root.take(tls::TLS);
        let mut api = match &mut root.value {
            Value::Map(map) => map.get_mut("api"),
            _ => None,
        };
        let users = nodes.iter_mut().map(|node| &mut node.options);
        tls::put(certificates, users.chain(api.as_deref_mut()), &mut problems);
        let api = api.cloned();
        let settings = root.read_as::<Settings>(Word::Top);
        let settings = settings.unwrap_or_else(|wrong| {
            problems.extend(wrong);
            Settings::default()
        });
        Sections {
            settings,
            nodes,
            api,
            problems: Problems(problems),
        }
    }
}

/// Whether a name stands for a section: a map of nodes or of `tls` blocks, whose names the user chose.
pub(crate) fn is_section(name: &str) -> bool {
    name == tls::TLS || Section::of(name).is_some()
}

/// The error for a duplicate name.
pub(crate) fn twice(noun: &str, key: &Key, first: &Key) -> Problem {
    Problem::new(
        &key.place,
        format!("the {noun} `{}` is given twice", key.text),
    )
    .also(&first.place, "first given here")
}

fn entries_of(section: Section, node: Node, nodes: &mut Vec<Entry>, problems: &mut Vec<Problem>) {
    let map = match node.value {
        Value::Map(map) => map,
        Value::Null | Value::Invalid => return,
        _ => {
            let message = format!(
                "`{}` must be a map of names to {}, found {}",
                section.name(),
                section.name(),
                node.kind()
            );
            let help = format!(
                "give every {} a name: `my_{}: {{ type: ... }}`",
                section.noun(),
                section.noun()
            );
            problems.push(Problem::new(&node.place, message).help(help));
            return;
        }
    };
    for (name, options) in map.entries {
        if let Err(why) = names::check(&name.text) {
            problems.push(Problem::new(&name.place, why));
        }
        if let Some(first) = nodes.iter().find(|entry| entry.name.text == name.text) {
            problems.push(
                twice("name", &name, &first.name)
                    .help("sources, processors, channels and sinks share one set of names"),
            );
            continue;
        }
        nodes.extend(entry_of(section, name, options, problems));
    }
}

fn entry_of(
    section: Section,
    name: Key,
    mut options: Node,
    problems: &mut Vec<Problem>,
) -> Option<Entry> {
    match options.value {
        Value::Map(_) => {}
        Value::Invalid => return None,
        _ => {
            let message = format!(
                "the {} `{}` must be a map of options, found {}",
                section.noun(),
                name.text,
                options.kind()
            );
            problems.push(Problem::new(&options.place, message).help("such as `{ type: ... }`"));
            return None;
        }
    }
    let Some((key, kind)) = options.take("type") else {
        let message = format!("the {} `{}` has no `type`", section.noun(), name.text);
        problems.push(Problem::new(&name.place, message));
        return None;
    };
    let text = match kind.read::<String>() {
        Ok(text) => text,
        Err(_) if kind.is_invalid() => return None,
        Err(_) => {
            let message = format!(
                "`type` must be the name of a type, found {}",
                kind.describe()
            );
            let problem = Problem::new(&kind.place, message);
            problems.push(match kind.is_null() && kind.place.slice() != Some("type") {
                true => problem.help("the type that drops everything is called `discard`"),
                false => problem,
            });
            return None;
        }
    };
    let place = match kind.place.length {
        0 => key.place,
        _ => kind.place,
    };
    Some(Entry {
        section,
        name,
        kind: Key { text, place },
        options,
    })
}
