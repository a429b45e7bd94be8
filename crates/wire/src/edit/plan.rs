//! The plan of an edit: a tree of the field names that it changes, checked for contradictions.

use super::{Changes, MISSING};
use crate::{
    condition::named::Named, msgpack::write_str, option_error::OptionError, record::FieldPath,
};

/// The maximum number of names that an edit can change in one map. A set of these names is stored as the bits of a `u64`.
const NAMES_MAX: usize = 64;
/// The maximum number of parts of a path. It limits the recursion over the plan and, with it, over the maps of a record.
const PARTS_MAX: usize = 64;

/// The names that an edit changes in one map.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) named: Named,
    pub(super) nodes: Box<[Node]>,
    /// Whether pairs with other names are dropped, as `keep` demands.
    pub(super) keeps: bool,
    /// Whether a field in this map or below it is set.
    sets: bool,
    /// The renames whose new names are in this map or below it.
    targets: Box<[usize]>,
    /// Whether a field in this map or below it is renamed.
    pub(super) sources: bool,
}

/// A name and its changes. If several apply, the latest in the order rename, set, remove, keep wins.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The name, encoded as a MessagePack str.
    pub(super) key: Box<[u8]>,
    /// The index of the rename that gives the field another name.
    pub(super) source: Option<usize>,
    /// The index of the node for the field's new name, if the new name is in the same map. The field then keeps its
    /// place in the map.
    pub(super) sibling: Option<usize>,
    /// The index of the rename that gives this name to another field, and whether that field is in the same map.
    pub(super) target: Option<(usize, bool)>,
    /// The index of the value that `set` writes.
    pub(super) set: Option<usize>,
    pub(super) removed: bool,
    pub(super) below: Option<Level>,
}

impl Level {
    /// Whether the edit writes a new field in this map or below it: `set` writes one, or `rename` moves an existing field
    /// there. `values` has the range of each renamed field in the record, or [`MISSING`].
    pub(super) fn creates(&self, values: &[(usize, usize)]) -> bool {
        let is_there = |index: &usize| values.get(*index).is_some_and(|(at, _)| *at != MISSING);
        self.sets || self.targets.iter().any(is_there)
    }

    /// Builds the plan of these changes.
    pub(super) fn new(changes: &Changes) -> Result<Self, OptionError> {
        check(changes)?;
        let mut root = Draft::default();
        for (index, (_, to)) in changes.rename.fields.iter().enumerate() {
            root.at(to.parts()).target = Some(index);
        }
        for (index, (from, _)) in changes.rename.fields.iter().enumerate() {
            root.at(from.parts()).source = Some(index);
        }
        for (index, (path, _)) in changes.set.fields.iter().enumerate() {
            root.at(path.parts()).set = Some(index);
        }
        for path in &changes.remove {
            root.at(path.parts()).removed = true;
        }
        for path in changes.keep.iter().flatten() {
            root.at(path.parts()).kept = true;
        }
        root.level(changes.keep.is_some())
    }
}

/// A node while the tree is built.
#[derive(Debug, Default)]
struct Draft {
    source: Option<usize>,
    target: Option<usize>,
    set: Option<usize>,
    removed: bool,
    kept: bool,
    below: Vec<(Box<str>, Draft)>,
}

impl Draft {
    fn at(&mut self, parts: &[Box<str>]) -> &mut Self {
        let Some((first, rest)) = parts.split_first() else {
            return self;
        };
        let known = self.below.iter().position(|(name, _)| name == first);
        let index = known.unwrap_or_else(|| {
            self.below.push((first.clone(), Self::default()));
            self.below.len() - 1
        });
        self.below[index].1.at(rest)
    }

    fn keeps_something(&self) -> bool {
        self.kept || self.below.iter().any(|(_, below)| below.keeps_something())
    }

