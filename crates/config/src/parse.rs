//! Parses a YAML file into a tree of nodes with their places.
//!
//! No text can make the parser panic, nest deeper than [`DEPTH_MAX`], or allocate more than [`WEIGHT_MAX`]. This also holds for a text
//! whose aliases expand exponentially. `scalar.rs` decides the types of scalars, `substitute.rs` replaces `${...}`.
//!
//! Anchors, aliases and the merge key `<<` are supported. An alias becomes a copy that keeps the places of the
//! original.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::mask::{is_reference, unparsed};
use crate::node::{Key, Map, Node, Text, Value};
use crate::place::{Place, Source};
use crate::problem::Problem;
use crate::scalar;
use crate::secret::HIDDEN;
use crate::secret_names::{SECRET_BLOCK, is_secret_name};
use crate::sections::is_section;
use crate::syntax::{DEPTH_MAX, broken, place_of};

/// The maximum weight of one file after its aliases are expanded. The weight is the memory in bytes that its nodes take.
const WEIGHT_MAX: usize = 16 << 20;

/// The weight of a node without its text.
const NODE_WEIGHT: usize = size_of::<(Key, Node)>();

/// Parses one file; `None` if it could not be parsed to its end.
pub(crate) fn parse(source: &Arc<Source>, problems: &mut Vec<Problem>) -> Option<Node> {
    let mut builder = Builder {
        source,
        problems,
        open: Vec::new(),
        anchors: HashMap::new(),
        weight: 0,
        root: None,
        documents: 0,
        secrets: Vec::new(),
        event: 0..0,
    };
    let options = granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: DEPTH_MAX,
        block_nesting_limit: DEPTH_MAX,
    };
    let done = Parser::new_from_str_with_options(source.text(), options).try_for_each(|event| {
        let (event, span) = event.map_err(|error| {
            let open = builder.open.last().map(|open| &open.place);
            broken(source, &error, open)
        })?;
        builder.take(event, &span)
    });
    if done.is_err() {
        builder.hide_rest();
    }
    source.note_secrets(builder.secrets);
    if let Err(problem) = done {
        builder.problems.push(*problem);
        return None;
    }
    let whole = Place::whole(Arc::clone(source));
    Some(builder.root.unwrap_or(Node {
        value: Value::Null,
        place: whole,
    }))
}

/// A list or map whose end was not reached yet.
struct OpenCollection {
    /// Where it begins.
    place: Place,
    anchor: usize,
    depth: usize,
    /// Whether the list or map is the value of a secret option, or a part of such a value.
    is_secret: bool,
    /// Whether the names in a map are secret, too. In the value of a secret option other than `users`, they are: a password `{text}`
    /// without quotes is a map with the name `text`.
    hides_names: bool,
    kind: Kind,
}

enum Kind {
    List(Vec<Node>),
    Map {
        map: Map,
        /// The name of the next value. `None`: the next node is a name. `Some(None)`: the name was not a scalar, so the next value is
        /// ignored.
        key: Option<Option<Key>>,
        merged: Vec<Node>,
    },
}

impl Kind {
    /// The name of the next value of a map.
    fn key(&self) -> Option<&Key> {
        match self {
            Self::Map {
                key: Some(Some(key)),
                ..
            } => Some(key),
            _ => None,
        }
    }
}

/// A complete node that has an anchor.
#[derive(Clone)]
struct Anchored {
    node: Node,
    /// The offset of its end in bytes.
    end: usize,
    depth: usize,
    weight: usize,
}

struct Builder<'a> {
    source: &'a Arc<Source>,
    problems: &'a mut Vec<Problem>,
    open: Vec<OpenCollection>,
    /// Complete nodes that have an anchor.
    anchors: HashMap<usize, Anchored>,
    weight: usize,
    root: Option<Node>,
    documents: usize,
    /// Where secrets are, in bytes.
    secrets: Vec<Range<usize>>,
    /// The range from the end of the previous event to the end of the current event, in bytes.
    event: Range<usize>,
}

