//! Kills at every step: strace kills the program as it is about to make one of its system calls, while a program writes to the mount.
//! Between these calls are the write into the spill of a file, the write into the channel, and the answer to the program.
//!
//! Afterwards, everything that was acknowledged has arrived once and can be read, nothing has arrived twice, and a file has no bytes
//! that were not written to it.

use std::io::Read;

use super::*;
use crate::program::victim::Random;

/// The system calls before which the program is killed. These are the calls that change files, and the answers to requests.
const CALLS: &str = "write,writev,pwrite64,pwritev,pwritev2,ftruncate,fallocate,utimensat,fsync,fdatasync,sync_file_range,openat,\
                     rename,renameat,renameat2,unlink,unlinkat,mkdirat,io_uring_enter";

/// strace, attached to the program.
struct Tracer(Child);

impl Tracer {
    /// Kills the program before the call `at.0` that is number `at.1` of its thread. Without `at`, notes all calls.
    fn attach(rig: &Rig, at: Option<&(String, usize)>) -> Self {
        let pid = rig.program.as_ref().unwrap().id().to_string();
        let what = match at {
            Some((call, number)) => format!("inject={call}:signal=KILL:when={number}"),
            None => format!("trace={CALLS}"),
        };
        let mut command = Command::new("strace");
        let command = command.args(["-f", "-e", &what, "-p", &pid]);
        let command = command.arg("-o").arg(rig.directory.path().join("calls"));
        let child = command.stderr(Stdio::piped()).spawn();
        let mut child = child.expect("strace is missing: run `make deps`");
        // After this line, all threads are traced.
        let mut said = String::new();
        let mut error = BufReader::new(child.stderr.take().unwrap());
        while !said.contains("attached") {
            assert!(error.read_line(&mut said).unwrap() > 0, "strace: {said}");
        }
        thread::spawn(move || error.read_to_string(&mut said));
        Self(child)
    }

    /// Lets the program go.
    fn detach(mut self) {
        run(Command::new("kill").arg(self.0.id().to_string()));
        self.0.wait().unwrap();
    }
}

/// The calls that were noted: each with its number, which counts the calls of one thread.
fn noted(rig: &Rig) -> Vec<(String, usize)> {
    let text = fs::read_to_string(rig.directory.path().join("calls")).unwrap();
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in text.lines() {
        let (thread, call) = line.trim().split_once(' ').unwrap();
        // The second line of a call that was interrupted by another thread begins with `<...`.
        if let Some((call, _)) = call.trim().split_once('(')
            && !call.starts_with('<')
        {
            *counts.entry((call, thread)).or_default() += 1;
        }
    }
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    for ((call, _), count) in counts {
        let most = most.entry(call).or_default();
        *most = count.max(*most);
    }
    let most = most.into_iter();
    most.flat_map(|(call, count)| (1..=count).map(move |n| (call.to_owned(), n)))
        .collect()
}

/// The content of one file of the mount.
#[derive(Default)]
struct Written {
    /// The names under which the file may be found.
    names: Vec<String>,
    /// The content that was acknowledged.
    content: Vec<u8>,
    /// The bytes of a write that has failed.
    doubtful: Vec<u8>,
    /// A truncation has failed, so the file may be empty.
    may_be_empty: bool,
}

/// A program that writes to the mount until a call fails.
struct Author {
    mount: PathBuf,
    /// A number in all lines of this run.
    step: usize,
    /// The lines that were acknowledged, and those that may have arrived.
    acked: BTreeSet<String>,
    doubtful: BTreeSet<String>,
    /// Acknowledged bytes of a line without its end.
    unfinished: Vec<String>,
}

