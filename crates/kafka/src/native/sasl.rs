//! SCRAM authentication: client and broker prove to each other that they know the password, without sending the password.
//!
//! Sources: RFC 5802, RFC 7677 (SHA-256); Kafka also supports SHA-512. Names and passwords are used unchanged (no
//! SASLprep), as in other Kafka clients.

use std::num::NonZeroU32;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::{
    digest,
    hmac::{self, HMAC_SHA256, HMAC_SHA512},
    pbkdf2,
    rand::{SecureRandom as _, SystemRandom},
};

use crate::Mechanism;

/// The maximum number of iterations that the client accepts. It is far above Kafka's own limit of 16384, so only a faulty or hostile server
/// exceeds it.
const ROUNDS_MAX: u32 = 1_000_000;

/// One authentication exchange.
pub(super) struct Scram {
    mechanism: Mechanism,
    password: String,
    nonce: String,
    /// The first message without its `n,,` header.
    first: String,
    /// The signature that the server must send.
    expected: Vec<u8>,
}

impl Scram {
    pub(super) fn new(mechanism: Mechanism, user: &str, password: &str) -> Self {
        let mut random = [0; 24];
        // The error is ignored: if the system's random generator fails, TLS does not work either. The worst effect of a nonce
        // of zeros is that the exchange is rejected or can be replayed.
        let _ = SystemRandom::new().fill(&mut random);
        Self::with_nonce(mechanism, user, password, BASE64.encode(random))
    }

    fn with_nonce(mechanism: Mechanism, user: &str, password: &str, nonce: String) -> Self {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Self {
            mechanism,
            password: password.to_owned(),
            first: format!("n={user},r={nonce}"),
            nonce,
            expected: Vec::new(),
        }
    }

    /// The client's first message.
    pub(super) fn first(&self) -> String {
        format!("n,,{}", self.first)
    }

    fn algorithms(
        &self,
    ) -> (
        hmac::Algorithm,
        pbkdf2::Algorithm,
        &'static digest::Algorithm,
    ) {
        match self.mechanism {
            Mechanism::ScramSha512 => (HMAC_SHA512, pbkdf2::PBKDF2_HMAC_SHA512, &digest::SHA512),
            _ => (HMAC_SHA256, pbkdf2::PBKDF2_HMAC_SHA256, &digest::SHA256),
        }
    }

    /// The reply to the server's first message.
    pub(super) fn proof(&mut self, challenge: &[u8]) -> Result<String, String> {
        let strange =
            || "authentication failed: the broker sent an invalid SCRAM challenge".to_owned();
        let challenge = std::str::from_utf8(challenge).map_err(|_| strange())?;
        let nonce = field(challenge, "r=").ok_or_else(strange)?;
        let salt = field(challenge, "s=").and_then(|salt| BASE64.decode(salt).ok());
        let salt = salt.ok_or_else(strange)?;
        let rounds = field(challenge, "i=").and_then(|rounds| rounds.parse().ok());
        let rounds = rounds.filter(|rounds| *rounds <= ROUNDS_MAX);
        let rounds = rounds.and_then(NonZeroU32::new).ok_or_else(strange)?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(strange());
        }
        let (mac, derive, digest) = self.algorithms();
        let mut salted = vec![0; digest.output_len()];
        pbkdf2::derive(derive, rounds, &salt, self.password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(mac, key), text);
        let client_key = sign(&salted, b"Client Key");
        let stored_key = digest::digest(digest, client_key.as_ref());
        let last = format!("c=biws,r={nonce}");
        let text = format!("{},{challenge},{last}", self.first);
        let signature = sign(stored_key.as_ref(), text.as_bytes());
        let both = client_key.as_ref().iter().zip(signature.as_ref());
        let proof: Vec<u8> = both.map(|(a, b)| a ^ b).collect();
        let server_key = sign(&salted, b"Server Key");
        self.expected = sign(server_key.as_ref(), text.as_bytes()).as_ref().to_vec();
        Ok(format!("{last},p={}", BASE64.encode(proof)))
    }

    /// Checks the server's signature.
    pub(super) fn check(&self, last: &[u8]) -> Result<(), String> {
        let last = String::from_utf8_lossy(last);
        if let Some(error) = field(&last, "e=") {
            return Err(format!("authentication failed: {error}"));
        }
        let shown = field(&last, "v=").and_then(|shown| BASE64.decode(shown).ok());
        if shown.is_some_and(|shown| shown == self.expected) {
            return Ok(());
        }
        Err("authentication failed: the broker's signature is missing or wrong, so it does not know the password".to_owned())
    }
}

fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message
        .split(',')
        .find_map(|field| field.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in RFC 7677.
    #[test]
    fn the_example_of_the_rfc_succeeds() {
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        let mut scram = Scram::with_nonce(Mechanism::ScramSha256, "user", "pencil", nonce);
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        assert_eq!(
            scram.proof(challenge).unwrap(),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        let good = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(scram.check(good), Ok(()));
        assert!(scram.check(b"v=AAAA").is_err());
        assert!(
            scram
                .check(b"e=unknown-user")
                .unwrap_err()
                .contains("unknown-user")
        );
    }

    #[test]
    fn invalid_challenges_of_a_server_are_rejected() {
        for challenge in [
            &b"r=other,s=AAAA,i=4096"[..],
            b"r=mine,s=AAAA,i=4096",
            b"r=mine2,s=AAAA,i=0",
            b"r=mine2,s=AAAA,i=4000000000",
            b"r=mine2,s=?,i=4096",
            b"r=mine2",
            b"\xff",
            b"",
        ] {
            let mut scram = Scram::with_nonce(Mechanism::ScramSha512, "a,b=c", "p", "mine".into());
            assert_eq!(scram.first(), "n,,n=a=2Cb=3Dc,r=mine");
            assert!(scram.proof(challenge).is_err());
        }
    }
}
