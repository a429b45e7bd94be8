//! `millstream channel`: inspects a disk channel's directory and repairs its consumers.

mod cat;
mod forget;
mod ls;
mod read;
mod skip;
mod verify;
mod write;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use millstream_channels::disk::log::{Error, inspect::Directory};
use millstream_sys::disk::HostDisk;

use crate::{client::Client, commands::instance::Remote, config, exit, page};

/// Inspect a disk channel: contents, damage, backlogs; skip records or forget consumers.
///
/// PATH is the channel's directory, DATA_DIR/channels/NAME. `ls`, `verify` and `cat` may look at a channel that is in use.
/// For `skip` and `forget`, stop its instance first, or let `--running` ask the instance to make the change; PATH may then also be
/// the name of the channel.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream channel ls /var/lib/millstream/channels/buffer
  millstream channel verify /var/lib/millstream/channels/buffer
  millstream channel cat --after 1.2000 --limit 10 /var/lib/millstream/channels/buffer
  millstream channel skip --consumer archive --to 1.2003 --output passed.json /var/lib/millstream/channels/buffer
  millstream channel skip --running --consumer archive --to end --output passed.json /var/lib/millstream/channels/buffer
  millstream channel forget --consumer archive /var/lib/millstream/channels/buffer
  millstream channel forget --running --consumer archive /var/lib/millstream/channels/buffer
  millstream channel forget --accept-loss /var/lib/millstream/channels/buffer

Exit codes: 0 done, 1 damage was found or it cannot be done, 64 wrong command line")]
pub struct Channel {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ls(ls::Ls),
    Verify(verify::Verify),
    Cat(cat::Cat),
    Skip(skip::Skip),
    Forget(forget::Forget),
}

impl Channel {
    /// Runs the command; returns the exit code.
    pub fn execute(self) -> u8 {
        let done = match self.command {
            Command::Ls(ls) => ls.execute(),
            Command::Verify(verify) => verify.execute(),
            Command::Cat(cat) => cat.execute(),
            Command::Skip(skip) => skip.execute(),
            Command::Forget(forget) => forget.execute(),
        };
        match done {
            Ok(code) => code,
            Err(trouble) => page::complain(&trouble.0, exit::FAILED),
        }
    }
}

/// The message of a command that cannot continue.
struct Trouble(String);

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// The instance that has the channel open.
#[derive(Args)]
struct Instance {
    /// Configuration files and directories of the instance; only `api.listen`, `api.tls` and `data_dir` are taken from them.
    #[arg(
        long,
        requires = "running",
        value_name = "FILE",
        default_value = "/etc/millstream"
    )]
    config: Vec<PathBuf>,
    #[command(flatten)]
    remote: Remote,
}

impl Instance {
    /// A client of the instance. On failure prints why, and returns the exit code.
    fn client(&self) -> Result<Client, u8> {
        self.remote.client(&self.config)
    }

    /// The directory of a channel that is given by its directory or by its name. On failure prints why, and returns the exit code.
    fn directory(&self, at: &At) -> Result<At, u8> {
        let is_name = at.path.components().count() == 1 && !at.path.exists();
        if !is_name {
            return Ok(At {
                path: at.path.clone(),
            });
        }
        let data_dir = config::data_dir(&self.config);
        let data_dir = data_dir.map_err(|problems| config::complain(&problems))?;
        Ok(At {
            path: data_dir.join("channels").join(&at.path),
        })
    }
}

/// A name, encoded for a URL.
fn coded(name: &str) -> String {
    name.chars().map(page::coded).collect()
}

/// The directory of a channel.
#[derive(Args)]
struct At {
    /// The channel's directory, DATA_DIR/channels/NAME.
    path: PathBuf,
}

impl At {
    /// The name of the channel: that of its directory.
    fn name(&self) -> String {
        let path = self.path.canonicalize();
        let path = path.as_ref().unwrap_or(&self.path);
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// Opens the directory for inspection. If the directory is not a channel, the error names channels nearby.
    fn open(&self) -> Result<Directory, Trouble> {
        match Directory::open(&HostDisk, &self.path) {
            Err(error @ Error::NoChannel(_)) => {
                let near = channels_near(&self.path);
                Err(Trouble(match near.is_empty() {
                    true => format!("{error}, and none nearby; give it DATA_DIR/channels/NAME"),
                    false => format!("{error}; there is one in {}", near.join(", ")),
                }))
            }
            opened => Ok(opened?),
        }
    }
}

/// Returns the channels that the user may have meant by `path`. Searches these directories, in this order, until one of them has channels:
/// `channels` in `path`, `path`, the directory above it, and `channels` beside `path`.
fn channels_near(path: &Path) -> Vec<String> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(Path::new("."));
    let places = [
        path.join("channels"),
        path.into(),
        above.into(),
        above.join("channels"),
    ];
    let mut found = places.iter().map(|place| {
        let entries = place.read_dir().into_iter().flatten().flatten();
        let channels = entries
            .map(|entry| entry.path())
            .filter(|path| path.join("channel").is_file());
        let mut channels: Vec<String> = channels.map(|path| path.display().to_string()).collect();
        channels.sort_unstable();
        channels
    });
    found.find(|found| !found.is_empty()).unwrap_or_default()
}
