use millstream_record::Time;
use proptest::prelude::*;
use rmpv::Value;

use super::{
    handshake::{PROTOCOL, PROTOCOL_HASH},
    *,
};
use crate::avro::{ReadError, Reader};

/// MD5 of the protocol's text as Flume 1.9 and 1.11 print it.
const FLUME: [u8; 16] = 0x86aa_dae2_c454_74c0_fe93_ffd0_f235_0a65_u128.to_be_bytes();
const RECEIVED: Time = Time(1_600_000_000_000_000_007);
const LIMIT: usize = 1 << 20;

type Event = (Vec<(String, String)>, Vec<u8>);

fn event(headers: &[(&str, &str)], body: &[u8]) -> Event {
    let owned = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    (owned.collect(), body.to_vec())
}

fn write_event(out: &mut Vec<u8>, (headers, body): &Event, sized: bool) {
    if !headers.is_empty() {
        let mut pairs = Vec::new();
        for (name, value) in headers {
            write_bytes(&mut pairs, name.as_bytes());
            write_bytes(&mut pairs, value.as_bytes());
        }
        let count = headers.len() as i64;
        if sized {
            write_long(out, -count);
            write_long(out, pairs.len() as i64);
        } else {
            write_long(out, count);
        }
        out.extend_from_slice(&pairs);
    }
    out.push(0);
    write_bytes(out, body);
}

fn handshake(hash: [u8; 16], text: Option<&str>) -> Vec<u8> {
    let mut out = hash.to_vec();
    match text {
        None => out.push(0),
        Some(text) => {
            out.push(2);
            write_bytes(&mut out, text.as_bytes());
        }
    }
    out.extend_from_slice(&FLUME);
    out.push(0);
    out
}

/// A call without its handshake.
fn batch(events: &[Event], sized: bool) -> Vec<u8> {
    let mut out = vec![0];
    write_bytes(&mut out, b"appendBatch");
    if !events.is_empty() {
        write_long(&mut out, events.len() as i64);
        events
            .iter()
            .for_each(|event| write_event(&mut out, event, sized));
    }
    out.push(0);
    out
}

fn append(event: &Event) -> Vec<u8> {
    let mut out = vec![0];
    write_bytes(&mut out, b"append");
    write_event(&mut out, event, false);
    out
}

/// A frame whose call is divided into buffers of `size` bytes.
fn frame(serial: u32, call: &[u8], size: usize) -> Vec<u8> {
    let buffers: Vec<&[u8]> = call.chunks(size).collect();
    let mut out = serial.to_be_bytes().to_vec();
    out.extend_from_slice(&(buffers.len() as u32).to_be_bytes());
    for buffer in buffers {
        out.extend_from_slice(&(buffer.len() as u32).to_be_bytes());
        out.extend_from_slice(buffer);
    }
    out
}

/// The result of a call, as a server sees it.
#[derive(Debug, PartialEq)]
struct Answered {
    serial: u32,
    handshake: Vec<u8>,
    result: Result<Option<u32>, Fault>,
}

/// A server that receives the bytes of a connection in pieces.
#[derive(Debug)]
struct Server {
    frames: Frames,
    calls: Calls,
    unread: Vec<u8>,
    call: Vec<u8>,
    out: Vec<u8>,
    answered: Vec<Answered>,
}

impl Server {
    fn new() -> Self {
        Self {
            frames: Frames::new(LIMIT),
            calls: Calls::new(),
            unread: Vec::new(),
            call: Vec::new(),
            out: Vec::new(),
            answered: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.unread.extend_from_slice(bytes);
        loop {
            let (consumed, step) = self.frames.next(&self.unread)?;
            self.unread.drain(..consumed);
            match step {
                Step::More => return Ok(()),
                Step::Bytes(count) => {
                    self.call.extend(self.unread.drain(..count));
                    self.feed();
                }
                Step::End { serial } => {
                    self.feed();
                    let outcome = self.calls.end(self.call.len(), &mut self.out);
                    self.call.clear();
                    self.answered.push(Answered {
                        serial,
                        handshake: outcome.handshake.to_vec(),
                        result: outcome.result,
                    });
                }
            }
        }
    }

    fn feed(&mut self) {
        loop {
            let before = self.out.capacity();
            let (taken, fed) = self.calls.feed(&self.call, RECEIVED, &mut self.out);
            assert_eq!(self.out.capacity(), before, "`feed` enlarged the output");
            self.call.drain(..taken);
            match fed {
                Fed::More => return,
                Fed::Room(bytes) => self.out.reserve_exact(bytes),
            }
        }
    }

    fn entries(&self) -> Vec<(Time, Vec<(String, Value)>)> {
        let mut rest = &self.out[..];
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let head = crate::msgpack::entry_head(rest, 0).unwrap();
            let entry = rmpv::decode::read_value(&mut rest).unwrap();
            let fields = entry[1].as_map().unwrap().iter().map(|(name, value)| {
                let name = match name {
                    Value::String(name) => String::from_utf8_lossy(name.as_bytes()).into_owned(),
                    other => panic!("{other}"),
                };
                (name, value.clone())
            });
            entries.push((head.time.unwrap(), fields.collect()));
        }
        entries
    }
}

