//! Failures of the disk, with the operation and the path.

use std::{fmt::Display, path::Path};

use millstream_pipeline::failure::Failure;

/// The failure "cannot VERB PATH: ERROR".
pub(super) fn cannot(verb: &str, path: &Path, error: &dyn Display) -> Failure {
    Failure::disk(format!("cannot {verb} {}: {error}", path.display()))
}
