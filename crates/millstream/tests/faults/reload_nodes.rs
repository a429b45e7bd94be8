//! Reloads under full load that add, change and remove sources, channels and sinks, while senders keep writing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use crate::program::{
    Program, free_port,
    prober::Prober,
    victim::{Generator, Random, generate, in_storm, settle, verify},
    wait_until,
};

/// The longest pause between two reloads.
const PAUSE_MS_MAX: u64 = 100;

/// The addresses of the program.
struct Addresses {
    forward: u16,
    /// The port of a source that some of the configurations have.
    extra: u16,
    api: u16,
    path: PathBuf,
}

/// A configuration whose channel `kept` and sinks `a` and `b` get every record. With `random`, options and other nodes vary.
fn configuration(place: &Path, at: &Addresses, random: Option<&mut Random>) -> String {
    let mut random = random;
    let mut below = |bound: u64| random.as_mut().map_or(0, |random| random.below(bound));
    let Addresses {
        forward,
        extra,
        api,
        path,
    } = at;
    let mut sources = format!(
        "  in:\n    type: forward\n    listen: [\"tcp://127.0.0.1:{forward}\", \"unix://{}\"]\n    limits: {{ connections: {} }}\n",
        path.display(),
        10_000 + below(3)
    );
    let mut channels = format!(
        "  kept: {{ type: disk, inputs: [in], size_max: {}MiB, queue: {}MiB }}\n",
        1024 - 256 * below(3),
        4 + below(3)
    );
    let file = |name: &str, input: &str, options: String| {
        let place = place.display();
        format!(
            "  {name}: {{ type: file, inputs: [{input}], format: raw, path: \"{place}/{name}/{{tag}}.log\", {options} }}\n"
        )
    };
    let mut sinks = file("a", "kept", format!("open_files: {}", 256 - below(3)));
    sinks += &file("b", "in", format!("dirty_max: {}MiB", 64 - below(3)));
    if below(2) == 1 {
        let listen = format!("udp://127.0.0.1:{}", extra);
        sources += &format!(
            "  extra: {{ type: syslog, listen: \"{listen}\", tag: x{} }}\n",
            below(2)
        );
        sinks += "  extras: { type: discard, inputs: [extra] }\n";
    }
    if below(2) == 1 {
        channels += "  more: { type: disk, inputs: [in], size_max: 256MiB }\n";
        sinks += "  c: { type: discard, inputs: [more] }\n";
    }
    match below(4) {
        1 => sinks += "  d: { type: discard, inputs: [kept] }\n",
        2 => sinks += "  d: { type: discard, inputs: [kept], behind: { size: 1GiB } }\n",
        3 => sinks += "  d: { type: discard, inputs: [in] }\n",
        _ => {}
    }
    format!(
        "data_dir: {}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 2\n\
         sources:\n{sources}channels:\n{channels}sinks:\n{sinks}",
        place.display()
    )
}

/// Returns the configuration `plain` with an added error. Only the last step of a reload finds this error: an address on which another
/// source listens, or a channel whose directory is a file.
fn broken(plain: &str, place: &Path, at: &Addresses, random: &mut Random) -> String {
    if random.below(2) == 0 {
        let taken = format!(
            "sources:\n  taken: {{ type: forward, listen: \"tcp://127.0.0.1:{}\" }}\n",
            at.forward
        );
        let sink = "sinks:\n  takes: { type: discard, inputs: [taken] }\n";
        return plain
            .replace("sources:\n", &taken)
            .replace("sinks:\n", sink);
    }
    fs::write(place.join("data/channels/wrong"), "no directory").unwrap();
    let channel = "channels:\n  wrong: { type: disk, inputs: [in], size_max: 256MiB }\n";
    let sink = "sinks:\n  takes: { type: discard, inputs: [wrong] }\n";
    plain
        .replace("channels:\n", channel)
        .replace("sinks:\n", sink)
}

/// Reloads the program with this configuration. Returns the exit code and the output of the command. If the channel still holds
/// records for the removed sink `d`, repeats the command with `--forget d`.
fn reload(place: &Path, at: &Addresses, text: &str) -> (Option<i32>, String) {
    let new = place.join("new.yaml");
    fs::write(&new, text).unwrap();
    fs::rename(new, place.join("millstream.yaml")).unwrap();
    let command = |forget: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["reload", "--api", &format!("127.0.0.1:{}", at.api)])
            .args(forget)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, said) = command(&[]);
    match said.contains("--forget d`") {
        true => command(&["--forget", "d"]),
        false => (code, said),
    }
}

/// The number of open files and of threads of the program.
fn held(program: &Program) -> [usize; 2] {
    let entries = |kind: &str| fs::read_dir(format!("/proc/{}/{kind}", program.id()));
    ["fd", "task"].map(|kind| entries(kind).map_or(0, Iterator::count))
}

/// The targets of the open files of the program.
fn files(program: &Program) -> String {
    let files = fs::read_dir(format!("/proc/{}/fd", program.id())).unwrap();
    let mut targets: Vec<String> = files
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .map(|target| target.display().to_string())
        .collect();
    targets.sort();
    targets.join("\n")
}

/// The names of the threads of the program.
fn threads(program: &Program) -> String {
    let tasks = fs::read_dir(format!("/proc/{}/task", program.id())).unwrap();
    let mut names: Vec<String> = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect();
    names.sort();
    names.join(" ")
}

#[test]
fn sources_channels_and_sinks_change_a_hundred_times_and_nothing_is_lost_doubled_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let at = Addresses {
        forward: free_port(),
        extra: free_port(),
        api: free_port(),
        path: place.join("in.sock"),
    };
    let plain = configuration(place, &at, None);
    let program = Program::start(place, &plain).listens(at.forward);
    let records = in_storm(600_000, 4_000_000).to_string();
    // The sinks open their files when their threads have started.
    wait_until("both sinks have opened their journals", || {
        let files = files(&program);
        ["a", "b"]
            .iter()
            .all(|sink| files.contains(&format!("sinks/{sink}/journal.1")))
    });
    let held_before = held(&program);
    println!("files at first:\n{}", files(&program));
    let generator = Generator::start(&generate(place, at.forward, &records, "60000"));
    let prober = Prober::start(at.forward, at.path.clone());
    for turn in 0..100 {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        let mut text = configuration(place, &at, Some(&mut random));
        if turn % 10 == 9 {
            text = broken(&text, place, &at, &mut random);
            let (code, said) = reload(place, &at, &text);
            assert!(
                said.ends_with("nothing has changed\n"),
                "{code:?} {said}\n{text}"
            );
        } else {
            let (code, said) = reload(place, &at, &text);
            assert_eq!(code, Some(0), "{said}\n{text}");
        }
    }
    prober.end();
    generator.finish();
    let (code, said) = reload(place, &at, &plain);
    assert_eq!(code, Some(0), "{said}");
    settle(&place.join("a"));
    settle(&place.join("b"));
    // The outputs that the sinks have open were opened after the first count.
    let outputs = 8;
    let mut last = String::new();
    wait_until("removed nodes leave no file and no thread behind", || {
        let held = held(&program);
        let now = format!("{held:?}, at first {held_before:?}: {}", threads(&program));
        if now != last {
            println!("files and threads: {now}\n{}", files(&program));
            last = now;
        }
        held[0] <= held_before[0] + outputs && held[1] <= held_before[1]
    });
    assert_eq!(program.stop(), Some(0));
    verify(&place.join("a"), &place.join("ledger"));
    verify(&place.join("b"), &place.join("ledger"));
}
