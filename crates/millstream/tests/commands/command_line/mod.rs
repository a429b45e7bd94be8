//! The command line: exit codes, errors with line and column, and examples that run unchanged.

mod mistakes;
mod mounts;
mod pages;
mod programs;
mod tags;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::program::{PATIENCE, Program, free_port, tree, wait_until};
use millstream_pipeline::node::Component;

fn millstream(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(arguments)
        .output()
        .unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every component with its section.
fn components() -> impl Iterator<Item = (&'static str, &'static Component)> {
    let sources = millstream_sources::COMPONENTS.iter();
    let processors = millstream_processors::COMPONENTS.iter();
    let channels = millstream_channels::COMPONENTS.iter();
    let sinks = millstream_sinks::COMPONENTS.iter();
    (sources.map(|c| ("sources", c)))
        .chain(processors.map(|c| ("processors", c)))
        .chain(channels.map(|c| ("channels", c)))
        .chain(sinks.map(|c| ("sinks", c)))
}

fn write(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("c.yaml");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_wrong_command_line_exits_with_64_and_help_with_0() {
    for wrong in [
        &["rum"][..],
        &["run", "--onze"],
        &["run", "--drain", "10"],
        &["explain", "--format", "png"],
        &["components", "fiel"],
        &["example", "nothing-like-it"],
        &["channel", "cat", "--after", "x", "/"],
        &[],
    ] {
        assert_eq!(code(&millstream(wrong)), 64, "{wrong:?}");
    }
    for right in [
        &["--help"][..],
        &["--version"],
        &["components"],
        &["schema"],
    ] {
        assert_eq!(code(&millstream(right)), 0, "{right:?}");
    }
    assert!(errors(&millstream(&["components", "fiel"])).contains("did you mean `file`?"));
}

#[test]
fn a_warning_names_messages_of_which_only_a_few_fit_into_memory() {
    let directory = tempfile::tempdir().unwrap();
    let checked = |limits: &str| {
        let text = format!(
            "data_dir: {}\nmemory_max: 64MiB\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:1\", {limits} }}\n\
             sinks:\n  out: {{ type: discard, inputs: [in] }}\n",
            directory.path().display()
        );
        let output = millstream(&["check", write(directory.path(), &text).to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(!checked("limits: { frame: 8MiB }").contains("limits.frame"));
    let said = checked("");
    assert!(
        said.contains("warning: the source in takes messages of up to 64MiB (limits.frame)"),
        "{said}"
    );
}

#[test]
fn a_warning_names_channels_that_exceed_their_file_system() {
    let directory = tempfile::tempdir().unwrap();
    let checked = |sizes: [&str; 2]| {
        let [one, two] = sizes;
        let text = format!(
            "data_dir: {}/not/there/yet\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:0\" }}\n\
             channels:\n  one: {{ type: disk, inputs: [in], size_max: {one} }}\n  \
             two: {{ type: disk, inputs: [in], size_max: {two} }}\n\
             sinks:\n  a: {{ type: discard, inputs: [one] }}\n  b: {{ type: discard, inputs: [two] }}\n",
            directory.path().display()
        );
        let output = millstream(&["check", write(directory.path(), &text).to_str().unwrap()]);
        assert_eq!(code(&output), 0, "{}", errors(&output));
        errors(&output)
    };
    assert!(!checked(["8MiB", "8MiB"]).contains("size_max"));
    // No test machine has a file system of this size.
    let said = checked(["8000TiB", "9000TiB"]);
    assert!(
        said.contains("one and two may take 17000TiB (size_max), and the file system of"),
        "{said}"
    );
    assert!(said.contains("lower `size_max`"), "{said}");
}

#[test]
fn every_command_has_help_with_its_exit_codes() {
    for command in [
        "run",
        "check",
        "explain",
        "components",
        "example",
        "schema",
        "status",
        "channel",
        "rejected",
        "test",
    ] {
        let help = millstream(&[command, "--help"]);
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(text.contains("Exit code"), "{command}: {text}");
        assert!(text.contains("xample"), "{command} has no example: {text}");
    }
}

#[test]
fn a_type_that_is_both_a_source_and_a_sink_is_named_by_its_directory() {
    let both = millstream(&["example", "forward"]);
    assert_eq!(code(&both), 64);
    assert!(errors(&both).contains("`sources/forward` and `sinks/forward`"));
    assert_eq!(code(&millstream(&["example", "sinks/forward"])), 0);
    let pages = millstream(&["components", "forward"]).stdout;
    let pages = String::from_utf8(pages).unwrap();
    assert!(pages.contains("FORWARD (source)") && pages.contains("FORWARD (sink)"));
}

#[test]
fn an_unknown_option_is_refused_at_its_line_by_every_component() {
    let directory = tempfile::tempdir().unwrap();
    for (section, component) in components() {
        let text = format!(
            "{section}:\n  node:\n    type: {}\n    no_such_option: 1\n",
            component.name
        );
        let path = write(directory.path(), &text);
        for command in ["check", "run", "explain"] {
            let output = millstream(&[command, path.to_str().unwrap()]);
            let place = format!(
                "{}:4:5: error: unknown option `no_such_option`",
                path.display()
            );
            assert_eq!(code(&output), 78, "{section}/{} {command}", component.name);
            assert!(errors(&output).contains(&place), "{}", errors(&output));
        }
    }
}

#[test]
fn unusable_settings_are_reported_with_their_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(
        directory.path(),
        "timezone: Mars/Olympus\nhost: \"a b\"\napi: { listen: [\"0.0.0.0:1\", nowhere] }\n",
    );
    let output = millstream(&["check", path.to_str().unwrap()]);
    let text = errors(&output);
    assert_eq!(code(&output), 78, "{text}");
    for part in [
        "c.yaml:1:11: error: no time zone is called `Mars/Olympus`",
        "c.yaml:2:7: error: a host's name",
        "no setting admits them",
        "`nowhere` is no address and port",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let path = write(
        directory.path(),
        "graphite: { endpoint: \"g\", prefix: a..b, interval: 10ms }\n",
    );
    let text = errors(&millstream(&["check", path.to_str().unwrap()]));
    for part in [
        "c.yaml:1:23: error: `g` is no host and port",
        "`a..b` is no path of Graphite",
        "the interval is shorter than 1 s",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let path = write(directory.path(), "rejected: { node_max: 0 }\n");
    let text = errors(&millstream(&["check", path.to_str().unwrap()]));
    assert!(
        text.contains("c.yaml:1:23: error:") && text.contains("must be above 0"),
        "{text}"
    );
}

#[test]
fn a_template_may_use_only_values_that_a_source_on_its_path_sets() {
    let directory = tempfile::tempdir().unwrap();
    let text = "\
sources:
  in: { type: stdin }
  web: { type: http, listen: \"tcp://127.0.0.1:8686\" }
  fleet: { type: forward, listen: \"tcp://127.0.0.1:24224\" }
  logs: { type: tail, paths: [\"/x/*.log\"], tag: \"{hots}\" }
channels:
  kept: { type: disk, inputs: [in, web], size_max: 1GiB }
sinks:
  a: { type: file, inputs: [kept], path: \"/srv/{tag}/{host}/{hostname}.log\", add: { from: \"{per|none}\" } }
  b: { type: http, inputs: [kept], url: \"http://h/{peer}?{pid}\", headers: { X: \"{pid|unknown}{zzzzzz|}\" } }
  c: { type: file, inputs: [fleet], path: \"/srv/{kubernetes.pod}\", format: template, template: \"{record}{kubernetes.node}\" }
  d: { type: file, inputs: [kept], tags: [web], path: \"/srv/d-{peer}.log\" }
  e: { type: file, inputs: [a.rejected], path: \"/srv/e-{.node}-{peer|}.{peeer}.log\" }
  f: { type: forward, inputs: [kept], servers: \"127.0.0.1:1\", balance: { hash: \"{hosst}\" } }
  g: { type: discard, inputs: [logs] }
";
    let path = write(directory.path(), text);
    let column = |line: usize, part: &str| {
        let found = text.lines().nth(line - 1).unwrap().find(part);
        format!("c.yaml:{line}:{}: ", found.unwrap() + 1)
    };
    for command in ["check", "run"] {
        let output = millstream(&[command, path.to_str().unwrap()]);
        let text = errors(&output);
        assert_eq!(code(&output), 78, "{text}");
        for (line, part, message) in [
            (
                5,
                "\"{hots",
                "error: there is no value `hots` here: there are `host`, `path`; did you mean `host`?",
            ),
            (
                9,
                "hostname",
                "error: no source of `a` sets the value `hostname`",
            ),
            (9, "per|", "error: no source of `a` sets the value `per`"),
            (10, "pid}", "error: no source of `b` sets the value `pid`"),
            (
                10,
                "zzzzzz",
                "error: no source of `b` sets the value `zzzzzz`",
            ),
            (
                11,
                "kubernetes.node",
                "error: no source of `c` sets the value `kubernetes.node`",
            ),
            (
                13,
                "peeer",
                "error: no source of `e` sets the value `peeer`",
            ),
            (
                14,
                "hosst",
                "error: no source of `f` sets the value `hosst`",
            ),
        ] {
            let told = column(line, part) + message;
            assert!(text.contains(&told), "no {told:?} in {text}");
        }
        for help in [
            "did you mean `host`? A field of the record starts with a dot: `{.hostname}`",
            "did you mean `peer`?",
            "with a default, such as `{pid|unknown}`, it may stand here",
            "there are `{tag}`, `{time}`, `{record}`, `{host}`, `{peer}`; a field of the record",
        ] {
            assert!(text.contains(help), "no {help:?} in {text}");
        }
        assert!(text.contains("\n8 errors; "), "{text}");
    }
    // If only some of the sources set a value, the value needs a default, or the tags of the other sources must be filtered out.
    let text = text
        .lines()
        .filter(|line| !["  a:", "  c:", "  e:", "  f:"].contains(&&line[..4.min(line.len())]));
    let text = text.collect::<Vec<_>>().join("\n");
    let text = text
        .replace("{hots}", "{host}")
        .replace("{pid}", "")
        .replace("{zzzzzz|}", "")
        .replace("inputs: [logs] }", "inputs: [logs, fleet] }");
    let output = millstream(&["check", write(directory.path(), &text).to_str().unwrap()]);
    let warnings = errors(&output);
    assert_eq!(code(&output), 0, "{warnings}");
    let lacking = "warning: records of `in` have no value `peer`, which this template needs";
    assert_eq!(warnings.matches(lacking).count(), 1, "{warnings}");
    assert!(warnings.contains("such as `{peer|unknown}`"), "{warnings}");
}

#[test]
fn nodes_without_a_time_zone_use_the_global_one() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let sink = |name: &str, more: &str| {
        format!("  {name}: {{ type: file, inputs: [in], path: \"{place}/{name}%z\"{more} }}\n")
    };
    let text = format!(
        "timezone: Asia/Tokyo\ndata_dir: {place}/data\napi: {{ listen: [] }}\n\
         sources:\n  in: {{ type: stdin }}\nsinks:\n{}{}",
        sink("top", ""),
        sink("own", ", timezone: UTC")
    );
    let path = write(directory.path(), &text);
    fs::write(directory.path().join("input"), "a line\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["run", "--once", path.to_str().unwrap()])
        .stdin(File::open(directory.path().join("input")).unwrap())
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", errors(&output));
    for name in ["top+0900", "own+0000"] {
        let text = fs::read_to_string(directory.path().join(name));
        assert!(text.is_ok_and(|text| text.contains("a line")), "{name}");
    }
}

#[test]
fn check_connect_tries_the_destinations() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "sources:\n  in: {{ type: stdin }}\nsinks:\n  files: {{ type: file, inputs: [in], path: {}/x.log }}\n  next: {{ type: forward, inputs: [in], servers: \"127.0.0.1:1\" }}\n",
        directory.path().display()
    );
    let path = write(directory.path(), &text);
    let path = path.to_str().unwrap();
    assert_eq!(code(&millstream(&["check", path])), 0);
    let tried = millstream(&["check", "--connect", path]);
    let text = String::from_utf8_lossy(&tried.stdout).into_owned();
    assert_eq!(code(&tried), 1, "{text}");
    assert!(
        text.contains("files good: ") && text.contains("can be written"),
        "{text}"
    );
    assert!(
        text.contains("next BAD: cannot connect to 127.0.0.1:1"),
        "{text}"
    );
}

#[test]
fn a_consumer_takes_what_the_processors_in_front_of_it_reject_and_ends() {
    let memory = "sinks:\n  out: { type: file, inputs: [parsed, parsed.rejected], format: raw, path: PLACE/out.log }\n";
    let disk = "channels:\n  kept: { type: disk, inputs: [parsed, parsed.rejected], size_max: 1GiB }\n\
                sinks:\n  out: { type: file, inputs: [kept], format: raw, path: PLACE/out.log }\n";
    for ends in [memory, disk] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().display().to_string();
        let lines: String = (0..20_000)
            .map(|n| format!("{{\"message\":\"good {n}\"}}\nbad {n}\n"))
            .collect();
        fs::write(directory.path().join("in.log"), lines).unwrap();
        let text = format!(
            "data_dir: {place}/data\napi: {{ listen: [] }}\n\
             sources:\n  in: {{ type: tail, paths: [\"{place}/in.log\"], start: beginning }}\n\
             processors:\n  parsed: {{ type: parse, inputs: [in], as: json }}\n{}",
            ends.replace("PLACE", &place)
        );
        let path = write(directory.path(), &text);
        let output = millstream(&["run", "--once", path.to_str().unwrap()]);
        assert_eq!(code(&output), 0, "{}", errors(&output));
        let found = fs::read_to_string(directory.path().join("out.log")).unwrap();
        for word in ["good", "bad"] {
            let count = found.lines().filter(|line| line.starts_with(word)).count();
            assert_eq!(count, 20_000, "{word}");
        }
    }
}

#[test]
fn progress_is_shown_on_a_terminal_and_not_in_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "data_dir: {}\napi: {{ listen: [] }}\nsources:\n  numbers: {{ type: generate, records: 250, rate: 100 }}\nsinks:\n  nowhere: {{ type: discard, inputs: [numbers] }}\n",
        directory.path().join("data").display()
    );
    let path = write(directory.path(), &text);
    let program = env!("CARGO_BIN_EXE_millstream");
    // script(1) gives the program a terminal.
    let run = format!("{program} run --once {}", path.display());
    let shown = Command::new("script")
        .args(["-qec", &run, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(code(&shown), 0, "{text}");
    assert!(text.contains(" records in, "), "{text}");
    let silent = millstream(&["run", "--once", path.to_str().unwrap()]);
    assert!(
        !errors(&silent).contains(" records in, "),
        "{}",
        errors(&silent)
    );
}

#[test]
fn the_error_names_a_data_dir_that_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let (port, other) = (free_port(), free_port());
    let config = |port| {
        format!(
            "data_dir: {}\napi: {{ listen: [] }}\nsources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\nsinks:\n  nowhere: {{ type: discard, inputs: [fleet] }}\n",
            directory.path().join("data").display()
        )
    };
    let first = Program::start(directory.path(), &config(port)).listens(port);
    let path = write(directory.path(), &config(other));
    let second = millstream(&["run", path.to_str().unwrap()]);
    assert_eq!(code(&second), 1);
    assert!(errors(&second).contains("belongs to another running Millstream"));
    // The first instance continues to work: SIGHUP reloads its configuration, and SIGTERM drains it.
    first.signal("HUP");
    wait_until("SIGHUP is logged", || {
        first.log().contains("reloaded: 2 kept")
    });
    assert_eq!(first.stop(), Some(0));
}

#[test]
fn every_address_is_logged_and_sigusr1_logs_the_status() {
    let directory = tempfile::tempdir().unwrap();
    let ports = [free_port(), free_port(), free_port()];
    let [a, b, c] = ports;
    let shape = format!(
        "data_dir: {}\napi: {{ listen: [] }}\nsources:\n  fleet: {{ type: forward, listen: [\"tcp://127.0.0.1:{a}\", \"tcp://127.0.0.1:{b}\"] }}\n  logs: {{ type: syslog, listen: \"tcp://127.0.0.1:{c}\" }}\nsinks:\n  nowhere: {{ type: discard, inputs: [fleet, logs] }}\n",
        directory.path().join("data").display()
    );
    let program = Program::start(directory.path(), &shape).listens(c);
    for port in ports {
        let line = format!("listening on tcp://127.0.0.1:{port}");
        wait_until(&line, || program.log().contains(&line));
    }
    program.signal("USR1");
    wait_until("the line is there", || program.log().contains("status: "));
    let log = program.log();
    let line = log.lines().find(|line| line.contains("status: ")).unwrap();
    for node in [
        "healthy, up ",
        "; fleet (forward) running, out 0; logs (syslog) running, out 0; nowhere (discard) running, in 0, out 0",
    ] {
        assert!(line.contains(node), "{line}");
    }
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_listen_address_that_is_in_use_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let path = write(
        directory.path(),
        &format!(
            "data_dir: {}\napi: {{ listen: [] }}\nsources:\n  fleet: {{ type: forward, listen: \"tcp://{address}\" }}\nsinks:\n  nowhere: {{ type: discard, inputs: [fleet] }}\n",
            directory.path().join("data").display()
        ),
    );
    let output = millstream(&["run", path.to_str().unwrap()]);
    assert_eq!(code(&output), 1);
    assert!(errors(&output).contains(&address.to_string()));
}

#[test]
fn under_systemd_it_reports_readiness_and_logs_priorities() {
    use std::os::{linux::fs::MetadataExt, unix::net::UnixDatagram};
    let directory = tempfile::tempdir().unwrap();
    let socket_path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&socket_path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let path = write(
        directory.path(),
        "data_dir: data\napi: { listen: [] }\nsources:\n  fleet: { type: forward, listen: \"unix://sock\" }\nsinks:\n  nowhere: { type: discard, inputs: [fleet] }\n",
    );
    let log = File::create(directory.path().join("log")).unwrap();
    let stat = log.metadata().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["run", path.to_str().unwrap()])
        .current_dir(directory.path())
        .env("NOTIFY_SOCKET", &socket_path)
        .env(
            "JOURNAL_STREAM",
            format!("{}:{}", stat.st_dev(), stat.st_ino()),
        )
        .stderr(log)
        .spawn()
        .unwrap();
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1");
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let text = fs::read_to_string(directory.path().join("log")).unwrap();
    assert!(
        text.lines()
            .any(|line| line.starts_with("<6>started 2 nodes")),
        "{text}"
    );
    let last = text.lines().last();
    assert_eq!(last, Some("<6>stopped: nothing is left"), "{text}");
    assert!(text.lines().all(|line| line.starts_with('<')), "{text}");
}

/// Every example: name and text.
fn examples() -> Vec<(String, String)> {
    let of_components = components().map(|(section, component)| {
        (
            format!("{section}/{}", component.name),
            component.example.to_owned(),
        )
    });
    let mut all: Vec<_> = of_components.collect();
    for entry in fs::read_dir(tree().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        all.push((
            path.file_stem().unwrap().to_string_lossy().into_owned(),
            fs::read_to_string(&path).unwrap(),
        ));
    }
    all
}

/// The configuration in the README.
fn of_readme() -> (String, String) {
    let text = fs::read_to_string(tree().join("README.md")).unwrap();
    let (_, rest) = text.split_once("```yaml\n").unwrap();
    let (yaml, _) = rest.split_once("```").unwrap();
    ("README.md".to_owned(), yaml.to_owned())
}

#[test]
fn every_example_is_printed_by_name() {
    for (name, text) in examples() {
        let output = millstream(&["example", &name]);
        assert_eq!(code(&output), 0, "{name}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{name}");
    }
}

#[test]
fn every_example_runs_unchanged_and_drains() {
    for (name, text) in examples().into_iter().chain([of_readme()]) {
        let directory = tempfile::tempdir().unwrap();
        // An example writes only to its working directory. Its port may be in use on this machine, so replace it.
        let text = text.replace("24224", &free_port().to_string());
        // The kernel may also assign Flume's port to an outgoing connection.
        let text = text.replace("41414", &free_port().to_string());
        let path = write(
            directory.path(),
            &format!("{text}\napi: {{ listen: [] }}\n"),
        );
        let checked = millstream(&["check", path.to_str().unwrap()]);
        assert_eq!(code(&checked), 0, "{name}: {}", errors(&checked));
        let log = directory.path().join("log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["run", "--once", path.to_str().unwrap()])
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut ended = None;
        wait_until("it has started", || {
            ended = child.try_wait().unwrap();
            ended.is_some() || fs::read_to_string(&log).unwrap().contains("started ")
        });
        if ended.is_none() {
            // The program may have exited meanwhile.
            let _ = Command::new("kill")
                .args(["-TERM", &child.id().to_string()])
                .stderr(Stdio::null())
                .status();
        }
        let status = child.wait().unwrap();
        let log = fs::read_to_string(&log).unwrap();
        assert_eq!(status.code(), Some(0), "{name}: {log}");
        assert!(
            directory.path().join("millstream-data").exists(),
            "{name} has another data_dir"
        );
    }
}
