//! The sink `hdfs` with a real name node and a real data node. `hdfs dfs` and Avro's reader read its files, which contain every
//! record exactly once even if Millstream, the name node and the data node are killed, stopped and restarted.
//!
//! `STORM=full` (`make storm`) runs more kills, for longer.

mod contract;
mod faults;
mod name_service;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use crate::program::{
    Program, free_port, millbench,
    victim::{CHAINS, Generator, Random, Victim, generate, in_storm, verify},
    wait_until,
};
use millstream_testkit::server::hdfs::{self, Hdfs, PRINCIPAL, Tools};

/// On a slow machine, publishing everything may take longer than the default drain time of 30 s.
const DRAIN: [&str; 2] = ["--drain", "100s"];

fn start(directory: &Path, config: &str) -> Program {
    Program::start_with(directory, config, &DRAIN)
}

/// The configuration of a receiver with a disk channel and this sink.
fn config(directory: &Path, listen: &str, sink: &str) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {listen}\n\
         {CHAINS}\
         channels:\n  kept: {{ type: disk, inputs: [halves.some, halves.rest], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  archive: {{ type: hdfs, inputs: [parts.some, parts.rest], {sink} }}\n"
    )
}

fn forward(port: u16) -> String {
    format!("{{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}")
}

/// The options of a sink that publishes files every second and has a short timeout.
fn quick(cluster: &Tools, more: &str) -> String {
    rotated(cluster, "interval: 1s, idle: 1s", more)
}

fn rotated(cluster: &Tools, rotate: &str, more: &str) -> String {
    format!(
        "url: \"{}/logs/{{tag}}\", rotate: {{ {rotate} }}, \
         retry: {{ first: 100ms, max: 1s, timeout: 5s }}, {more}",
        cluster.url()
    )
}

const AVRO: &str = "format: avro_event, compression: snappy";

/// Runs the verifier on the bodies of all Avro files in the cluster, and asserts that every file is published.
fn verify_avro(cluster: &Tools, directory: &Path) {
    let (fetched, bodies) = (directory.join("fetched"), directory.join("bodies"));
    cluster.fetch("/logs", &fetched);
    hdfs::avro_bodies(&fetched, &bodies);
    verify(&bodies, &directory.join("ledger"));
    assert_eq!(in_use(cluster), Vec::<String>::new());
}

/// Files that are not published yet.
fn in_use(cluster: &Tools) -> Vec<String> {
    let mut files = cluster.files("/logs");
    files.retain(|path| path.contains("/open/"));
    files
}

