//! TLS: the option `tls`, certificates from files that may change, and both ends of a handshake.
//!
//! rustls with ring implements TLS 1.2 and 1.3. The configuration loader replaces the name of a `tls` block with the block, so a
//! [`Tls`] never contains a name. The check of the options also reads the files, and reports a missing or invalid file at the
//! option that names it.

mod client;
mod files;
mod names;
mod options;
mod reloading;
mod server;

pub use client::{ClientFiles, ClientTls};
pub(crate) use names::names;
pub use options::{Block, ClientAuth, MinVersion, Tls};
pub use server::ServerTls;

use std::{path::PathBuf, sync::Arc};

use millstream_config::{Node, Problem};
use rustls::{SupportedProtocolVersion, crypto::CryptoProvider, version};

/// A problem with a file, and the option that names it (`tls.cert`).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    option: &'static str,
    text: String,
}

impl Fault {
    fn new(option: &'static str, text: impl Into<String>) -> Self {
        Self {
            option,
            text: text.into(),
        }
    }

    fn problem(self, options: &Node) -> Problem {
        options.problem_at(self.option, self.text)
    }
}

/// Resolves the path in an option; a relative path is relative to the configuration file that contains it.
fn resolve(options: &Node, option: &str, path: &PathBuf) -> PathBuf {
    let node = options.find(option).unwrap_or(options);
    node.place.resolve(path)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

static FROM_12: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
static FROM_13: [&SupportedProtocolVersion; 1] = [&version::TLS13];

fn versions(min: MinVersion) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        MinVersion::Tls12 => &FROM_12,
        MinVersion::Tls13 => &FROM_13,
    }
}
