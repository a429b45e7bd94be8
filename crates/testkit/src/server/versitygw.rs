//! versitygw: an S3 server that keeps objects as files of a directory, checks signatures, and creates only if absent, atomically.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{
    Server, free_port, installed,
    network::{self, Network},
};

/// Who may write to it.
pub const ACCESS_KEY: &str = "millstream";
/// The secret to it.
pub const SECRET_KEY: &str = "millstream-secret";

/// An S3 server over a directory, the buckets of which are directories in it.
pub struct Versitygw {
    /// The process.
    pub server: Server,
    address: SocketAddr,
    secure: bool,
    directory: PathBuf,
}

/// What it is not as usual in.
#[derive(Default)]
pub struct Setup<'a> {
    /// Its certificate and key in PEM: it speaks TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Where it stands, if not on this machine.
    pub network: Option<&'a Network>,
}

impl Versitygw {
    /// Starts it over `directory` with one bucket.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(directory: &Path, bucket: &str) -> Self {
        Self::start_with(directory, bucket, &Setup::default())
    }

    /// The same, not as usual.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with(directory: &Path, bucket: &str, setup: &Setup<'_>) -> Self {
        let made = fs::create_dir_all(directory.join("objects").join(bucket));
        made.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let program = installed("versitygw");
        let (log, objects) = (directory.join("versitygw.log"), directory.join("objects"));
        let ip = setup.network.map_or(Ipv4Addr::LOCALHOST, Network::address);
        let address = SocketAddr::new(IpAddr::V4(ip), free_port());
        let (tls, network) = (setup.tls.clone(), setup.network.map(Network::name));
        let network = network.map(str::to_owned);
        let server = Server::start_at("versitygw", log, address, move || {
            let mut command = network::command(network.as_deref(), &program);
            command
                .env("ROOT_ACCESS_KEY", ACCESS_KEY)
                .env("ROOT_SECRET_KEY", SECRET_KEY)
                .arg("--port")
                .arg(address.to_string());
            if let Some((cert, key)) = &tls {
                command.arg("--cert").arg(cert).arg("--key").arg(key);
            }
            command.arg("posix").arg(&objects);
            command
        });
        Self {
            server,
            address,
            secure: setup.tls.is_some(),
            directory: directory.to_owned(),
        }
    }

    /// Where it is.
    pub fn endpoint(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// A bucket, as the files that its objects are.
    pub fn bucket(&self, bucket: &str) -> PathBuf {
        self.directory.join("objects").join(bucket)
    }
}