#[test]
fn hdfs_dfs_and_avros_reader_read_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let cluster = Hdfs::start(&directory.join("cluster"));
    let text = "<13>1 2026-11-21T06:40:31.5Z web-1 app 7 - - the text\n\
                <191>1 2026-11-20T06:40:31Z web:2 app 7 - - more\n";
    let (url, port) = (cluster.url(), free_port());
    let every = "retry: { first: 100ms, max: 1s, timeout: 30s }";
    let flume = format!(
        "{{ type: hdfs, inputs: [in], url: \"{url}/flume/%Y-%m-%d/{{.host}}\", format: avro_event, headers: flume, {every}"
    );
    // Files with the name of a directory. The name node answers a superuser and `guest`, whose access is checked, differently.
    let other = directory.join("other");
    fs::write(&other, "other\n").unwrap();
    cluster.shell(&["-mkdir", "/blocked", "/guest"]);
    cluster.shell(&["-chmod", "777", "/guest"]);
    for path in ["/blocked/web-1", "/guest/web-1"] {
        cluster.shell(&["-put", &other.display().to_string(), path]);
    }
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\n\
         sources:\n  in: {{ type: syslog, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         sinks:\n  plain: {flume}, marker: _SUCCESS, prefix: a- }}\n  \
         snappy: {flume}, compression: snappy }}\n  \
         deflate: {flume}, compression: deflate }}\n  \
         zstd: {flume}, compression: zstd }}\n  \
         text: {{ type: hdfs, inputs: [in], url: \"{url}/text\", format: raw, compression: gzip, {every} }}\n  \
         below: {{ type: hdfs, inputs: [in], url: \"{url}/blocked/{{.host}}/%Y\", format: raw, {every} }}\n  \
         same: {{ type: hdfs, inputs: [in], url: \"{url}/blocked/{{.host}}\", format: raw, {every} }}\n  \
         guest: {{ type: hdfs, user: guest, inputs: [in], url: \"{url}/guest/{{.host}}/%Y\", format: raw, {every} }}\n  \
         json: {{ type: hdfs, inputs: [in], url: \"{url}/json/{{tag}}\", add: {{}}, {every} }}\n",
        place = directory.display(),
    );
    let program = start(directory, &config).listens(port);
    {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
    }
    sleep(Duration::from_secs(1));
    assert_eq!(program.stop(), Some(0), "{}", log(directory));

    let fetched = directory.join("fetched");
    cluster.fetch("/flume", &fetched);
    let mut codecs = codecs_of_flumes_events(&fetched);
    codecs.sort();
    let twice = ["deflate", "null", "snappy", "zstandard"].map(|codec| [codec, codec]);
    assert_eq!(codecs, twice.concat());

    let files = cluster.files("/");
    let marked = files.iter().filter(|path| path.ends_with("/_SUCCESS"));
    assert_eq!(marked.count(), 2, "{files:?}");
    assert!(
        files.iter().any(|path| path.contains("/web-1/a-plain-")),
        "{files:?}"
    );
    assert_eq!(cluster.shell(&["-text", "/text/*.gz"]), "the text\nmore\n");
    let rejected = files_below(&directory.join("data/rejected"));
    for (sink, published) in [
        ("below", "/blocked/web_2/2026/*.txt"),
        ("same", "/blocked/web_2/*.txt"),
        ("guest", "/guest/web_2/2026/*.txt"),
    ] {
        assert_eq!(cluster.shell(&["-cat", published]), "more\n");
        let is_rejected = |file: &std::path::PathBuf| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.starts_with(&format!("{sink}."))
                && String::from_utf8_lossy(&fs::read(file).unwrap()).contains("the text")
        };
        assert!(rejected.iter().any(is_rejected), "{sink}: {rejected:?}");
    }
    let json = cluster.shell(&["-cat", "/json/in/*.json"]);
    let hosts: Vec<String> = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["host"].to_string())
        .collect();
    assert_eq!(hosts, ["\"web-1\"", "\"web:2\""]);
}

/// Asserts that every Avro file holds the one event of its directory; returns the codecs.
fn codecs_of_flumes_events(fetched: &Path) -> Vec<String> {
    let mut codecs = Vec::new();
    for file in files_below(fetched) {
        let name = file.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".avro") {
            continue;
        }
        let seen = hdfs::avro_show(&file);
        let (codec, events) = seen.split_once("\nschema ").unwrap();
        codecs.push(codec.strip_prefix("codec ").unwrap().to_owned());
        let day = file.parent().unwrap().strip_prefix(fetched).unwrap();
        let event = events.split_once('\n').unwrap().1.trim_end();
        match day.to_str().unwrap() {
            "2026-11-21/web-1" => assert_eq!(
                event,
                "{Facility=1, Severity=5, app=app, host=web-1, priority=13, procid=7, timestamp=1795243231500} the text"
            ),
            "2026-11-20/web_2" => assert_eq!(
                event,
                "{Facility=23, Severity=7, app=app, host=web:2, priority=191, procid=7, timestamp=1795156831000} more"
            ),
            other => panic!("{other}"),
        }
    }
    codecs
}

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => files.extend(files_below(&path)),
            path => files.push(path),
        }
    }
    files
}

