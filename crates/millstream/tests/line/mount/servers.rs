//! Servers write their logs to the mount, and Debian's logrotate or the server's own program rotates them: the archives are the same
//! as in a plain directory, byte for byte, and every line is shipped once.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::{
    Rig,
    archives::{CHANNEL, assert_same, files},
    lines, rotated, run, sleep, wait_until,
};
use crate::program::{free_port, tree};

/// The rules in a file of Debian's logrotate, with another command that tells the server.
pub(super) fn debians_rules(file: &Path, tells: &str, by: &str) -> String {
    let rules = fs::read_to_string(file).unwrap();
    assert!(rules.contains("delaycompress") && rules.contains("sharedscripts"));
    assert!(rules.contains(tells), "{rules}");
    let (_, rules) = rules.split_once('{').unwrap();
    rules.rsplit_once('}').unwrap().0.replace(tells, by)
}

/// Whether a process has a file open whose path begins with `beginning`.
fn is_open(beginning: &Path) -> bool {
    let beginning = beginning.to_str().unwrap();
    let of = |process: PathBuf| fs::read_dir(process.join("fd")).into_iter().flatten();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut open = processes.flat_map(|process| of(process.path())).flatten();
    open.any(|descriptor| {
        let target = fs::read_link(descriptor.path());
        target.is_ok_and(|target| target.to_string_lossy().starts_with(beginning))
    })
}

/// Apache, which writes the same log to the mount and to a plain directory.
struct Apache {
    rig: Rig,
    clients: PathBuf,
    port: u16,
    requests: usize,
}

