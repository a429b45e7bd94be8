//! `millstream channel forget`: gives up a consumer that is gone, so that nothing is held for it any more.

use clap::Args;
use millstream_channels::disk::log::inspect;
use millstream_sys::disk::HostDisk;

use super::{At, Trouble};
use crate::page;

/// Give up a consumer that no sink is named after any more: what only it has not settled goes at the next start.
///
/// To keep what it would still have read, run `skip --to end` for it first. The channel must not be in use.
#[derive(Args)]
pub struct Forget {
    #[command(flatten)]
    at: At,
    /// Which consumer: the name that the sink had.
    #[arg(long, value_name = "NAME")]
    consumer: String,
}

impl Forget {
    /// Forgets; returns the exit code.
    pub fn execute(self) -> Result<u8, Trouble> {
        inspect::forget(&HostDisk, &self.at.path, &self.consumer)?;
        Ok(page::print(&format!(
            "{} is forgotten: what only it has not settled goes at the next start\n",
            self.consumer
        )))
    }
}
