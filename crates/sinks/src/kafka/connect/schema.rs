//! The schema of a record, as JsonConverter writes it.

use super::{
    text,
    tree::{Kind, Tree},
};

/// Writes schemas. Reuses its buffers.
#[derive(Default)]
pub(super) struct Schemas {
    steps: Vec<Step>,
    first: Vec<u8>,
    other: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Step {
    /// Write the schema of this value; `true` if it is a field of a struct.
    Begin(usize, bool),
    End(usize, bool),
    Comma,
}

impl Schemas {
    /// Checks that every array has at least one element, and that all its elements have the same schema.
    pub(super) fn check_arrays(&mut self, tree: &Tree, bytes: &[u8]) -> Result<(), String> {
        for node in 0..tree.len() {
            if tree.kind(node) != Kind::Array {
                continue;
            }
            let name = || String::from_utf8_lossy(tree.name(node, bytes)).into_owned();
            let [first, others @ ..] = tree.children(node) else {
                let name = name();
                return Err(format!("the array `{name}` is empty, so it has no type"));
            };
            let (mut one, mut two) = (
                std::mem::take(&mut self.first),
                std::mem::take(&mut self.other),
            );
            one.clear();
            self.write(tree, bytes, *first, "", &mut one);
            let mixed = others.iter().any(|other| {
                // The first element decides the type. If it is nil, the type is an optional text, so every other element
                // must be nil or a text.
                let is_nil = tree.kind(*other) == Kind::Nil;
                let optional = tree.kind(*first) == Kind::Nil;
                if optional && (is_nil || matches!(tree.kind(*other), Kind::Text(_))) {
                    return false;
                }
                two.clear();
                self.write(tree, bytes, *other, "", &mut two);
                one != two
            });
            (self.first, self.other) = (one, two);
            if mixed {
                return Err(format!(
                    "the array `{}` has elements of several types",
                    name()
                ));
            }
        }
        Ok(())
    }

    /// Appends the schema of the value `root`. `topic`: the name of the schema if the value is the whole record. The schema of an
    /// element of an array is only compared with those of the other elements. It lacks the name that all elements have from their
    /// array, because this name may be long, and there may be many elements.
    pub(super) fn write(
        &mut self,
        tree: &Tree,
        bytes: &[u8],
        root: usize,
        topic: &str,
        out: &mut Vec<u8>,
    ) {
        self.steps.clear();
        self.steps.push(Step::Begin(root, false));
        while let Some(step) = self.steps.pop() {
            match step {
                Step::Comma => out.push(b','),
                Step::Begin(node, is_field) => {
                    out.extend_from_slice(b"{\"type\":\"");
                    out.extend_from_slice(type_name(&tree.kind(node)));
                    out.push(b'"');
                    self.steps.push(Step::End(node, is_field));
                    self.inner(tree, node, out);
                }
                Step::End(node, is_field) => {
                    let kind = tree.kind(node);
                    out.extend_from_slice(match kind {
                        Kind::Map => b"],\"optional\":false",
                        Kind::Nil => b",\"optional\":true",
                        _ => b",\"optional\":false",
                    });
                    let name = match node {
                        0 => topic.as_bytes(),
                        _ if root != 0 && tree.shares_name(node, root) => b"",
                        _ => tree.name(node, bytes),
                    };
                    if kind == Kind::Map {
                        out.extend_from_slice(b",\"name\":");
                        text::string(name, out);
                    }
                    if is_field {
                        out.extend_from_slice(b",\"field\":");
                        text::string(name, out);
                    }
                    out.push(b'}');
                }
            }
        }
    }

    fn inner(&mut self, tree: &Tree, node: usize, out: &mut Vec<u8>) {
        match tree.kind(node) {
            Kind::Map => {
                out.extend_from_slice(b",\"fields\":[");
                for (index, child) in tree.children(node).iter().enumerate().rev() {
                    self.steps.push(Step::Begin(*child, true));
                    if index > 0 {
                        self.steps.push(Step::Comma);
                    }
                }
            }
            Kind::Array => {
                out.extend_from_slice(b",\"items\":");
                let first = tree.children(node).first();
                self.steps
                    .extend(first.map(|first| Step::Begin(*first, false)));
            }
            _ => {}
        }
    }
}

fn type_name(kind: &Kind) -> &'static [u8] {
    match kind {
        Kind::Nil | Kind::Text(_) => b"string",
        Kind::Bool(_) => b"boolean",
        Kind::Int(_) => b"int64",
        Kind::Float(_) => b"double",
        Kind::Bytes(_) => b"bytes",
        Kind::Map => b"struct",
        Kind::Array => b"array",
    }
}

#[cfg(test)]
mod tests {
    use millstream_wire::msgpack::{write_array_len, write_map_len, write_str};

    use super::*;

    #[test]
    fn a_check_of_an_array_does_not_write_its_name_for_each_element() {
        let name = "x".repeat(1 << 20);
        let mut record = Vec::new();
        write_map_len(&mut record, 1);
        write_str(&mut record, name.as_bytes());
        // Maps have the name of the array that they are in, also if another array is between them.
        write_array_len(&mut record, 3);
        record.extend_from_slice(b"\x91\x81\xa1a\x01".repeat(3).as_slice());
        let (mut tree, mut schemas) = (Tree::default(), Schemas::default());
        tree.read(&record, true).unwrap();
        schemas.check_arrays(&tree, &record).unwrap();
        assert!(schemas.first.capacity() < 1 << 10);
        assert!(schemas.other.capacity() < 1 << 10);
        let mut whole = Vec::new();
        schemas.write(&tree, &record, 0, "t", &mut whole);
        let named = format!("\"name\":\"{name}\"");
        assert!(String::from_utf8(whole).unwrap().contains(&named));
    }
}
