//! Access to the HTTP interface, from this machine and from another address: tokens, certificates, browsers.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpStream, UdpSocket},
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use millstream_testkit::Authority;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use super::config;
use crate::program::{Program, free_port, wait_until};

const ADMIN: &str = "admin-token-0123456789";
const READ: &str = "read-token-0123456789";

/// The address that this machine uses for outgoing packets, or `None` without a network. No packet is sent.
fn outside() -> Option<IpAddr> {
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    probe.connect("192.0.2.1:9").ok()?;
    Some(probe.local_addr().unwrap().ip())
}

/// The whole answer to a request with these headers.
fn ask(stream: impl Read + Write, line: &str, headers: &str) -> String {
    let mut stream = stream;
    let request = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{headers}Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // Under TLS, a peer that closes only the TCP connection causes an error. The answer is complete nevertheless.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn code(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).unwrap_or_default();
    code.parse().unwrap_or_else(|_| panic!("{answer:?}"))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Two tokens, one from a file and one in the configuration itself.
fn tokens(directory: &Path) -> String {
    fs::write(directory.join("ops.token"), format!("{ADMIN}\n")).unwrap();
    format!(
        "tokens: [{{ name: ops, token: \"${{file:ops.token}}\", role: admin }}, {{ name: eye, token: {READ} }}]"
    )
}

fn millstream(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(arguments)
        .env_remove("MILLSTREAM_TOKEN")
        .output()
        .unwrap()
}

#[test]
fn without_a_token_other_machines_get_only_what_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let listen = format!(
        "{{ listen: \"0.0.0.0:{api}\", open: [health], {} }}",
        tokens(directory.path())
    );
    let config = config(directory.path(), port, &listen);
    let program = Program::start(directory.path(), &config).listens(port);
    let here = IpAddr::from([127, 0, 0, 1]);
    // Without a network, this test cannot ask from another address. Then the next test covers other machines, because with `local: none`
    // this machine has no more rights than other machines have.
    for address in outside().into_iter().chain([here]) {
        let is_here = address == here;
        let get = |line: &str, headers: &str| {
            ask(TcpStream::connect((address, api)).unwrap(), line, headers)
        };
        let of = |line: &str, headers: &str| code(&get(line, headers));
        assert_eq!(of("GET /health", ""), 200);
        for line in [
            "GET /status",
            "GET /metrics",
            "GET /",
            "POST /reload",
            "GET /nothing",
        ] {
            let refused = if is_here { 0 } else { 401 };
            let asked = of(line, "");
            assert!(
                asked == refused || is_here && asked != 401,
                "{address} {line}: {asked}"
            );
            assert_eq!(of(line, &bearer("wrong-token-0123456789")), 401, "{line}");
        }
        assert_eq!(of("GET /status", &bearer(READ)), 200);
        assert_eq!(of("POST /reload", &bearer(READ)), 403);
        assert_eq!(of("POST /reload", &bearer(ADMIN)), 200);
        let browser = "Origin: http://evil.example\r\nX-Millstream: 1\r\n";
        assert_eq!(of("POST /reload", &(bearer(ADMIN) + browser)), 403);
        assert_eq!(of("GET /status", &(bearer(ADMIN) + browser)), 403);
        let own = "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n";
        assert_eq!(of("POST /reload", &(bearer(ADMIN) + own)), 403);
        let custom = bearer(ADMIN) + own + "X-Millstream: 1\r\n";
        assert_eq!(of("POST /reload", &custom), 200);
        let shown = get("GET /status", &bearer(READ));
        assert!(shown.contains("x-frame-options: DENY"), "{shown}");
        assert!(!shown.contains("access-control-allow"), "{shown}");
    }
    let log = program.log();
    let by_token = |line: &&str| {
        let parts = ["(token ops, role admin): POST /reload: 200", "change"];
        parts.iter().all(|part| line.contains(part))
    };
    assert!(log.lines().filter(by_token).count() >= 2, "{log}");
    assert!(log.contains("denied"), "{log}");
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn with_local_none_this_machine_needs_a_token_too() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let listen = format!(
        "{{ listen: \"127.0.0.1:{api}\", local: none, open: [health], {} }}",
        tokens(directory.path())
    );
    let config = config(directory.path(), port, &listen);
    let program = Program::start(directory.path(), &config).listens(port);
    let get = |line: &str, headers: &str| {
        let stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
        ask(stream, line, headers)
    };
    assert_eq!(code(&get("GET /health", "")), 200);
    let refused = get("GET /status", "");
    assert_eq!(code(&refused), 401);
    assert!(refused.contains("www-authenticate: Bearer"), "{refused}");
    assert!(!refused.contains("Basic"), "{refused}");
    let page = get("GET /", "Accept: text/html\r\n");
    assert!(page.contains("www-authenticate: Basic"), "{page}");
    let address = format!("127.0.0.1:{api}");
    let file = directory.path().join("ops.token");
    let file = file.to_str().unwrap();
    let bare = millstream(&["status", "--line", "--api", &address]);
    assert_eq!(bare.status.code(), Some(1));
    let text = String::from_utf8(bare.stderr).unwrap();
    assert!(
        text.contains("401") && text.contains("--token-file"),
        "{text}"
    );
    let url = format!("http://{address}/");
    let with = millstream(&["status", "--line", "--url", &url, "--token-file", file]);
    let text = String::from_utf8(with.stdout).unwrap();
    assert!(text.starts_with("status: healthy"), "{text}");
    let with = millstream(&["reload", "--api", &address, "--token-file", file]);
    assert_eq!(with.status.code(), Some(0));
    assert_eq!(program.stop(), Some(0));
}

