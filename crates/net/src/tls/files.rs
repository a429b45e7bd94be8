//! Certificates, keys and roots from PEM files.

use std::{path::Path, sync::Arc};

use millstream_config::read_file;
use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use super::Fault;

/// The largest accepted certificate file; the system's bundle of roots has about 220 KiB.
const FILE_BYTES_MAX: u64 = 8 << 20;

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, Fault> {
    read_file(path, FILE_BYTES_MAX).map_err(|error| {
        let text = format!("cannot read {}: {error}", path.display());
        Fault::new(option, text)
    })
}

/// The certificates of a file, at least one.
pub(super) fn certificates(
    option: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let bytes = read(option, path)?;
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let shown = path.display();
    match all {
        Ok(all) if all.is_empty() => Err(Fault::new(
            option,
            format!("{shown} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)"),
        )),
        Ok(all) => Ok(all),
        Err(error) => Err(Fault::new(
            option,
            format!("{shown} is not valid PEM: {error}"),
        )),
    }
}

/// The private key of a file.
pub(super) fn key(option: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, Fault> {
    let bytes = read(option, path)?;
    let shown = path.display();
    let text = match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => return Ok(key),
        Err(pem::Error::NoItemsFound) if is_encrypted(&bytes) => format!(
            "the private key in {shown} is encrypted: decrypt it (`openssl pkey -in OLD -out NEW`) and let only this user read it"
        ),
        Err(pem::Error::NoItemsFound) => {
            format!("{shown} holds no private key in PEM (-----BEGIN PRIVATE KEY-----)")
        }
        Err(error) => format!("{shown} is not valid PEM: {error}"),
    };
    Err(Fault::new(option, text))
}

fn is_encrypted(bytes: &[u8]) -> bool {
    String::from_utf8_lossy(bytes).contains("ENCRYPTED")
}

/// The roots of a file.
pub(super) fn roots(option: &'static str, path: &Path) -> Result<Arc<RootCertStore>, Fault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(option, path)? {
        roots.add(certificate).map_err(|error| {
            let text = format!("a certificate in {} is not a root: {error}", path.display());
            Fault::new(option, text)
        })?;
    }
    Ok(Arc::new(roots))
}

/// The roots that the system trusts.
pub(super) fn system_roots() -> Result<Arc<RootCertStore>, Fault> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems have a few invalid certificates; the valid ones are enough.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})"));
        let text = format!(
            "this system has no root certificates{}: install them (Debian: ca-certificates), or name a file by `ca`",
            why.unwrap_or_default()
        );
        return Err(Fault::new("tls", text));
    }
    Ok(Arc::new(roots))
}
