//! Known bytes of fluentd, and bad input whose results are derived from the behavior of fluentd and Influent.

use millstream_record::{Encoding, Time};

use super::*;
use crate::msgpack::{Shape, write_bin, write_str};

#[test]
fn a_frame_of_fluentd_is_read_and_acknowledged() {
    // A frame of out_forward in fluentd 1.19.3: 93, tag, str 32 whose bytes are not UTF-8, option with size,
    // compressed, chunk.
    let entry = [
        0x92, 0xd7, 0, 0x65, 0x53, 0xf1, 0, 7, 0x5b, 0xcd, 0x15, 0x81, 0xa1, b'i', 0x07,
    ];
    let mut input = vec![0x93, 0xa3, b's', b'm', b'p', 0xdb, 0, 0, 0, 30];
    input.extend_from_slice(&entry.repeat(2));
    input.extend_from_slice(
        b"\x83\xa4size\x02\xaacompressed\xa4text\xa5chunk\xb9ZgvyacdEXhecDRbtet44EQ==\n",
    );
    let expected = Seen::Frame {
        tag: b"smp".to_vec(),
        kind: "packed",
        body: entry.repeat(2),
        records: 2,
        misfits: 0,
        chunk: Some(b"\xb9ZgvyacdEXhecDRbtet44EQ==\n".to_vec()),
    };
    assert_eq!(whole(&input), [expected]);
    let mut ack = Vec::new();
    write_ack(&mut ack, b"\xb9ZgvyacdEXhecDRbtet44EQ==\n");
    assert_eq!(ack, b"\x81\xa3ack\xb9ZgvyacdEXhecDRbtet44EQ==\n");
    let read = read_ack(&ack).unwrap();
    assert_eq!((read.chunk, read.length), (&ack[5..], ack.len()));
}

#[test]
fn an_array_of_tag_and_payload_without_options_is_a_frame() {
    let mut input = vec![0x92, 0xa1, b't'];
    write_bin(&mut input, &[0x92, 1, 0x80]);
    let seen = whole(&input);
    assert!(
        matches!(
            &seen[..],
            [Seen::Frame {
                records: 1,
                chunk: None,
                ..
            }]
        ),
        "{seen:?}"
    );
}

#[test]
fn heartbeats_are_distinguished_from_frames() {
    assert_eq!(whole(&[0xc0, 0xc0]), [Seen::Heartbeat, Seen::Heartbeat]);
    let seen = whole(&[0x92, 0xa0, 0x90]);
    assert!(matches!(&seen[..], [Seen::Frame { records: 0, body, .. }] if body.is_empty()));
}

#[test]
fn an_option_that_is_not_a_map_counts_as_none() {
    for option in [0xc0, 0x05, 0x90] {
        let seen = whole(&[0x94, 0xa1, b't', 0x01, 0x80, option]);
        assert!(
            matches!(
                &seen[..],
                [Seen::Frame {
                    records: 1,
                    chunk: None,
                    ..
                }]
            ),
            "{seen:?}"
        );
    }
}

#[test]
fn a_chunk_id_of_any_type_is_kept_byte_for_byte() {
    for id in [
        &[0x01][..],
        &[0xcc, 0x01],
        &[0xc2],
        &[0x91, 0xa1, b'x'],
        &[0xc4, 1, 9],
    ] {
        let input = [
            &[0x94, 0xa1, b't', 0x01, 0x80, 0x81, 0xa5][..],
            b"chunk",
            id,
        ]
        .concat();
        let seen = whole(&input);
        assert!(
            matches!(&seen[..], [Seen::Frame { chunk: Some(found), .. }] if found == id),
            "{seen:?}"
        );
    }
}

#[test]
fn values_that_are_not_entries_are_separated_from_the_entries() {
    let good = [0x92, 0x01, 0x80];
    let stream = [&good[..], &[0x07], &good].concat();
    let mut packed = vec![0x92, 0xa1, b't'];
    write_str(&mut packed, &stream);
    let forward = [&[0x92, 0xa1, b't', 0x93][..], &stream].concat();
    for input in [packed, forward] {
        let seen = whole(&input);
        assert!(
            matches!(
                &seen[..],
                [Seen::Frame {
                    records: 2,
                    misfits: 1,
                    ..
                }]
            ),
            "{seen:?}"
        );
    }
    let (mut kept, mut rest) = (Vec::new(), Vec::new());
    let sifted = sift(&stream, Time(0), &mut kept, &mut rest);
    assert_eq!((sifted.good, sifted.bad), (2, 1));
    assert_eq!((kept, rest), (good.repeat(2), vec![0x07]));
}

