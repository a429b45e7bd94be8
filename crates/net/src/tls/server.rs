//! The server's side of TLS.

use std::{io, path::PathBuf, sync::Arc};

use millstream_config::Node;
use millstream_pipeline::{node::Checked, report::Reporter};
use rustls::{
    ServerConfig,
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio_rustls::TlsAcceptor;

use super::{
    Fault,
    files::{certificates, key, roots},
    options::{Block, ClientAuth, MinVersion, Tls},
    provider,
    reloading::{Make, Reloading},
    resolve, versions,
};
use crate::stream::{Secure, Socket, Stream};

/// TLS on a listener: the certificate, and what clients must present.
#[derive(Debug)]
pub struct ServerTls(Reloading<Maker>);

#[derive(Debug)]
struct Maker {
    cert: PathBuf,
    key: PathBuf,
    /// The roots of client certificates, and whether a client must present one. `None`: clients are not asked for a certificate.
    clients: Option<(PathBuf, ClientAuth)>,
    min_version: MinVersion,
}

impl ServerTls {
    /// Checks the option `tls` of a listener and reads its files; `None` if TLS is off.
    pub fn check(tls: &Tls, options: &Node) -> Checked<Option<Self>> {
        let block = match tls {
            Tls::Off => return Ok(None),
            Tls::System => {
                let text = "a listener needs its own certificate: `tls: { cert: FILE, key: FILE }`";
                return Err(vec![options.problem_at("tls", text)]);
            }
            Tls::Block(block) => block,
        };
        let made = Maker::new(block, options).and_then(Reloading::new);
        match made {
            Ok(made) => Ok(Some(Self(made))),
            Err(faults) => Err(faults.into_iter().map(|f| f.problem(options)).collect()),
        }
    }

    /// Does the server's part of a handshake. The caller enforces the deadline.
    pub async fn accept(&self, socket: Socket, reporter: &Reporter) -> io::Result<Stream> {
        let acceptor = TlsAcceptor::from(self.0.get(Some(reporter)));
        // The future is boxed, because it is large and not needed after the handshake.
        let stream = Box::pin(acceptor.accept(socket)).await?;
        Ok(Stream::Tls(Box::new(Secure::new(stream))))
    }

    /// Makes the next handshake check the files.
    #[cfg(test)]
    pub(crate) fn age(&self) {
        self.0.age();
    }
}

impl Maker {
    fn new(block: &Block, options: &Node) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut file = |option: &'static str, path: &Option<PathBuf>| match path {
            Some(path) => Some(resolve(options, option, path)),
            None => {
                let text = format!("a listener needs `{option}`: a file in PEM");
                faults.push(Fault::new("tls", text));
                None
            }
        };
        let (cert, key) = (file("tls.cert", &block.cert), file("tls.key", &block.key));
        let ca = block.ca.as_ref();
        let ca = ca.map(|path| resolve(options, "tls.ca", path));
        let clients = match (ca, block.client_auth) {
            (_, Some(ClientAuth::None)) | (None, None) => None,
            (Some(ca), auth) => Some((ca, auth.unwrap_or(ClientAuth::Required))),
            (None, Some(_)) => {
                let text =
                    "to check the certificates of clients it needs `ca`: a file of their roots";
                faults.push(Fault::new("tls.client_auth", text));
                None
            }
        };
        match (cert, key) {
            (Some(cert), Some(key)) if faults.is_empty() => Ok(Self {
                cert,
                key,
                clients,
                min_version: block.min_version,
            }),
            _ => Err(faults),
        }
    }

    fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
        let Some((ca, auth)) = &self.clients else {
            return Ok(Arc::new(NoClientAuth));
        };
        let roots = roots("tls.ca", ca)?;
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        if *auth == ClientAuth::Optional {
            builder = builder.allow_unauthenticated();
        }
        let built = builder.build();
        built.map_err(|error| Fault::new("tls.ca", format!("{}: {error}", ca.display())))
    }
}

impl Make for Maker {
    type Made = ServerConfig;

    fn files(&self) -> Vec<PathBuf> {
        let ca = self.clients.iter().map(|(ca, _)| ca.clone());
        [self.cert.clone(), self.key.clone()]
            .into_iter()
            .chain(ca)
            .collect()
    }

    fn make(&self) -> Result<ServerConfig, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut note = |fault| faults.push(fault);
        let certificates = certificates("tls.cert", &self.cert).map_err(&mut note);
        let key = key("tls.key", &self.key).map_err(&mut note);
        let verifier = self.verifier().map_err(&mut note);
        let (Ok(certificates), Ok(key), Ok(verifier)) = (certificates, key, verifier) else {
            return Err(faults);
        };
        let wrong = |error: rustls::Error| {
            let (cert, key) = (self.cert.display(), self.key.display());
            vec![Fault::new(
                "tls.key",
                format!("the certificate {cert} and the key {key} cannot be used: {error}"),
            )]
        };
        ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions(self.min_version))
            .map_err(wrong)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates, key)
            .map_err(wrong)
    }
}