fn text(bytes: &[u8]) -> Value {
    let mut packed = Vec::new();
    crate::msgpack::write_str(&mut packed, bytes);
    rmpv::decode::read_value(&mut &packed[..]).unwrap()
}

fn greeted() -> Vec<u8> {
    [handshake(FLUME, None), batch(&[], false)].concat()
}

#[test]
fn an_event_becomes_an_entry_with_its_headers_and_its_body() {
    let mut server = Server::new();
    let event = event(
        &[("host", "web-1"), ("timestamp", "1700000000123")],
        b"text \xff\0\n",
    );
    let call = [handshake(FLUME, None), append(&event)].concat();
    server.take(&frame(7, &call, 11)).unwrap();
    let answered = &server.answered[0];
    assert_eq!((answered.serial, answered.result), (7, Ok(Some(1))));
    // The answer is BOTH, without text, hash and metadata.
    assert_eq!(answered.handshake, [0, 0, 0, 0]);
    let (time, fields) = &server.entries()[0];
    assert_eq!(*time, Time(1_700_000_000_123_000_000));
    let expected = [
        ("host", text(b"web-1")),
        ("timestamp", text(b"1700000000123")),
        ("message", text(b"text \xff\0\n")),
    ];
    assert_eq!(
        *fields,
        expected.map(|(name, value)| (name.to_owned(), value))
    );
}

#[test]
fn a_header_called_message_is_renamed_because_the_body_has_that_name() {
    let mut server = Server::new();
    let call = append(&event(&[("message", "header")], b"body"));
    server
        .take(&frame(1, &[handshake(FLUME, None), call].concat(), 4096))
        .unwrap();
    let (time, fields) = &server.entries()[0];
    assert_eq!(*time, RECEIVED);
    let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["message_header", "message"]);
}

#[test]
fn an_event_with_an_invalid_timestamp_has_the_receive_time() {
    for bad in [
        "",
        "soon",
        "-1",
        "1.5",
        "99999999999999999999",
        "5000000000000",
    ] {
        let mut server = Server::new();
        let call = append(&event(&[("timestamp", bad)], b""));
        server
            .take(&frame(1, &[handshake(FLUME, None), call].concat(), 4096))
            .unwrap();
        let (time, fields) = &server.entries()[0];
        assert_eq!((*time, &fields[0].1), (RECEIVED, &text(bad.as_bytes())));
    }
}