#[test]
fn a_nil_time_becomes_the_receive_time_and_zero_stays_zero() {
    let received = Time::from_parts(1_700_000_000, 5);
    let stamp = [0xd7, 0, 0x65, 0x53, 0xf1, 0, 0, 0, 0, 5];
    let stream = [
        &[0x92, 0xc0, 0x80][..],
        &[0x92, 0x00, 0x80],
        &[0x92, 0x92, 0xc0, 0x81, 0xa1, b'm', 0x01, 0x80],
    ]
    .concat();
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let sifted = sift(&stream, received, &mut good, &mut bad);
    assert_eq!((sifted.good, sifted.bad), (3, 0));
    let expected = [
        &[0x92][..],
        &stamp,
        &[0x80],
        &[0x92, 0x00, 0x80],
        &[0x92, 0x92],
        &stamp,
        &[0x81, 0xa1, b'm', 0x01, 0x80],
    ]
    .concat();
    assert_eq!(good, expected);
    assert!(bad.is_empty());
}

#[test]
fn a_float_becomes_an_event_time() {
    let value = [&[0xcb][..], &1.5_f64.to_be_bytes()].concat();
    let stamp = [0xd7, 0, 0, 0, 0, 1, 0x1d, 0xcd, 0x65, 0];
    let stream = [
        &[0x92][..],
        &value,
        &[0x80, 0x92, 0x92],
        &value,
        &[0x81, 0xa1, b'm', 0x01, 0x80],
    ]
    .concat();
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let sifted = sift(&stream, Time(7), &mut good, &mut bad);
    assert_eq!((sifted.good, sifted.bad), (2, 0));
    let expected = [
        &[0x92][..],
        &stamp,
        &[0x80, 0x92, 0x92],
        &stamp,
        &[0x81, 0xa1, b'm', 0x01, 0x80],
    ];
    assert_eq!(good, expected.concat());
}

#[test]
fn the_shape_of_a_message_is_recognized() {
    let shapes = [
        (&[0x93, 0xa1, b't', 0x01, 0x80][..], Shape::Good),
        (&[0x93, 0xa1, b't', 0xc0, 0x80], Shape::Timeless),
        (&[0x93, 0xa1, b't', 0x01, 0xc0], Shape::Misfit),
        (&[0x93, 0xa1, b't', 0x01, 0x07], Shape::Misfit),
        (&[0x93, 0xa1, b't', 0xca, 0, 0, 0, 0, 0x80], Shape::Timeless),
        (&[0x93, 0xa1, b't', 0xd4, 5, 0, 0x80], Shape::Misfit),
        // A single message with metadata beside the time, as fluent-bit writes it: always a frame of four elements.
        (
            &[0x94, 0xa1, b't', 0x92, 0x01, 0x80, 0x80, 0x80],
            Shape::Good,
        ),
    ];
    for (input, expected) in shapes {
        let mut decoder = Decoder::new(FRAME_BYTES_MAX);
        match decoder.next(input).unwrap() {
            (
                _,
                Step::Frame(Frame {
                    form: Form::Message(shape),
                    ..
                }),
            ) => {
                assert_eq!(shape, expected, "{input:x?}");
            }
            (_, step) => panic!("{input:x?}: {step:?}"),
        }
    }
}

