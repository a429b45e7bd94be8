//! TLS: versions, certificates of both ends, changed files, and peers that do not complete a handshake.

use std::{fs, sync::Arc};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};

use super::*;
use crate::{ClientFiles, ClientTls};

const TLS: &str = "tls: { cert: server.pem, key: server.key }";
const MUTUAL: &str = "tls: { cert: server.pem, key: server.key, ca: ca.pem }";

type Client = StreamOwned<ClientConnection, TcpStream>;

/// An independent client with one TLS version, with or without a certificate.
fn client(
    server: &Echo,
    directory: &Path,
    versions: &[&'static rustls::SupportedProtocolVersion],
    own: Option<&str>,
) -> Client {
    let mut roots = RootCertStore::empty();
    let pem = fs::read(directory.join("ca.pem")).unwrap();
    roots
        .add(CertificateDer::from_pem_slice(&pem).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let read = |ending: &str| fs::read(directory.join(format!("{name}.{ending}"))).unwrap();
            let certificate = CertificateDer::from_pem_slice(&read("pem")).unwrap();
            let key = PrivateKeyDer::from_pem_slice(&read("key")).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, server.connect())
}

#[test]
fn both_tls_versions_transfer_all_bytes() {
    let (directory, _) = certificates();
    let server = Echo::start(directory.path(), TLS);
    for version in [&TLS12, &TLS13] {
        let mut client = client(&server, directory.path(), &[version], None);
        for length in [1, 1000, 20_000, 300_000] {
            exchange_slowly(&mut client, length);
        }
        assert_eq!(client.conn.protocol_version(), Some(version.version));
        client.conn.send_close_notify();
        client.flush().unwrap();
    }
    until("both have ended", || server.open() == 0);
    assert_eq!(server.failed(), 0);
}

/// Exchanges `length` bytes in pieces: the server echoes each read immediately, so a larger write could block both ends.
fn exchange_slowly(client: &mut Client, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|n| (n * 7 % 251) as u8).collect();
    for piece in bytes.chunks(40_000) {
        exchange(client, piece).unwrap();
    }
}

#[test]
fn a_minimum_version_rejects_older_ones() {
    let (directory, _) = certificates();
    let options = "tls: { cert: server.pem, key: server.key, min_version: 1.3 }";
    let server = Echo::start(directory.path(), options);
    assert!(
        exchange(
            &mut client(&server, directory.path(), &[&TLS12], None),
            b"x"
        )
        .is_err()
    );
    exchange(
        &mut client(&server, directory.path(), &[&TLS13], None),
        b"x",
    )
    .unwrap();
    until("the failure is counted", || server.failed() == 1);
}

#[test]
fn clients_without_a_valid_certificate_are_rejected_if_one_is_required() {
    let (directory, _) = certificates();
    let stranger = Authority::new("stranger");
    stranger.issue(directory.path(), "strange", &["client"]);
    let server = Echo::start(directory.path(), MUTUAL);
    for version in [&TLS12, &TLS13] {
        let with = |own| {
            exchange(
                &mut client(&server, directory.path(), &[version], own),
                b"x",
            )
        };
        with(Some("client")).unwrap();
        assert!(with(None).is_err());
        assert!(with(Some("strange")).is_err());
    }
    until("the failures are counted", || server.failed() == 4);
    let options = "tls: { cert: server.pem, key: server.key, ca: ca.pem, client_auth: optional }";
    let server = Echo::start(directory.path(), options);
    let with = |own| exchange(&mut client(&server, directory.path(), &[&TLS13], own), b"x");
    with(Some("client")).unwrap();
    with(None).unwrap();
    assert!(with(Some("strange")).is_err());
}