/// Connects with TLS. `own` names the client's certificate, if it has one.
fn client(
    directory: &Path,
    own: Option<&str>,
    port: u16,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(directory.join("ca.pem")).unwrap();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        Some(name) => {
            let file = |ending: &str| directory.join(format!("{name}.{ending}"));
            let certificate = CertificateDer::from_pem_file(file("pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let address = outside().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    StreamOwned::new(connection, TcpStream::connect((address, port)).unwrap())
}

#[test]
fn under_tls_a_certificate_gives_the_role_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (authority, stranger) = (Authority::new("root"), Authority::new("stranger"));
    authority.write_root(place, "ca");
    authority.issue(place, "server", &["localhost"]);
    for (name, host) in [
        ("alice", "alice.example"),
        ("bob", "bob.example"),
        ("carol", "desk.example"),
    ] {
        authority.issue(place, name, &[host]);
    }
    stranger.issue(place, "mallory", &["alice"]);
    let (port, api, local) = (free_port(), free_port(), free_port());
    let listen = format!(
        "{{ listen: [\"0.0.0.0:{api}\", \"127.0.0.1:{local}\"], tls: mesh, {}, \
         certificates: [{{ name: alice, role: admin }}, {{ name: desk.example }}] }}\n\
         tls: {{ mesh: {{ cert: server.pem, key: server.key, ca: ca.pem, client_auth: optional }} }}",
        tokens(place)
    );
    let program = Program::start(place, &config(place, port, &listen)).listens(port);
    let of = |own: Option<&str>, line: &str, headers: &str| {
        code(&ask(client(place, own, api), line, headers))
    };
    assert_eq!(of(Some("alice"), "POST /reload", ""), 200);
    assert_eq!(of(Some("carol"), "GET /status", ""), 200);
    assert_eq!(of(Some("carol"), "POST /reload", ""), 403);
    if outside().is_some() {
        assert_eq!(of(Some("bob"), "GET /status", ""), 403);
        assert_eq!(of(None, "GET /status", ""), 401);
    }
    assert_eq!(of(None, "POST /reload", &bearer(ADMIN)), 200);
    // A certificate of another authority ends the handshake.
    assert_eq!(ask_silently(client(place, Some("mallory"), api)), "");
    // To a peer without TLS, the listener on all addresses gives no answer, and the listener on loopback gives an answer.
    let plain = TcpStream::connect(("127.0.0.1", api)).unwrap();
    assert!(!ask_silently(plain).contains("HTTP/1.1 200"));
    let plain = TcpStream::connect(("127.0.0.1", local)).unwrap();
    assert_eq!(code(&ask(plain, "GET /status", "")), 200);
    let (url, ca) = (format!("https://localhost:{api}"), place.join("ca.pem"));
    let (cert, key) = (place.join("carol.pem"), place.join("carol.key"));
    let arguments = [&ca, &cert, &key].map(|path| path.to_str().unwrap());
    let [ca, cert, key] = arguments;
    let page = millstream(&[
        "status", "--line", "--url", &url, "--ca", ca, "--cert", cert, "--key", key,
    ]);
    let text = String::from_utf8(page.stdout).unwrap();
    assert!(
        text.starts_with("status: healthy"),
        "{text} {:?}",
        page.stderr
    );
    let file = place.join("millstream.yaml");
    let page = millstream(&["status", "--line", file.to_str().unwrap()]);
    assert_eq!(page.status.code(), Some(0), "{:?}", page.stderr);
    assert_eq!(program.stop(), Some(0));
}

/// The answer of a peer that may close the connection at any time; empty if there is no answer.
fn ask_silently(mut stream: impl Read + Write) -> String {
    let mut answer = Vec::new();
    let request = b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if stream.write_all(request).is_ok() {
        let _ = stream.read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn no_answer_and_no_log_line_shows_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let listen = format!(
        "{{ listen: \"127.0.0.1:{api}\", {} }}",
        tokens(directory.path())
    );
    let config = config(directory.path(), port, &listen);
    let program = Program::start(directory.path(), &config).listens(port);
    let mut seen = String::new();
    for path in [
        "/",
        "/status",
        "/metrics",
        "/health",
        "/openapi.json",
        "/nothing",
    ] {
        for token in [ADMIN, READ, "wrong-token-0123456789"] {
            let stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
            seen += &ask(stream, &format!("GET {path}"), &bearer(token));
        }
    }
    let stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
    seen += &ask(stream, "POST /reload", &bearer(ADMIN));
    let file = directory.path().join("millstream.yaml");
    for command in ["explain", "check"] {
        let output = millstream(&[command, file.to_str().unwrap()]);
        seen += &String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    }
    wait_until("the change is logged", || {
        program.log().contains("POST /reload: 200")
    });
    seen += &program.log();
    for secret in [ADMIN, READ, "wrong-token"] {
        assert!(!seen.contains(secret), "{seen}");
    }
    assert_eq!(program.stop(), Some(0));
}
