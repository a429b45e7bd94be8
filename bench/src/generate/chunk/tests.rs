//! Compares chunks with the documented layout, and patched chunks with newly built ones.

use super::*;

const FLOW: FlowId = FlowId { run: 7, flow: 1 };

fn shape(mode: Mode, acks: bool) -> Shape {
    Shape {
        mode,
        tag: "bench".into(),
        size: 100,
        acks,
        base: 1_700_000_000,
    }
}

fn span(first: u64, count: u32) -> Span {
    Span {
        first,
        count,
        kind: Kind::Data,
    }
}

#[test]
fn a_patched_chunk_equals_one_built_from_scratch() {
    let modes = [
        Mode::Message,
        Mode::Forward,
        Mode::Packed,
        Mode::Gzip,
        Mode::Lines,
    ];
    for mode in modes {
        for acks in [false, true] {
            let mut reused = Chunk::new(shape(mode, acks), FLOW);
            // The first span, the same padding, other padding, a shorter span that crosses a second, an end record, data again.
            for span in [
                span(0, 128),
                span(128, 128),
                span(129, 128),
                span(999_950, 100),
                Span {
                    first: 1_000_050,
                    count: 1,
                    kind: Kind::End,
                },
                span(0, 128),
            ] {
                let mut fresh = Chunk::new(shape(mode, acks), FLOW);
                assert_eq!(reused.fill(span), fresh.fill(span), "{mode:?} {span:?}");
            }
        }
    }
}

#[test]
fn packed_records_are_122_bytes_with_a_text_of_100() {
    let mut chunk = Chunk::new(shape(Mode::Packed, false), FLOW);
    let one = chunk.fill(span(0, 1)).len();
    assert_eq!(chunk.fill(span(0, 2)).len() - one, 122);
}

#[test]
fn base64_is_that_of_the_rfc() {
    let mut raw = [0; 18];
    raw[..6].copy_from_slice(b"foobar");
    assert!(base64(raw).starts_with(b"Zm9vYmFy"));
    assert_eq!(base64([0xff; 18])[..4], *b"////");
    assert_eq!(base64([0; 18])[24], b'\n');
}

#[test]
fn ids_differ_between_runs_flows_numbers_and_kinds() {
    let other = FlowId { run: 7, flow: 2 };
    let ids = [
        id(FLOW, Kind::Data, 0),
        id(FLOW, Kind::Data, 8192),
        id(FLOW, Kind::End, 8192),
        id(other, Kind::Data, 0),
    ];
    for (at, one) in ids.iter().enumerate() {
        assert!(ids[at + 1..].iter().all(|two| one != two));
    }
}

#[test]
fn every_record_of_a_chunk_passes_the_check() {
    let mut chunk = Chunk::new(shape(Mode::Lines, false), FLOW);
    chunk.fill(span(0, 200));
    let lines = chunk.fill(span(6400, 200));
    for (line, number) in lines.split(|&byte| byte == b'\n').zip(6400..6600) {
        let found = record::check(line).unwrap();
        assert_eq!((found.flow, found.number), (FLOW, number));
    }
}