    /// Builds the level of the names below this one. If `keeps` is true, the level drops pairs with other names.
    fn level(&self, keeps: bool) -> Result<Level, OptionError> {
        if self.below.len() > NAMES_MAX {
            return Err(OptionError {
                option: "set",
                message: format!("{} names in one map", self.below.len()),
                help: format!("one processor changes at most {NAMES_MAX}; use a second one"),
            });
        }
        let (mut nodes, mut targets) = (Vec::new(), Vec::new());
        let (mut sets, mut sources) = (false, false);
        for (name, draft) in &self.below {
            let below = match draft.below.is_empty() {
                true => None,
                false => Some(draft.level(keeps && !draft.kept)?),
            };
            sets |= draft.set.is_some() || below.as_ref().is_some_and(|below| below.sets);
            sources |= draft.source.is_some() || below.as_ref().is_some_and(|below| below.sources);
            targets.extend(draft.target);
            targets.extend(below.iter().flat_map(|below| below.targets.iter()));
            let sibling =
                |other: &(Box<str>, Self)| draft.source.is_some() && other.1.target == draft.source;
            let comes_from = |index| {
                self.below
                    .iter()
                    .any(|(_, other)| other.source == Some(index))
            };
            let mut key = Vec::new();
            write_str(&mut key, name.as_bytes());
            nodes.push(Node {
                key: key.into(),
                source: draft.source,
                sibling: self.below.iter().position(sibling),
                target: draft.target.map(|index| (index, comes_from(index))),
                set: draft.set,
                removed: draft.removed || (keeps && !draft.keeps_something()),
                below,
            });
        }
        Ok(Level {
            named: Named::new(self.below.iter().map(|(name, _)| &**name)),
            nodes: nodes.into(),
            keeps,
            sets,
            targets: targets.into(),
            sources,
        })
    }
}

/// Whether the paths are equal, or one of them lies below the other.
fn overlap(one: &FieldPath, other: &FieldPath) -> bool {
    let mut parts = one.parts().iter().zip(other.parts());
    parts.all(|(one, other)| one == other)
}

fn is_at_or_below(path: &FieldPath, top: &FieldPath) -> bool {
    path.parts().starts_with(top.parts())
}

/// Refuses changes that undo each other, because they are probably a mistake.
fn check(changes: &Changes) -> Result<(), OptionError> {
    let error = |option, message, help: &str| {
        Err(OptionError {
            option,
            message,
            help: help.to_owned(),
        })
    };
    let from = || changes.rename.fields.iter().map(|(from, _)| from);
    let to = || changes.rename.fields.iter().map(|(_, to)| to);
    let set = || changes.set.fields.iter().map(|(path, _)| path);
    let keep = || changes.keep.iter().flatten();
    let all = from().chain(to()).chain(set()).chain(&changes.remove);
    if let Some(path) = all
        .chain(keep())
        .find(|path| path.parts().len() > PARTS_MAX)
    {
        let message = format!("`{path}` is too deep");
        let help = format!("a field can be at most {PARTS_MAX} maps deep");
        return error("set", message, &help);
    }
    if let Some(path) = from()
        .zip(to())
        .find_map(|(from, to)| (from == to).then_some(from))
    {
        return error(
            "rename",
            format!("`{path}` is renamed to itself"),
            "remove it from `rename`",
        );
    }
    let lists: [(_, Vec<_>, _); 3] = [
        ("rename", from().collect(), "are both renamed"),
        ("rename", to().collect(), "are both new names"),
        ("set", set().collect(), "are both set"),
    ];
    for (option, paths, what) in lists {
        for (index, one) in paths.iter().enumerate() {
            let other = paths
                .iter()
                .skip(index + 1)
                .find(|other| overlap(one, other));
            if let Some(other) = other {
                return error(
                    option,
                    format!("`{one}` and `{other}` {what}"),
                    "one is the other or lies below it; leave one of them out, or use a second processor",
                );
            }
        }
    }
    for (option, path) in to()
        .map(|to| ("rename", to))
        .chain(set().map(|set| ("set", set)))
    {
        if let Some(removed) = changes.remove.iter().find(|top| is_at_or_below(path, top)) {
            return error(
                option,
                format!("`{path}` is written and then removed, by `{removed}` in `remove`"),
                "remove one of the two",
            );
        }
        if changes.keep.is_some() && !keep().any(|kept| overlap(path, kept)) {
            return error(
                option,
                format!("`{path}` is written and then dropped, because `keep` does not name it"),
                "add it to `keep`",
            );
        }
    }
    Ok(())
}
