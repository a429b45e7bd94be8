//! Tests of authentication: the shared key, users, networks, and TLS.

use millstream_testkit::Authority;
use millstream_wire::forward::handshake::{Ping, Pong, digest, read_helo, read_pong, write_ping};

use super::*;

const AUTH: &str = "auth: { hostname: agg, shared_key: secret }";

/// The credentials that a sender proves in its PING.
struct Sender<'a> {
    key: &'a str,
    user: &'a str,
    password: &'a str,
}

const GOOD: Sender<'static> = Sender {
    key: "secret",
    user: "",
    password: "",
};

/// Reads byte by byte until `is_whole` returns true.
fn receive(stream: &mut impl Read, is_whole: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !is_whole(&bytes) {
        bytes.extend(read(stream, 1));
    }
    bytes
}

/// Does the handshake up to the PONG, and sends `behind` together with the PING.
fn greet(
    stream: &mut (impl Read + Write),
    sender: &Sender<'_>,
    behind: &[u8],
) -> Result<(), String> {
    let helo = receive(stream, |bytes| read_helo(bytes).is_ok());
    let (helo, _) = read_helo(&helo).unwrap();
    assert_eq!(helo.nonce.len(), 16);
    assert_eq!(helo.auth.is_empty(), sender.user.is_empty());
    let salt = b"salt of the sender";
    let proof = |name: &[u8]| digest(&[salt, name, helo.nonce, sender.key.as_bytes()]);
    let mut out = Vec::new();
    let password = digest(&[
        helo.auth,
        sender.user.as_bytes(),
        sender.password.as_bytes(),
    ]);
    let ping = Ping {
        hostname: b"web-1",
        salt,
        key_digest: &proof(b"web-1"),
        user: sender.user.as_bytes(),
        password_digest: if sender.user.is_empty() {
            b""
        } else {
            &password
        },
    };
    write_ping(&mut out, &ping);
    out.extend_from_slice(behind);
    write(stream, &out);
    let pong = receive(stream, |bytes| read_pong(bytes).is_ok());
    match read_pong(&pong).unwrap().0 {
        Pong::Welcome {
            hostname,
            key_digest,
        } => {
            assert_eq!(hostname, b"agg");
            assert_eq!(key_digest, proof(b"agg"));
            Ok(())
        }
        Pong::Refused(reason) => Err(String::from_utf8(reason.to_vec()).unwrap()),
    }
}

#[test]
fn a_sender_with_the_key_is_accepted_and_bytes_after_its_ping_are_not_lost() {
    let taken = Taken::durable();
    let server = serve(&taken, AUTH);
    let mut stream = server.connect();
    // A whole chunk and the beginning of the next one, in one segment with the PING.
    let mut behind = packed("t", &entries(0..10), Some("a"));
    let next = packed("t", &entries(10..900), Some("b"));
    behind.extend_from_slice(&next[..100]);
    greet(&mut stream, &GOOD, &behind).unwrap();
    expect_acks(&mut stream, &["a"]);
    write(&mut stream, &next[100..]);
    expect_acks(&mut stream, &["b"]);
    assert_eq!(body(&taken.records(900)), entries(0..900));
    assert_eq!(server.count("connections_unauthenticated"), 0);
}

#[test]
fn a_wrong_key_gets_the_reason_in_a_pong_and_nothing_after_it_is_used() {
    let taken = Taken::durable();
    let server = serve(&taken, AUTH);
    let mut stream = server.connect();
    let wrong = Sender {
        key: "guess",
        ..GOOD
    };
    let behind = packed("t", &entries(0..10), Some("a"));
    assert_eq!(
        greet(&mut stream, &wrong, &behind).unwrap_err(),
        "shared_key mismatch"
    );
    // Bytes that arrive later, before the connection is closed, are not used either.
    let _ = stream.write_all(&packed("t", &entries(0..10), Some("b")));
    assert!(is_closed(&mut stream));
    server.wait("connections_unauthenticated", 1);
    server.wait("connections", 0);
    assert!(taken.is_empty());
}

#[test]
fn users_must_have_their_password_and_come_from_their_network() {
    let taken = Taken::durable();
    let auth = "auth: { hostname: agg, shared_key: secret, users: { alice: wonder, bob: build },
        clients: [{ network: 10.0.0.0/8, users: [] }, { network: 127.0.0.0/8, shared_key: local, users: [bob] }] }";
    let server = serve(&taken, auth);
    let try_as = |key, user, password| {
        let sender = Sender {
            key,
            user,
            password,
        };
        greet(&mut server.connect(), &sender, b"")
    };
    try_as("local", "bob", "build").unwrap();
    let mismatch = "username/password mismatch";
    assert_eq!(try_as("local", "bob", "wonder").unwrap_err(), mismatch);
    assert_eq!(try_as("local", "alice", "wonder").unwrap_err(), mismatch);
    assert_eq!(try_as("local", "stranger", "").unwrap_err(), mismatch);
    assert_eq!(
        try_as("secret", "bob", "build").unwrap_err(),
        "shared_key mismatch"
    );
}

