//! Sessions as librelp writes them, and properties that hold for any input.

use proptest::prelude::*;

use super::*;

/// The `open` of librelp 1.11.
const OPEN: &str = "1 open 86 relp_version=0\nrelp_software=librelp,1.11.0,http://librelp.adiscon.com\ncommands=syslog\n";

/// The frames of a session: (number, command, data, whether the data were read in parts).
type Seen = Vec<(u32, Command, Vec<u8>, bool)>;

fn read<'a>(
    bytes_max: usize,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Seen, Result<bool, Refusal>) {
    let mut decoder = Decoder::new(bytes_max);
    let (mut seen, mut waiting, mut long) = (Seen::new(), Vec::new(), Vec::new());
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            let (consumed, step) = match decoder.next(&waiting) {
                Ok(next) => next,
                Err(refusal) => return (seen, Err(refusal)),
            };
            match step {
                Step::More => {
                    waiting.drain(..consumed);
                    break;
                }
                Step::Frame {
                    number,
                    command,
                    data,
                } => {
                    seen.push((number, command, waiting[data].to_vec(), false));
                }
                Step::Part { number, data, last } => {
                    assert!(data.len() <= bytes_max);
                    long.extend_from_slice(&waiting[data]);
                    if last {
                        seen.push((number, Command::Syslog, std::mem::take(&mut long), true));
                    }
                }
            }
            waiting.drain(..consumed);
        }
    }
    let amid = decoder.is_amid(waiting.len());
    (seen, Ok(amid))
}

#[test]
fn a_session_of_librelp_is_read_to_its_end() {
    let text =
        format!("{OPEN}2 syslog 9 <13>msg-0\n3 syslog 9 <13>msg1\n\n4 syslog 0\n5 close 0\n");
    let (seen, end) = read(1000, [text.as_bytes()]);
    assert_eq!(end, Ok(false));
    let data: Vec<_> = seen
        .iter()
        .map(|(number, command, data, _)| (*number, *command, str::from_utf8(data).unwrap()))
        .collect();
    let offers = Offers::read(data[0].2.as_bytes());
    assert!(offers.version && offers.syslog);
    assert_eq!(
        data[1..],
        [
            (2, Command::Syslog, "<13>msg-0"),
            (3, Command::Syslog, "<13>msg1\n"),
            (4, Command::Syslog, ""),
            (5, Command::Close, ""),
        ]
    );
}

#[test]
fn a_violation_of_the_protocol_ends_the_session() {
    let end = |text: &str| read(20, [format!("{OPEN}{text}").as_bytes()]).1;
    assert_eq!(
        end("3 syslog 1 x\n"),
        Err(Refusal::Number {
            got: 3,
            expected: 2
        })
    );
    assert_eq!(end("2 open 0\n"), Err(Refusal::Open));
    assert_eq!(end("2 syslog 1 xy"), Err(Refusal::NoFrame));
    assert_eq!(end("2 syslog 1234567890 x"), Err(Refusal::NoFrame));
    assert_eq!(end("x"), Err(Refusal::NoFrame));
    assert_eq!(end("2 sys-log 1 x\n"), Err(Refusal::NoFrame));
    assert_eq!(end("2 starttls 99999 x"), Err(Refusal::TooLong));
    assert_eq!(end("2 starttls 1 x\n"), Ok(false));
    assert_eq!(end("2 syslog 5 x"), Ok(true));
    assert_eq!(read(20, [&b"1 syslog 1 x\n"[..]]).1, Err(Refusal::Open));
    assert_eq!(
        read(20, [&b"<13>Oct 11 22:14:15 no RELP\n"[..]]).1,
        Err(Refusal::NoFrame)
    );
}

#[test]
fn a_long_message_is_read_in_parts() {
    let message = "x".repeat(99);
    let text = format!("{OPEN}2 syslog 99 {message}\n3 syslog 1 y\n");
    let (seen, end) = read(10, text.as_bytes().chunks(3));
    assert_eq!(end, Ok(false));
    assert_eq!(seen[1], (2, Command::Syslog, message.into_bytes(), true));
    assert_eq!(seen[2], (3, Command::Syslog, b"y".to_vec(), false));
}

#[test]
fn answers_have_the_format_that_librelp_reads() {
    let mut out = Vec::new();
    accept(1, &mut out);
    acknowledge(2, &mut out);
    acknowledge(999_999_999, &mut out);
    refuse(3, "no", &mut out);
    closed(4, &mut out);
    let text = String::from_utf8(out).unwrap();
    let (open, rest) = text.split_at(text.find("commands=syslog\n").unwrap() + 16);
    let data = open.trim_end().splitn(4, ' ').last().unwrap();
    assert!(open.starts_with(&format!("1 rsp {} ", data.len())));
    assert!(data.starts_with("200 OK\nrelp_version=0\nrelp_software=millstream,"));
    assert_eq!(
        rest,
        "2 rsp 6 200 OK\n999999999 rsp 6 200 OK\n3 rsp 6 500 no\n4 rsp 0\n0 serverclose 0\n"
    );
    assert_eq!([after(0), after(1), after(999_999_999)], [1, 2, 1]);
}

proptest! {
    #[test]
    fn any_split_of_a_session_gives_the_same_frames(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        noise in prop::option::of(("[0-9a-z \n]{0,9}", any::<prop::sample::Index>())),
        bytes_max in prop::sample::select(vec![1_usize, 7, 1000]),
    ) {
        let mut input = OPEN.as_bytes().to_vec();
        for (message, number) in messages.iter().zip(2..) {
            let space = if message.is_empty() { "" } else { " " };
            input.extend_from_slice(format!("{number} syslog {}{space}", message.len()).as_bytes());
            input.extend_from_slice(message);
            input.push(b'\n');
        }
        if let Some((noise, at)) = &noise {
            let at = at.index(input.len());
            input.splice(at..at, noise.bytes());
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(input.len());
        let mut from = 0;
        let pieces: Vec<&[u8]> = cuts.into_iter().map(|to| &input[std::mem::replace(&mut from, to)..to]).collect();
        let whole = read(bytes_max, [&input[..]]);
        prop_assert_eq!(&read(bytes_max, pieces), &whole);
        prop_assert_eq!(&read(bytes_max, input.chunks(1)), &whole);
        if noise.is_none() {
            let data: Vec<_> = whole.0.into_iter().skip(1).map(|(_, _, data, _)| data).collect();
            prop_assert_eq!((data, whole.1), (messages, Ok(false)));
        }
    }
}
