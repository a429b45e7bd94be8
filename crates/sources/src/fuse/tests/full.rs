//! Tests that a full channel hurts only the programs that write.

use std::{
    fs::File,
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    process::{Child, ExitStatus},
    sync::mpsc,
};

use super::*;

/// Sends a signal to a process.
fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([name, &id]).status();
    assert!(sent.unwrap().success());
}

/// The exit status of a child that ends within the time. A child that hangs cannot be killed, so the channel gets space first.
fn ends(rig: &Rig, child: &mut Child, what: &str) -> ExitStatus {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            rig.downstream.set_full(false);
            rig.downstream.settle();
            child.wait().unwrap();
            panic!("it hangs behind the blocked write: {what}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Rig {
    /// Starts a shell in the mount.
    fn shell(&self, script: &str) -> Child {
        let mut command = Command::new("bash");
        let command = command.args(["-c", script]).current_dir(self.mount());
        command.stderr(Stdio::null()).spawn().unwrap()
    }

    /// Runs a shell in the mount, which must end although a write is blocked. Returns whether it was successful.
    fn shell_ends(&self, script: &str) -> bool {
        ends(self, &mut self.shell(script), script).success()
    }
}

/// Waits until a child sleeps in a write.
fn until_it_writes(child: &Child) {
    let path = format!("/proc/{}/syscall", child.id());
    // The number of the system call write, as the architecture has it.
    let writes = if cfg!(target_arch = "x86_64") {
        "1"
    } else {
        "64"
    };
    until("it writes", || {
        let call = fs::read_to_string(&path).unwrap_or_default();
        call.split(' ').next() == Some(writes)
    });
}

#[test]
fn a_blocked_writer_that_has_a_signal_to_handle_ends_at_a_fatal_signal() {
    let rig = Rig::new(Downstream::durable(), "");
    rig.downstream.hold();
    // Shells ignore SIGINT in background jobs, and `nohup` ignores SIGHUP.
    for (fatal, number) in [("-TERM", 15), ("-ABRT", 6), ("-ALRM", 14)] {
        let mut child = rig.shell("ulimit -c 0; trap : USR1; trap '' USR2; echo one > f");
        until_it_writes(&child);
        signal(&child, "-USR1");
        signal(&child, "-USR2");
        thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none());
        signal(&child, fatal);
        let status = ends(&rig, &mut child, fatal);
        assert_eq!(status.signal(), Some(number), "{fatal}");
    }
    // A signal that the program blocks, ignores or handles does not end the wait.
    let mut child = rig.shell("trap : USR1 TERM; trap '' INT; echo one > f");
    until_it_writes(&child);
    for one in ["-USR1", "-TERM", "-INT", "-CHLD", "-TSTP", "-CONT"] {
        signal(&child, one);
    }
    thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    rig.downstream.settle();
    assert!(ends(&rig, &mut child, "it has space").success());
}

#[test]
fn names_attributes_and_reads_of_a_file_do_not_wait_behind_its_blocked_write() {
    for downstream in [Downstream::durable(), Downstream::memory()] {
        let rig = Rig::new(downstream, "");
        rig.append("f").write_all(b"first\n").unwrap();
        rig.append("other").write_all(b"other\n").unwrap();
        let inode = fs::metadata(rig.path("f")).unwrap().ino();
        rig.downstream.set_full(true);
        let mut writer = rig.shell("exec echo blocked >> f");
        until_it_writes(&writer);
        assert!(rig.shell_ends("mv f g && ls -l && test ! -e f && test -e g"));
        assert_eq!(fs::metadata(rig.path("g")).unwrap().ino(), inode);
        assert!(rig.shell_ends("head -n 1 g | grep -qx first && tail -n 2 g | grep -q first"));
        assert!(rig.shell_ends("chmod 600 g && touch -d @1 g && stat -c %a g | grep -qx 600"));
        assert!(
            rig.shell_ends("mv other g2 && mv g2 g3 && rm g3 && mkdir d && mv g d/g && mv d e")
        );
        // Another program that appends is blocked, too, and does not block the names either.
        let mut second = rig.shell("exec echo second >> e/g");
        until_it_writes(&second);
        assert!(rig.shell_ends("mv e/g h && truncate -s 0 h && echo x | cat && mv h i"));
        // The file is replaced, and then removed.
        assert!(rig.shell_ends("touch j && mv j i && rm i && ls | grep -qx e && rmdir e"));
        rig.downstream.set_full(false);
        assert!(ends(&rig, &mut writer, "it has space").success());
        assert!(ends(&rig, &mut second, "it has space").success());
        until("all lines are there", || rig.lines().len() == 4);
        let mut lines = rig.lines();
        lines.sort();
        assert_eq!(lines, ["blocked", "first", "other", "second"]);
    }
}

#[test]
fn a_file_that_was_blocked_is_one_file_again() {
    let rig = Rig::new(Downstream::durable(), "");
    let mut file = rig.append("f");
    rig.downstream.set_full(true);
    let mut blocked = file.try_clone().unwrap();
    let writes = thread::spawn(move || blocked.write_all(b"blocked\n"));
    thread::sleep(Duration::from_millis(100));
    let mut other = rig.append("f");
    rig.downstream.set_full(false);
    writes.join().unwrap().unwrap();
    other.write_all(b"other\n").unwrap();
    file.write_all(b"last\n").unwrap();
    assert_eq!(fs::metadata(rig.path("f")).unwrap().len(), 19);
    let text = fs::read_to_string(rig.path("f")).unwrap();
    assert_eq!(text, "blocked\nother\nlast\n");
    assert_eq!(rig.lines(), ["blocked", "other", "last"]);
    drop((file, other));
    let mut again = rig.append("f");
    again.write_all(b"again\n").unwrap();
    assert_eq!(fs::metadata(rig.path("f")).unwrap().len(), 25);
}