/// Runs the program once more with the same channel and sink and with an input that has ended, so that it publishes everything
/// that the channel holds. This is necessary because a stop leaves records in the channel.
fn publish_all(directory: &Path, sink: &str, environment: &[(&str, &Path)]) {
    let config = config(directory, "{ type: stdin }", sink);
    let last = Program::start_where(directory, &config, &["--once"], environment);
    assert_eq!(last.ended(), Some(0), "{}", log(directory));
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

#[test]
fn nothing_is_lost_or_duplicated_when_millstream_and_the_cluster_are_killed() {
    let (kills, restarts) = (in_storm(12, 50), in_storm(4, 20));
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut random = Random::new();
    let mut cluster = Hdfs::start(&directory.join("cluster"));
    let port = free_port();
    // Small files, so that a program that lives for a second publishes some.
    let sink = rotated(&cluster, "interval: 1s, idle: 1s, records: 2000", AVRO);
    let config = config(directory, &forward(port), &sink);
    let mut victim = Victim::start(directory.to_owned(), port, config);
    let records = (kills * 20_000).to_string();
    let generator = Generator::start(&generate(directory, port, &records, "10000"));
    let mut restarted = 0;
    for kill in 0..kills {
        // With these pauses, some kills hit a program that is publishing: recovering and publishing takes more than a second.
        sleep(Duration::from_millis(random.below(4000)));
        victim.kill();
        // The name node and the data node are killed in turn. Every third time, Millstream starts while the killed server is still down.
        // Otherwise, both start at the same time.
        if restarted * kills < (kill + 1) * restarts {
            restarted += 1;
            let server = match restarted % 2 {
                0 => &mut cluster.name_node,
                _ => &mut cluster.data_node,
            };
            server.kill();
            if restarted % 3 == 0 {
                victim.restart();
                sleep(Duration::from_millis(random.below(500)));
                server.restart();
                server.wait_ready();
                continue;
            }
            server.restart();
        }
        victim.restart();
    }
    generator.finish();
    cluster.wait_writable();
    victim.kill();
    publish_all(directory, &quick(&cluster, AVRO), &[]);
    let files = cluster.files("/logs/bench").len();
    println!("{kills} kills of Millstream, {restarted} of name node and data node, {files} files");
    verify_avro(&cluster, directory);
}

#[test]
fn a_data_node_that_is_stopped_causes_no_loss_and_no_duplicates() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let cluster = Hdfs::start(&directory.join("cluster"));
    let port = free_port();
    let sink = quick(&cluster, AVRO);
    let program = start(directory, &config(directory, &forward(port), &sink)).listens(port);
    let generator = Generator::start(&generate(directory, port, "200000", "20000"));
    sleep(Duration::from_secs(3));
    cluster.data_node.signal("STOP");
    // The stop is longer than the request timeout.
    sleep(Duration::from_secs(8));
    cluster.data_node.signal("CONT");
    generator.finish();
    assert_eq!(program.stop(), Some(0), "{}", log(directory));
    publish_all(directory, &sink, &[]);
    assert!(
        log(directory).contains("no answer within"),
        "{}",
        log(directory)
    );
    verify_avro(&cluster, directory);
}

#[test]
fn a_zombie_publishes_nothing_that_its_successor_has_published() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let cluster = Hdfs::start(&directory.join("cluster"));
    let port = free_port();
    let sink = quick(&cluster, AVRO);
    let zombie = start(directory, &config(directory, &forward(port), &sink)).listens(port);
    let generator = Generator::start(&generate(directory, port, "300000", "100000"));
    generator.finish();
    // Stop the program (the zombie) at a random moment, and let a copy of it (the heir) take over. At that moment, the program has
    // open outputs, or it is publishing: it lists complete outputs in a manifest, and then gives them their final names.
    sleep(Duration::from_millis(Random::new().below(2500)));
    zombie.signal("STOP");
    let before = cluster.files("/logs");
    let heir = directory.join("heir");
    fs::create_dir(&heir).unwrap();
    let copied = Command::new("cp")
        .args(["-a", "data", "heir/data"])
        .current_dir(directory)
        .status();
    assert!(copied.unwrap().success());
    publish_all(&heir, &sink, &[]);
    let after = cluster.files("/logs");
    assert!(after.len() > before.len(), "the heir has published nothing");
    zombie.signal("CONT");
    sleep(Duration::from_secs(5));
    // The exit code is not checked: the zombie reports that another writer has superseded it only if it publishes in this run.
    // Otherwise it would find the manifest of its successor at its next start.
    zombie.stop();
    // The zombie may have opened outputs after its successor had searched for abandoned outputs. The next start of the successor
    // removes them.
    publish_all(&heir, &sink, &[]);
    println!("{}\nthe heir:\n{}", log(directory), log(&heir));
    verify_avro(&cluster, directory);
}

