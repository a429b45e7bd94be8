//! The names in a certificate, which identify its owner.

use rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

/// The common name and the alternative names (DNS, mail, URI) of a certificate; empty if it cannot be parsed. The caller has
/// verified the certificate's chain.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let common = certificate.subject().iter_common_name();
    let common = common.filter_map(|name| name.as_str().ok());
    let mut names: Vec<String> = common.map(str::to_owned).collect();
    if let Ok(Some(others)) = certificate.subject_alternative_name() {
        let others = others.value.general_names.iter();
        names.extend(others.filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some((*name).to_owned())
            }
            _ => None,
        }));
    }
    names
}

#[cfg(test)]
mod tests {
    use millstream_testkit::Authority;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn the_common_name_and_the_alternative_names_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("root");
        authority.issue(
            directory.path(),
            "alice",
            &["ops.example", "desk.example", "10.0.0.1"],
        );
        let file = directory.path().join("alice.pem");
        let certificate = CertificateDer::from_pem_file(file).unwrap();
        assert_eq!(
            names(&certificate),
            ["alice", "ops.example", "desk.example"]
        );
        for cut in 0..certificate.len() {
            assert!(names(&CertificateDer::from(&certificate[..cut])).is_empty());
        }
    }
}
