//! Thin wrappers around the TLS library, for the generator's connections and for `millbench reader`. Servers are compared with this reader.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use socket2::Socket;

use crate::Failure;

/// The name in the certificates that this program makes.
const NAME: &str = "localhost";

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Other(format!("TLS: {error}"))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A self-signed certificate and its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The path of the certificate in PEM. The certificate is its own root.
    pub cert: PathBuf,
    /// The path of the key in PEM.
    pub key: PathBuf,
}

impl Certificate {
    /// Creates the certificate and the key in `directory`, unless they exist.
    pub fn in_directory(directory: &Path) -> Result<Self, Failure> {
        let made = Self {
            cert: directory.join("tls.pem"),
            key: directory.join("tls.key"),
        };
        if !made.key.exists() {
            let names = [NAME.to_owned()];
            let signed = rcgen::generate_simple_self_signed(names).map_err(wrong)?;
            fs::write(&made.cert, signed.cert.pem())?;
            fs::write(&made.key, signed.signing_key.serialize_pem())?;
        }
        Ok(made)
    }
}

/// A client configuration that trusts the roots in a file.
pub fn client(ca: &Path) -> Result<Arc<ClientConfig>, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(wrong)? {
        roots.add(certificate.map_err(wrong)?).map_err(wrong)?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A server configuration with this certificate.
pub fn server(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, Failure> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert)
        .map_err(wrong)?
        .collect();
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong)?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(certificates.map_err(wrong)?, key)
        .map_err(wrong)?;
    Ok(Arc::new(config))
}

/// A connection of the generator.
pub enum Wire {
    /// Without TLS.
    Plain(Socket),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
}

impl Wire {
    /// Wraps a connected socket. Without `tls`, the connection is plain.
    pub fn new(socket: Socket, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let Some(config) = tls else {
            return Ok(Self::Plain(socket));
        };
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    /// Closes the sending side.
    pub fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.shutdown(Shutdown::Write),
            Self::Tls(stream) => {
                stream.conn.send_close_notify();
                stream.flush()?;
                stream.sock.shutdown(Shutdown::Write)
            }
        }
    }
}

impl Read for Wire {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(out),
            // After close_notify a peer may close the connection without an answer.
            Self::Tls(stream) => match stream.read(out) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                read => read,
            },
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Decrypts and drops all available data. Returns false if the peer has closed the connection.
pub fn drop_bytes(
    stream: &mut TcpStream,
    session: &mut ServerConnection,
    buffer: &mut [u8],
) -> io::Result<bool> {
    loop {
        match session.read_tls(stream) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        session.process_new_packets().map_err(io::Error::other)?;
        while session.wants_write() {
            session.write_tls(stream)?;
        }
        loop {
            match session.reader().read(buffer) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}