#[test]
fn a_freeze_of_the_cluster_as_in_flumes_benchmark_loses_and_duplicates_nothing() {
    let freeze = in_storm(6, 42);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let cluster = Hdfs::start(&directory.join("cluster"));
    let port = free_port();
    let listen = format!("{{ type: syslog, listen: \"tcp://127.0.0.1:{port}\" }}");
    let sink = quick(&cluster, &format!("{AVRO}, headers: flume"));
    let program = start(directory, &config(directory, &listen, &sink)).listens(port);
    let records = (freeze * 20_000 / 2 + 100_000).to_string();
    let address = format!("tcp://127.0.0.1:{port}");
    // 20,000 records per second, as in the same benchmark with Flume.
    let mut generator = Command::new(millbench())
        .args(["generate", "--syslog", &address, "--records", &records])
        .args(["--rate", "20000", "--size", "270"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    sleep(Duration::from_secs(3));
    cluster.name_node.signal("STOP");
    cluster.data_node.signal("STOP");
    sleep(Duration::from_secs(freeze));
    cluster.name_node.signal("CONT");
    cluster.data_node.signal("CONT");
    wait_until("the generator has ended", || {
        generator.try_wait().unwrap().is_some()
    });
    assert!(generator.wait().unwrap().success());
    // The generator waits until the source has closed the connection, so the source has read everything.
    assert_eq!(program.stop(), Some(0), "{}", log(directory));
    publish_all(directory, &sink, &[]);
    let (fetched, bodies) = (directory.join("fetched"), directory.join("bodies"));
    cluster.fetch("/logs", &fetched);
    hdfs::avro_bodies(&fetched, &bodies);
    let account = Command::new(millbench())
        .args(["verify", bodies.to_str().unwrap(), "--sent", &records])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&account.stdout).into_owned();
    println!("frozen for {freeze} s: {said}");
    assert!(account.status.success(), "{said}");
}

#[test]
fn a_kerberos_cluster_accepts_a_principal_with_a_keytab() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let cluster = Hdfs::start_secured(&directory.join("cluster"), "privacy");
    let port = free_port();
    let (conf, keytab) = (cluster.conf(), cluster.keytab());
    let auth = format!(
        "{AVRO}, hadoop_conf: {}, auth: {{ kerberos: {{ principal: {PRINCIPAL}, keytab: {} }} }}",
        conf.display(),
        keytab.display()
    );
    let sink = quick(&cluster, &auth);
    let config = config(directory, &forward(port), &sink);
    let krb5 = cluster.krb5_conf();
    let program = Program::start_where(directory, &config, &DRAIN, &[("KRB5_CONFIG", &*krb5)]);
    let program = program.listens(port);
    Generator::start(&generate(directory, port, "50000", "50000")).finish();
    assert_eq!(program.stop(), Some(0), "{}", log(directory));
    publish_all(directory, &sink, &[("KRB5_CONFIG", &*krb5)]);
    verify_avro(&cluster, directory);
    let owned = cluster.shell(&["-ls", "-R", "/logs"]);
    let files = owned.lines().filter(|line| line.ends_with(".avro"));
    assert!(files.clone().count() > 0 && files.clone().all(|line| line.contains(" alice ")));
}
