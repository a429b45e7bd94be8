//! Third-party clients of the forward protocol, in every mode and ack setting that they support. Every record that
//! they send arrives in a file with all its values.
//!
//! `make deps` installs the clients into `target/clients`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::records::{Numbers, RECORDS, Times, compare, count_lines, record};
use crate::program::{Program, free_port, tree, wait_until};
use millstream_testkit::Authority;

struct Case {
    /// The command without its arguments.
    command: Vec<String>,
    variant: &'static str,
    numbers: Numbers,
    times: Times,
    unix: bool,
    /// Selects further options of the source, and the environment variables with which the client fits these options.
    secured: Secured,
}

#[derive(Clone, Copy, PartialEq)]
enum Secured {
    No,
    /// A shared key.
    Key,
    /// TLS in the highest version that the client supports.
    Tls,
    /// TLS with a client that is limited to version 1.2.
    Tls12,
    /// TLS, a shared key, and a user with a password.
    All,
}

impl Secured {
    fn has_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Tls12 | Self::All)
    }

    fn has_key(self) -> bool {
        matches!(self, Self::Key | Self::All)
    }

    /// Options of the source.
    fn options(self) -> String {
        let mut options = String::new();
        if self.has_tls() {
            options += ", tls: mesh";
        }
        if self.has_key() {
            let users = match self {
                Self::All => ", users: { alice: \"wonder land\" }",
                _ => "",
            };
            options += &format!(", auth: {{ hostname: server, shared_key: open sesame{users} }}");
        }
        options
    }

    /// The environment variables of the client.
    fn environment(self, root: &Path) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if self.has_tls() {
            let root = root.display().to_string();
            all.extend([("FORWARD_CA", root.clone()), ("SSL_CERT_FILE", root)]);
        }
        if self == Self::Tls12 {
            all.push(("NODE_OPTIONS", "--tls-max-v1.2".to_owned()));
            all.push((
                "JAVA_TOOL_OPTIONS",
                "-Djdk.tls.client.protocols=TLSv1.2".to_owned(),
            ));
        }
        if self.has_key() {
            all.push(("FORWARD_KEY", "open sesame".to_owned()));
        }
        if self == Self::All {
            all.push(("FORWARD_USER", "alice".to_owned()));
            all.push(("FORWARD_PASSWORD", "wonder land".to_owned()));
        }
        all
    }
}

fn installed(path: &str) -> String {
    let path = tree().join("target/clients").join(path);
    assert!(
        path.exists(),
        "{} is missing: run `make deps`",
        path.display()
    );
    path.display().to_string()
}

fn run(case: &Case) {
    let directory = tempfile::tempdir().unwrap();
    let (port, socket) = (free_port(), directory.path().join("forward.sock"));
    let authority = Authority::new("root");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "server", &["localhost", "127.0.0.1"]);
    let configuration = configuration(directory.path(), port, &socket, case.secured);
    let program = Program::start(directory.path(), &configuration).listens(port);
    let records = directory.path().join("records.jsonl");
    let lines: String = (0..RECORDS)
        .map(|n| format!("{}\n", record(n, case.numbers)))
        .collect();
    fs::write(&records, lines).unwrap();
    let address = if case.unix {
        format!("unix:{}", socket.display())
    } else {
        format!("127.0.0.1:{port}")
    };
    let sent = Command::new(&case.command[0])
        .args(&case.command[1..])
        .args([address.as_str(), case.variant, "test.client"])
        .arg(&records)
        .envs(case.secured.environment(&directory.path().join("ca.pem")))
        .current_dir(directory.path())
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&sent.stdout),
        String::from_utf8_lossy(&sent.stderr)
    );
    let what = format!("{:?} {}", case.command, case.variant);
    assert!(sent.status.success(), "{what}: {said}");
    let output = directory.path().join("out/test.client.log");
    wait_until("all records have arrived", || {
        count_lines(&output) >= RECORDS as usize
    });
    assert_eq!(program.stop(), Some(0), "{what}");
    compare(&output, case.numbers, case.times, &what);
}

fn configuration(directory: &Path, port: u16, socket: &Path, secured: Secured) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: [\"tcp://127.0.0.1:{port}\", \"unix://{}\"]{} }}\n\
         sinks:\n  out: {{ type: file, inputs: [in], path: \"{place}/out/{{tag}}.log\" }}\n{}",
        socket.display(),
        secured.options(),
        match secured.has_tls() {
            true => "tls: { mesh: { cert: server.pem, key: server.key } }\n",
            false => "",
        },
    )
}

fn java(options: &[&str]) -> Vec<String> {
    let jars = format!(
        "{0}/*:{0}/dependency/*",
        PathBuf::from(installed("java/target/clients-1.jar"))
            .parent()
            .unwrap()
            .display()
    );
    let all = ["java"].into_iter().chain(options.iter().copied());
    let all = all.chain(["-cp", &jars, "Send"]);
    all.map(str::to_owned).collect()
}

fn script(interpreter: &str, path: &str) -> Vec<String> {
    vec![interpreter.to_owned(), installed(path)]
}

