//! TLS: the option `tls`, certificates from files that may change, and both ends of a handshake.
//!
//! TLS 1.2 and 1.3 by rustls with ring. A node's `tls` that is a name was replaced by its block when the configuration
//! was taken apart, so a [`Tls`] never holds one. Reading the files is part of the check: a missing or wrong one is told
//! at its place.

mod client;
mod files;
mod options;
mod reloading;
mod server;

pub use client::{ClientTls, client_config};
pub use options::{Block, ClientAuth, MinVersion, Tls};
pub use server::ServerTls;

use std::{path::PathBuf, sync::Arc};

use millstream_config::{Node, Problem};
use rustls::{SupportedProtocolVersion, crypto::CryptoProvider, version};

/// What is wrong with a file, and which option names it (`tls.cert`).
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

/// The path of an option: a relative one starts at the file it stands in.
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
