//! The fingerprint (a hash) of the running configuration. Instances with the same configuration have the same fingerprint. A reload
//! that changes a node changes the fingerprint, unless only secrets differ.

use std::{fmt::Write, sync::Arc};

use arc_swap::ArcSwap;
use millstream_config::Settings;
use millstream_pipeline::layout::Entry;
use sha2::{Digest, Sha256};

use crate::registry;

/// The number of bytes of the hash that are shown.
const SHOWN: usize = 8;

/// A fingerprint that a reload changes. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Fingerprint(Arc<ArcSwap<String>>);

impl Fingerprint {
    pub(super) fn get(&self) -> String {
        self.0.load().to_string()
    }

    /// Computes the fingerprint of the running settings and nodes.
    pub(super) fn set(&self, settings: &Settings, entries: &[Entry]) {
        self.0.store(Arc::new(of(settings, entries)));
    }
}

fn of(settings: &Settings, entries: &[Entry]) -> String {
    let mut nodes: Vec<String> = entries.iter().map(node).collect();
    nodes.sort_unstable();
    let mut hash = Sha256::new();
    // Settings can always be written as JSON, in which secrets are masked.
    hash.update(serde_json::to_vec(settings).unwrap_or_default());
    for node in nodes {
        hash.update((node.len() as u64).to_le_bytes());
        hash.update(node);
    }
    let hash = hash.finalize();
    hash.iter()
        .take(SHOWN)
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// A node as a text.
fn node(entry: &Entry) -> String {
    let section = registry::section(entry.component);
    let mut text = format!("{section} {} {} ", entry.name, entry.component.name);
    entry.options.canonical(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config;

    fn fingerprint(yaml: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("millstream.yaml");
        fs::write(&file, yaml).unwrap();
        let Ok(loaded) = config::read(&[file]) else {
            panic!("it is valid");
        };
        let fingerprint = Fingerprint::default();
        fingerprint.set(&loaded.settings, &loaded.entries);
        fingerprint.get()
    }

    #[test]
    fn the_fingerprint_changes_with_options_and_settings_and_not_with_comments_or_order() {
        let one = fingerprint(
            "data_dir: /d\nsources: { in: { type: stdin } }\nsinks: { out: { type: discard, inputs: [in] } }\n",
        );
        assert_eq!(one.len(), 2 * SHOWN);
        let same = fingerprint(
            "# a comment\nsinks:\n  out: { inputs: [in], type: discard }\ndata_dir: /d\nsources: { in: { type: stdin } }\n",
        );
        assert_eq!(one, same);
        for other in [
            "data_dir: /e\nsources: { in: { type: stdin } }\nsinks: { out: { type: discard, inputs: [in] } }\n",
            "data_dir: /d\nsources: { in: { type: stdin } }\nsinks: { out: { type: stdout, inputs: [in] } }\n",
            "data_dir: /d\nsources: { in: { type: stdin, tag: a } }\nsinks: { out: { type: discard, inputs: [in] } }\n",
        ] {
            assert_ne!(one, fingerprint(other), "{other}");
        }
    }
}