#[test]
fn an_unknown_client_is_asked_for_its_protocol_and_then_accepted() {
    let commented = PROTOCOL.replace(r#""fields":"#, r#""doc":"other words","fields":"#);
    let java = PROTOCOL.replace(
        r#""values":"string""#,
        r#""values":{"type":"string","avro.java.string":"String"}"#,
    );
    for protocol in [&commented, &java] {
        let mut server = Server::new();
        let call = append(&event(&[], b"x"));
        let first = [handshake([9; 16], None), call.clone()].concat();
        let second = [handshake([9; 16], Some(protocol)), call.clone()].concat();
        for (serial, call) in [(1, &first), (2, &second), (3, &call)] {
            server.take(&frame(serial, call, 100)).unwrap();
        }
        let results: Vec<_> = server.answered.iter().map(|a| a.result).collect();
        assert_eq!(results, [Ok(None), Ok(Some(1)), Ok(Some(1))]);
        let mut none = Reader::at(&server.answered[0].handshake, 0);
        assert_eq!((none.long(), none.long()), (Ok(2), Ok(1)));
        assert_eq!(none.bytes(), Ok(PROTOCOL.as_bytes()));
        assert_eq!(none.long(), Ok(1));
        assert_eq!(none.take(16), Ok(&PROTOCOL_HASH[..]));
        assert!(server.answered[2].handshake.is_empty());
    }
}

#[test]
fn a_client_with_another_protocol_is_rejected() {
    let others = [
        "",
        "{}",
        "[]",
        r#"{"types":[],"messages":{}}"#,
        &PROTOCOL.replace(r#""type":"bytes""#, r#""type":"string""#),
        &PROTOCOL.replace(
            r#"{"name":"headers","#,
            r#"{"name":"extra","type":"int"},{"name":"headers","#,
        ),
        &PROTOCOL.replace(r#""items":"AvroFlumeEvent""#, r#""items":"string""#),
        &PROTOCOL.replace("append", "attach"),
    ];
    for text in others {
        let mut server = Server::new();
        let call = [handshake([9; 16], Some(text)), append(&event(&[], b"x"))].concat();
        server.take(&frame(1, &call, 100)).unwrap();
        assert_eq!(server.answered[0].result, Err(Fault::Protocol), "{text}");
        assert!(Fault::Protocol.is_final() && server.out.is_empty());
    }
}

#[test]
fn a_bad_call_is_rejected_and_the_calls_around_it_are_accepted() {
    let good = append(&event(&[("a", "b")], b"good"));
    let mut unknown = vec![0];
    write_bytes(&mut unknown, b"appendAll");
    let long_name = [&[0][..], &[0xfe, 0xff, 0x7f]].concat();
    let two = batch(&[event(&[], b"1"), event(&[], b"2")], false);
    let negative = [&two[..two.len() - 3], &[1][..]].concat();
    let cases: [(&str, &[u8], Fault); 7] = [
        ("cut in an event", &two[..two.len() - 2], Fault::Cut),
        (
            "cut before the end of the array",
            &two[..two.len() - 1],
            Fault::Cut,
        ),
        ("empty", &[], Fault::Cut),
        ("longer", &[&good[..], b"x"].concat(), Fault::Longer),
        ("unknown message", &unknown, Fault::Message),
        ("endless name", &long_name, Fault::Message),
        ("a length below zero", &negative, Fault::Malformed),
    ];
    for (what, bad, fault) in cases {
        let mut server = Server::new();
        server.take(&frame(1, &greeted(), 50)).unwrap();
        for (serial, call) in [(2, &good[..]), (3, bad), (4, &good[..])] {
            server.take(&frame(serial, call, 3)).unwrap();
        }
        let results: Vec<_> = server.answered.iter().map(|a| a.result).collect();
        assert_eq!(
            results,
            [Ok(Some(0)), Ok(Some(1)), Err(fault), Ok(Some(1))],
            "{what}"
        );
        assert_eq!(server.entries().len(), 2, "{what}");
    }
}

#[test]
fn bytes_of_another_protocol_are_rejected_immediately() {
    let large = frame(1, &vec![0; LIMIT + 1], LIMIT + 1);
    let cases: [(&[u8], bool); 5] = [
        (b"GET / HTTP/1.1\r\n", true),
        (b"<13>Oct 11 22:14:15 host app: text\n", true),
        (&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], false),
        (&[0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0, 0, 0], false),
        (&large[..12], true),
    ];
    for (bytes, too_large) in cases {
        let refusal = Server::new().take(bytes).unwrap_err();
        assert_eq!(matches!(refusal, Refusal::TooLarge { .. }), too_large);
    }
    // A frame may be as long as the limit.
    Server::new()
        .take(&frame(1, &vec![0; LIMIT - 4], LIMIT))
        .unwrap();
}

#[test]
fn a_missing_truncated_or_oversized_handshake_ends_the_connection() {
    for call in [&[][..], &[1; 10], &handshake([9; 16], None)[..20]] {
        let mut server = Server::new();
        server.take(&frame(1, call, 5)).unwrap();
        assert_eq!(server.answered[0].result, Err(Fault::Handshake));
    }
    let mut server = Server::new();
    let long = handshake([9; 16], Some(&"x".repeat(64 << 10)));
    server.take(&frame(1, &long, 1000)).unwrap();
    assert_eq!(server.answered[0].result, Err(Fault::Handshake));
    assert!(Fault::Handshake.is_final());
}

#[test]
fn a_ping_is_answered_with_the_handshake_alone() {
    let mut server = Server::new();
    let call = [&handshake(FLUME, None)[..], &[0, 0]].concat();
    server.take(&frame(9, &call, 100)).unwrap();
    assert_eq!(server.answered[0].result, Ok(None));
    let mut out = Vec::new();
    write_greeting(&mut out, 9, &server.answered[0].handshake);
    assert_eq!(out, [0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0]);
}

#[test]
fn an_answer_is_ok_or_holds_the_reason() {
    let mut out = Vec::new();
    write_answer(&mut out, 2, &[], None);
    assert_eq!(out, [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]);
    out.clear();
    write_answer(&mut out, 3, &[], Some("no"));
    assert_eq!(
        out,
        [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 6, 0, 1, 0, 4, b'n', b'o']
    );
}

#[test]
fn longs_read_back_and_numbers_of_more_than_64_bits_are_rejected() {
    for value in [0, 1, -1, 63, 64, -64, -65, i64::MAX, i64::MIN] {
        let mut bytes = Vec::new();
        write_long(&mut bytes, value);
        assert_eq!(Reader::at(&bytes, 0).long(), Ok(value));
        bytes.pop();
        assert_eq!(Reader::at(&bytes, 0).long(), Err(ReadError::Short));
    }
    for bytes in [
        &[0xff; 10][..],
        &[0xff; 20],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2],
    ] {
        assert_eq!(Reader::at(bytes, 0).long(), Err(ReadError::Malformed));
    }
    assert_eq!(Reader::at(&[1], 0).bytes(), Err(ReadError::Malformed));
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let header = ("[a-z]{0,9}", ".{0,40}");
    let headers = prop_oneof![
        4 => prop::collection::vec(header, 0..4),
        1 => prop::collection::vec(header, 14..20),
    ];
    let body = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..50),
        prop::collection::vec(any::<u8>(), 200..300),
    ];
    prop::collection::vec((headers, body), 0..8)
}

