//! Certificates for tests of TLS: an authority, and what it signs, as PEM files in a directory.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

/// A root that signs certificates of hosts and clients.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new root of this name.
    ///
    /// # Panics
    /// If the system gives no random numbers.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names, none wrong");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("the system gives random numbers");
        Self(CertifiedIssuer::self_signed(params, key).expect("a root signs itself"))
    }

    /// Writes the root's certificate as `NAME.pem`.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write_root(&self, directory: &Path, name: &str) {
        fs::write(directory.join(format!("{name}.pem")), self.0.pem())
            .expect("the root is written");
    }

    /// Signs a certificate for `hosts` (names and addresses) and writes it as `NAME.pem`, its key as `NAME.key`.
    ///
    /// # Panics
    /// If it cannot be written, or a host is no name.
    pub fn issue(&self, directory: &Path, name: &str, hosts: &[&str]) {
        let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names of hosts");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("the system gives random numbers");
        let signed = params.signed_by(&key, &self.0).expect("it is signed");
        let write = |ending: &str, text: String| {
            fs::write(directory.join(format!("{name}.{ending}")), text).expect("it is written");
        };
        write("pem", signed.pem());
        write("key", key.serialize_pem());
    }
}
