//! Frames of every type, written by rmpv and divided at any byte.

use millstream_record::{Encoding, Time, Values};
use proptest::prelude::*;
use rmpv::Value;

use super::*;
use crate::msgpack::write_str;

fn bytes_of(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).expect("a vector takes everything");
    bytes
}

fn record() -> impl Strategy<Value = Value> {
    prop::collection::vec((".{0,10}", ".{0,60}"), 0..6).prop_map(|fields| {
        Value::Map(
            fields
                .into_iter()
                .map(|(key, value)| (Value::from(key), Value::from(value)))
                .collect(),
        )
    })
}

fn pair() -> impl Strategy<Value = [Value; 2]> {
    let time = prop_oneof![
        any::<u32>().prop_map(Value::from),
        any::<[u8; 8]>().prop_map(|data| Value::Ext(0, data.to_vec())),
    ];
    (time, record()).prop_map(|(time, record)| [time, record])
}

fn chunk() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        Just(None),
        "[a-z]{1,24}".prop_map(|id| Some(Value::from(id))),
        any::<u64>().prop_map(|id| Some(Value::from(id))),
    ]
}

/// Returns element 1 of a frame (`None` for a single message), the stream of the frame's records, and their number.
fn payload(form: u8, pairs: &[[Value; 2]], repeats: usize) -> (Option<Value>, Vec<u8>, usize) {
    let entries = pairs.iter().map(|pair| Value::Array(pair.to_vec()));
    let stream: Vec<u8> = entries.clone().flat_map(|entry| bytes_of(&entry)).collect();
    match form {
        0 => (None, stream, pairs.len()),
        1 => (Some(Value::Array(entries.collect())), stream, pairs.len()),
        2 => {
            let stream = stream.repeat(repeats);
            let element = Value::Binary(stream.clone());
            (Some(element), stream, pairs.len() * repeats)
        }
        _ => {
            let stream = b"a line\nand another\n".repeat(pairs.len() * repeats);
            let element = Value::Ext(LINES, stream.clone());
            (Some(element), stream, 2 * pairs.len() * repeats)
        }
    }
}

/// A frame: its bytes and the expected result.
fn frame() -> impl Strategy<Value = (Vec<u8>, Seen)> {
    let form = prop_oneof![
        Just("message"),
        Just("forward"),
        Just("packed"),
        Just("lines")
    ];
    let pairs = prop::collection::vec(pair(), 1..5);
    let repeats = prop_oneof![9 => Just(1usize), 1 => Just(2000usize)];
    let option = prop::option::of(chunk());
    ("[a-z.]{0,40}", form, pairs, repeats, option).prop_map(
        |(tag, kind, mut pairs, repeats, option)| {
            let form = match kind {
                "message" => {
                    pairs.truncate(1);
                    0
                }
                "forward" => 1,
                "packed" => 2,
                _ => 3,
            };
            let (element, stream, count) = payload(form, &pairs, repeats);
            let mut array = vec![Value::from(tag.clone())];
            match element {
                Some(element) => array.push(element),
                None => array.extend(pairs[0].iter().cloned()),
            }
            if let Some(chunk) = &option {
                let mut map = vec![(Value::from("size"), Value::from(count))];
                map.extend(chunk.iter().map(|id| (Value::from("chunk"), id.clone())));
                map.push((Value::from("unknown"), Value::Array(vec![Value::Nil; 20])));
                array.push(Value::Map(map));
            }
            let seen = Seen::Frame {
                tag: tag.into_bytes(),
                kind,
                body: stream,
                records: count as u32,
                misfits: 0,
                chunk: option.flatten().as_ref().map(bytes_of),
            };
            (bytes_of(&Value::Array(array)), seen)
        },
    )
}

proptest! {
    #[test]
    fn any_split_of_the_input_gives_the_same_batches(
        frames in prop::collection::vec(frame(), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let input: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let expected: Vec<Seen> = frames.into_iter().map(|(_, seen)| seen).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        let (seen, amid) = connection(&input, &cuts).unwrap();
        prop_assert!(!amid);
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn a_frame_cut_by_the_end_of_the_connection_is_never_seen(
        (bytes, _) in frame(),
        cut in any::<prop::sample::Index>(),
    ) {
        let end = cut.index(bytes.len());
        let (seen, amid) = connection(&bytes[..end], &[]).unwrap();
        prop_assert_eq!(seen, vec![]);
        prop_assert_eq!(amid, end > 0);
    }

    #[test]
    fn random_bytes_never_panic(
        input in prop::collection::vec(any::<u8>(), 0..600),
        start in prop_oneof![Just(0x93u8), Just(0x94), Just(b'['), any::<u8>()],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let input = [&[start][..], &input].concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        let once = connection(&input, &[]).map_err(|(seen, _)| seen);
        let parts = connection(&input, &cuts).map_err(|(seen, _)| seen);
        prop_assert_eq!(once, parts);
    }

    #[test]
    fn a_sent_frame_is_received_unchanged(
        tag in "[a-z.]{0,300}", lines in any::<bool>(), entries in prop::collection::vec(pair(), 0..400), id in ".{0,40}",
        values in prop::collection::vec(("[a-z]{1,8}", ".{0,20}"), 0..4), received in any::<i64>(),
    ) {
        let (encoding, payload) = if lines {
            (Encoding::Lines, "x\n".repeat(entries.len()).into_bytes())
        } else {
            let stream = entries.iter().flat_map(|pair| bytes_of(&Value::Array(pair.to_vec())));
            (Encoding::Packed, stream.collect::<Vec<u8>>())
        };
        let mut shared = Values::new();
        for (name, value) in &values {
            shared.set(name, value.as_str());
        }
        let mut chunk = Vec::new();
        write_str(&mut chunk, id.as_bytes());
        let options = Options {
            chunk: Some(&chunk),
            size: Some(entries.len() as u64),
            compressed: Compressed::No,
            signal: Signal::Logs,
            values: Some(shared),
            received: Some(Time(received)),
            frames: None,
        };
        let mut head = Vec::new();
        write_frame_head(&mut head, tag.as_bytes(), encoding, payload.len() as u32);
        let mut end = Vec::new();
        write_options(&mut end, &options);
        let input = [&head[..], &payload, &end].concat();
        let mut decoder = Decoder::new(FRAME_BYTES_MAX);
        let (consumed, found) = match decoder.next(&input[..head.len() + payload.len().min(1)]).unwrap() {
            (consumed, Step::Payload(found)) => {
                prop_assert_eq!((found.tag, found.encoding, found.length), (tag.as_bytes(), encoding, payload.len()));
                prop_assert_eq!(consumed, head.len());
                let (_, step) = decoder.next(&end).unwrap();
                let Step::End(found) = step else { panic!("{step:?}") };
                (input.len(), found)
            }
            _ => match decoder.next(&input).unwrap() {
                (consumed, Step::Frame(frame)) => {
                    prop_assert_eq!((frame.tag, frame.body), (tag.as_bytes(), payload.as_slice()));
                    (consumed, frame.options)
                }
                (_, step) => panic!("{step:?}"),
            },
        };
        prop_assert_eq!(consumed, input.len());
        prop_assert_eq!(found, options);
    }
}
