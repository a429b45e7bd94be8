//! `millstream channel skip`: moves a consumer past records that it cannot deliver, and writes them to a file.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use clap::Args;
use millstream_channels::disk::log::inspect::{self, Directory, Seen};
use millstream_record::Position;
use millstream_sys::disk::HostDisk;

use super::{
    At, Instance, Trouble, coded,
    write::{Format, Records},
};
use crate::{
    client::Client,
    page::{self, grouped},
};

/// Move a consumer past records that it cannot deliver, writing them to a file first.
///
/// The channel must not be in use, unless `--running` asks its instance to move the consumer. The instance then restarts the sink.
/// Records that the sink has in flight are in the file, and may be delivered, too.
#[derive(Args)]
pub struct Skip {
    #[command(flatten)]
    at: At,
    /// The consumer: the name of the sink.
    #[arg(long, value_name = "NAME")]
    consumer: String,
    /// The last position to skip, or `end`. It must be in the channel: `cat` and `ls` show positions.
    #[arg(long, value_name = "EPOCH.SEQ|end")]
    to: String,
    /// A new file for the skipped records.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// The format of that file.
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// Ask the running instance to move the consumer.
    #[arg(long)]
    running: bool,
    #[command(flatten)]
    instance: Instance,
}

impl Skip {
    /// Skips; returns the exit code.
    pub fn execute(mut self) -> Result<u8, Trouble> {
        if self.running {
            self.at = match self.instance.directory(&self.at) {
                Ok(at) => at,
                Err(code) => return Ok(code),
            };
        }
        let directory = self.at.open()?;
        let consumer = &self.consumer;
        if !self.running {
            // A move to the beginning changes nothing, but fails if the channel is in use or has no such consumer. So the command fails
            // before it writes a file.
            self.move_to(Position::default())?;
        }
        directory.check_consumer(consumer)?;
        let client = match self.running.then(|| self.instance.client()) {
            Some(Err(code)) => return Ok(code),
            Some(Ok(client)) => Some(client),
            None => None,
        };
        let to = self.target(&directory)?;
        let settled =
            |(name, cursor): &(String, Option<Position>)| (name == consumer).then_some(*cursor);
        let cursor = directory
            .consumers
            .iter()
            .find_map(settled)
            .flatten()
            .unwrap_or_default();
        if to.is_none_or(|to| to <= cursor) {
            let text = format!("nothing to pass over: {consumer} has settled up to {cursor}\n");
            return Ok(page::print(&text));
        }
        let (records, last) = self.save(&directory, cursor, to.unwrap_or_default())?;
        // The file is synced, so the cursor may move.
        let (records, file) = (grouped(records), self.output.display());
        Ok(page::print(&match client {
            None => format!(
                "{consumer} skipped {records} records in {} batches, up to {last}; they are in {file}\n",
                grouped(self.move_to(last)?)
            ),
            Some(client) => format!(
                "{consumer} restarts after {last}: it skipped {} of the {records} records in {file}\n",
                grouped(self.ask(&client, &directory, last)?)
            ),
        }))
    }

    /// Moves the consumer of a channel that is not in use; returns the number of skipped batches.
    fn move_to(&self, to: Position) -> Result<u64, Trouble> {
        inspect::skip(&HostDisk, &self.at.path, &self.consumer, to, |_| {
            Ok::<_, Trouble>(())
        })
    }

    /// Asks the instance to move the consumer; returns the number of skipped records that the consumer had not settled.
    fn ask(&self, client: &Client, directory: &Directory, to: Position) -> Result<u64, Trouble> {
        let (channel, consumer) = (coded(&self.at.name()), coded(&self.consumer));
        let id = directory.channel;
        let answer = client
            .post(&format!(
                "/channels/{channel}/skip?consumer={consumer}&to={to}&id={id}"
            ))
            .map_err(Trouble)?;
        match answer["why"].as_str() {
            None => Ok(answer["skipped"].as_u64().unwrap_or_default()),
            Some(why) => Err(Trouble(why.to_owned())),
        }
    }

    /// The last position to skip; `None` if the channel is empty.
    fn target(&self, directory: &Directory) -> Result<Option<Position>, Trouble> {
        let span = directory.span()?;
        let to = match (self.to.as_str(), span) {
            ("end", span) => return Ok(span.map(|(_, last)| last)),
            (text, _) => text.parse::<Position>().map_err(Trouble)?,
        };
        let Some((first, last)) = span else {
            return Err(Trouble(format!(
                "there is no position {to}: the channel is empty"
            )));
        };
        let near = match directory.around(to)? {
            (Some(before), _) if before == to => return Ok(Some(to)),
            (Some(before), Some(behind)) => {
                format!("; the nearest are {before} and {behind}")
            }
            _ => String::new(),
        };
        Err(Trouble(format!(
            "there is no position {to}: the channel holds {first} to {last}{near}"
        )))
    }

    /// Writes and syncs the records between the cursor and `to`; returns their number and the last position. After an error, the file does
    /// not exist.
    fn save(
        &self,
        directory: &Directory,
        cursor: Position,
        to: Position,
    ) -> Result<(u64, Position), Trouble> {
        let place = self.output.display();
        let fail = |error: std::io::Error| Trouble(format!("cannot write {place}: {error}"));
        let mut options = File::options();
        // Like the files of the channel, it can be read only by its owner.
        let file = options.write(true).create_new(true).mode(0o600);
        let file = file.open(&self.output).map_err(fail)?;
        let saved = self.write(file, directory, cursor, to).and_then(|saved| {
            let parent = self.output.parent().filter(|it| !it.as_os_str().is_empty());
            let parent = File::open(parent.unwrap_or(Path::new(".")));
            parent.and_then(|parent| parent.sync_all()).map_err(fail)?;
            Ok(saved)
        });
        if saved.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&self.output);
        }
        saved
    }

    fn write(
        &self,
        file: File,
        directory: &Directory,
        cursor: Position,
        to: Position,
    ) -> Result<(u64, Position), Trouble> {
        let place = self.output.display();
        let fail = |error: std::io::Error| Trouble(format!("cannot write {place}: {error}"));
        let mut records = Records::new(BufWriter::new(file), self.format)?;
        let mut last = cursor;
        for seen in directory.read(cursor) {
            if let Seen::Frame(frame) = seen? {
                if frame.position > to {
                    break;
                }
                records.write(&frame.batch).map_err(fail)?;
                last = frame.position;
            }
        }
        if let Some((count, why)) = &records.refused {
            let advice = "nothing was skipped; try --format msgpack";
            let text =
                format!("{count} records cannot be written in this format ({why}): {advice}");
            return Err(Trouble(text));
        }
        let written = records.written;
        let mut out = records.into_inner();
        out.flush().map_err(fail)?;
        out.get_ref().sync_all().map_err(fail)?;
        Ok((written, last))
    }
}
