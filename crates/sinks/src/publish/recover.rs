//! Recovery at the start: publishes the outputs that the newest manifest names, and deletes the leftovers of earlier runs.
//!
//! 1. Publish the outputs of the newest manifest: an earlier run may have been killed before it had published them.
//! 2. Create the next manifest as a claim, without outputs. After the claim no earlier run, and no request of an earlier run that is
//!    still in flight, can extend the chain. Before the claim no output may be deleted, because an earlier run could still name it in
//!    a manifest.
//! 3. Delete all other outputs in use: the channel still has their records.

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::Position;

use super::{
    chain::Chain,
    note::Note,
    store::{Published, Store},
};

/// Recovers the chain. `settled` is the position up to which this sink has settled records, which the channel cannot deliver again.
/// Afterwards, the sink resumes from the chain's position, or from `settled` if that is later.
pub(super) async fn recover<S: Store>(
    store: &mut S,
    chain: &mut Chain,
    note: &mut Note,
    settled: Option<Position>,
    reporter: &Reporter,
) -> Result<(), Failure> {
    // The number of the newest manifest when the next one could not be claimed.
    let mut refused_after = None;
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
                // A position is settled only after its outputs were published. If this position is settled, only the local note was lost,
                // and another program has removed the missing outputs. The other outputs then stay, because the channel cannot deliver
                // their records again.
                let is_settled = position.is_some() && position <= settled;
                if !gone.is_empty() && !is_settled {
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
        if refused_after == Some(chain.number) {
            // Repeating this at once would be a busy loop. The supervisor restarts the sink with a
            // back-off.
            let text = format!(
                "manifest {} of {} exists, but the destination does not list it",
                chain.number + 1,
                chain.directory
            );
            return Err(Failure::peer(text));
        }
        if chain.claim(store, position).await? {
            break;
        }
        refused_after = Some(chain.number);
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