#[test]
fn changed_certificates_are_reloaded_and_broken_ones_are_reported_while_the_old_stay() {
    let (directory, authority) = certificates();
    let server = check(
        directory.path(),
        &format!("{{ listen: 'tcp://127.0.0.1:0', {TLS} }}"),
    )
    .unwrap();
    let tls = server.tls().unwrap();
    let server = Echo::serve(server);
    let shown = || {
        tls.age();
        let mut client = client(&server, directory.path(), &[&TLS13], None);
        exchange(&mut client, b"x").unwrap();
        client.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown();
    assert_eq!(shown(), first);
    // The certificate is new and the key is still old, as in the middle of an update.
    let key = fs::read(directory.path().join("server.key")).unwrap();
    authority.issue(directory.path(), "server", &["localhost"]);
    let new_key = fs::read(directory.path().join("server.key")).unwrap();
    fs::write(directory.path().join("server.key"), &key).unwrap();
    assert_eq!(shown(), first);
    let told = server.reporter.conditions().remove(0).why;
    assert!(
        told.contains("server.key cannot be used") && told.contains("stay in use"),
        "{told}"
    );
    fs::write(directory.path().join("server.key"), &new_key).unwrap();
    let second = shown();
    assert_ne!(second, first);
    // An empty file replaces the certificate by a rename. Certificate managers replace files in this way.
    fs::write(directory.path().join("new"), "").unwrap();
    fs::rename(
        directory.path().join("new"),
        directory.path().join("server.pem"),
    )
    .unwrap();
    assert_eq!(shown(), second);
    fs::remove_file(directory.path().join("server.pem")).unwrap();
    assert_eq!(shown(), second);
    authority.issue(directory.path(), "server", &["localhost"]);
    assert_ne!(shown(), second);
}

#[test]
fn a_library_that_makes_its_own_connections_gets_changed_files() {
    let (directory, _) = certificates();
    let ca = directory.path().join("ca.pem");
    let files = ClientFiles::read(Some(ca.clone()), None, true).unwrap();
    let first = files.current();
    assert_eq!(files.changes(), 0);
    fs::write(&ca, "half of a file").unwrap();
    files.age();
    assert!(Arc::ptr_eq(&files.current(), &first) && files.changes() == 0);
    Authority::new("another").write_root(directory.path(), "ca");
    files.age();
    assert!(!Arc::ptr_eq(&files.current(), &first));
    assert_eq!(files.changes(), 1);
}

#[test]
fn an_incomplete_handshake_holds_a_permit_only_until_the_deadline() {
    let (directory, _) = certificates();
    let options = format!("{TLS}, limits: {{ connections: 4, handshake: 300ms }}");
    let server = Echo::start(directory.path(), &options);
    let since = Instant::now();
    let mut silent: Vec<_> = (0..3).map(|_| server.connect()).collect();
    // The first bytes of a ClientHello.
    silent[2].write_all(&[0x16, 3, 1, 2]).unwrap();
    let mut garbage = server.connect();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(server.connect());
    exchange(
        &mut client(&server, directory.path(), &[&TLS13], None),
        b"x",
    )
    .unwrap();
    for stream in &mut silent {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
    }
    assert!(since.elapsed() >= Duration::from_millis(300));
    until("all permits are back", || server.open() == 0);
    assert_eq!(server.failed(), 5);
}

#[test]
fn a_stop_does_not_wait_for_handshakes() {
    let (directory, _) = certificates();
    let server = Echo::start(
        directory.path(),
        &format!("{TLS}, limits: {{ handshake: 1h }}"),
    );
    let silent = server.connect();
    until("it is accepted", || server.open() == 1);
    server.stopper.stop();
    server.ended.recv_timeout(PATIENCE).unwrap().unwrap();
    drop(silent);
}

/// The column and the message of each problem with a server's options.
fn wrong(directory: &Path, tls: &str) -> Vec<String> {
    let problems = check(
        directory,
        &format!("{{ listen: 'tcp://127.0.0.1:0',\n tls: {tls} }}"),
    );
    let problems = problems.err().unwrap_or_default();
    let shown = problems.iter().map(|p| {
        let message = p.message.replace(directory.to_str().unwrap(), "");
        format!("{}:{} {message}", p.place.line, p.place.column)
    });
    shown.collect()
}

#[test]
fn unusable_files_are_reported_at_the_options_that_name_them() {
    let (directory, _) = certificates();
    fs::write(directory.path().join("empty"), "").unwrap();
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(directory.path().join("encrypted"), encrypted).unwrap();
    let wrong = |tls: &str| wrong(directory.path(), tls);
    assert_eq!(
        wrong("{ cert: none.pem, key: empty, ca: server.key }"),
        [
            "2:15 cannot read /none.pem: No such file or directory (os error 2)",
            "2:30 /empty holds no private key in PEM (-----BEGIN PRIVATE KEY-----)",
            "2:41 /server.key holds no certificate in PEM (-----BEGIN CERTIFICATE-----)",
        ]
    );
    let message = &wrong("{ cert: server.pem, key: client.key }")[0];
    assert!(
        message.starts_with(
            "2:32 the certificate /server.pem and the key /client.key cannot be used:"
        ),
        "{message}"
    );
    let message = &wrong("{ cert: server.pem, key: encrypted }")[0];
    assert!(message.contains("is encrypted: decrypt it"), "{message}");
    assert_eq!(
        wrong("{ ca: ca.pem }"),
        [
            "2:7 a listener needs `tls.cert`: a file in PEM",
            "2:7 a listener needs `tls.key`: a file in PEM"
        ]
    );
    assert!(wrong("true")[0].starts_with("2:7 a listener needs its own certificate"));
    assert!(
        wrong("{ cert: server.pem, key: server.key, client_auth: required }")[0]
            .contains("it needs `ca`")
    );
    assert!(!wrong("{ cert: server.pem, key: server.key, min_version: 1.1 }").is_empty());
    assert!(!wrong("mesh").is_empty());
    assert_eq!(wrong("false"), [""; 0]);
}

/// Connects as a sink does, and exchanges some bytes.
fn connect(server: &Echo, directory: &Path, tls: &str, host: &str) -> Result<(), String> {
    let file = directory.join("t.yaml");
    let options = Node::parse(file.to_str().unwrap(), &format!("{{ tls: {tls} }}")).unwrap();
    let option: Tls = options.find("tls").unwrap().read().unwrap();
    let tls = ClientTls::check(&option, &options)
        .map_err(|p| p[0].message.clone())?
        .unwrap();
    let address = server.address;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let stream = tls
            .connect(crate::Socket::Tcp(socket), host, &server.reporter)
            .await;
        let mut stream = stream.map_err(|error| error.to_string())?;
        let mut back = [0; 5];
        let exchange = async {
            stream.write_all(b"hello").await?;
            stream.flush().await?;
            stream.read_exact(&mut back).await
        };
        exchange.await.map_err(|error| error.to_string())?;
        assert_eq!(&back, b"hello");
        Ok(())
    })
}