#[test]
fn a_value_that_is_not_a_frame_is_skipped_and_the_next_frame_is_read() {
    let message = [0x93, 0xa1, b't', 0x01, 0x80];
    for misfit in [
        &[0x90][..],
        &[0x91, 0xa1, b't'],
        &[0x92, 0xa1, b't', 0x05],
        &[0x95, 0xa1, b't', 0x01, 0x80, 0x80, 0x80],
        &[0x94, 0x07, 0x01, 0x80, 0x80],
    ] {
        let seen = whole(&[misfit, &message].concat());
        assert!(
            matches!(&seen[..], [Seen::Misfit(value, None), Seen::Frame { .. }] if value == misfit),
            "{misfit:x?}: {seen:?}"
        );
    }
    for stray in [&[0x80][..], &[0x07], &[0xa2, b'h', b'i']] {
        let seen = whole(&[stray, &message].concat());
        assert!(
            matches!(&seen[..], [Seen::Stray, Seen::Frame { .. }]),
            "{stray:x?}: {seen:?}"
        );
    }
    let with_id = [&[0x94, 0x07, 0x01, 0x80, 0x81, 0xa5][..], b"chunk\x09"].concat();
    assert_eq!(
        whole(&with_id),
        [Seen::Misfit(with_id.clone(), Some(vec![9]))]
    );
}

#[test]
fn another_protocol_is_rejected_after_a_few_bytes() {
    let (seen, refusal) = connection(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", &[]).unwrap_err();
    assert_eq!(refusal, Refusal::Garbage { offset: 16 });
    assert_eq!(seen.len(), 15);
}

#[test]
fn a_malformed_byte_is_rejected_with_its_offset() {
    let input = [
        &[0x93, 0xa1, b't', 0x01, 0x80][..],
        &[0x93, 0xa1, b't', 0xc1],
    ]
    .concat();
    let (seen, refusal) = connection(&input, &[]).unwrap_err();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        refusal,
        Refusal::Malformed {
            offset: 8,
            json: false
        }
    );
}

#[test]
fn a_payload_above_the_limit_is_rejected_by_its_head() {
    let input = [0x93, 0xa1, b't', 0xdb, 0xff, 0xff, 0xff, 0xff];
    let (_, refusal) = connection(&input, &[]).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::TooLarge {
            offset: 0,
            bytes_max: FRAME_BYTES_MAX
        }
    );
}

#[test]
fn an_endless_frame_is_rejected_at_the_limit() {
    let mut input = vec![0x93, 0xa1, b't', 0xdd, 0xff, 0xff, 0xff, 0xff];
    input.resize(2 * FRAME_BYTES_MAX, 0x01);
    let cuts: Vec<usize> = (1..input.len()).step_by(50_000).collect();
    let (_, refusal) = connection(&input, &cuts).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::TooLarge {
            offset: 0,
            bytes_max: FRAME_BYTES_MAX
        }
    );
}

#[test]
fn an_endless_option_map_is_rejected() {
    let mut input = vec![0x93, 0xa1, b't', 0xdb, 0, 0, 0xff, 0xff];
    input.resize(8 + 0xffff, 0x01);
    input.push(0xdf);
    input.resize(input.len() + 4 + OPTION_BYTES_MAX, 0xff);
    let cut = 8 + 0xffff;
    let (_, refusal) = connection(&input, &[100, cut]).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::TooLarge {
            offset: cut as u64,
            bytes_max: OPTION_BYTES_MAX
        }
    );
}

#[test]
fn an_array_with_an_oversized_tag_or_option_map_is_not_a_frame() {
    let mut tag = vec![0x93];
    write_str(&mut tag, &vec![b't'; TAG_BYTES_MAX + 1]);
    tag.extend_from_slice(&[0x01, 0x80]);
    let mut option = vec![0x94, 0xa1, b't', 0x01, 0x80, 0x81, 0xa5];
    option.extend_from_slice(b"chunk");
    write_str(&mut option, &vec![b'x'; OPTION_BYTES_MAX]);
    for input in [tag, option] {
        let seen = whole(&input);
        assert!(matches!(&seen[..], [Seen::Misfit(value, None)] if *value == input));
    }
}

#[test]
fn metrics_of_fluent_bit_are_recognized() {
    let input = [
        &[0x93, 0xa1, b't', 0xa1, 0x80, 0x81, 0xad][..],
        b"fluent_signal\x01",
    ]
    .concat();
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    let (_, step) = decoder.next(&input).unwrap();
    let Step::Frame(frame) = step else {
        panic!("{step:?}")
    };
    assert!(!frame.is_plain());
}

