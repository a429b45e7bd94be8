//! Authentication in both directions: TLS with a private CA, credentials, buckets, and the verdicts of `check --connect`.

use std::{fs, path::Path, process::Command};

use millstream_testkit::{
    Authority,
    server::versitygw::{ACCESS_KEY, SECRET_KEY, Setup, Versitygw},
};

use super::objects;
use crate::program::{Program, wait_until};

/// The configuration that publishes the lines of a file in a bucket. `options` are further options of the sink.
fn config(place: &Path, bucket: &str, endpoint: &str, options: &str) -> String {
    let place = place.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/in.txt\"], start: beginning }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  lake: {{ type: object, inputs: [kept], url: \"s3://{bucket}/web\", endpoint: \"{endpoint}\", \
         format: raw, retry: {{ first: 100ms, max: 500ms, timeout: 5s }}, {options} }}\n"
    )
}

fn auth(key: &str, secret: &str) -> String {
    format!("auth: {{ access_key: {key}, secret_key: {secret} }}")
}

/// Runs `check --connect`; returns its exit code and its report in one line.
fn check(place: &Path, config: &str) -> (Option<i32>, String) {
    let path = place.join("check.yaml");
    fs::write(&path, config).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["check", "--connect"])
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned()
        + &String::from_utf8_lossy(&checked.stderr);
    let words: Vec<&str> = said.split_whitespace().collect();
    (checked.status.code(), words.join(" "))
}

#[test]
fn check_connect_reports_whether_the_bucket_exists_and_admits_us_and_leaves_nothing_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut server = Versitygw::start(place, "lake");
    let endpoint = server.endpoint();
    let good = auth(ACCESS_KEY, SECRET_KEY);
    let checked = |bucket: &str, auth: &str| check(place, &config(place, bucket, &endpoint, auth));
    let (code, said) = checked("lake", &good);
    assert_eq!(code, Some(0), "{said}");
    let bucket =
        format!("lake good: the bucket lake at {endpoint} can be listed and takes uploads");
    assert!(said.contains(&bucket), "{said}");
    assert_eq!(
        objects(&server.bucket("lake")),
        Vec::<std::path::PathBuf>::new()
    );
    for (bucket, auth, told) in [
        (
            "lake",
            auth(ACCESS_KEY, "guessed"),
            "`auth`, or the environment, has to name a key",
        ),
        (
            "lake",
            auth("mallory", "guessed"),
            "`auth`, or the environment, has to name a key",
        ),
        (
            "pond",
            good.clone(),
            "there is no such bucket: make it, or name another in `url`",
        ),
    ] {
        let (code, said) = checked(bucket, &auth);
        assert_eq!(code, Some(1), "{said}");
        let names = format!("lake BAD: s3://{bucket}/web: cannot list");
        assert!(said.contains(&names) && said.contains(told), "{said}");
        assert!(
            !said.contains("guessed") && !said.contains(SECRET_KEY),
            "{said}"
        );
    }
    server.server.kill();
    let (code, said) = checked("lake", &good);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("Connection refused") && said.contains(&endpoint),
        "{said}"
    );
}

#[test]
fn over_tls_only_the_configured_authority_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let authority = Authority::new("the authority");
    authority.write_root(place, "ca");
    authority.issue(place, "server", &["127.0.0.1"]);
    Authority::new("another").write_root(place, "other");
    let setup = Setup {
        tls: Some((place.join("server.pem"), place.join("server.key"))),
        ..Setup::default()
    };
    let server = Versitygw::start_with(place, "lake", &setup);
    let with = |tls: &str| {
        let options = format!("{}{tls}", auth(ACCESS_KEY, SECRET_KEY));
        config(place, "lake", &server.endpoint(), &options)
    };
    let (own, other) = (
        with(", tls: { ca: ca.pem }"),
        with(", tls: { ca: other.pem }"),
    );
    for config in [&other, &with("")] {
        let (code, said) = check(place, config);
        assert_eq!(code, Some(1), "{said}");
        let told = "name its authority in `tls: { ca: FILE }`";
        assert!(
            said.contains("lake BAD: s3://lake/web: ") && said.contains(told),
            "{said}"
        );
    }
    for config in [&own, &with(", tls: { verify: false }")] {
        let (code, said) = check(place, config);
        assert_eq!(code, Some(0), "{said}");
    }
    // Records that were accepted while the store was not trusted are published later.
    let lines: String = (0..1000).map(|n| format!("line {n}\n")).collect();
    fs::write(place.join("in.txt"), &lines).unwrap();
    let program = Program::start(place, &other);
    wait_until("it logs the certificate that it does not trust", || {
        program.log().contains("UnknownIssuer")
    });
    assert_eq!(program.stop(), Some(0));
    let found = || objects(&server.bucket("lake").join("web"));
    assert!(found().is_empty());
    let ended = Program::start_with(place, &own, &["--once"]).ended();
    assert_eq!(
        ended,
        Some(0),
        "{}",
        fs::read_to_string(place.join("log")).unwrap()
    );
    let read: String = found()
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert!(read == lines);
}
