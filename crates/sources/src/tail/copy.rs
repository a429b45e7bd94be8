//! Decides whether a new file is the copy of a truncated one (`copytruncate`).

use std::{fs, io, path::PathBuf, time::Duration};

use tokio::time::Instant;

use super::{
    context::FileContext,
    heads::Likeness,
    identity::{Mark, Stat},
};

/// How long a new file is held back because it has the same content as another file, and so may be a copy of it. While the new
/// file is shorter than the other file, it may be a copy in progress, and each growth restarts the time.
const COPY_WAIT: Duration = Duration::from_secs(10);
/// The interval at which a file is checked while it is held back.
const COPY_LOOK: Duration = Duration::from_millis(20);

/// The answer to whether a new file is a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// The file is not a copy. All of it is read.
    No,
    /// The file is a copy of the file at this path, which was already read up to this mark (an offset, with a checksum of the bytes
    /// before it).
    UpTo(Mark, PathBuf),
    /// The source stops. Nothing is sent from a file that may be a copy.
    Stopped,
}

/// Compares a new file of `len` bytes with known files that begin with the same line. Waits while the new file may still turn out
/// to be a copy of one of them.
pub(super) async fn find_original(
    context: &mut FileContext,
    file: &fs::File,
    mut len: u64,
) -> io::Result<Copied> {
    let mut quiet = Instant::now();
    let mut is_whole = false;
    while !context.stop.is_stopped() && quiet.elapsed() < COPY_WAIT {
        let heads = &context.common.heads;
        match heads.likeness(&context.tracked, file, len)? {
            Likeness::Own => return Ok(Copied::No),
            Likeness::CopyUpTo(offset, original) => {
                let mark = Mark::read(file, offset)?;
                return Ok(mark.map_or(Copied::No, |mark| Copied::UpTo(mark, original)));
            }
            // With `--once` there is no wait: the file counts as new.
            Likeness::Part | Likeness::Perhaps if context.source.once => return Ok(Copied::No),
            Likeness::Part => {}
            Likeness::Perhaps => is_whole = true,
        }
        context.pause(COPY_LOOK).await;
        let now = Stat::of(file)?.len;
        if now != len {
            len = now;
            if !is_whole {
                quiet = Instant::now();
            }
        }
    }
    Ok(match context.stop.is_stopped() {
        true => Copied::Stopped,
        false => Copied::No,
    })
}
