//! The client's side of TLS.

use std::{io, path::PathBuf, sync::Arc};

use millstream_config::Node;
use millstream_pipeline::{node::Checked, report::Reporter};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio_rustls::TlsConnector;

use super::{
    Fault,
    files::{certificates, key, roots, system_roots},
    options::{Block, MinVersion, Tls},
    provider,
    reloading::{Make, Reloading},
    resolve, versions,
};
use crate::stream::{Secure, Socket, Stream};

/// TLS to a server: the trusted roots, and the client's certificate if it has one.
#[derive(Debug)]
pub struct ClientTls {
    made: Reloading<Maker>,
    /// The name in the server's certificate, if it differs from the address.
    server_name: Option<ServerName<'static>>,
}

#[derive(Debug)]
struct Maker {
    /// `None`: the system's roots.
    ca: Option<PathBuf>,
    /// Certificate and key.
    own: Option<(PathBuf, PathBuf)>,
    verify: bool,
    min_version: MinVersion,
}

impl ClientTls {
    /// Checks the option `tls` of a node that connects, and reads its files; `None` if TLS is off.
    pub fn check(tls: &Tls, options: &Node) -> Checked<Option<Self>> {
        let block = match tls {
            Tls::Off => return Ok(None),
            Tls::System => &Block::default(),
            Tls::Block(block) => &**block,
        };
        match Self::new(block, options) {
            Ok(made) => Ok(Some(made)),
            Err(faults) => Err(faults.into_iter().map(|f| f.problem(options)).collect()),
        }
    }

    fn new(block: &Block, options: &Node) -> Result<Self, Vec<Fault>> {
        let at = |option: &str, path: &PathBuf| resolve(options, option, path);
        let mut faults = Vec::new();
        let own = match (&block.cert, &block.key) {
            (Some(cert), Some(key)) => Some((at("tls.cert", cert), at("tls.key", key))),
            (None, None) => None,
            (Some(_), None) => {
                faults.push(Fault::new(
                    "tls.cert",
                    "`cert` needs `key`: its private key",
                ));
                None
            }
            (None, Some(_)) => {
                faults.push(Fault::new("tls.key", "`key` needs `cert`: its certificate"));
                None
            }
        };
        let name = block.server_name.as_ref();
        let server_name = name.map(|name| ServerName::try_from(name.clone()).map_err(|_| name));
        if let Some(Err(name)) = &server_name {
            let text = format!("`{name}` is neither a host name nor an address");
            faults.push(Fault::new("tls.server_name", text));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let maker = Maker {
            ca: block.ca.as_ref().map(|path| at("tls.ca", path)),
            own,
            verify: block.verify,
            min_version: block.min_version,
        };
        Ok(Self {
            made: Reloading::new(maker)?,
            server_name: server_name.and_then(Result::ok),
        })
    }

    /// The current rustls configuration, for a client library that makes its own connections. The configuration does not
    /// contain `server_name`.
    pub fn settings(&self, reporter: &Reporter) -> Arc<ClientConfig> {
        self.made.get(Some(reporter))
    }

    /// Does the client's part of a handshake with `host` (a name or an address). The caller enforces the deadline.
    pub async fn connect(
        &self,
        socket: Socket,
        host: &str,
        reporter: &Reporter,
    ) -> io::Result<Stream> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(bare.to_owned());
                name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?
            }
        };
        let connector = TlsConnector::from(self.made.get(Some(reporter)));
        let stream = Box::pin(connector.connect(name, socket)).await?;
        Ok(Stream::Tls(Box::new(Secure::new(stream))))
    }
}

/// A rustls configuration from files, for a client library that makes its own connections. It is made again when the files change.
#[derive(Debug)]
pub struct ClientFiles(Reloading<Maker>);

impl ClientFiles {
    /// `ca`: the roots (`None`: those of the system). `own`: the client's certificate and key.
    ///
    /// # Errors
    ///
    /// The text names the file and the problem.
    pub fn read(
        ca: Option<PathBuf>,
        own: Option<(PathBuf, PathBuf)>,
        verify: bool,
    ) -> Result<Self, String> {
        let min_version = MinVersion::default();
        let maker = Maker {
            ca,
            own,
            verify,
            min_version,
        };
        let made = Reloading::new(maker).map_err(|faults| {
            let texts: Vec<_> = faults.into_iter().map(|fault| fault.text).collect();
            texts.join("; ")
        });
        made.map(Self)
    }

    /// Makes the next call look at the files.
    #[cfg(test)]
    pub(crate) fn age(&self) {
        self.0.age();
    }

    /// How often the files have changed. Changes that make them unusable do not count.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.0.changes()
    }

    /// The current configuration. While changed files are unusable, that of the files before.
    #[must_use]
    pub fn current(&self) -> Arc<ClientConfig> {
        self.0.get(None)
    }
}

impl Maker {
    fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, Fault> {
        if !self.verify {
            return Ok(Arc::new(Anybody(provider())));
        }
        let roots = match &self.ca {
            Some(ca) => roots("tls.ca", ca)?,
            None => system_roots()?,
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        match verifier {
            Ok(verifier) => Ok(verifier),
            Err(error) => Err(Fault::new("tls.ca", error.to_string())),
        }
    }
}

impl Make for Maker {
    type Made = ClientConfig;

    fn files(&self) -> Vec<PathBuf> {
        let own = self.own.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(own).cloned().collect()
    }

    fn make(&self) -> Result<ClientConfig, Vec<Fault>> {
        let wrong = |error: rustls::Error| {
            vec![Fault::new(
                "tls.key",
                format!("certificate and key cannot be used: {error}"),
            )]
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions(self.min_version))
            .map_err(wrong)?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier().map_err(|fault| vec![fault])?);
        let Some((cert, file)) = &self.own else {
            return Ok(builder.with_no_client_auth());
        };
        let mut faults = Vec::new();
        let mut note = |fault| faults.push(fault);
        let certificates = certificates("tls.cert", cert).map_err(&mut note);
        let key = key("tls.key", file).map_err(&mut note);
        let (Ok(certificates), Ok(key)) = (certificates, key) else {
            return Err(faults);
        };
        builder
            .with_client_auth_cert(certificates, key)
            .map_err(wrong)
    }
}

/// The verifier for `verify: false`. Accepts every certificate, and only checks that the server has the private key of the
/// certificate.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
