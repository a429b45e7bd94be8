//! `millstream rejected`: shows rejected records that no node takes, and sends them again.

mod cat;
mod ls;
mod replay;

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use millstream_pipeline::{
    reject,
    rejected::{RejectedFile, directory},
};

use crate::{config, exit, page};

/// Show rejected records: how many there are and why, and the records themselves.
///
/// Records that cannot be decoded, or that a destination refuses, leave a node by its port NAME.rejected. If no node takes that
/// port (`inputs: ["*.rejected"]`), they are kept in DATA_DIR/rejected. `ls` and `cat` read that directory, also while an
/// instance writes to it; `replay` makes a running instance send the records again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream rejected ls                               of the instance of /etc/millstream
  millstream rejected ls --data-dir /var/lib/millstream
  millstream rejected cat --node bus --limit 10 millstream.yaml
  millstream rejected replay json                      after the cause was removed
  millstream rejected cat | jq -r 'select(.node == \"in\") | .record'

A node keeps as many as `rejected.node_max` allows, and of each peer as many as `rejected.peer_max` allows. To remove records that are \
no longer needed, move the files of DATA_DIR/rejected to another directory of the same file system; this is safe while an instance runs. \
A move to another file system is not: `mv` copies a file and then removes it, with the records that were added meanwhile.

Exit codes: 0 done, 1 the directory cannot be read, 64 wrong command line, 78 wrong configuration")]
pub struct Rejected {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ls(ls::Ls),
    Cat(cat::Cat),
    Replay(replay::Replay),
}

impl Rejected {
    /// Runs the command; returns the exit code.
    pub fn execute(self) -> u8 {
        match self.command {
            Command::Ls(ls) => ls.execute(),
            Command::Cat(cat) => cat.execute(),
            Command::Replay(replay) => replay.execute(),
        }
    }
}

/// Selects records.
#[derive(Args)]
struct Which {
    /// Configuration files and directories of the instance; only `data_dir` is taken from them.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// The `data_dir`, instead of the configured one.
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    /// Only records that this node rejected; can be repeated.
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,
}

impl Which {
    /// The directory of the records. On failure prints why, and returns the exit code.
    fn place(&self) -> Result<PathBuf, u8> {
        let data_dir = match &self.data_dir {
            Some(data_dir) => data_dir.clone(),
            None => {
                config::data_dir(&self.config).map_err(|problems| config::complain(&problems))?
            }
        };
        if !data_dir.is_dir() {
            let text = format!("the data_dir {} does not exist", data_dir.display());
            return Err(page::complain(&text, exit::FAILED));
        }
        Ok(directory(&data_dir))
    }

    /// Passes every selected record to `each`, until `each` fails. Reports on stderr the number of values that are not rejected
    /// records, and the number of bytes after the last whole value.
    fn read(
        &self,
        place: &Path,
        mut each: impl FnMut(&reject::Rejected<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        for path in RejectedFile::all(place)? {
            let mut file = match RejectedFile::open(&path) {
                // An operator moved the file away after the directory was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let mut foreign = 0;
            let rest = file.read(|rejected| match rejected {
                Some(rejected) if self.wants(rejected.node) => each(&rejected),
                Some(_) => Ok(()),
                None => {
                    foreign += 1;
                    Ok(())
                }
            })?;
            let path = path.display();
            if foreign > 0 {
                let values = page::count(foreign, "value");
                page::complain(&format!("{path}: {values} that are no rejected records"), 0);
            }
            if rest > 0 {
                let text = format!(
                    "{path}: the last {rest} bytes are not a whole record: a kill has cut it off, or it is being written"
                );
                page::complain(&text, 0);
            }
        }
        Ok(())
    }

    fn wants(&self, node: &str) -> bool {
        self.node.is_empty() || self.node.iter().any(|wanted| wanted == node)
    }
}

/// Prints the error if reading failed; returns the exit code.
fn ended(place: &Path, done: io::Result<()>) -> u8 {
    match done {
        Ok(()) => exit::DRAINED,
        // The reader of the output has closed it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit::DRAINED,
        Err(error) => {
            let text = format!("cannot show the records in {}: {error}", place.display());
            page::complain(&text, exit::FAILED)
        }
    }
}