proptest! {
    #[test]
    fn any_split_gives_the_same_records(
        calls in prop::collection::vec((events(), any::<bool>(), 1..64_usize), 1..5),
        splits in prop::collection::vec(1..40_usize, 1..20),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (number, (events, sized, size)) in calls.iter().enumerate() {
            let greeting = if number == 0 { handshake(FLUME, None) } else { Vec::new() };
            let call = [greeting, batch(events, *sized)].concat();
            bytes.extend(frame(number as u32, &call, *size));
            expected.extend(events.iter().map(|(headers, body)| {
                let mut fields: Vec<(String, Value)> = headers
                    .iter()
                    .map(|(name, value)| (name.clone(), text(value.as_bytes())))
                    .collect();
                fields.push(("message".to_owned(), text(body)));
                fields
            }));
        }
        let mut whole = Server::new();
        whole.take(&bytes).unwrap();
        let got: Vec<_> = whole.entries().into_iter().map(|(_, fields)| fields).collect();
        prop_assert_eq!(got, expected);
        let mut pieces = Server::new();
        let mut rest = &bytes[..];
        for split in splits.iter().cycle() {
            let (piece, behind) = rest.split_at((*split).min(rest.len()));
            pieces.take(piece).unwrap();
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(&pieces.out, &whole.out);
        prop_assert_eq!(&pieces.answered, &whole.answered);
    }

    #[test]
    fn a_deflated_stream_reads_back_in_any_pieces(
        writes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 1..6),
        piece in 1..400_usize,
        room in 1..300_usize,
    ) {
        let (mut deflate, mut inflate) = (Deflate::default(), Inflate::default());
        let mut got = Vec::new();
        for (number, write) in writes.iter().enumerate() {
            let mut wire = Vec::new();
            deflate.deflate(write, &mut wire);
            for input in wire.chunks(piece) {
                let mut taken = 0;
                loop {
                    let mut output = Vec::with_capacity(room);
                    taken += inflate.inflate(&input[taken..], &mut output).unwrap();
                    got.extend_from_slice(&output);
                    if output.len() < output.capacity() {
                        break;
                    }
                }
                prop_assert_eq!(taken, input.len());
            }
            // Each write can be read as soon as its bytes have arrived.
            prop_assert_eq!(&got, &writes[..=number].concat());
        }
    }

    #[test]
    fn damaged_calls_never_panic_and_leave_only_complete_entries(
        events in events(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut call = [handshake(FLUME, None), batch(&events, false)].concat();
        for (place, byte) in damage {
            let place = place.index(call.len());
            call[place] = byte;
        }
        let mut server = Server::new();
        server.take(&frame(1, &call, 30)).unwrap();
        let records = server.answered[0].result.ok().flatten().unwrap_or(0);
        prop_assert_eq!(server.entries().len(), records as usize);
    }
}
