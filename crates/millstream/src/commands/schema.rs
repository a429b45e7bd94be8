//! `millstream schema`: the JSON Schema of the configuration.

use clap::Args;

use crate::{page, reference::schema};

/// Print the JSON Schema of a configuration, for editors and tools.
#[derive(Args)]
#[command(after_help = "\
Example: save it with `millstream schema > millstream.schema.json`, then put this line at the top of your file, and \
editors that know YAML complete and check it:
  # yaml-language-server: $schema=millstream.schema.json

Exit code: 0")]
pub struct Schema {}

impl Schema {
    /// Prints; returns the exit code.
    pub fn execute(self) -> u8 {
        let text = format!("{:#}\n", schema::whole());
        page::print(&text)
    }
}