#[test]
fn without_anonymous_a_sender_outside_the_known_networks_is_refused() {
    let taken = Taken::durable();
    let auth = "auth: { hostname: agg, anonymous: false, clients: [{ network: 10.0.0.0/8, shared_key: secret }] }";
    let server = serve(&taken, auth);
    let denied = greet(&mut server.connect(), &GOOD, b"").unwrap_err();
    assert_eq!(denied, "anonymous source host '127.0.0.1' denied");
}

#[test]
fn bytes_that_are_not_a_ping_are_refused_immediately_and_nothing_more_is_read() {
    let taken = Taken::durable();
    let server = serve(&taken, AUTH);
    // A frame, JSON, another protocol, a PING that is too long.
    let mut long = b"\x96\xa4PING\xdb\x7f\xff\xff\xff".to_vec();
    long.resize(17 << 10, b'x');
    let frame = packed("t", &entries(0..10), Some("a"));
    for bytes in [
        &frame[..],
        b"[\"t\",1,{}]",
        b"GET / HTTP/1.1\r\n\r\n",
        &long,
    ] {
        let mut stream = server.connect();
        let _ = stream.write_all(bytes);
        let _helo = receive(&mut stream, |bytes| read_helo(bytes).is_ok());
        let pong = receive(&mut stream, |bytes| read_pong(bytes).is_ok());
        assert_eq!(
            read_pong(&pong).unwrap().0,
            Pong::Refused(b"invalid ping message")
        );
        assert!(is_closed(&mut stream));
    }
    server.wait("connections_unauthenticated", 4);
    assert!(taken.is_empty());
}

#[test]
fn a_peer_without_a_ping_in_time_is_closed_and_heartbeats_are_not_failures() {
    let taken = Taken::durable();
    let server = serve(&taken, &format!("{AUTH}, limits: {{ handshake: 300ms }}"));
    let mut silent = server.connect();
    let mut slow = server.connect();
    for _ in 0..5 {
        drop(server.connect());
    }
    let since = Instant::now();
    // Sending a valid beginning byte by byte does not extend the deadline.
    for byte in b"\x96\xa4PING\xda\x7f\xff" {
        if slow.write_all(&[*byte]).is_err() || since.elapsed() > PATIENCE {
            break;
        }
        std::thread::sleep(Duration::from_millis(60));
    }
    for stream in [&mut silent, &mut slow] {
        let _helo = receive(stream, |bytes| read_helo(bytes).is_ok());
        assert!(is_closed(stream));
    }
    drop((silent, slow));
    server.wait("connections", 0);
    assert_eq!(server.count("connections_unauthenticated"), 2);
}

#[test]
fn tls_changes_nothing_about_the_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("root");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "server", &["localhost"]);
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (cert, key) = (path("server.pem"), path("server.key"));
    let options = format!("{AUTH}, tls: {{ cert: {cert}, key: {key} }}, limits: {{ idle: 300ms }}");
    let taken = Taken::durable();
    let server = serve(&taken, &options);
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(path("ca.pem")).unwrap();
    let root =
        <rustls::pki_types::CertificateDer as rustls::pki_types::pem::PemObject>::from_pem_slice(
            &pem,
        );
    roots.add(root.unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(session, server.connect());
    let small = message("t", 0, Some("a"));
    greet(&mut stream, &GOOD, &small).unwrap();
    expect_acks(&mut stream, &["a"]);
    // Many small messages without ids, so that the connection is set aside (read periodically), then a large chunk with an id.
    for number in 1..2000 {
        write(&mut stream, &message("t", number, None));
    }
    write(&mut stream, &packed("t", &entries(2000..20_000), Some("b")));
    expect_acks(&mut stream, &["b"]);
    assert!(body(&taken.records(20_000)) == entries(0..20_000));
    // A silent connection is closed, with an orderly end of TLS.
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn secrets_are_not_printed_and_a_key_that_protects_nothing_is_refused() {
    let read = |auth: &str| {
        let text = format!("{{ listen: \"tcp://a\", auth: {auth} }}");
        Forward::new(&Node::parse("test", &text).unwrap())
    };
    let auth = "{ shared_key: opensesame, users: { alice: wonder },
        clients: [{ network: ::1, shared_key: otherkey }] }";
    let shown = format!("{:?}", read(auth).ok().unwrap().config);
    for secret in ["opensesame", "wonder", "otherkey"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    let problems = |auth: &str| {
        let found = read(auth).err().unwrap_or_default();
        found
            .into_iter()
            .map(|p| p.message)
            .collect::<Vec<_>>()
            .join("; ")
    };
    assert!(problems("{}").contains("needs a `shared_key`"));
    assert!(problems("{ shared_key: '' }").contains("the key is empty"));
    assert!(problems("{ shared_key: a, hostname: '' }").contains("the name is empty"));
    assert!(problems("{ shared_key: a, anonymous: false }").contains("name networks"));
    let unknown = "{ shared_key: a, clients: [{ network: ::1, users: [eve] }] }";
    assert!(problems(unknown).contains("no user is called `eve`"));
    assert!(
        problems("{ shared_key: a, clients: [{ network: 1.2.3 }] }")
            .contains("is not an address or a network")
    );
    let own = "{ anonymous: false, clients: [{ network: ::1, shared_key: b }] }";
    assert_eq!(problems(own), "");
}