type Step = Result<(), Box<Problem>>;

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: &Span) -> Step {
        let place = place_of(self.source, span);
        let before = self.event.end;
        self.event = before..span.end.byte_offset().unwrap_or(before);
        let is_secret = self.is_secret(&event);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Box::new(
                        Problem::new(&place, "a second document begins here").help(
                            "a file holds one document: put the second one into another file",
                        ),
                    ));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_deref().map(|tag| (tag, span.tag_span()));
                let mut value = match self.wants_name() {
                    true => Value::Text(Text::new(text.as_ref())),
                    false => self.scalar(&text, style, tag, is_secret),
                };
                if is_secret {
                    if !is_reference(&text) {
                        self.hide_value();
                    }
                    if let Value::Text(text) = &mut value {
                        text.secret = true;
                    }
                }
                self.charge(NODE_WEIGHT + text.len(), &place)?;
                self.finish(Node { value, place }, anchor, 1)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), "seq", span, is_secret);
                self.begin(place, anchor, Kind::List(Vec::new()), is_secret)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), "map", span, is_secret);
                let kind = Kind::Map {
                    map: Map::default(),
                    key: None,
                    merged: Vec::new(),
                };
                self.begin(place, anchor, kind, is_secret)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(&place),
            Event::Alias(id) => self.alias(id, place, is_secret),
            Event::UnresolvedAlias(name) => {
                let name = match is_secret {
                    true => HIDDEN.into(),
                    false => name,
                };
                let problem = Problem::new(
                    &place,
                    format!("no anchor `&{name}` is defined before this"),
                )
                .help(format!(
                    "a text that begins with `*` must be in quotes: \"*{name}\""
                ));
                self.problems.push(problem);
                if is_secret {
                    self.hide_value();
                }
                let value = Value::Invalid;
                self.charge(NODE_WEIGHT, &place)?;
                self.finish(Node { value, place }, 0, 1)
            }
            _ => Ok(()),
        }
    }

    /// Whether the next node is a name in a map. Names are always texts, even if they look like numbers.
    fn wants_name(&self) -> bool {
        let kind = self.open.last().map(|open| &open.kind);
        matches!(kind, Some(Kind::Map { key: None, .. }))
    }

    /// Whether the node that begins with this event is the value of a secret option, or a part of it.
    fn is_secret(&self, event: &Event<'_>) -> bool {
        let Some(open) = self.open.last() else {
            return false;
        };
        if self.wants_name() {
            return open.hides_names;
        }
        let is_map = match event {
            Event::MappingStart(..) => true,
            Event::Alias(id) => {
                let anchored = self.anchors.get(id);
                anchored.is_some_and(|anchored| matches!(anchored.node.value, Value::Map(_)))
            }
            _ => false,
        };
        open.is_secret || self.secret_key(self.open.len() - 1, is_map).is_some()
    }

    /// The name of the next value of an open list or map, if it is the name of a secret. `level` is the index of the list or map.
    ///
    /// The user chooses the names of nodes, of `tls` blocks and of `x-...`. A map under such a name is not secret, even if the name looks
    /// like that of a secret.
    fn secret_key(&self, level: usize, is_map: bool) -> Option<&Key> {
        let key = self.open.get(level)?.kind.key()?;
        let is_chosen = match self.open.get(..level).and_then(<[_]>::split_last) {
            // Sections are at the top level, or in a map that is merged into the top level.
            Some((around, above)) => {
                let is_merged = |open: &OpenCollection| open.kind.key().is_some_and(is_merge);
                let section = around.kind.key();
                section.is_some_and(|key| is_section(&key.text)) && above.iter().all(is_merged)
            }
            None => key.text.starts_with("x-"),
        };
        (is_secret_name(&key.text) && !(is_map && is_chosen)).then_some(key)
    }

    /// Notes the value that ends here as a secret, with its tag and its anchor. A secret that begins with `!` or `&` and has no quotes is
    /// parsed as a tag or an anchor.
    fn hide_value(&mut self) {
        let Range { start, end } = self.event;
        let written = self.source.text().get(start..end).unwrap_or_default();
        let value = written.trim_start_matches(|c: char| c.is_whitespace() || ":,[{".contains(c));
        self.secrets.push(end - value.len()..end);
    }

    /// Notes what may be secret in the rest of a file that could not be parsed.
    fn hide_rest(&mut self) {
        let text = self.source.text();
        let key = (0..self.open.len()).find_map(|level| {
            let is_map = match self.open.get(level + 1) {
                Some(inner) => matches!(inner.kind, Kind::Map { .. }),
                None => {
                    let rest = text.get(self.event.end..).unwrap_or_default();
                    let value = rest.trim_start_matches(|c: char| c == ':' || c.is_whitespace());
                    value.starts_with('{')
                }
            };
            self.secret_key(level, is_map)
        });
        let rest = match key {
            Some(Key { place, .. }) => {
                let end = place.column.saturating_add(place.length);
                let start = self.source.offset(place.line, end);
                start.map(|start| start..text.len())
            }
            None => unparsed(text, self.event.end),
        };
        self.secrets.extend(rest);
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<(&Tag, Option<Span>)>,
        is_secret: bool,
    ) -> Value {
        let Some((tag, span)) = tag else {
            return match style {
                ScalarStyle::Plain => match scalar::plain(text) {
                    Value::Text(mut text) => {
                        text.typed_by_reader = text.text.contains("${");
                        Value::Text(text)
                    }
                    other => other,
                },
                _ => Value::Text(Text::new(text)),
            };
        };
        if tag.is_yaml_core_schema_tag("str") || tag.handle() == "!" && tag.suffix().is_empty() {
            return Value::Text(Text::new(text));
        }
        if ["int", "float", "bool", "null"]
            .iter()
            .any(|suffix| tag.is_yaml_core_schema_tag(suffix))
        {
            return scalar::plain(text);
        }
        self.unknown_tag(span, is_secret);
        Value::Invalid
    }

    fn refuse_tag(&mut self, tag: Option<&Tag>, allowed: &str, span: &Span, is_secret: bool) {
        if tag.is_some_and(|tag| !tag.is_yaml_core_schema_tag(allowed)) {
            self.unknown_tag(span.tag_span(), is_secret);
        }
    }

    fn unknown_tag(&mut self, span: Option<Span>, is_secret: bool) {
        let place = place_of(self.source, &span.unwrap_or_default());
        let written = match is_secret {
            true => HIDDEN,
            false => place.slice().unwrap_or("!"),
        };
        let problem = Problem::new(&place, format!("`{written}` is an unknown YAML tag")).help(
            format!("a text that begins with `!` must be in quotes: \"{written}\""),
        );
        self.problems.push(problem);
    }

    fn begin(&mut self, place: Place, anchor: usize, kind: Kind, is_secret: bool) -> Step {
        self.check_depth(1, &place)?;
        self.charge(NODE_WEIGHT, &place)?;
        let is_map = matches!(kind, Kind::Map { .. });
        let key = self.secret_key(self.open.len().saturating_sub(1), is_map);
        let hides_names = self.open.last().is_some_and(|open| open.hides_names)
            || key.is_some_and(|key| !key.text.eq_ignore_ascii_case(SECRET_BLOCK));
        self.open.push(OpenCollection {
            place,
            anchor,
            depth: 1,
            is_secret,
            hides_names,
            kind,
        });
        Ok(())
    }

    /// Completes the innermost list or map. If the list or map has a single line, its place is extended to its end.
    fn end(&mut self, last: &Place) -> Step {
        let Some(mut open) = self.open.pop() else {
            return Ok(());
        };
        if last.line == open.place.line {
            let length = (last.column + last.length).saturating_sub(open.place.column);
            open.place.length = open.place.length.max(length);
        }
        let value = match open.kind {
            Kind::List(list) => Value::List(list),
            Kind::Map { map, merged, .. } => Value::Map(self.merge(map, merged)),
        };
        let place = open.place;
        self.finish(Node { value, place }, open.anchor, open.depth)
    }

    fn alias(&mut self, id: usize, place: Place, is_secret: bool) -> Step {
        let Some(anchored) = self.anchors.get(&id).cloned() else {
            let problem = Problem::new(&place, "this alias is inside the node that it refers to");
            return Err(Box::new(problem));
        };
        let Anchored {
            node,
            end,
            depth,
            weight,
        } = anchored;
        self.check_depth(depth, &place)?;
        self.charge(weight, &place)?;
        if is_secret {
            self.hide_value();
            let start = self.source.offset(node.place.line, node.place.column);
            self.secrets.extend(start.map(|start| start..end));
        }
        self.finish(node, 0, depth)
    }

    fn check_depth(&self, more: usize, place: &Place) -> Step {
        if self.open.len() + more > DEPTH_MAX {
            let message = format!("lists and maps nest deeper than {DEPTH_MAX} levels");
            return Err(Box::new(Problem::new(place, message)));
        }
        Ok(())
    }

    /// Adds to the weight of the file, before a node is stored.
    fn charge(&mut self, weight: usize, place: &Place) -> Step {
        self.weight = self.weight.saturating_add(weight);
        if self.weight > WEIGHT_MAX {
            let message = "the file is too large from here on, with its aliases expanded";
            return Err(Box::new(Problem::new(place, message)));
        }
        Ok(())
    }

    /// Stores a complete node in its parent, and under its anchor.
    fn finish(&mut self, node: Node, anchor: usize, depth: usize) -> Step {
        if anchor != 0 {
            let weight = weight_of(&node);
            self.charge(weight, &node.place)?;
            let anchored = Anchored {
                node: node.clone(),
                end: self.event.end,
                depth,
                weight,
            };
            self.anchors.insert(anchor, anchored);
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.depth = parent.depth.max(depth + 1);
        match &mut parent.kind {
            Kind::List(list) => list.push(node),
            Kind::Map { map, key, merged } => match key.take() {
                None => *key = Some(key_of(node, self.problems)),
                Some(None) => {}
                Some(Some(name)) if is_merge(&name) => merged.push(node),
                Some(Some(name)) => insert(map, name, node, parent.hides_names, self.problems),
            },
        }
        Ok(())
    }
}