impl Apache {
    /// `log` returns the directive for the log in a directory.
    fn start(log: impl Fn(&Path, &Path) -> String) -> Self {
        let rig = Rig::new("", CHANNEL, "{.message}");
        let clients = tree().join("target/clients/apache/usr");
        let (port, plain) = (free_port(), rig.plain_directory());
        let place = rig.directory.path().display();
        let modules = clients.join("lib/apache2/modules");
        let mut text = format!(
            "ServerRoot {place}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {place}/httpd.pid\n\
             DefaultRuntimeDir {place}\nErrorLog {place}/httpd.error\nUser daemon\nGroup daemon\nMaxKeepAliveRequests 0\n\
             LogFormat \"%U %>s %b \\\"%{{User-Agent}}i\\\"\" own\n"
        );
        for module in ["mpm_event", "authz_core"] {
            let file = modules.join(format!("mod_{module}.so"));
            writeln!(text, "LoadModule {module}_module {}", file.display()).unwrap();
        }
        for directory in [&rig.mount(), &plain] {
            writeln!(text, "{}", log(&clients, directory)).unwrap();
        }
        fs::write(rig.directory.path().join("httpd.conf"), text).unwrap();
        let apache = Self {
            rig,
            clients,
            port,
            requests: 0,
        };
        run(&mut apache.command("start"));
        wait_until("Apache listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        apache
    }

    fn command(&self, does: &str) -> Command {
        let libraries = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
        let mut command = Command::new(self.clients.join("sbin/apache2"));
        command
            .env("LD_LIBRARY_PATH", self.clients.join(libraries))
            .arg("-f")
            .arg(self.rig.directory.path().join("httpd.conf"))
            .args(["-k", does]);
        command
    }

    /// Asks for pages, one after the other through one connection.
    fn ask(&mut self, count: usize) {
        let url = format!(
            "http://127.0.0.1:{}/{}/[1-{count}]",
            self.port, self.requests
        );
        run(Command::new("curl").args(["-sS", "-o", "/dev/null", &url]));
        self.requests += count;
    }

    fn stop(&self) {
        run(&mut self.command("stop"));
        let pid = self.rig.directory.path().join("httpd.pid");
        wait_until("Apache has ended", || !pid.exists());
    }
}

#[test]
fn debians_rotation_of_apache_makes_the_same_archives() {
    let mut apache =
        Apache::start(|_, directory| format!("CustomLog {}/access.log own", directory.display()));
    let (mount, plain) = (apache.rig.mount(), apache.rig.plain_directory());
    let pid = apache.rig.directory.path().join("httpd.pid");
    let rules = debians_rules(
        &tree().join("target/clients/apache/etc/logrotate.d/apache2"),
        "if pgrep -f ^/usr/sbin/apache2 > /dev/null; then\n\t\t\tinvoke-rc.d apache2 reload 2>&1 | logger -t apache2.logrotate\n\t\tfi",
        // This is what `reload` does.
        &format!("kill -USR1 $(cat {})", pid.display()),
    );
    let logs = [&mount, &plain].map(|directory| directory.join("access.log"));
    for round in 0..4 {
        apache.ask(1000);
        wait_until("the log is written", || lines(&logs[1]).len() == 1000);
        rotated::rotate_files(&apache.rig, &logs, &rules);
        let old = [&mount, &plain].map(|directory| directory.join("access.log.1"));
        wait_until("the old logs are closed", || {
            !old.iter().any(|log| is_open(log)) && logs.iter().all(|log| is_open(log))
        });
        assert_same(
            &files(&mount, true),
            &files(&plain, true),
            &format!("round {round}"),
        );
    }
    assert_eq!(files(&mount, true).len(), 5);
    let mut arrived = apache.rig.until_lines(apache.requests);
    apache.stop();
    arrived.sort_unstable();
    assert!(arrived == super::archives::lines(&plain));
}

/// All files that `rotatelogs` has made, in the order in which it made them.
fn in_order(directory: &Path) -> Vec<u8> {
    let numbered = (1..).map(|n| directory.join(format!("access.log.{n}")));
    let all = std::iter::once(directory.join("access.log")).chain(numbered);
    let contents = all.map_while(|path| fs::read(path).ok());
    contents.collect::<Vec<_>>().concat()
}

#[test]
fn logs_that_rotatelogs_of_apache_rotates_are_the_same_and_are_shipped_once() {
    // In the second case, the oldest file is truncated and used again.
    for (number, is_reused) in [(20, false), (2, true)] {
        let mut apache = Apache::start(|clients, directory| {
            format!(
                "CustomLog \"|{}/bin/rotatelogs -n {number} {}/access.log 20K\" own",
                clients.display(),
                directory.display()
            )
        });
        apache.ask(4000);
        apache.stop();
        let (mount, plain) = (apache.rig.mount(), apache.rig.plain_directory());
        wait_until("the logs are closed", || {
            !is_open(&mount.join("access")) && !is_open(&plain.join("access"))
        });
        let arrived = apache.rig.until_lines(apache.requests);
        assert_eq!(arrived.len(), apache.requests);
        let urls = arrived.iter().map(|line| line.split(' ').next().unwrap());
        let asked = (1..=4000).map(|n| format!("/0/{n}"));
        assert!(urls.eq(asked), "-n {number}: not every line once in order");
        let names = |directory: &Path| files(directory, true).into_keys().collect::<Vec<_>>();
        assert!(names(&mount).len() > 1, "nothing was rotated");
        if !is_reused {
            // A program decides when it has read a part of the log whether to rotate, so the parts can differ.
            let (ours, theirs) = (in_order(&mount), in_order(&plain));
            let at = ours.iter().zip(&theirs).position(|(a, b)| a != b);
            assert!(
                ours == theirs,
                "{} and {} bytes, different from byte {at:?}; files {:?} and {:?}",
                ours.len(),
                theirs.len(),
                names(&mount),
                names(&plain)
            );
            assert_eq!(in_order(&mount).len(), arrived.join("\n").len() + 1);
        }
    }
}

/// rsyslogd, which writes what it receives over TCP to the mount and to a plain directory.
struct Rsyslog {
    child: Child,
    pid: PathBuf,
    port: u16,
    sent: usize,
}

impl Rsyslog {
    /// `actions` returns the action for a directory.
    fn start(rig: &Rig, action: impl Fn(&Path) -> String) -> Self {
        let (place, port) = (rig.directory.path(), free_port());
        let mut text = format!(
            "global(workDirectory=\"{}\")\nmodule(load=\"imptcp\")\ninput(type=\"imptcp\" address=\"127.0.0.1\" port=\"{port}\")\n\
             $ActionFileDefaultTemplate RSYSLOG_TraditionalFileFormat\n$FileOwner root\n$FileGroup adm\n$FileCreateMode 0640\n\
             $DirCreateMode 0755\n$Umask 0022\n",
            place.display()
        );
        for directory in [rig.mount(), rig.plain_directory()] {
            writeln!(text, "{}", action(&directory)).unwrap();
        }
        let config = place.join("rsyslog.conf");
        fs::write(&config, text).unwrap();
        let pid = place.join("rsyslog.pid");
        let mut command = Command::new("/usr/sbin/rsyslogd");
        command.arg("-n").arg("-f").arg(&config).arg("-i").arg(&pid);
        let output = fs::File::create(place.join("rsyslog.log")).unwrap();
        let command = command.stdin(Stdio::null()).stderr(output);
        let child = command
            .spawn()
            .expect("rsyslogd is missing: run `make deps`");
        wait_until("rsyslogd listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok() && pid.exists()
        });
        let sent = 0;
        Self {
            child,
            pid,
            port,
            sent,
        }
    }