/// Runs every variant of a client over TCP, and over the Unix socket if the client supports one.
fn all(
    command: &[String],
    variants: &[&'static str],
    has_unix: bool,
    numbers: Numbers,
    times: fn(&str) -> Times,
) {
    for variant in variants {
        for unix in if has_unix {
            &[false, true][..]
        } else {
            &[false]
        } {
            run(&Case {
                command: command.to_vec(),
                variant,
                numbers,
                times: times(variant),
                unix: *unix,
                secured: Secured::No,
            });
        }
    }
}

#[test]
fn fluent_logger_of_python_delivers_every_record() {
    let command = vec![
        installed("python/venv/bin/python"),
        installed("python/send.py"),
    ];
    all(
        &command,
        &["seconds", "nanoseconds", "async", "handler"],
        true,
        Numbers::Exact,
        |variant| match variant {
            "nanoseconds" => Times::Nanoseconds,
            "handler" => Times::Now,
            _ => Times::Seconds,
        },
    );
}

#[test]
fn fluent_org_logger_of_node_delivers_every_record() {
    let modes = [
        "Message",
        "Forward",
        "PackedForward",
        "CompressedPackedForward",
    ];
    let acked = [
        "Message+ack",
        "Forward+ack",
        "PackedForward+ack",
        "CompressedPackedForward+ack",
    ];
    for variants in [modes, acked] {
        all(
            &script("node", "node/org.js"),
            &variants,
            true,
            Numbers::Double,
            |_| Times::Nanoseconds,
        );
    }
}

#[test]
fn fluent_logger_of_node_delivers_every_record() {
    let modes = ["Message", "PackedForward", "CompressedPackedForward"];
    let acked = [
        "Message+ack",
        "PackedForward+ack",
        "CompressedPackedForward+ack",
    ];
    for variants in [modes, acked] {
        all(
            &script("node", "node/logger.js"),
            &variants,
            true,
            Numbers::Float,
            |_| Times::Nanoseconds,
        );
    }
}

#[test]
fn fluent_logger_golang_delivers_every_record() {
    let variants = [
        "plain",
        "nanoseconds",
        "ack",
        "ack+nanoseconds",
        "async",
        "async+ack+nanoseconds",
        "json",
        "json+ack",
    ];
    all(
        &[installed("go/send")],
        &variants,
        true,
        Numbers::Exact,
        |variant| {
            if variant.contains("nanoseconds") {
                Times::Nanoseconds
            } else {
                Times::Seconds
            }
        },
    );
}

#[test]
fn fluency_of_java_delivers_every_record() {
    let command = java(&[]);
    let variants = [
        "plain",
        "seconds",
        "ack",
        "ack+seconds",
        "heap",
        "file",
        "ack+file",
    ];
    all(&command, &variants, false, Numbers::Exact, |variant| {
        if variant.contains("seconds") {
            Times::Seconds
        } else {
            Times::Nanoseconds
        }
    });
}

/// Runs each variant of a client over TCP with each of the security settings in `ways`.
fn all_secured(
    command: &[String],
    variants: &[&'static str],
    ways: &[Secured],
    (numbers, times): (Numbers, Times),
) {
    for variant in variants {
        for secured in ways {
            run(&Case {
                command: command.to_vec(),
                variant,
                numbers,
                times,
                unix: false,
                secured: *secured,
            });
        }
    }
}

#[test]
fn the_clients_of_node_deliver_with_tls_and_shared_key() {
    let ways = [Secured::Key, Secured::Tls, Secured::Tls12, Secured::All];
    let double = (Numbers::Double, Times::Nanoseconds);
    let float = (Numbers::Float, Times::Nanoseconds);
    all_secured(
        &script("node", "node/org.js"),
        &["PackedForward+ack"],
        &ways,
        double,
    );
    // With acks, this client holds its records back until the handshake is complete. Without acks it does not, so both are tested.
    all_secured(
        &script("node", "node/logger.js"),
        &["PackedForward+ack", "Message"],
        &ways,
        float,
    );
}

#[test]
fn fluent_logger_golang_delivers_with_tls() {
    let variants = ["nanoseconds", "ack+nanoseconds", "async+ack+nanoseconds"];
    let exact = (Numbers::Exact, Times::Nanoseconds);
    all_secured(&[installed("go/send")], &variants, &[Secured::Tls], exact);
}

#[test]
fn fluency_of_java_delivers_with_tls() {
    let command = java(&[
        "-Djavax.net.ssl.trustStore=trust.p12",
        "-Djavax.net.ssl.trustStorePassword=changeit",
    ]);
    let import = "keytool -importcert -noprompt -alias root -file ca.pem -keystore trust.p12 -storepass changeit >/dev/null 2>&1 && exec \"$@\"";
    let mut imports: Vec<String> = ["sh", "-c", import, "sh"].map(str::to_owned).to_vec();
    imports.extend(command);
    let ways = [Secured::Tls, Secured::Tls12];
    all_secured(
        &imports,
        &["tls+ack", "tls"],
        &ways,
        (Numbers::Exact, Times::Nanoseconds),
    );
}
