//! The option `auth`, and the sender's side of the handshake HELO, PING, PONG, in which both sides prove that they have the key.

use std::{borrow::Cow, io};

use millstream_config::{Node, Problem, Secret};
use millstream_sys::random;
use millstream_wire::{
    forward::handshake::{Helo, Ping, Pong, digest, is_digest, read_helo, read_pong, write_ping},
    msgpack::ReadError,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of the salt, as in fluentd.
const SALT_BYTES: usize = 16;
/// Maximum bytes of a HELO or PONG message. Those of known servers have about 250 bytes.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// The shared key and the user, as in fluentd's `<security>`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Auth {
    /// Name of this sender. A server with the same name is refused: its proof of the key could be an echo of this sender's proof.
    /// Default: `sender@` and the name of the machine.
    #[serde(default)]
    hostname: Option<String>,
    /// Key that this sender and the servers share.
    shared_key: Secret,
    /// User name, for servers that ask for one.
    #[serde(default)]
    username: Option<String>,
    /// Password of the user.
    #[serde(default)]
    password: Option<Secret>,
}

impl Auth {
    /// Reports an empty key, a user name without a password, and a password without a user name.
    pub(super) fn check(&self, options: &Node, problems: &mut Vec<Problem>) {
        let mut wrong = |path: &str, text: &str| problems.push(options.problem_at(path, text));
        if self.shared_key.expose().is_empty() {
            wrong("auth.shared_key", "the key is empty");
        }
        match (&self.username, &self.password) {
            (Some(_), None) => wrong("auth.username", "`username` needs `password`"),
            (None, Some(_)) => wrong("auth.password", "`password` needs `username`"),
            _ => {}
        }
    }

    /// Does the handshake. The caller sets the deadline.
    pub(super) async fn greet(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let hello = receive(stream, |bytes| Ok(read_helo(bytes)?.1)).await?;
        let (helo, _) = read_helo(&hello).map_err(|_| no_handshake())?;
        let salt: [u8; SALT_BYTES] = random::bytes()?;
        let key = self.shared_key.expose().as_bytes();
        let proof = |name: &[u8]| digest(&[&salt, name, helo.nonce, key]);
        let name = self.name();
        let out = self.ping(name.as_bytes(), &helo, &salt, &proof);
        stream.write_all(&out).await?;
        stream.flush().await?;
        let answer = receive(stream, |bytes| Ok(read_pong(bytes)?.1)).await?;
        match read_pong(&answer) {
            Ok((Pong::Welcome { hostname, .. }, _)) if hostname == name.as_bytes() => {
                let text = format!(
                    "it has the name of this sender, `{name}`, so it may only echo the proof: choose another `auth.hostname`"
                );
                Err(refused(&text))
            }
            Ok((
                Pong::Welcome {
                    hostname,
                    key_digest,
                },
                _,
            )) if is_digest(key_digest, &proof(hostname)) => Ok(()),
            Ok((Pong::Welcome { .. }, _)) => Err(refused(
                "the server does not have the shared key itself: nothing is sent to it",
            )),
            Ok((Pong::Refused(reason), _)) => {
                let reason = String::from_utf8_lossy(reason);
                Err(refused(&format!("it denied access: {reason}")))
            }
            Err(_) => Err(no_handshake()),
        }
    }

    /// The name of this sender. The default differs from the default name of a server on the same machine.
    fn name(&self) -> Cow<'_, str> {
        if let Some(name) = &self.hostname {
            return name.into();
        }
        let machine = rustix::system::uname();
        format!("sender@{}", machine.nodename().to_string_lossy()).into()
    }

    fn ping(
        &self,
        hostname: &[u8],
        helo: &Helo<'_>,
        salt: &[u8],
        proof: &impl Fn(&[u8]) -> [u8; 128],
    ) -> Vec<u8> {
        let user = self.username.as_deref().unwrap_or_default().as_bytes();
        let password = self.password.as_ref().map_or("", |secret| secret.expose());
        let password = digest(&[helo.auth, user, password.as_bytes()]);
        // Fluentd sends a salt for the password even if it requires no user, so a user is sent only if one is configured.
        let (user, password): (&[u8], &[u8]) = match helo.auth.is_empty() || user.is_empty() {
            true => (b"", b""),
            false => (user, &password),
        };
        let mut out = Vec::new();
        let ping = Ping {
            hostname,
            salt,
            key_digest: &proof(hostname),
            user,
            password_digest: password,
        };
        write_ping(&mut out, &ping);
        out
    }
}

/// Whether bytes are the greeting of a server with a shared key: `["HELO", {...}]`.
pub(super) fn is_handshake(answer: &[u8]) -> bool {
    answer.starts_with(b"\x92\xa4HELO")
}