#[test]
fn a_write_waits_for_space_for_as_long_as_when_full_says() {
    for downstream in [Downstream::durable(), Downstream::memory()] {
        let rig = Rig::new(downstream, r#", "when_full": { "block": "2s" }"#);
        let mut file = rig.append("f");
        file.write_all(b"kept\n").unwrap();
        let before = fs::metadata(rig.path("f")).unwrap();
        rig.downstream.set_full(true);
        let began = Instant::now();
        let refused = file.write_all(b"refused\n").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        let waited = began.elapsed();
        assert!((2..8).contains(&waited.as_secs()), "{waited:?}");
        // The refused write does not count.
        let after = fs::metadata(rig.path("f")).unwrap();
        assert_eq!(after.len(), 5);
        assert_eq!(after.modified().unwrap(), before.modified().unwrap());
        assert_eq!(rig.running.as_ref().unwrap().meter("writes_refused"), 1);
        // There is space again in time.
        let full = rig.downstream.clone();
        let frees = thread::spawn(move || {
            thread::sleep(Duration::from_millis(1200));
            full.set_full(false);
        });
        file.write_all(b"later\n").unwrap();
        frees.join().unwrap();
        assert_eq!(rig.lines(), ["kept", "later"]);
        assert_eq!(rig.running.as_ref().unwrap().meter("records_dropped"), 0);
    }
    let problem = |options: &str| try_build(&COMPONENT, options).err().unwrap().join("\n");
    assert!(!problem(r#"{"mount": "m", "when_full": { "block": "soon" }}"#).is_empty());
    assert!(!problem(r#"{"mount": "m", "when_full": "never"}"#).is_empty());
}

#[test]
fn a_batch_whose_write_was_refused_is_not_kept_later() {
    let rig = Rig::new(
        Downstream::durable(),
        r#", "when_full": { "block": "500ms" }"#,
    );
    let mut file = rig.append("f");
    file.write_all(b"AAA").unwrap();
    // The write begins while there is still space, and the channel takes the batch.
    rig.downstream.hold();
    let mut clone = file.try_clone().unwrap();
    let writes = thread::spawn(move || clone.write_all(b"refused\nrest"));
    until("it is there", || !rig.lines().is_empty());
    rig.downstream.choke_held();
    let refused = writes.join().unwrap().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    rig.downstream.settle();
    assert!(rig.lines().is_empty());
    assert_eq!(rig.left(), ["AAA"]);
    file.write_all(b"BBB\n").unwrap();
    assert_eq!(rig.lines(), ["AAABBB"]);
}

#[test]
fn df_shows_how_full_the_fullest_channel_is() {
    let (downstream, beside) = (Downstream::durable(), Downstream::durable());
    downstream.set_beside(Some(&beside));
    let rig = Rig::new(downstream, "");
    let free = || {
        let shown = rustix::fs::statvfs(rig.mount()).unwrap();
        (
            shown.f_blocks * shown.f_frsize,
            shown.f_bavail * shown.f_frsize,
        )
    };
    assert_eq!(free(), (1 << 40, 1 << 40));
    rig.downstream.set_space(1 << 20, 64 << 20);
    assert_eq!(free(), (64 << 20, 63 << 20));
    beside.set_space(8 << 20, 16 << 20);
    assert_eq!(free(), (16 << 20, 8 << 20));
    rig.downstream.set_space(64 << 20, 64 << 20);
    assert_eq!(free(), (64 << 20, 0));
}

#[test]
fn a_stop_answers_blocked_writers_immediately_and_loses_nothing_of_them() {
    for durable in [true, false] {
        let downstream = match durable {
            true => Downstream::durable(),
            false => Downstream::memory(),
        };
        let mut rig = Rig::new(downstream, "");
        let mut first = rig.append("first");
        first.write_all(b"kept\n").unwrap();
        let answers = mpsc::sync_channel(8);
        let blocks = |file: &File| {
            let (mut file, answer) = (file.try_clone().unwrap(), answers.0.clone());
            thread::spawn(move || answer.send(file.write_all(b"refused\n")).unwrap());
        };
        let second = rig.append("second");
        if durable {
            // The channel takes this write, and then has no space to keep it.
            rig.downstream.hold();
            blocks(&first);
            until("it is there", || rig.lines().len() == 2);
            rig.downstream.choke_held();
        }
        rig.downstream.set_full(true);
        blocks(&second);
        thread::sleep(Duration::from_millis(100));
        let mut killed = rig.shell("exec echo killed > third");
        until_it_writes(&killed);
        signal(&killed, "-KILL");
        let meters = rig.running.as_ref().unwrap().meters.clone();
        let running = rig.running.take().unwrap();
        let began = Instant::now();
        let stops = thread::spawn(move || running.stop());
        for _ in 0..1 + usize::from(durable) {
            let answer = answers.1.recv_timeout(Duration::from_secs(5)).unwrap();
            assert_eq!(answer.unwrap_err().raw_os_error(), Some(5));
        }
        assert!(began.elapsed() < Duration::from_secs(5));
        stops.join().unwrap();
        killed.wait().unwrap();
        rig.downstream.set_full(false);
        rig.downstream.settle();
        assert_eq!(rig.lines(), ["kept"]);
        assert_eq!(meters.value("source", "records_dropped"), 0);
    }
}
