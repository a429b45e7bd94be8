//! The main loop of the file sink: takes batches, writes them, and settles them at checkpoints.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `keep -> [read back] -> process -> encode -> write -> [settle]`

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use millstream_pipeline::{
    failure::Failure,
    inlet::{Inlet, Item},
    node::SinkContext,
};
use millstream_sys::disk::Disk;
use millstream_wire::template::Depends;

use super::{
    config::Settings,
    encode::Encode,
    files::{Files, Handling},
    patient::PatientWriter,
    recover::{Channel, recover},
    writer::{Style, Writer},
};

/// Recovers the files, then writes and settles batches until the inlet ends.
pub(super) async fn run(
    settings: &Settings,
    disk: &Arc<dyn Disk>,
    inlet: &mut Inlet,
    context: SinkContext,
) -> Result<(), Failure> {
    let (mut encode, mut out) = start(settings, disk, inlet, context)?;
    while let Some(item) = next(&mut out, inlet).await? {
        match item {
            Item::Batch(batch, _) => {
                encode.batch(&batch, &mut out).await?;
                encode.reject(&batch, inlet).await;
            }
            Item::Checkpoint(mut checkpoint) => {
                out.flush().await?;
                let position = checkpoint.kept().await?;
                out.commit(position)?;
                inlet.settle(checkpoint).await?;
            }
        }
    }
    Ok(())
}

/// Brings the files to their state at the last commit and makes the inlet resume after the position of that commit.
fn start(
    settings: &Settings,
    disk: &Arc<dyn Disk>,
    inlet: &mut Inlet,
    context: SinkContext,
) -> Result<(Encode, PatientWriter), Failure> {
    let reporter = context.reporter;
    let channel = inlet.channel_id().map(|id| Channel {
        id,
        bounds: inlet.bounds().unwrap_or_default(),
    });
    let recovered = recover(disk, &context.directory, channel, settings.codec, &reporter)?;
    inlet.resume(recovered.table.position)?;
    let handling = Handling {
        open_max: settings.open_files,
        durable: channel.is_some(),
        drops_cache: settings.drops_cache,
        mode: settings.mode,
        replaces_links: settings.latest().is_some(),
        codec: settings.codec,
    };
    let files = Files::new(disk.clone(), reporter.clone(), handling);
    let encode = Encode::new(settings, reporter.clone());
    let style = Style {
        header: Bytes::copy_from_slice(encode.header()),
        dirty_max: settings.dirty_max,
        lines: settings.codec.is_none() && settings.format.ends_lines(),
        templated: settings.path().depends() > Depends::Nothing,
    };
    let writer = Writer::new(
        files,
        recovered,
        settings.rules,
        style,
        reporter.clone(),
        &context.meters,
    )?;
    Ok((
        encode,
        PatientWriter::new(writer, channel.is_some(), reporter),
    ))
}

/// Returns the next item, or None when the inlet has ended. Writes pending records while it waits for an item.
async fn next(out: &mut PatientWriter, inlet: &mut Inlet) -> Result<Option<Item>, Failure> {
    loop {
        out.do_what_is_due().await?;
        if let Some(item) = if_ready(inlet.next()).await {
            return item;
        }
        let due = out.rest().await?;
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            item = inlet.next() => return item,
            () = wait => {}
        }
    }
}

/// Polls a future once. Returns its output if it is ready, otherwise None.
async fn if_ready<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
