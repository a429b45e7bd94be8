//! The structure of one record: its values and how they nest, in lists that are reused for every record.

use std::{collections::HashMap, ops::Range};

use millstream_wire::msgpack::{ReadError, Reader};

/// The same limit as for JSON in the rest of Millstream.
const DEPTH_MAX: usize = 128;

/// In maps with at most this many fields, repeated keys are found by comparing all keys. In larger maps, a hash map finds them.
const FEW_FIELDS: usize = 32;

/// The kind of a value, with the data for its text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// The range of its bytes.
    Text(Range<usize>),
    Bytes(Range<usize>),
    Map,
    Array,
}

struct Node {
    kind: Kind,
    /// The byte range of the value's key. For an element of an array, this is the byte range of the array's key.
    name: Range<usize>,
    /// The range of its children in `order`.
    children: Range<usize>,
}

/// A map or array that is not complete.
struct Incomplete {
    node: usize,
    left: u32,
    /// The start of its children in `pending`.
    first: usize,
}

/// One record. Value 0 is the record itself.
#[derive(Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The children of all values; those of one value are adjacent.
    order: Vec<usize>,
    /// Children of incomplete maps and arrays.
    pending: Vec<usize>,
    open: Vec<Incomplete>,
}

impl Tree {
    /// Reads the record at the start of `bytes`; `sorted`: sorts the fields of maps by name.
    pub(super) fn read(&mut self, bytes: &[u8], sorted: bool) -> Result<(), String> {
        self.nodes.clear();
        self.order.clear();
        self.pending.clear();
        self.open.clear();
        let mut reader = Reader::new(bytes);
        self.one(&mut reader, 0..0)?;
        while let Some(top) = self.open.last_mut() {
            if top.left == 0 {
                let (node, first) = (top.node, top.first);
                self.open.pop();
                self.close(bytes, node, first, sorted);
                continue;
            }
            top.left -= 1;
            let parent = top.node;
            let is_map = self.kind(parent) == Kind::Map;
            let name = if is_map {
                let text = reader
                    .bytes()
                    .map_err(|_| "a map has a key that is no text")?;
                reader.position() - text.len()..reader.position()
            } else {
                self.nodes
                    .get(parent)
                    .map_or(0..0, |node| node.name.clone())
            };
            self.one(&mut reader, name)?;
        }
        Ok(())
    }

    /// Reads one value without its children.
    fn one(&mut self, reader: &mut Reader<'_>, name: Range<usize>) -> Result<(), String> {
        let node = self.nodes.len();
        if node > 0 {
            self.pending.push(node);
        }
        let (kind, left) = read_kind(reader)?;
        let holds = matches!(kind, Kind::Map | Kind::Array);
        self.nodes.push(Node {
            kind,
            name,
            children: 0..0,
        });
        if holds {
            if self.open.len() == DEPTH_MAX {
                return Err(format!("more than {DEPTH_MAX} levels of nesting"));
            }
            let first = self.pending.len();
            self.open.push(Incomplete { node, left, first });
        }
        Ok(())
    }

    /// Moves the children of a value next to each other.
    fn close(&mut self, bytes: &[u8], node: usize, first: usize, sorted: bool) {
        let start = self.order.len();
        let is_map = self.kind(node) == Kind::Map;
        if is_map {
            self.latest(bytes, first);
        }
        self.order.extend(self.pending.drain(first..));
        if is_map && sorted {
            let nodes = &self.nodes;
            let fields = self.order.get_mut(start..).unwrap_or_default();
            fields.sort_by(|a, b| {
                in_java_order(name_of(nodes, *a, bytes), name_of(nodes, *b, bytes))
            });
        }
        let children = start..self.order.len();
        if let Some(node) = self.nodes.get_mut(node) {
            node.children = children;
        }
    }

