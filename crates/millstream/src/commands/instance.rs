//! The running instance that a command talks to.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use crate::{client, config, exit, page};

/// The running instance, by its configuration or address.
#[derive(Args)]
pub struct Instance {
    /// Configuration files and directories of the instance; only `api.listen` is taken from them.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// The address of the instance, instead of the configured one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    api: Option<String>,
}

impl Instance {
    /// Its address, or the exit code of the complaint.
    pub fn address(&self) -> Result<String, u8> {
        if let Some(api) = &self.api {
            let address = api.trim_start_matches("http://").trim_end_matches('/');
            return Ok(address.to_owned());
        }
        let is_default = self.config == [PathBuf::from("/etc/millstream")];
        if is_default && !self.config[0].exists() {
            return Ok(millstream_config::Api::default().listen[0].clone());
        }
        let api = config::api(&self.config).map_err(|problems| config::complain(&problems))?;
        let first = api.listen.first().cloned();
        first.ok_or_else(|| {
            let text = "`api.listen` is empty there: the instance cannot be asked";
            page::complain(text, exit::FAILED)
        })
    }

    /// A page of it, as JSON.
    pub fn get(&self, address: &str, path: &str) -> Result<Value, String> {
        match self.ask(address, "GET", path)? {
            (200, body) => parse(address, &body),
            (code, body) => Err(format!("{address} answers {code}: {}", body.trim())),
        }
    }

    /// The answer to a POST without a body, as JSON, whether it succeeded or not.
    pub fn post(&self, address: &str, path: &str) -> Result<Value, String> {
        match self.ask(address, "POST", path)? {
            (200 | 422, body) => parse(address, &body),
            (404 | 405, _) => Err(format!(
                "the instance at {address} is of a version that cannot do this"
            )),
            (code, body) => Err(format!("{address} answers {code}: {}", body.trim())),
        }
    }

    fn ask(&self, address: &str, method: &str, path: &str) -> Result<(u16, String), String> {
        // An instance that listens on all addresses is reached on loopback.
        let address = address
            .replace("0.0.0.0:", "127.0.0.1:")
            .replace("[::]:", "[::1]:");
        client::request(&address, method, path).map_err(|error| {
            format!(
                "no instance answers at {address}: {error}; is `millstream run` running, and is this its `api.listen`?"
            )
        })
    }
}

fn parse(address: &str, body: &str) -> Result<Value, String> {
    serde_json::from_str(body)
        .map_err(|error| format!("{address} answers, but not as Millstream does: {error}"))
}
