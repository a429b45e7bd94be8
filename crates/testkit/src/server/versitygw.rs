//! versitygw: an S3 server that keeps objects as files of a folder, checks signatures, and creates only if absent, atomically.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Server, free_port, installed};

/// Who may write to it.
pub const ACCESS_KEY: &str = "millstream";
/// The secret to it.
pub const SECRET_KEY: &str = "millstream-secret";

/// An S3 server over a folder, the buckets of which are folders in it.
pub struct Versitygw {
    /// The process.
    pub server: Server,
    /// Where it listens.
    pub port: u16,
    folder: PathBuf,
}

impl Versitygw {
    /// Starts it over `folder` with one bucket.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(folder: &Path, bucket: &str) -> Self {
        let made = fs::create_dir_all(folder.join("objects").join(bucket));
        made.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let (port, program) = (free_port(), installed("versitygw"));
        let (log, objects) = (folder.join("versitygw.log"), folder.join("objects"));
        let server = Server::start("versitygw", log, port, move || {
            let mut command = Command::new(&program);
            command
                .env("ROOT_ACCESS_KEY", ACCESS_KEY)
                .env("ROOT_SECRET_KEY", SECRET_KEY)
                .arg("--port")
                .arg(format!("127.0.0.1:{port}"))
                .arg("posix")
                .arg(&objects);
            command
        });
        Self {
            server,
            port,
            folder: folder.to_owned(),
        }
    }

    /// Where it is.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A bucket, as the files that its objects are.
    pub fn bucket(&self, bucket: &str) -> PathBuf {
        self.folder.join("objects").join(bucket)
    }
}