    /// Removes duplicates: of children with equal names, the last one stays, at the index of the first.
    fn latest(&mut self, bytes: &[u8], first: usize) {
        let (nodes, fields) = (&self.nodes, self.pending.get(first..).unwrap_or_default());
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        let mut kept: Vec<usize> = Vec::new();
        let few = fields.len() <= FEW_FIELDS;
        let names = |place: usize| fields.get(place).map(|node| name_of(nodes, *node, bytes));
        if few && (1..fields.len()).all(|at| (0..at).all(|before| names(at) != names(before))) {
            return;
        }
        for child in fields {
            let name = name_of(nodes, *child, bytes);
            let twin = if few {
                kept.iter()
                    .position(|other| name_of(nodes, *other, bytes) == name)
            } else {
                places.get(name).copied()
            };
            match twin.and_then(|at| kept.get_mut(at)) {
                Some(twin) => *twin = *child,
                None => {
                    if !few {
                        places.insert(name, kept.len());
                    }
                    kept.push(*child);
                }
            }
        }
        self.pending.truncate(first);
        self.pending.extend(kept);
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The kind of a value.
    pub(super) fn kind(&self, node: usize) -> Kind {
        self.nodes
            .get(node)
            .map_or(Kind::Nil, |node| node.kind.clone())
    }

    /// The direct children of a value, in order.
    pub(super) fn children(&self, node: usize) -> &[usize] {
        let range = self.nodes.get(node).map(|node| node.children.clone());
        range
            .and_then(|range| self.order.get(range))
            .unwrap_or_default()
    }

    /// The name of the field that holds a value.
    pub(super) fn name<'a>(&self, node: usize, bytes: &'a [u8]) -> &'a [u8] {
        name_of(&self.nodes, node, bytes)
    }

    /// Whether two values have the same name because they are in the same array, or one is in the other.
    pub(super) fn shares_name(&self, one: usize, other: usize) -> bool {
        let name = |node: usize| self.nodes.get(node).map(|node| &node.name);
        name(one) == name(other)
    }
}

fn name_of<'a>(nodes: &[Node], node: usize, bytes: &'a [u8]) -> &'a [u8] {
    let name = nodes.get(node).map(|node| node.name.clone());
    name.and_then(|name| bytes.get(name)).unwrap_or_default()
}

/// The order of Java's strings: by their UTF-16 units.
fn in_java_order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    if a.is_ascii() && b.is_ascii() {
        return a.cmp(b);
    }
    let (a, b) = (String::from_utf8_lossy(a), String::from_utf8_lossy(b));
    a.encode_utf16().cmp(b.encode_utf16())
}

/// Reads a value, or the head of a map or array. Returns its kind and the number of children.
fn read_kind(reader: &mut Reader<'_>) -> Result<(Kind, u32), String> {
    let torn = |_: ReadError| "no whole MessagePack value".to_owned();
    let kind = match reader.peek().map_err(torn)? {
        0x80..=0x8f | 0xde | 0xdf => return Ok((Kind::Map, reader.map_len().map_err(torn)?)),
        0x90..=0x9f | 0xdc | 0xdd => return Ok((Kind::Array, reader.array_len().map_err(torn)?)),
        0xc0 => {
            reader.nil().map_err(torn)?;
            Kind::Nil
        }
        0xc2 | 0xc3 => Kind::Bool(reader.bool().map_err(torn)?),
        0xca | 0xcb => Kind::Float(reader.float().map_err(torn)?),
        0xc7..=0xc9 | 0xd4..=0xd8 => {
            return Err("a value of an extension type, which Connect has no type for".to_owned());
        }
        marker @ (0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6) => {
            let length = reader.bytes().map_err(torn)?.len();
            let range = reader.position() - length..reader.position();
            match marker {
                0xc4..=0xc6 => Kind::Bytes(range),
                _ => Kind::Text(range),
            }
        }
        _ => {
            let number = reader.int().map_err(torn)?;
            let fits = i64::try_from(number);
            Kind::Int(fits.map_err(|_| format!("{number} does not fit Connect's int64"))?)
        }
    };
    Ok((kind, 0))
}
