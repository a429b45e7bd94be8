//! Multi-line records that several programs write in pieces at the same time, also while Millstream is killed.

use super::*;

/// A mount whose lines are joined into records, which are written to a file as JSON. `start` matches the first line of a record.
fn joining(start: &str, wait: &str) -> Rig {
    let framing = format!("framing: {{ multiline: {{ start: '{start}', wait: {wait} }} }}");
    let channel = "size_max: 256MiB, sync: 1s";
    Rig::writing("format: json, add: {}", &framing, channel)
}

impl Rig {
    fn messages(&self) -> Vec<String> {
        let message = |line: String| {
            let record: serde_json::Value = serde_json::from_str(&line).unwrap();
            record["message"].as_str().unwrap().to_owned()
        };
        self.lines().into_iter().map(message).collect()
    }

    fn until_messages(&self, count: usize) -> Vec<String> {
        self.until_lines(count);
        self.messages()
    }
}

/// A program with Log4j2, whose unusually small buffer makes it write in pieces of 37 bytes. Every thread has its own
/// appender, and all appenders write to one file.
const TRACES: &str = r#"
import org.apache.logging.log4j.*;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.logging.log4j.core.config.builder.api.*;

public final class Traces {
    static void fail(int depth, int n) {
        if (depth > 0) {
            fail(depth - 1, n);
            return;
        }
        throw new IllegalStateException("of " + n, new RuntimeException("below\n\n  and behind"));
    }

    public static void main(String[] arguments) throws Exception {
        ConfigurationBuilder<?> builder = ConfigurationBuilderFactory.newConfigurationBuilder();
        for (int thread = 0; thread < 4; thread++) {
            builder.add(builder.newAppender("to" + thread, "File")
                .addAttribute("fileName", "./" + "././".repeat(thread) + "app.log")
                .addAttribute("bufferSize", 37)
                .add(builder.newLayout("PatternLayout").addAttribute("pattern", "%d{yyyy-MM-dd HH:mm:ss,SSS} %p %m%n%ex")));
            builder.add(builder.newLogger("log" + thread, Level.INFO)
                .add(builder.newAppenderRef("to" + thread)).addAttribute("additivity", false));
        }
        builder.add(builder.newRootLogger(Level.OFF));
        Configurator.initialize(builder.build());
        Thread[] threads = new Thread[4];
        for (int thread = 0; thread < 4; thread++) {
            Logger log = LogManager.getLogger("log" + thread);
            String name = "java" + thread;
            threads[thread] = new Thread(() -> {
                for (int n = 0; n < 200; n++) {
                    try {
                        fail(n % 30, n);
                    } catch (IllegalStateException e) {
                        log.error("{} {} has failed", name, n, e);
                    }
                }
            });
            threads[thread].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.in.read();
        LogManager.shutdown();
    }
}
"#;

#[test]
fn every_stack_trace_of_several_writers_is_one_record() {
    let rig = joining(r"^\d{4}-\d\d-\d\d \d\d:", "1m");
    let source = rig.directory.path().join("Traces.java");
    fs::write(&source, TRACES).unwrap();
    let classes = tree().join("target/clients/java/target/dependency/*");
    let mut java = rig.command("java");
    java.arg("-cp").arg(classes).arg(&source);
    // Meanwhile, another program writes to the same file, in pieces that end within lines.
    let script = "import os
file = os.open('app.log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for n in range(200):
    text = b'2026-01-02 03:04:05,678 ERROR python %d has failed\\n' % n
    text += b''.join(b'    at line(%d)\\n' % line for line in range(n % 20 + 1))
    while text:
        end = os.write(file, text[:n % 23 + 1])
        text = text[end:]
input()
";
    let mut python = rig.command("python3");
    python.args(["-c", script]);
    let mut writers =
        [java, python].map(|mut writer| writer.stdin(Stdio::piped()).spawn().unwrap());
    // All but the last record of each writer arrive while the writers have the file open.
    assert_eq!(rig.until_messages(5 * 199).len(), 5 * 199);
    for writer in &mut writers {
        writer.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(writer.wait().unwrap().success());
    }
    let traces = rig.until_messages(5 * 200);
    assert_eq!(traces.len(), 5 * 200);
    let mut heads = Vec::new();
    for trace in &traces {
        let (head, lines) = trace.split_once('\n').unwrap();
        let words: Vec<_> = head.split(' ').skip(3).take(2).collect();
        let number: usize = words[1].parse().unwrap();
        heads.push(words.join(" "));
        if words[0] == "python" {
            let lines: Vec<_> = lines.lines().collect();
            let expected: Vec<_> = (0..=number % 20)
                .map(|line| format!("    at line({line})"))
                .collect();
            assert_eq!(lines, expected);
            continue;
        }
        assert!(
            lines.starts_with(&format!("java.lang.IllegalStateException: of {number}\n")),
            "{trace}"
        );
        assert_eq!(
            lines.matches("\tat Traces.fail").count(),
            number % 30 + 1,
            "{trace}"
        );
        assert_eq!(
            lines
                .matches("Caused by: java.lang.RuntimeException: below\n\n  and behind\n")
                .count(),
            1,
            "{trace}"
        );
        assert!(lines.trim_end().ends_with(" more"), "{trace}");
    }
    let writers = by_writer(&heads);
    assert_eq!(writers.len(), 5);
    for numbers in writers.values() {
        assert_eq!(*numbers, (0..200).collect::<Vec<_>>());
    }
}

#[test]
fn joined_lines_arrive_once_despite_kills() {
    // Every tenth line begins a record. Sometimes a writer pauses until its record is sent although the next one has not begun.
    let rig = joining(r"^w\d+ \d*0 ", "150ms");
    let script = WRITER.replace(
        "    n += 1\n",
        "    n += 1\n        if n % 150 == 0: time.sleep(0.3)\n",
    );
    assert_ne!(script, WRITER);
    let lines = |rig: &Rig| {
        let messages = rig.messages();
        for message in &messages {
            // Only the first line of a record matches `start`, and all lines have the same writer. If a kill or a pause divided the
            // last line within its number, no space follows the number.
            let mut lines = message
                .lines()
                .map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
            let first = lines.next().unwrap();
            for other in lines {
                assert_eq!(first[0], other[0], "{message}");
                assert!(other.len() < 3 || !other[1].ends_with('0'), "{message}");
            }
        }
        let lines = messages.iter().flat_map(|message| message.split('\n'));
        lines.map(str::to_owned).collect()
    };
    eight_writers_and_kills(rig, &script, lines);
}

#[test]
fn a_record_is_sent_after_a_while_and_one_that_a_kill_divides_is_not_lost() {
    let mut rig = joining("^[0-9]", "1s");
    let mut file = fs::File::options()
        .append(true)
        .create(true)
        .open(rig.mount().join("f"))
        .unwrap();
    file.write_all(b"1 one\n  at a\n").unwrap();
    file.write_all(b"  at b\n  at").unwrap();
    sleep(Duration::from_millis(300));
    assert!(rig.messages().is_empty());
    let waits = Instant::now();
    assert_eq!(rig.until_messages(1), ["1 one\n  at a\n  at b"]);
    assert!(waits.elapsed() < PATIENCE);
    file.write_all(b" c\n2 two\n  at d\n  a").unwrap();
    rig.kill();
    rig.start();
    let arrived = rig.until_messages(3);
    assert_eq!(arrived[..2], ["1 one\n  at a\n  at b", "  at c"]);
    assert_eq!(arrived[2..], ["2 two\n  at d\n  a"]);
}
