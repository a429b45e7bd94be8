//! Start: completes the newest manifest and removes what earlier runs left.
//!
//! 1. Publish the outputs of the newest manifest: an earlier run may have been killed before it could.
//! 2. Take the next number with a claim, a manifest without outputs. From then on no earlier run, and no request of one that is
//!    still in flight, can extend the chain. Before that nothing may be deleted, because one of them could still name it.
//! 3. Delete every other output in use: the channel still has its records.

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::Position;

use super::{
    chain::Chain,
    note::Note,
    store::{Published, Store},
};

/// Recovers. The chain then has the position to resume from.
pub(super) async fn recover<S: Store>(
    store: &mut S,
    chain: &mut Chain,
    note: &mut Note,
    reporter: &Reporter,
) -> Result<(), Failure> {
    loop {
        let mut position = None;
        if let Some(newest) = chain.newest(store).await? {
            position = newest.position.map(Position::from);
            let places = chain.places(newest.claim, &newest.outputs);
            let mut gone = Vec::new();
            if !note.says(chain.id, chain.number) {
                for (place, named) in places.iter().zip(&newest.outputs) {
                    if store.publish(place, &named.ticket).await? == Published::Gone {
                        gone.push(place.path());
                    }
                }
                if !gone.is_empty() {
                    position = newest.before.map(Position::from);
                    for place in &places {
                        store.withdraw(place).await?;
                    }
                    lost(reporter, chain.number, &gone);
                } else if !places.is_empty() {
                    store.published(&places).await?;
                }
            }
        }
        if chain.claim(store, position).await? {
            break;
        }
        reporter.info(
            "chain",
            "an earlier run published in the meantime; reading the chain again",
        );
    }
    store.drop_in_use(&chain.directory).await?;
    note.write(chain.id, chain.number)
}

fn lost(reporter: &Reporter, number: u64, gone: &[String]) {
    let first = gone.first().map_or("", String::as_str);
    reporter.error(
        "gone",
        format_args!(
            "{} outputs of manifest {number} are gone, removed by another program or lost by the destination, before they were \
             published ({first} ...): all of that manifest is taken back and written again from the channel",
            gone.len()
        ),
    );
}