#[test]
fn a_client_trusts_only_the_configured_roots() {
    let (directory, _) = certificates();
    let server = Echo::start(directory.path(), MUTUAL);
    let own = "cert: client.pem, key: client.key";
    let to = |tls: &str, host: &str| connect(&server, directory.path(), tls, host);
    to(&format!("{{ ca: ca.pem, {own} }}"), "localhost").unwrap();
    to(&format!("{{ ca: ca.pem, {own} }}"), "127.0.0.1").unwrap();
    to(
        &format!("{{ ca: ca.pem, {own}, server_name: localhost }}"),
        "elsewhere",
    )
    .unwrap();
    to(&format!("{{ verify: false, {own} }}"), "elsewhere").unwrap();
    let refused = to(&format!("{{ ca: ca.pem, {own} }}"), "elsewhere").unwrap_err();
    assert!(refused.contains("not valid for name"), "{refused}");
    assert!(
        to("{ ca: ca.pem }", "localhost").is_err(),
        "it must show a certificate"
    );
    Authority::new("other").write_root(directory.path(), "other");
    let refused = to(&format!("{{ ca: other.pem, {own} }}"), "localhost").unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    assert!(
        to("{ cert: client.pem }", "localhost")
            .unwrap_err()
            .contains("needs `key`")
    );
    assert!(
        to("{ verify: false, server_name: 'a b' }", "localhost")
            .unwrap_err()
            .contains("neither a host name")
    );
}

#[test]
fn a_tcp_close_without_a_tls_close_fails_only_after_all_bytes_are_read() {
    let (directory, _) = certificates();
    let read = |name: &str| fs::read(directory.path().join(name)).unwrap();
    let certificate = CertificateDer::from_pem_slice(&read("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, closed) = mpsc::sync_channel(1);
    let serving = std::thread::spawn(move || {
        let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = StreamOwned::new(session, listener.accept().unwrap().0);
        stream.write_all(b"hello").unwrap();
        stream.flush().unwrap();
        stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
        sender.send(()).unwrap();
        // Waits until the client ends: closing a socket with unread bytes would destroy bytes in flight.
        let _ = stream.sock.read_to_end(&mut Vec::new());
    });
    let file = directory.path().join("t.yaml");
    let options = Node::parse(file.to_str().unwrap(), "{ tls: { ca: ca.pem } }").unwrap();
    let option: Tls = options.find("tls").unwrap().read().unwrap();
    let tls = ClientTls::check(&option, &options).unwrap().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let socket = crate::Socket::Tcp(socket);
        let mut stream = tls
            .connect(socket, "localhost", &Reporter::new("out"))
            .await
            .unwrap();
        closed.recv_timeout(PATIENCE).unwrap();
        let mut bytes = Vec::new();
        let end = stream.read_to_end(&mut bytes).await.unwrap_err();
        assert_eq!(bytes, b"hello");
        assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
    });
    serving.join().unwrap();
}
