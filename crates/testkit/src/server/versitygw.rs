//! versitygw: an S3 server that stores objects as files, checks signatures, and creates objects atomically and conditionally.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{
    Server, free_port, installed,
    network::{self, Network},
};

/// The access key of its only user.
pub const ACCESS_KEY: &str = "millstream";
/// The secret key of its only user.
pub const SECRET_KEY: &str = "millstream-secret";

/// An S3 server over a directory, whose subdirectories are the buckets.
pub struct Versitygw {
    /// The process.
    pub server: Server,
    address: SocketAddr,
    secure: bool,
    directory: PathBuf,
}

/// Deviations from the defaults.
#[derive(Default)]
pub struct Setup<'a> {
    /// A certificate and a key in PEM. If given, the server uses TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The network of the server. `None`: this machine's network.
    pub network: Option<&'a Network>,
}

impl Versitygw {
    /// Starts a server over `directory` with one bucket.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(directory: &Path, bucket: &str) -> Self {
        Self::start_with(directory, bucket, &Setup::default())
    }

    /// Like `start`, with deviations from the defaults.
    ///
    /// # Panics
    /// If it does not start.
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

    /// Its URL.
    pub fn endpoint(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The directory of a bucket, which holds its objects as files.
    pub fn bucket(&self, bucket: &str) -> PathBuf {
        self.directory.join("objects").join(bucket)
    }
}
