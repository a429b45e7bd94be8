//! The handshake HELO, PING, PONG. A peer must prove that it has the key before its frames are read.
//!
//! The handshake may take at most the time `limits.handshake` and [`PING_BYTES_MAX`] bytes. If the PING is refused, the peer
//! receives the reason, and its bytes are dropped. Bytes after a valid PING are passed on.

use millstream_net::{Connection, Peer, Stream};
use millstream_sys::random;
use millstream_wire::{
    forward::handshake::{Helo, Ping, Pong, digest, is_digest, read_ping, write_helo, write_pong},
    msgpack::ReadError,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout_at,
};

use super::{auth::Auth, end::End, service::Service};

/// The size of nonce and salt in bytes, as in Fluentd.
const NONCE_BYTES: usize = 16;
/// Maximum number of bytes that a peer may send before it is authenticated, including bytes that it sends right after its PING.
/// The PINGs of known senders have about 400 bytes.
const PING_BYTES_MAX: usize = 16 << 10;

/// The reasons for refusing a peer, in Fluentd's words.
const NO_PING: &str = "invalid ping message";
const WRONG_KEY: &str = "shared_key mismatch";
const WRONG_USER: &str = "username/password mismatch";

/// Authenticates a peer, or sends it the reason for the refusal. Returns the bytes that followed its PING.
pub(super) async fn greet(connection: &mut Connection, service: &Service) -> Result<Vec<u8>, End> {
    let Some(auth) = &service.auth else {
        return Ok(Vec::new());
    };
    let hostname = auth.hostname.as_deref().unwrap_or(&service.context.host);
    let mut stop = service.context.stop.clone();
    let (stream, deadline) = (&mut connection.stream, connection.deadline);
    let greeting = async {
        let greeted = exchange(stream, &connection.peer, auth, hostname).await;
        if let Err(End::Unauthenticated(reason)) = &greeted {
            let mut out = Vec::new();
            write_pong(&mut out, &Pong::Refused(reason.as_bytes()));
            send(stream, &out).await?;
        }
        greeted
    };
    tokio::select! {
        done = timeout_at(deadline, greeting) => match done {
            Ok(done) => done,
            Err(_) => Err(refused("no PING within limits.handshake")),
        },
        () = stop.stopped() => Err(End::Stopped),
    }
}

async fn exchange(
    stream: &mut Stream,
    peer: &Peer,
    auth: &Auth,
    hostname: &str,
) -> Result<Vec<u8>, End> {
    let random: [u8; 2 * NONCE_BYTES] = random::bytes().map_err(|_| End::Broken)?;
    let (nonce, salt) = random.split_at(NONCE_BYTES);
    let salt = if auth.has_users() { salt } else { b"" };
    let mut out = Vec::new();
    let helo = Helo {
        nonce,
        auth: salt,
        keepalive: true,
    };
    write_helo(&mut out, &helo);
    send(stream, &out).await?;
    let (mut bytes, length) = receive(stream).await?;
    let Ok((ping, _)) = read_ping(&bytes) else {
        return Err(refused(NO_PING));
    };
    let key_digest = prove(&ping, peer, auth, hostname, &helo)?;
    out.clear();
    let welcome = Pong::Welcome {
        hostname: hostname.as_bytes(),
        key_digest: &key_digest,
    };
    write_pong(&mut out, &welcome);
    send(stream, &out).await?;
    bytes.drain(..length);
    Ok(bytes)
}

/// Reads until the PING is complete. Returns all bytes, and the length of the PING.
async fn receive(stream: &mut Stream) -> Result<(Vec<u8>, usize), End> {
    let mut bytes = Vec::new();
    loop {
        // Reads in small steps, so that a peer that only opens a connection costs little memory.
        let before = bytes.len();
        let step = (PING_BYTES_MAX - before).min(1 << 10) as u64;
        let read = (&mut *stream).take(step).read_buf(&mut bytes).await;
        if read.map_err(|_| End::Broken)? == 0 {
            // A connection that is closed immediately is no fault: senders check the server in this way.
            return Err(if before == 0 {
                End::Closed
            } else {
                End::Broken
            });
        }
        match read_ping(&bytes) {
            Ok((_, length)) => return Ok((bytes, length)),
            Err(ReadError::Short) if bytes.len() < PING_BYTES_MAX => {}
            Err(_) => return Err(refused(NO_PING)),
        }
    }
}

/// Checks the proofs in a PING. Returns the proof that this side has the key.
fn prove(
    ping: &Ping<'_>,
    peer: &Peer,
    auth: &Auth,
    hostname: &str,
    helo: &Helo<'_>,
) -> Result<[u8; 128], End> {
    let Some(rule) = auth.rule(peer.ip) else {
        let ip = peer.ip.map_or("unix".to_owned(), |ip| ip.to_string());
        return Err(refused(&format!("anonymous source host '{ip}' denied")));
    };
    let key = rule.key.expose().as_bytes();
    let proof = |name: &[u8]| digest(&[ping.salt, name, helo.nonce, key]);
    if !is_digest(ping.key_digest, &proof(ping.hostname)) {
        return Err(refused(WRONG_KEY));
    }
    if auth.has_users() {
        let password = auth.password(rule, ping.user);
        // An unknown user must take the same time as a wrong password.
        let secret = password.map_or("", |password| password.expose());
        let wanted = digest(&[helo.auth, ping.user, secret.as_bytes()]);
        if !is_digest(ping.password_digest, &wanted) || password.is_none() {
            return Err(refused(WRONG_USER));
        }
    }
    Ok(proof(hostname.as_bytes()))
}

fn refused(reason: &str) -> End {
    End::Unauthenticated(reason.to_owned())
}

async fn send(stream: &mut Stream, bytes: &[u8]) -> Result<(), End> {
    let sent = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    sent.await.map_err(|_| End::Broken)
}