/// Reads exactly one message. `length` returns the length of the message at the start of the bytes.
async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    length: impl Fn(&[u8]) -> Result<usize, ReadError>,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let step = (ANSWER_BYTES_MAX - bytes.len()) as u64;
        if (&mut *stream).take(step).read_buf(&mut bytes).await? == 0 {
            return Err(refused("it closed the connection instead of a handshake"));
        }
        match length(&bytes) {
            // The server waits for our answer, so nothing follows.
            Ok(length) if length == bytes.len() => return Ok(bytes),
            Err(ReadError::Short) if bytes.len() < ANSWER_BYTES_MAX => {}
            _ => return Err(no_handshake()),
        }
    }
}

fn no_handshake() -> io::Error {
    refused("it does not do the handshake of a server with a shared key")
}

fn refused(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use millstream_wire::forward::handshake::{read_ping, write_helo, write_pong};

    use super::*;

    fn auth(text: &str) -> Auth {
        Node::parse("t", text).unwrap().read().unwrap()
    }

    /// Does the handshake with a server that has `key`, and that refuses access if there is a reason in `refuse`. Returns the PING
    /// that the server received.
    fn shake(auth: &Auth, key: &str, refuse: Option<&str>) -> Result<Vec<u8>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (mut client, mut server) = tokio::io::duplex(4096);
            let serve = async {
                let mut out = Vec::new();
                let helo = Helo {
                    nonce: b"0123456789abcdef",
                    auth: b"salt",
                    keepalive: true,
                };
                write_helo(&mut out, &helo);
                server.write_all(&out).await.unwrap();
                let ping = receive(&mut server, |bytes| Ok(read_ping(bytes)?.1))
                    .await
                    .unwrap();
                let (read, _) = read_ping(&ping).unwrap();
                let proof = |name: &[u8]| digest(&[read.salt, name, helo.nonce, key.as_bytes()]);
                out.clear();
                let pong = match refuse {
                    Some(reason) => Pong::Refused(reason.as_bytes()),
                    None => Pong::Welcome {
                        hostname: b"agg",
                        key_digest: &proof(b"agg"),
                    },
                };
                write_pong(&mut out, &pong);
                server.write_all(&out).await.unwrap();
                assert_eq!(
                    is_digest(read.key_digest, &proof(read.hostname)),
                    key == "sesame"
                );
                ping
            };
            let (greeted, ping) = tokio::join!(auth.greet(&mut client), serve);
            greeted.map(|()| ping).map_err(|error| error.to_string())
        })
    }

    #[test]
    fn both_sides_prove_that_they_have_the_key() {
        let plain = auth("{ shared_key: sesame, hostname: web }");
        let ping = shake(&plain, "sesame", None).unwrap();
        let (ping, _) = read_ping(&ping).unwrap();
        assert_eq!(
            (ping.hostname, ping.user, ping.password_digest),
            (&b"web"[..], &b""[..], &b""[..])
        );
        let told = shake(&plain, "guess", None).unwrap_err();
        assert!(told.contains("does not have the shared key"), "{told}");
        let told = shake(&plain, "sesame", Some("shared_key mismatch")).unwrap_err();
        assert!(
            told.ends_with("denied access: shared_key mismatch"),
            "{told}"
        );
    }

    #[test]
    fn a_server_with_the_senders_name_is_refused_because_it_may_only_echo_the_proof() {
        let same = auth("{ shared_key: sesame, hostname: agg }");
        let told = shake(&same, "sesame", None).unwrap_err();
        assert!(told.contains("the name of this sender, `agg`"), "{told}");
        // A server on the same machine has another name, unless one of the names is configured.
        let ping = shake(&auth("{ shared_key: sesame }"), "sesame", None).unwrap();
        let (ping, _) = read_ping(&ping).unwrap();
        assert!(ping.hostname.starts_with(b"sender@"));
    }

    #[test]
    fn a_user_proves_the_password_without_showing_it() {
        let user = auth("{ shared_key: sesame, username: alice, password: wonder }");
        let ping = shake(&user, "sesame", None).unwrap();
        let (ping, _) = read_ping(&ping).unwrap();
        assert_eq!(ping.user, b"alice");
        assert!(is_digest(
            ping.password_digest,
            &digest(&[b"salt", b"alice", b"wonder"])
        ));
        assert!(!format!("{user:?}").contains("wonder"));
    }

    #[test]
    fn a_server_that_does_not_do_the_handshake_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let long = [0xd9; ANSWER_BYTES_MAX + 1];
        for answer in [&b"\x81\xa3ack\xa1a"[..], b"HTTP/1.1 400", &long, b""] {
            let (mut client, mut server) = tokio::io::duplex(64 << 10);
            let greeted = runtime.block_on(async {
                server.write_all(answer).await.unwrap();
                server.shutdown().await.unwrap();
                auth("{ shared_key: k }").greet(&mut client).await
            });
            assert!(greeted.is_err(), "{answer:?}");
        }
    }
}