impl Author {
    /// Appends lines of this many bytes. Writes the first half of the last line, then the rest.
    fn append(
        &mut self,
        (file, of): (&fs::File, &mut Written),
        name: &str,
        (count, bytes): (usize, usize),
    ) -> std::io::Result<()> {
        let line = |n| format!("s{} {name}{n} {}", self.step, "x".repeat(bytes));
        let lines: Vec<String> = (0..count).map(line).collect();
        let text = lines.join("\n") + "\n";
        let cut = text.len() - 1 - bytes / 2;
        let (first, rest) = text.as_bytes().split_at(cut);
        let write = |of: &mut Written, part: &[u8]| {
            let mut file = file;
            match file.write(part) {
                Ok(written) => {
                    of.content.extend_from_slice(&part[..written]);
                    assert_eq!(written, part.len());
                    Ok(())
                }
                Err(error) => {
                    of.doubtful = part.to_vec();
                    Err(error)
                }
            }
        };
        let (last, whole) = lines.split_last().unwrap();
        self.doubtful.extend(lines.iter().cloned());
        write(of, first)?;
        self.acked.extend(whole.iter().cloned());
        self.unfinished
            .push(last[..last.len() - bytes / 2].to_owned());
        write(of, rest)?;
        self.unfinished.pop();
        self.acked.insert(last.clone());
        Ok(())
    }

    /// Writes to one file that lives on, and to one of this step, which is renamed and truncated as `logrotate` does it.
    fn work(&mut self, all: &mut Written, own: &mut Written) -> std::io::Result<()> {
        let mount = self.mount.clone();
        let open = |name: &str| {
            let mut options = fs::File::options();
            let options = options.append(true).create(true);
            options.open(mount.join(name))
        };
        let (name, renamed) = (format!("{}.log", self.step), format!("{}.log.1", self.step));
        let file = open("all.log")?;
        self.append((&file, &mut *all), "a", (1, 10))?;
        self.append((&file, &mut *all), "b", (3, 200))?;
        file.sync_all()?;
        own.names = vec![name.clone()];
        let mine = open(&name)?;
        // Large writes go into the spill of the file while the channel keeps them.
        self.append((&mine, &mut *own), "c", (3000, 100))?;
        self.append((&file, &mut *all), "d", (2, 10))?;
        own.names.push(renamed.clone());
        fs::rename(mount.join(&name), mount.join(&renamed))?;
        own.names = vec![renamed];
        self.append((&mine, &mut *own), "e", (2, 50))?;
        own.may_be_empty = true;
        mine.set_len(0)?;
        own.content.clear();
        self.append((&mine, &mut *own), "f", (2, 50))?;
        own.may_be_empty = false;
        Ok(())
    }
}

/// Checks the content of a file after a restart. From then on, this content counts as acknowledged.
fn check(mount: &Path, of: &mut Written, what: &str) {
    let read = |name: &String| fs::read(mount.join(name));
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for read in of.names.iter().map(read) {
        match read {
            Ok(content) => found.push(content),
            Err(error) => missing.push(error),
        }
    }
    assert!(
        found.len() == 1 || (found.is_empty() && of.content.is_empty()),
        "{what}: {:?} exist {} times; {missing:?}",
        of.names,
        found.len()
    );
    let found = found.pop().unwrap_or_default();
    let rest = found.strip_prefix(&of.content[..]);
    let is_as_written = rest.is_some_and(|rest| of.doubtful.starts_with(rest));
    let was_emptied = of.may_be_empty && of.doubtful.starts_with(&found);
    let at = found.iter().zip(&of.content).position(|(a, b)| a != b);
    assert!(
        is_as_written || was_emptied,
        "{what}: {:?} has {} bytes where {} were acknowledged and {} are in doubt; the first difference is at {at:?}",
        of.names,
        found.len(),
        of.content.len(),
        of.doubtful.len()
    );
    of.content = found;
    of.doubtful.clear();
    of.may_be_empty = false;
}

/// Whether the program has been killed.
fn is_dead(rig: &Rig) -> bool {
    let pid = rig.program.as_ref().unwrap().id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.contains("State:") || status.contains("State:\tZ") || status.contains("State:\tX")
}