    fn send(&mut self, count: usize) {
        let mut text = String::new();
        for n in self.sent..self.sent + count {
            let filler = "x".repeat(n * 7919 % 113);
            writeln!(text, "<13>Nov 28 12:00:00 here app[7]: {n} {filler}").unwrap();
        }
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        self.sent += count;
    }
}

impl Drop for Rsyslog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that every message has arrived once and in order.
fn assert_messages(rig: &Rig, count: usize) {
    let arrived = rig.until_lines(count);
    let number = |line: &String| line.split(' ').nth(5).unwrap().parse().unwrap();
    let numbers: Vec<usize> = arrived.iter().map(number).collect();
    assert!(numbers == (0..count).collect::<Vec<_>>());
}

#[test]
fn debians_rotation_of_rsyslog_makes_the_same_archives() {
    let ways: [fn(&Path) -> String; 3] = [
        // This is Debian's configuration.
        |to| format!("*.*;auth,authpriv.none\t-{}/syslog", to.display()),
        |to| {
            let buffer =
                "asyncWriting=\"on\" ioBufferSize=\"8k\" flushOnTXEnd=\"off\" flushInterval=\"1\"";
            format!(
                "*.* action(type=\"omfile\" file=\"{}/syslog\" {buffer})",
                to.display()
            )
        },
        // Each message syncs the file.
        |to| {
            format!(
                "*.* action(type=\"omfile\" file=\"{}/syslog\" sync=\"on\")",
                to.display()
            )
        },
    ];
    for (way, action) in ways.into_iter().enumerate() {
        let rig = Rig::new("", CHANNEL, "{.message}");
        let (mount, plain) = (rig.mount(), rig.plain_directory());
        let mut rsyslog = Rsyslog::start(&rig, action);
        let hangs_up = format!("kill -HUP $(cat {})", rsyslog.pid.display());
        let script = "/usr/lib/rsyslog/rsyslog-rotate";
        let rules = debians_rules(Path::new("/etc/logrotate.d/rsyslog"), script, &hangs_up);
        let logs = [&mount, &plain].map(|directory| directory.join("syslog"));
        for round in 0..4 {
            rsyslog.send(3000);
            wait_until("the logs are written", || {
                logs.iter().all(|log| lines(log).len() == 3000)
            });
            rotated::rotate_files(&rig, &logs, &rules);
            wait_until("the old logs are closed", || {
                !logs.iter().any(|log| is_open(log))
            });
            let what = format!("way {way}, round {round}");
            assert_same(&files(&mount, true), &files(&plain, true), &what);
        }
        assert_eq!(files(&mount, true).len(), 4);
        assert_messages(&rig, rsyslog.sent);
    }
}

#[test]
fn logs_that_rsyslog_rotates_itself_are_the_same() {
    let rig = Rig::new("", CHANNEL, "{.message}");
    let (mount, plain) = (rig.mount(), rig.plain_directory());
    let script = rig.directory.path().join("rotate.sh");
    fs::write(
        &script,
        "#!/bin/sh\nn=$(ls $1* | wc -l)\nmv $1 $1.$n\ngzip -c < $1.$n > $1.$n.gz\nrm $1.$n\n",
    )
    .unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, executable).unwrap();
    let mut rsyslog = Rsyslog::start(&rig, |to| {
        format!(
            "*.* action(type=\"omfile\" file=\"{0}/syslog\" rotation.sizeLimit=\"30000\" rotation.sizeLimitCommand=\"{1} {0}/syslog\")",
            to.display(),
            script.display()
        )
    });
    rsyslog.send(5000);
    assert_messages(&rig, rsyslog.sent);
    let total = |directory: &Path| super::archives::lines(directory).len();
    wait_until("all is written", || {
        total(&plain) == 5000 && total(&mount) == 5000
    });
    sleep(Duration::from_millis(300));
    assert!(files(&mount, true).len() > 3, "nothing was rotated");
    assert_same(&files(&mount, true), &files(&plain, true), "rsyslog");
    assert_eq!(rig.lines().len(), rsyslog.sent);
}
