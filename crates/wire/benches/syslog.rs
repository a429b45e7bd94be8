//! Speed of decoding syslog messages: `cargo bench -p millstream-wire --bench syslog`. Prints nanoseconds per
//! message of 300 bytes, for a read buffer that stays in the cache. The fastest of nine rounds counts, because other
//! work on the machine only makes rounds slower.

use std::{hint::black_box, time::Instant};

use millstream_record::Time;
use millstream_wire::syslog::{After, Decoder, Framing, Received, Settings, TimeZone, TooLong};

/// Size of the read buffer.
const STASH_BYTES: usize = 64 << 10;
/// Length of a message with the newline that ends it.
const MESSAGE_BYTES: usize = 300;
/// Passes over the buffer in each round.
const LAPS: usize = 500;
/// 2026-11-21T06:40:31Z
const NOW: Time = Time(1_795_243_231_000_000_000);

fn messages(head: impl Fn(usize) -> String, octets: bool) -> (Vec<u8>, u32) {
    let (mut out, mut count) = (Vec::new(), 0);
    while out.len() < STASH_BYTES - 2 * MESSAGE_BYTES {
        let head = head(count as usize);
        let text = "x".repeat(MESSAGE_BYTES - 1 - head.len());
        let message = if octets {
            format!("{} {head}{text}", head.len() + text.len())
        } else {
            format!("{head}{text}\n")
        };
        out.extend_from_slice(message.as_bytes());
        count += 1;
    }
    (out, count)
}

fn older(_: usize) -> String {
    "<13>Nov 21 06:40:31 hammer-0001 bench[4242]: ".to_owned()
}

/// The header of a message from one of many senders: adjacent messages differ in their header fields.
fn mixed(n: usize) -> String {
    let (host, app) = (HOSTS[n % HOSTS.len()], APPS[n % APPS.len()]);
    let (second, id) = (28 + n * 7 % 4, n * 7919 % 60_000);
    format!("<13>Nov 21 06:40:{second} {host} {app}[{id}]: ")
}

const HOSTS: [&str; 4] = ["web-1", "db.example.net", "10.1.2.3", "gateway-eu-west-1"];
const APPS: [&str; 3] = ["sshd", "systemd-logind", "postfix/smtpd"];

fn iso(n: usize) -> String {
    format!("<13>2026-11-21T06:40:31.{n:06}+00:00 hammer-0001 bench[4242]: ")
}

fn newer(n: usize) -> String {
    format!("<13>1 2026-11-21T06:40:31.{n:06}Z hammer-0001 bench 4242 ID47 - ")
}

fn newer_mixed(n: usize) -> String {
    let (host, app) = (HOSTS[n % HOSTS.len()], APPS[n % APPS.len()]);
    let (second, id) = (28 + n * 7 % 4, n * 7919 % 60_000);
    format!("<13>1 2026-11-21T06:40:{second}.{n:06}+01:00 {host} {app} {id} ID47 - ")
}

fn same_data(n: usize) -> String {
    format!(
        "<13>1 2026-11-21T06:40:31.{n:06}Z hammer-0001 bench 4242 ID47 [gen@32473 flow=\"0001\"] "
    )
}

fn structured(n: usize) -> String {
    format!(
        "<13>1 2026-11-21T06:40:31.{n:06}Z hammer-0001 bench 4242 ID47 [gen@32473 flow=\"0001\" n=\"{n}\"] "
    )
}

/// The name of the case, the function that returns the header of the n-th message, and whether messages are framed by
/// octet counts.
type Row = (&'static str, fn(usize) -> String, bool);

#[allow(clippy::print_stdout)]
fn main() {
    let rows: [Row; 8] = [
        ("RFC 3164, lines", older, false),
        ("RFC 3164, octets", older, true),
        ("RFC 3164, lines, many senders", mixed, false),
        ("RFC 3339 time, lines", iso, false),
        ("RFC 5424, lines", newer, false),
        ("RFC 5424, lines, many senders", newer_mixed, false),
        ("RFC 5424 with the same data, lines", same_data, false),
        ("RFC 5424 with other data, lines", structured, false),
    ];
    for (name, head, octets) in rows {
        let (input, count) = messages(head, octets);
        let from = Received {
            now: NOW,
            host: b"peer",
            peer: None,
        };
        let mut decoder = Decoder::new(Settings {
            framing: Framing::Auto,
            bytes_max: 1 << 20,
            too_long: TooLong::Split,
            strict: false,
            zone: TimeZone::UTC,
        });
        let mut batch = Vec::with_capacity(4 * STASH_BYTES);
        let times = (0..9).map(|_| {
            let start = Instant::now();
            for _ in 0..LAPS {
                batch.clear();
                let run = decoder.run(
                    black_box(&input),
                    After::Quiet,
                    &from,
                    &mut batch,
                    usize::MAX,
                );
                assert_eq!((run.records, run.bare), (count, 0));
                black_box(&batch);
            }
            start.elapsed().as_secs_f64() * 1e9 / (count as usize * LAPS) as f64
        });
        let least = times.fold(f64::MAX, f64::min);
        println!("{name}: {least:.0} ns a message");
    }
}
