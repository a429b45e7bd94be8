//! A destination in memory that fails, loses responses, delays requests, and can be suspended at any call.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use millstream_pipeline::failure::Failure;
use millstream_testkit::Random;
use tokio::sync::Notify;

use crate::publish::{Place, Published, Put, Store};

/// The contents of the destination.
#[derive(Default)]
pub(super) struct State {
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// In a store of uploads, the uploads by number; in a store that renames, the files in use by path.
    pub(super) in_use: BTreeMap<String, Vec<u8>>,
    uploads: usize,
    pub(super) calls: usize,
    /// Requests that have failed for their writer and take effect later.
    late: Vec<(String, Vec<u8>)>,
}

/// How calls fail.
#[derive(Clone, Default)]
pub(super) enum Faults {
    #[default]
    None,
    /// The call with this number fails.
    At(usize, After),
    /// On average, one of this many calls fails, in a random way.
    Random(Random, u64),
}

/// Whether, and when, a call that fails does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    Work,
    /// The call fails, but its work is done some calls later, even if other calls happen in between.
    Late,
}

/// The call at which a writer is suspended.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) call: usize,
    pub(super) reached: Arc<Notify>,
    pub(super) open: Arc<Notify>,
}

/// A writer's connection to the destination.
pub(super) struct Memory {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) renames: bool,
    pub(super) faults: Faults,
    pub(super) gate: Option<Gate>,
    /// The number of calls of this writer.
    pub(super) calls: usize,
}

impl Memory {
    pub(super) fn new(state: &Arc<Mutex<State>>, renames: bool) -> Self {
        Self {
            state: state.clone(),
            renames,
            faults: Faults::None,
            gate: None,
            calls: 0,
        }
    }

    async fn call<T>(
        &mut self,
        late: Option<(&str, &[u8])>,
        act: impl FnOnce(&mut State) -> T,
    ) -> Result<T, Failure> {
        if let Some(gate) = self.gate.take_if(|gate| gate.call == self.calls) {
            gate.reached.notify_one();
            gate.open.notified().await;
        }
        self.calls += 1;
        let mut state = self.state.lock().unwrap();
        state.calls += 1;
        let fails = match &mut self.faults {
            Faults::None => None,
            Faults::At(call, after) => (*call + 1 == state.calls).then_some(*after),
            Faults::Random(random, one_in) => random.chance(1, *one_in).then(|| {
                let ways = [After::Nothing, After::Work, After::Late];
                *random.pick(&ways).unwrap()
            }),
        };
        // A delayed request arrives eventually.
        if state.calls.is_multiple_of(3) {
            for (path, bytes) in std::mem::take(&mut state.late) {
                state.files.entry(path).or_insert(bytes);
            }
        }
        match fails {
            None => Ok(act(&mut state)),
            Some(after) => {
                match (after, late) {
                    (After::Work, _) => drop(act(&mut state)),
                    (After::Late, Some((path, bytes))) => {
                        state.late.push((path.to_owned(), bytes.to_vec()));
                    }
                    _ => {}
                }
                Err(Failure::peer(format!("a fault, {after:?}")))
            }
        }
    }
}

impl Store for Memory {
    type Output = String;

    async fn create(&mut self, place: &Place) -> Result<String, Failure> {
        let (renames, place) = (self.renames, place.clone());
        self.call(None, |state| {
            state.uploads += 1;
            let id = match renames {
                true => place.in_use.clone(),
                false => format!("upload {}", state.uploads),
            };
            let before = state.in_use.insert(id.clone(), Vec::new());
            assert_eq!(before, None, "{id} is in use twice");
            id
        })
        .await
    }

    async fn append(&mut self, output: &mut String, bytes: &[u8]) -> Result<(), Failure> {
        let there = self
            .call(None, |state| {
                let file = state.in_use.get_mut(output);
                file.map(|file| file.extend_from_slice(bytes))
            })
            .await?;
        there.ok_or_else(|| Failure::peer("it was dropped"))
    }

    fn held(&self, _: &String) -> usize {
        0
    }

    async fn finish(&mut self, output: String) -> Result<String, Failure> {
        let there = self
            .call(None, |state| state.in_use.contains_key(&output))
            .await?;
        match there {
            true => Ok(output),
            false => Err(Failure::peer("it was dropped")),
        }
    }

    async fn publish(&mut self, place: &Place, ticket: &str) -> Result<Published, Failure> {
        let renames = self.renames;
        self.call(None, |state| {
            let id = if renames { &place.in_use } else { ticket };
            let path = place.path();
            match (state.in_use.remove(id), state.files.contains_key(&path)) {
                (Some(bytes), there) => {
                    assert!(!there, "{path} is published twice");
                    state.files.insert(path, bytes);
                    Published::Done
                }
                (None, true) => Published::Done,
                (None, false) => Published::Gone,
            }
        })
        .await
    }

    async fn withdraw(&mut self, place: &Place) -> Result<(), Failure> {
        self.call(None, |state| drop(state.files.remove(&place.path())))
            .await
    }

    async fn drop_in_use(&mut self, chain: &str) -> Result<(), Failure> {
        let renames = self.renames;
        let ids: Vec<String> = self
            .call(None, |state| {
                let ids = state.in_use.keys();
                ids.filter(|id| !renames || id.starts_with(chain))
                    .cloned()
                    .collect()
            })
            .await?;
        for id in ids {
            self.call(None, |state| drop(state.in_use.remove(&id)))
                .await?;
        }
        Ok(())
    }

    async fn put_if_absent(&mut self, path: &str, bytes: &[u8]) -> Result<Put, Failure> {
        self.call(Some((path, bytes)), |state| {
            if state.files.contains_key(path) {
                return Put::Exists;
            }
            state.files.insert(path.to_owned(), bytes.to_vec());
            Put::Made
        })
        .await
    }

    async fn list(&mut self, directory: &str) -> Result<Vec<String>, Failure> {
        self.call(None, |state| {
            let names = state.files.keys().filter_map(|path| {
                let name = path.strip_prefix(directory)?.strip_prefix('/')?;
                (!name.contains('/')).then(|| name.to_owned())
            });
            names.collect()
        })
        .await
    }

    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Failure> {
        self.call(None, |state| state.files.get(path).cloned())
            .await
    }

    async fn delete(&mut self, path: &str) -> Result<(), Failure> {
        self.call(None, |state| drop(state.files.remove(path)))
            .await
    }
}
