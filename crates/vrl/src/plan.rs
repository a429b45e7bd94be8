//! The top-level fields and the values of the batch that a program uses, derived from the paths that the compiler collects.

use vrl::{
    compiler::ProgramInfo,
    path::{OwnedSegment, OwnedTargetPath, PathPrefix},
    value::KeyString,
};

use crate::{fields::Fields, metadata};

/// The parts of a record and its batch that must be decoded to values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The top-level fields that the program names, in the order of their first use.
    pub fields: Fields,
    /// Whether the program reads the record as a whole (`.`, `unnest`), so that all of it is decoded.
    pub is_whole: bool,
    /// Whether the program reads or sets values of the batch (`%tag`).
    pub uses_metadata: bool,
    /// Whether the program reads `%metadata`.
    pub uses_own_metadata: bool,
    /// Whether the program reads `%time`.
    pub uses_time: bool,
    /// Whether the program assigns `%tag`.
    pub sets_tag: bool,
}

impl Plan {
    /// Creates the plan of a compiled program. `unnests` is whether it calls `unnest`, which reads the whole record although
    /// no path names it.
    pub fn new(info: &ProgramInfo, unnests: bool) -> Self {
        let mut plan = Self {
            is_whole: unnests,
            ..Self::default()
        };
        for path in &info.target_queries {
            match path.prefix {
                PathPrefix::Event => match top(path) {
                    Some(name) => plan.fields.add(name),
                    None => plan.is_whole = true,
                },
                PathPrefix::Metadata => {
                    plan.uses_metadata = true;
                    let reads = |wanted| top(path).is_none_or(|name| name.as_str() == wanted);
                    plan.uses_time |= reads("time");
                    plan.uses_own_metadata |= reads(metadata::OWN);
                }
            }
        }
        for path in &info.target_assignments {
            match path.prefix {
                // An assignment to the root (`.`) replaces the record. An assignment to an index of the root changes the old
                // record, so it needs the whole record.
                PathPrefix::Event => match top(path) {
                    Some(name) => plan.fields.add(name),
                    None => plan.is_whole |= !path.path.is_root(),
                },
                PathPrefix::Metadata => {
                    plan.uses_metadata = true;
                    plan.sets_tag |= top(path).is_none_or(|name| name.as_str() == "tag");
                }
            }
        }
        plan
    }
}

/// Returns the top-level name with which a path begins, or `None` if the path is the root or begins with an index.
pub(crate) fn top(path: &OwnedTargetPath) -> Option<&KeyString> {
    match path.path.segments.first()? {
        OwnedSegment::Field(name) => Some(name),
        OwnedSegment::Index(_) => None,
    }
}
