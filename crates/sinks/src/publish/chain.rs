//! The chain of manifests, the files that name the published outputs and their position. Manifests have consecutive numbers, and
//! exactly one writer creates the manifest with each number.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! To publish, a writer creates the manifest with the next number. A writer that another writer has superseded notices this in
//! one of two ways. If the other writer's manifest with this number still exists, the creation fails. If that manifest was
//! removed as an old one, the creation succeeds, but the writer then finds manifests with higher numbers, because the newest
//! [`KEPT`] manifests always stay.

use millstream_pipeline::failure::Failure;
use millstream_record::Position;

use super::{
    manifest::{Manifest, Named},
    store::{Place, Put, Store},
};

/// Number of newest manifests that are never removed. Operators can read them, and superseded writers find them.
const KEPT: u64 = 16;

/// The manifests of one sink behind one channel.
pub(super) struct Chain {
    /// The directory of the manifests: `_millstream/SINK/CHAIN`.
    pub(super) directory: String,
    /// The channel's id; behind memory an id that the sink has generated.
    pub(super) id: u128,
    /// The number of the last known manifest.
    pub(super) number: u64,
    /// The position in that manifest.
    pub(super) position: Option<Position>,
    /// The id of this run.
    writer: String,
    /// The number of the manifest with which this run began. The names of outputs in use contain it. So an earlier run that was
    /// suspended while it deleted leftovers cannot delete a later run's outputs.
    claim: u64,
}

impl Chain {
    pub(super) fn new(sink: &str, id: u128, writer: u64) -> Self {
        Self {
            directory: format!("_millstream/{sink}/{id:032x}"),
            id,
            number: 0,
            position: None,
            writer: format!("{writer:016x}"),
            claim: 0,
        }
    }

    fn path(&self, number: u64) -> String {
        format!("{}/{number:020}", self.directory)
    }

    /// Returns the paths of the output `file` in `directory`, which belongs to this run.
    pub(super) fn place(&self, directory: &str, file: &str) -> Place {
        self.place_of(self.claim, directory, file)
    }

    fn place_of(&self, claim: u64, directory: &str, file: &str) -> Place {
        Place {
            directory: directory.to_owned(),
            file: file.to_owned(),
            in_use: format!("{}/open/{claim:020}-{file}", self.directory),
        }
    }

    /// Returns the paths of these outputs, which belong to the run with this claim.
    pub(super) fn places(&self, claim: u64, outputs: &[Named]) -> Vec<Place> {
        let place = |named: &Named| self.place_of(claim, &named.directory, &named.file);
        outputs.iter().map(place).collect()
    }

    /// Creates the next manifest, without outputs. Returns false if another writer has created it before.
    pub(super) async fn claim<S: Store>(
        &mut self,
        store: &mut S,
        position: Option<Position>,
    ) -> Result<bool, Failure> {
        self.claim = self.number + 1;
        self.put(store, position, Vec::new()).await
    }

    /// Returns the paths of these outputs, which belong to this run.
    pub(super) fn own_places(&self, outputs: &[Named]) -> Vec<Place> {
        self.places(self.claim, outputs)
    }

    /// Reads the newest manifest at the destination and continues the chain from it. Returns None if there is no manifest.
    pub(super) async fn newest<S: Store>(
        &mut self,
        store: &mut S,
    ) -> Result<Option<Manifest>, Failure> {
        let Some(number) = self.numbers(store).await?.into_iter().max() else {
            return Ok(None);
        };
        let path = self.path(number);
        let bytes = store
            .read(&path)
            .await?
            .ok_or_else(|| Failure::peer(format!("{path} was listed but no longer exists")))?;
        let manifest = Manifest::decode(&bytes).map_err(|what| {
            let text = format!(
                "the manifest {path} {what}; without it the published outputs are unknown: repair it, or remove {} and accept \
                 that what was published since the channel's cursor is written again",
                self.directory
            );
            Failure::peer(text).never_again()
        })?;
        self.number = number;
        self.position = manifest.position.map(Position::from);
        Ok(Some(manifest))
    }

    async fn numbers<S: Store>(&self, store: &mut S) -> Result<Vec<u64>, Failure> {
        let names = store.list(&self.directory).await?;
        let digits = |name: &String| name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit());
        let names = names.into_iter().filter(digits);
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    /// Creates the next manifest, with these outputs, and moves the chain to `position`. Returns false if another writer has
    /// superseded this one.
    pub(super) async fn put<S: Store>(
        &mut self,
        store: &mut S,
        position: Option<Position>,
        outputs: Vec<Named>,
    ) -> Result<bool, Failure> {
        let number = self.number + 1;
        let manifest = Manifest::new(&self.writer, self.claim, position, self.position, outputs);
        let (path, bytes) = (self.path(number), manifest.encode());
        if store.put_if_absent(&path, &bytes).await? == Put::Exists
            && store.read(&path).await?.as_ref() != Some(&bytes)
        {
            return Ok(false);
        }
        let numbers = self.numbers(store).await?;
        if numbers.iter().any(|other| *other > number) {
            // Another writer has superseded this one: this number was free only because the other writer's manifest with this
            // number was removed as an old one.
            store.delete(&path).await?;
            return Ok(false);
        }
        for old in numbers {
            if old + KEPT <= number {
                store.delete(&self.path(old)).await?;
            }
        }
        self.number = number;
        self.position = position;
        Ok(true)
    }
}