impl Builder<'_> {
    /// Adds the entries that `<<` refers to. The map's own entries take precedence over all others, and the entries of earlier maps over
    /// those of later maps.
    fn merge(&mut self, mut map: Map, merged: Vec<Node>) -> Map {
        let mut parts = Vec::new();
        for node in merged {
            match node.value {
                Value::List(list) => parts.extend(list),
                _ => parts.push(node),
            }
        }
        for part in parts {
            let Value::Map(more) = part.value else {
                let problem = Problem::new(&part.place, "`<<` must be a map or a list of maps");
                self.problems.push(problem);
                continue;
            };
            for (key, node) in more.entries {
                if map.get(&key.text).is_none() {
                    map.entries.push((key, node));
                }
            }
        }
        map
    }
}

/// Returns the name of a map entry as it is written. If the name is a list or a map, reports a problem and returns `None`.
fn key_of(node: Node, problems: &mut Vec<Problem>) -> Option<Key> {
    let text = match node.value {
        Value::Text(text) => text.text,
        Value::List(_) | Value::Map(_) => {
            let problem = Problem::new(
                &node.place,
                "a name in a map must be a text, not a list or a map",
            )
            .help("a value that begins with `{` or `[` and is meant as a text must be in quotes");
            problems.push(problem);
            return None;
        }
        Value::Invalid => return None,
        // The name is, for example, an alias that refers to a number.
        _ => node.place.slice().unwrap_or_default().to_owned(),
    };
    let place = node.place;
    Some(Key { text, place })
}

/// The merge key is an unquoted `<<`; a quoted one is an ordinary name.
fn is_merge(key: &Key) -> bool {
    key.text == "<<" && key.place.slice() == Some("<<")
}

fn insert(map: &mut Map, key: Key, mut node: Node, hides_names: bool, problems: &mut Vec<Problem>) {
    // A block and an empty value have no text to point at, so their problems point at their name.
    if node.place.length == 0 {
        node.place = key.place.clone();
    }
    match map.entry(&key.text) {
        None => map.entries.push((key, node)),
        Some((first, _)) => {
            let shown = match hides_names {
                true => HIDDEN,
                false => key.text.as_str(),
            };
            let problem = Problem::new(&key.place, format!("`{shown}` is given twice"))
                .also(&first.place, "first given here");
            problems.push(problem);
        }
    }
}

fn weight_of(node: &Node) -> usize {
    NODE_WEIGHT
        + match &node.value {
            Value::Text(text) => text.text.len(),
            Value::List(list) => list.iter().map(weight_of).sum(),
            Value::Map(map) => map
                .entries
                .iter()
                .map(|(key, node)| key.text.len() + weight_of(node))
                .sum(),
            _ => 0,
        }
}
