//! Checks the names of values in templates. A value is a text that a source sets for a whole batch, such as `host`. A template with a
//! value that no source sets would reject every record at run time.
//!
//! The JSON Schema of a component marks the options that are templates, so a new template option is checked without extra code in
//! its sink. Each source declares its values ([`crate::node::Source::values`]).

use std::collections::BTreeMap;

use millstream_config::{Node, Place, Problem, names};
use millstream_record::VALUE_NAMES;
use millstream_wire::template::Template;
use serde_json::Value;

use super::{Built, Entry, Takers};

/// Names in a template that are always defined.
const ALWAYS: [&str; 3] = ["tag", "time", "record"];
/// Characters that end a name in a template.
const ENDS: [&str; 3] = ["}", "|", ":"];

/// Finds templates with values that no upstream source sets. Warns about values that only some of the upstream sources set.
pub fn check_templates(
    entries: &[Entry],
    built: &[Option<Built>],
    takers: &Takers,
    problems: &mut Vec<Problem>,
) -> Vec<Problem> {
    let mut warnings = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let Some(Built::Sink(_) | Built::Processor(_)) = built[at] else {
            continue;
        };
        let Some(upstream) = Upstream::of(at, entries, built, takers) else {
            continue;
        };
        let schema = (entry.component.schema)();
        let mut found = Vec::new();
        templates(
            schema.as_value(),
            schema.as_value(),
            &entry.options,
            &mut found,
        );
        for (template, place) in found {
            for (name, default) in template.values() {
                let place = place_of(place, name);
                match default {
                    Some(_) if VALUE_NAMES.contains(&name) => {}
                    _ if !upstream.knows(name) => {
                        problems.push(upstream.unknown(entry, name, &place))
                    }
                    None => warnings.extend(upstream.lacking(name, &place)),
                    Some(_) => {}
                }
            }
        }
    }
    warnings
}

/// Returns the value that was most likely meant by a wrong name: a value with a similar spelling, a value with which the name begins
/// (`host` for `hostname`), or a value whose last part is the name (`kubernetes.pod` for `pod`).
pub fn nearest_value<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let is_part = |value: &&&str| {
        let last = value.rsplit('.').next();
        name.starts_with(**value) || last == Some(name)
    };
    let part = || known.iter().find(is_part).copied();
    names::nearest(name, known.iter().copied()).or_else(part)
}

/// The sources whose records can reach a node.
struct Upstream<'a> {
    /// For each source by name: its values, and whether batches of all its tags reach the node.
    sources: BTreeMap<&'a str, (&'static [&'static str], bool)>,
}

impl<'a> Upstream<'a> {
    /// `None` if the values are unknown: a source has an error, or no source leads to the node.
    fn of(
        node: usize,
        entries: &'a [Entry],
        built: &[Option<Built>],
        takers: &Takers,
    ) -> Option<Self> {
        let mut sources = BTreeMap::new();
        let (mut open, mut seen) = (vec![(node, true)], vec![(node, true)]);
        while let Some((to, all)) = open.pop() {
            for ((from, _), readers) in takers {
                for reader in readers.iter().filter(|reader| reader.node == to) {
                    let step = (*from, all && reader.tags.is_none());
                    if !seen.contains(&step) {
                        seen.push(step);
                        open.push(step);
                    }
                }
            }
        }
        for (at, all) in seen {
            match &built[at] {
                None => return None,
                Some(Built::Source(source)) => {
                    let (_, every) = sources
                        .entry(&*entries[at].name)
                        .or_insert((source.values(), all));
                    *every |= all;
                }
                Some(_) => {}
            }
        }
        (!sources.is_empty()).then_some(Self { sources })
    }

    fn knows(&self, name: &str) -> bool {
        self.sources
            .values()
            .any(|(values, _)| values.contains(&name))
    }

    /// The error about a name that no source sets.
    fn unknown(&self, entry: &Entry, name: &str, place: &Place) -> Problem {
        let mut known = ALWAYS.to_vec();
        for value in self.sources.values().flat_map(|(values, _)| *values) {
            if !known.contains(value) {
                known.push(value);
            }
        }
        let message = format!("no source of `{}` sets the value `{name}`", entry.name);
        let nearest = nearest_value(name, &known);
        let known: Vec<_> = known.iter().map(|name| format!("`{{{name}}}`")).collect();
        let known = known.join(", ");
        let help = match nearest {
            _ if VALUE_NAMES.contains(&name) => format!(
                "other sources set it: with a default, such as `{{{name}|unknown}}`, it may stand here; these sources set {known}"
            ),
            Some(nearest) => format!(
                "did you mean `{nearest}`? A field of the record starts with a dot: `{{.{name}}}`"
            ),
            None => {
                format!("there are {known}; a field of the record starts with a dot: `{{.{name}}}`")
            }
        };
        Problem::new(place, message).help(help)
    }

    /// The warning about a value that some of the sources do not set.
    fn lacking(&self, name: &str, place: &Place) -> Option<Problem> {
        let lacks = |(values, every): &(&[&str], bool)| *every && !values.contains(&name);
        let lacking = self.sources.iter().filter(|(_, source)| lacks(source));
        let lacking: Vec<_> = lacking.map(|(source, _)| format!("`{source}`")).collect();
        if lacking.is_empty() {
            return None;
        }
        let lacking = lacking.join(", ");
        let message =
            format!("records of {lacking} have no value `{name}`, which this template needs");
        let help = format!(
            "give it a default, such as `{{{name}|unknown}}`, or take only the tags that have it"
        );
        Some(Problem::warning(place, message).help(help))
    }
}

/// Finds the templates among the options that `schema` describes, each with its place. `root` is the whole schema, for references.
fn templates<'a>(
    root: &Value,
    schema: &Value,
    options: &'a Node,
    found: &mut Vec<(Template, &'a Place)>,
) {
    if let Some(to) = schema["$ref"].as_str() {
        if to.ends_with("/Template") {
            let template = options.as_text().map(Template::parse);
            found.extend(
                template
                    .and_then(Result::ok)
                    .map(|template| (template, &options.place)),
            );
        } else if let Some(inner) = to.strip_prefix('#').and_then(|to| root.pointer(to)) {
            templates(root, inner, options, found);
        }
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        for inner in schema[choice].as_array().into_iter().flatten() {
            templates(root, inner, options, found);
        }
    }
    for (key, option) in options.entries() {
        let named = &schema["properties"][&key.text];
        let inner = if named.is_null() {
            &schema["additionalProperties"]
        } else {
            named
        };
        templates(root, inner, option, found);
    }
    for element in options.as_list().unwrap_or_default() {
        templates(root, &schema["items"], element, found);
    }
}

/// The place of a name in a template.
fn place_of(template: &Place, name: &str) -> Place {
    for end in ENDS {
        let mut place = template.within(&format!("{{{name}{end}"));
        if &place != template {
            place.column += 1;
            place.length = u32::try_from(name.chars().count()).unwrap_or(1);
            return place;
        }
    }
    template.clone()
}