#[test]
fn a_stream_of_json_values_becomes_packed_records() {
    let input = br#"["t.a",1700000000,{"n":18446744073709551615,"i":-9223372036854775808,"f":1.5,"s":"a\u00e9\n"},{"chunk":"x y"}]
        ["t.b",[[1,{"a":[1,null,true]}],[2,{}]]] {"no":"frame"}
"#;
    let cuts: Vec<usize> = (1..input.len()).collect();
    for cuts in [&[][..], &cuts] {
        let (seen, amid) = connection(input, cuts).unwrap();
        assert!(!amid);
        let [
            Seen::Frame {
                tag,
                kind: "message",
                body,
                records: 1,
                misfits: 0,
                chunk,
            },
            Seen::Frame {
                kind: "forward",
                records: 2,
                misfits: 0,
                chunk: None,
                ..
            },
            Seen::Stray,
        ] = &seen[..]
        else {
            panic!("{seen:?}")
        };
        assert_eq!(
            (tag.as_slice(), chunk.as_deref()),
            (&b"t.a"[..], Some(&b"\xa3x y"[..]))
        );
        let entry = rmpv::decode::read_value(&mut body.as_slice()).unwrap();
        let record = &entry[1];
        assert_eq!(record["n"].as_u64(), Some(u64::MAX));
        assert_eq!(record["i"].as_i64(), Some(i64::MIN));
        assert_eq!(record["f"].as_f64(), Some(1.5));
        assert_eq!(record["s"].as_str(), Some("aé\n"));
    }
}

#[test]
fn broken_json_is_rejected_after_the_earlier_frames_are_returned() {
    let (seen, refusal) = connection(br#"["t",1,{}]["t",1,{]}]"#, &[]).unwrap_err();
    assert_eq!(seen.len(), 1);
    assert!(matches!(refusal, Refusal::Malformed { json: true, .. }));
}

#[test]
fn lines_are_counted_as_they_arrive() {
    let text = b"one\ntwo\n\nfour\ncut";
    let mut check = Check::new(Encoding::Lines);
    for end in 0..=text.len() {
        check.feed(&text[..end]).unwrap();
    }
    assert_eq!((check.records(), check.whole()), (4, text.len() - 3));
}

#[test]
fn a_run_of_messages_gives_the_same_batch_as_the_general_path() {
    let plain = [
        &[0x93, 0xa1, b't', 0xd7, 0][..],
        &[1; 8],
        &[0x81, 0xa1, b'm', 0x05],
    ]
    .concat();
    let whole_second = [0x93, 0xa1, b't', 0xce, 0, 0, 0, 9, 0x80];
    let other_tag = [0x93, 0xa1, b'u', 0xce, 0, 0, 0, 9, 0x80];
    let input = [&plain[..], &whole_second, &plain, &other_tag, &plain].concat();
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    let mut out = Vec::with_capacity(100);
    assert_eq!(decoder.run(&input, &[0x93, 0xa1, b't'], &mut out), (0, 0));
    let head = message_head(&input).unwrap();
    assert_eq!(head, [0x93, 0xa1, b't']);
    let (first, _) = decoder.next(&input).unwrap();
    let (consumed, records) = decoder.run(&input[first..], head, &mut out);
    assert_eq!((consumed, records), (whole_second.len() + plain.len(), 2));
    assert_eq!(decoder.offset(), (first + consumed) as u64);
    let expected = [&[0x92][..], &whole_second[3..], &[0x92], &plain[3..]].concat();
    assert_eq!(out, expected);
    // Incomplete messages and a full buffer end the run.
    assert_eq!(
        decoder.run(&plain[..plain.len() - 1], head, &mut out),
        (0, 0)
    );
    let mut full = Vec::with_capacity(plain.len() - 3);
    assert_eq!(decoder.run(&plain, head, &mut full), (0, 0));
}

#[test]
fn a_json_ack_contains_the_received_chunk_id() {
    let mut out = Vec::new();
    write_json_ack(&mut out, b"\xa4a\"b\n").unwrap();
    write_json_ack(&mut out, &[0x07]).unwrap();
    assert_eq!(out, br#"{"ack":"a\"b\n"}{"ack":7}"#);
}
