//! Start: what earlier runs have left is brought to what the newest manifest says.
//!
//! 1. What the newest manifest names is published: an earlier run may have been killed before it could.
//! 2. The next number is taken by a claim, a manifest without outputs. From here on no earlier run, and no request of one that
//!    is still under way, can bring the chain further; before, nothing may be dropped, as one of them could still name it.
//! 3. Every other output in use is dropped: what is in it comes again from the channel.

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::Position;

use super::{
    chain::Chain,
    note::Note,
    store::{Published, Store},
};

/// Recovers; the chain then says where to resume.
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
            "an earlier run has published meanwhile; looking again",
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
            "{} outputs of manifest {number} are gone, removed by somebody else or lost by the destination, before they were \
             published ({first} ...): all of that manifest is taken back and written again from the channel",
            gone.len()
        ),
    );
}
