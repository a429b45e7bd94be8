//! Manifests: the published outputs and their position.
//!
//! ```text
//! _millstream/SINK/CHAIN/00000000000000000007      JSON, created only if absent
//! {
//!   "version": 1,
//!   "writer": "9f86d081884c7d65",                  the run that wrote it
//!   "claim": 6,                                    the number of that run's first manifest, its claim
//!   "position": { "epoch": 1, "seq": 4711 },       this manifest and earlier ones hold everything up to it; absent behind memory
//!   "before": { "epoch": 1, "seq": 4000 },         the position of the previous manifest
//!   "outputs": [{ "directory": "web/2026-11-21", "file": "lake-0123456789abcdef-1-0000004001-0000.json.gz",
//!                 "ticket": "...", "bytes": 123, "records": 45 }]
//! }
//! ```

use millstream_record::Position;
use serde::{Deserialize, Serialize};

/// The version written, and the newest version read.
const VERSION: u32 = 1;

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    /// Distinguishes otherwise equal manifests of two runs.
    pub(super) writer: String,
    /// The number of the first manifest of the run that wrote this one. The names of that run's outputs in use contain it.
    pub(super) claim: u64,
    /// The outputs of this manifest and of earlier ones hold everything up to and including this position. None behind memory,
    /// and before the first commit.
    pub(super) position: Option<At>,
    /// The outputs of this manifest begin after this position.
    pub(super) before: Option<At>,
    /// The outputs that this manifest publishes.
    pub(super) outputs: Vec<Named>,
}

/// An output that a manifest names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Named {
    pub(super) directory: String,
    pub(super) file: String,
    pub(super) ticket: String,
    pub(super) bytes: u64,
    pub(super) records: u64,
}

/// A position as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct At {
    epoch: u32,
    seq: u64,
}

impl From<Position> for At {
    fn from(Position { epoch, seq }: Position) -> Self {
        Self { epoch, seq }
    }
}

impl From<At> for Position {
    fn from(At { epoch, seq }: At) -> Self {
        Self { epoch, seq }
    }
}

impl Manifest {
    pub(super) fn new(
        writer: &str,
        claim: u64,
        position: Option<Position>,
        before: Option<Position>,
        outputs: Vec<Named>,
    ) -> Self {
        Self {
            version: VERSION,
            writer: writer.to_owned(),
            claim,
            position: position.map(At::from),
            before: before.map(At::from),
            outputs,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Decodes a manifest. The error is a predicate such as "is damaged: ...".
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } =
            serde_json::from_slice(bytes).map_err(|error| format!("is no manifest: {error}"))?;
        if version > VERSION {
            return Err(format!(
                "has version {version}, this Millstream reads up to {VERSION}"
            ));
        }
        serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_a_newer_one_is_refused() {
        let at = |seq| Some(Position { epoch: 3, seq });
        let named = Named {
            directory: "web/a".into(),
            file: "f\"\u{1}".into(),
            ticket: "t".into(),
            bytes: u64::MAX,
            records: 1,
        };
        let manifest = Manifest::new("w", 7, at(u64::MAX), at(2), vec![named]);
        assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        let claim = Manifest::new("w", 1, None, None, vec![]);
        assert_eq!(Manifest::decode(&claim.encode()), Ok(claim));
        let newer = Manifest::decode(br#"{"version": 2, "other": 1}"#);
        assert!(newer.unwrap_err().contains("version 2"));
        assert!(Manifest::decode(b"\xff").is_err());
        assert!(Manifest::decode(br#"{"version": 1}"#).is_err());
    }
}