#[test]
fn a_kill_at_any_step_of_a_write_loses_nothing_that_was_acknowledged_and_repeats_nothing() {
    let mut rig = Rig::plain();
    assert_eq!(rig.program.take().unwrap().stop(), Some(0));
    // One data thread makes most calls, so that their order differs little from run to run.
    rig.config = rig.config.replace("threads: 2", "threads: 1");
    rig.start();
    let mut all = Written {
        names: vec!["all.log".to_owned()],
        ..Written::default()
    };
    let mut author = Author {
        mount: rig.mount(),
        step: 0,
        acked: BTreeSet::new(),
        doubtful: BTreeSet::new(),
        unfinished: Vec::new(),
    };
    let tracer = Tracer::attach(&rig, None);
    author.work(&mut all, &mut Written::default()).unwrap();
    sleep(Duration::from_millis(300));
    tracer.detach();
    let mut steps = noted(&rig);
    assert!(steps.len() > 20, "{steps:?}");
    // In random order, because `make test` takes only some of them.
    let mut random = Random::new();
    for at in (1..steps.len()).rev() {
        steps.swap(at, random.below(at as u64 + 1) as usize);
    }
    let most = in_storm(12, 200);
    let mut kills = 0;
    for at in &steps {
        if kills == most {
            break;
        }
        author.step += 1;
        let what = format!("before {} number {}", at.0, at.1);
        let mut own = Written::default();
        let tracer = Tracer::attach(&rig, Some(at));
        let worked = author.work(&mut all, &mut own);
        // The program may be killed after its last answer.
        let waited = Instant::now();
        while !is_dead(&rig) && (worked.is_err() || waited.elapsed() < Duration::from_millis(200)) {
            assert!(waited.elapsed() < PATIENCE, "{what}: {worked:?}");
            sleep(Duration::from_millis(5));
        }
        let mut tracer = Some(tracer);
        if !is_dead(&rig) {
            tracer.take().unwrap().detach();
            // A kill that strace has begun is done by now.
            sleep(Duration::from_millis(50));
        }
        if is_dead(&rig) {
            kills += 1;
            rig.kill();
            drop(tracer);
            rig.start();
        }
        check(&rig.mount(), &mut all, &what);
        check(&rig.mount(), &mut own, &what);
        for name in &own.names {
            let _ = fs::remove_file(rig.mount().join(name));
        }
    }
    // On a busy machine, the program makes fewer calls to wake its threads, so not every step is reached.
    let all_steps = steps.len() as u64;
    assert!(kills >= most.min(all_steps / 4), "{kills} of {all_steps}");
    arrived_once(&rig, &author);
    // Another start changes nothing.
    assert_eq!(rig.program.take().unwrap().stop(), Some(0));
    rig.start();
    check(&rig.mount(), &mut all, "at the end");
    arrived_once(&rig, &author);
}

/// Checks that every acknowledged line has arrived once, and no line twice.
fn arrived_once(rig: &Rig, author: &Author) {
    let counted = || {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for line in rig.lines() {
            *counts.entry(line).or_default() += 1;
        }
        counts
    };
    wait_until("every acknowledged line has arrived", || {
        let counts = counted();
        author.acked.iter().all(|line| counts.contains_key(line))
    });
    sleep(Duration::from_millis(500));
    for (line, times) in counted() {
        assert_eq!(times, 1, "{line} came {times} times");
        let is_part = || {
            let mut parts = author.doubtful.iter();
            parts.any(|whole| whole.starts_with(&line))
        };
        assert!(
            author.doubtful.contains(&line) || is_part(),
            "{line:?} was never written"
        );
    }
    let arrived = counted();
    for part in &author.unfinished {
        let mut lines = arrived.keys();
        assert!(
            lines.any(|line| line.starts_with(part)),
            "the unfinished {part:?} is lost"
        );
    }
}
