//! A certificate authority for tests of TLS. It writes PEM files into a directory.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

/// A root that signs server and client certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates a root with this name.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("an empty list is valid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("the system gives random numbers");
        Self(CertifiedIssuer::self_signed(params, key).expect("a root signs itself"))
    }

    /// Writes the root's certificate as `NAME.pem`.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write_root(&self, directory: &Path, name: &str) {
        fs::write(directory.join(format!("{name}.pem")), self.0.pem())
            .expect("the root is written");
    }

    /// Signs a certificate for `hosts` (names and addresses), and writes it as `NAME.pem` and its key as `NAME.key`.
    ///
    /// # Panics
    /// If a file cannot be written, or a host is not a valid name.
    pub fn issue(&self, directory: &Path, name: &str, hosts: &[&str]) {
        self.issue_until(directory, name, hosts, 4096);
    }

    /// Like [`Authority::issue`], for a certificate that expired at the beginning of 2001.
    ///
    /// # Panics
    /// As [`Authority::issue`].
    pub fn issue_expired(&self, directory: &Path, name: &str, hosts: &[&str]) {
        self.issue_until(directory, name, hosts, 2001);
    }

    fn issue_until(&self, directory: &Path, name: &str, hosts: &[&str], year: i32) {
        let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("the names of the hosts are valid");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("the system gives random numbers");
        let signed = params.signed_by(&key, &self.0).expect("it is signed");
        let write = |ending: &str, text: String| {
            fs::write(directory.join(format!("{name}.{ending}")), text).expect("it is written");
        };
        write("pem", signed.pem());
        write("key", key.serialize_pem());
    }
}
