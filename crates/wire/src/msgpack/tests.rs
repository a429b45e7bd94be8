//! Compares the results with the crate `rmpv`, for values that `rmpv` writes and for bytes that it reads.

use millstream_record::Time;
use proptest::prelude::*;
use rmpv::Value;

use super::*;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-200i64..200).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Binary),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(code, data)| Value::Ext(code, data)),
    ];
    leaf.prop_recursive(4, 64, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
        ]
    })
}

fn time() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u32>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<[u8; 8]>().prop_map(|data| Value::Ext(0, data.to_vec())),
    ]
}

fn entry() -> impl Strategy<Value = Value> {
    let record = prop::collection::vec((value(), value()), 0..20).prop_map(Value::Map);
    let metadata = prop::collection::vec((value(), value()), 0..3).prop_map(Value::Map);
    (time(), record, prop::option::of(metadata)).prop_map(|(time, record, metadata)| {
        let head = match metadata {
            Some(metadata) => Value::Array(vec![time, metadata]),
            None => time,
        };
        Value::Array(vec![head, record])
    })
}

fn bytes_of(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        rmpv::encode::write_value(&mut bytes, value).expect("a vector takes everything");
    }
    bytes
}

/// Whether a value tree is an entry.
fn is_entry(value: &Value) -> bool {
    let time_fits = |time: &Value| match time {
        Value::Integer(_) => true,
        Value::Ext(0, data) => data.len() == 8,
        _ => false,
    };
    match value.as_array().map(Vec::as_slice) {
        Some([Value::Array(head), Value::Map(_)]) => {
            matches!(head.as_slice(), [time, Value::Map(_)] if time_fits(time))
        }
        Some([time, Value::Map(_)]) => time_fits(time),
        _ => false,
    }
}

/// Feeds `bytes` to a walker in pieces that end at `cuts`.
fn walk_in_parts(bytes: &[u8], cuts: &[prop::sample::Index]) -> Result<Walker, Malformed> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut walker = Walker::new();
    for end in ends {
        walker.walk(&bytes[..end])?;
    }
    Ok(walker)
}

/// An entry whose record is plain (see `plain.rs`) or nearly plain: its keys and lengths are around the limits of the
/// fast path.
fn nearly_plain_entry() -> impl Strategy<Value = Value> {
    let text = |length: usize| Value::from("x".repeat(length));
    let key = prop_oneof![
        8 => (0usize..4).prop_map(move |length| text(length * 10)),
        1 => Just(Value::from(0)),
        1 => Just(Value::Nil),
        1 => Just(text(32)),
    ];
    let lengths = prop::sample::select(vec![0, 1, 30, 31, 32, 254, 255, 256, 65_535, 65_536]);
    let value = prop_oneof![
        6 => lengths.prop_map(text),
        3 => (0..128u8).prop_map(Value::from),
        3 => (0..64u32, any::<bool>()).prop_map(|(bits, is_negative)| match is_negative {
            false => Value::from(u64::MAX >> bits),
            true => Value::from(i64::MIN >> bits),
        }),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<f32>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => value(),
    ];
    let pairs = |count| prop::collection::vec((key.clone(), value.clone()), count);
    let record = prop_oneof![8 => pairs(0..18), 1 => pairs(60..70)].prop_map(Value::Map);
    let time = prop_oneof![
        2 => any::<u32>().prop_map(Value::from),
        8 => any::<[u8; 8]>().prop_map(|data| Value::Ext(0, data.to_vec())),
        1 => time(),
    ];
    (time, record).prop_map(|(time, record)| Value::Array(vec![time, record]))
}

/// The expected result of a walker, computed value by value without the fast path.
fn walk_slowly(bytes: &[u8]) -> (Result<(), Malformed>, u32, u32, usize) {
    let (mut entries, mut misfits, mut whole) = (0, 0, 0);
    let end = loop {
        let mut open = 1;
        match skip(bytes, whole, &mut open) {
            Err(malformed) => break Err(malformed),
            Ok(_) if open > 0 => break Ok(()),
            Ok(end) => {
                match entry_shape(&bytes[whole..end]) {
                    Shape::Good => entries += 1,
                    Shape::Timeless | Shape::Mark | Shape::Misfit => misfits += 1,
                }
                whole = end;
            }
        }
    };
    (end, entries, misfits, whole)
}

#[test]
fn a_plain_record_is_not_counted_before_its_last_byte() {
    let mut bytes = Vec::new();
    for (length, numbers) in [(3, 1), (40, 20), (300, 70)] {
        write_array_len(&mut bytes, 2);
        match length {
            40 => write_uint(&mut bytes, 1_700_000_000),
            _ => write_event_time(&mut bytes, 1, 2),
        }
        write_map_len(&mut bytes, numbers + 1);
        for number in 0..numbers {
            write_str(&mut bytes, b"number");
            write_uint(&mut bytes, 7 << number.min(60));
        }
        write_str(&mut bytes, b"text");
        write_str(&mut bytes, "x".repeat(length).as_bytes());
    }
    for end in 0..=bytes.len() {
        let mut walker = Walker::new();
        let walked = walker.walk(&bytes[..end]);
        let found = (walked, walker.entries(), walker.misfits(), walker.whole());
        assert_eq!(found, walk_slowly(&bytes[..end]), "cut at {end}");
        walker.walk(&bytes).unwrap();
        assert_eq!((walker.entries(), walker.whole()), (3, bytes.len()));
    }
}

#[test]
fn a_walker_detects_metadata_however_the_stream_is_divided() {
    let plain = bytes_of(&[Value::Array(vec![1.into(), Value::Map(Vec::new())])]);
    let head = Value::Array(vec![1.into(), Value::Map(Vec::new())]);
    let nested = bytes_of(&[Value::Array(vec![head, Value::Map(Vec::new())])]);
    // The nested entry `[[time, {}], {}]`, with an array marker of three bytes.
    let wide = [&[0xdc, 0, 2][..], &nested[1..]].concat();
    for (bytes, is_plain) in [
        (plain.clone(), true),
        ([&plain[..], &plain].concat(), true),
        ([&plain[..], &nested].concat(), false),
        ([&nested[..], &plain].concat(), false),
        (wide, false),
    ] {
        for cut in 0..=bytes.len() {
            let mut walker = Walker::new();
            walker.walk(&bytes[..cut]).unwrap();
            walker.walk(&bytes).unwrap();
            assert_eq!(walker.is_plain(), is_plain, "{bytes:x?} cut at {cut}");
            assert_eq!(walker.misfits(), 0);
        }
    }
    assert_eq!(metadata_len(&nested, 0), 0);
    let head = Value::Array(vec![1.into(), Value::Map(vec![(1.into(), 2.into())])]);
    let one = bytes_of(&[Value::Array(vec![head, Value::Map(Vec::new())])]);
    assert_eq!((metadata_len(&one, 0), metadata_len(&plain, 0)), (1, 0));
}

proptest! {
    #[test]
    fn the_fast_path_for_plain_records_gives_the_same_result_as_the_general_one(
        values in prop::collection::vec(nearly_plain_entry(), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        end in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut bytes = bytes_of(&values);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        for bytes in [&bytes[..], &bytes[..end.index(bytes.len())]] {
            let slowly = walk_slowly(bytes);
            let mut walker = Walker::new();
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            ends.push(bytes.len());
            ends.sort_unstable();
            let walked = ends.iter().try_for_each(|end| walker.walk(&bytes[..*end]));
            prop_assert_eq!((walked, walker.entries(), walker.misfits(), walker.whole()), slowly);
        }
    }

    #[test]
    fn any_value_is_skipped_to_its_end(value in value(), cut in any::<prop::sample::Index>()) {
        let bytes = bytes_of(&[value]);
        let mut open = 1;
        prop_assert_eq!(skip(&bytes, 0, &mut open), Ok(bytes.len()));
        prop_assert_eq!(open, 0);
        let mut open = 1;
        let at = skip(&bytes[..cut.index(bytes.len())], 0, &mut open).unwrap();
        prop_assert!(open > 0);
        prop_assert_eq!(skip(&bytes, at, &mut open), Ok(bytes.len()));
        prop_assert_eq!(open, 0);
    }

    #[test]
    fn entries_are_counted_however_the_stream_is_divided(
        values in prop::collection::vec(prop_oneof![4 => entry(), 1 => value()], 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let bytes = bytes_of(&values);
        let walker = walk_in_parts(&bytes, &cuts).unwrap();
        let good = values.iter().filter(|value| is_entry(value)).count();
        prop_assert_eq!(walker.entries() as usize, good);
        prop_assert_eq!(walker.misfits() as usize, values.len() - good);
        prop_assert_eq!(walker.whole(), bytes.len());
    }

    #[test]
    fn a_truncated_stream_is_complete_up_to_its_last_entry(
        values in prop::collection::vec(entry(), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = bytes_of(&values);
        let end = cut.index(bytes.len());
        let mut walker = Walker::new();
        walker.walk(&bytes[..end]).unwrap();
        let fitting = (0..=values.len())
            .rev()
            .find(|count| bytes_of(&values[..*count]).len() <= end)
            .unwrap();
        prop_assert_eq!(walker.entries() as usize, fitting);
        prop_assert_eq!(walker.whole(), bytes_of(&values[..fitting]).len());
    }

    #[test]
    fn random_bytes_never_panic_and_agree_with_rmpv(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let once = walk_in_parts(&bytes, &[]);
        let parts = walk_in_parts(&bytes, &cuts);
        prop_assert_eq!(once.is_ok(), parts.is_ok());
        if let (Ok(once), Ok(parts)) = (once, parts) {
            prop_assert_eq!(once.whole(), parts.whole());
            prop_assert_eq!(once.entries(), parts.entries());
            // rmpv reads 0xc1 as nil; apart from that, it reads exactly the values that we count.
            let mut rest = &bytes[..once.whole()];
            let mut good = 0;
            let mut all = 0;
            while !rest.is_empty() {
                let value = rmpv::decode::read_value(&mut rest).unwrap();
                good += u32::from(is_entry(&value));
                all += 1;
            }
            prop_assert_eq!(once.entries(), good);
            prop_assert_eq!(once.misfits(), all - good);
        }
    }

    #[test]
    fn the_head_of_an_entry_is_read(entry in entry()) {
        let bytes = bytes_of(std::slice::from_ref(&entry));
        let head = entry_head(&bytes, 0).unwrap();
        let record = rmpv::decode::read_value(&mut &bytes[head.record..]).unwrap();
        prop_assert_eq!(&record, &entry[1]);
        let time = if entry[0].is_array() { &entry[0][0] } else { &entry[0] };
        let expected = match time {
            Value::Ext(_, data) => Time::from_parts(
                i64::from(u32::from_be_bytes(data[..4].try_into().unwrap())),
                u32::from_be_bytes(data[4..].try_into().unwrap()),
            ),
            time => Time::from_parts(time.as_i64().unwrap_or(i64::MAX), 0),
        };
        prop_assert_eq!(head.time, Some(expected));
    }

    #[test]
    fn written_values_are_read_by_rmpv_and_by_us(
        signed in any::<i64>(), small in -200i64..200, unsigned in any::<u64>(), float in any::<f64>(), flag in any::<bool>(),
        data in prop::collection::vec(any::<u8>(), 0..300), length in any::<u32>(), seconds in any::<u32>(), nanos in 0u32..1_000_000_000,
    ) {
        let mut out = Vec::new();
        for int in [signed, small] {
            write_int(&mut out, int);
        }
        write_uint(&mut out, unsigned);
        write_f64(&mut out, float);
        write_bool(&mut out, flag);
        write_nil(&mut out);
        write_str(&mut out, &data);
        write_bin(&mut out, &data);
        write_ext_head(&mut out, 32, data.len() as u32);
        out.extend_from_slice(&data);
        write_time(&mut out, Time::from_parts(i64::from(seconds), nanos));
        let mut rest = out.as_slice();
        let mut next = || rmpv::decode::read_value_ref(&mut rest).unwrap().to_owned();
        prop_assert_eq!(next().as_i64(), Some(signed));
        prop_assert_eq!(next().as_i64(), Some(small));
        prop_assert_eq!(next().as_u64(), Some(unsigned));
        prop_assert_eq!(next().as_f64().map(f64::to_bits), Some(float.to_bits()));
        prop_assert_eq!(next().as_bool(), Some(flag));
        prop_assert!(next().is_nil());
        prop_assert_eq!(next().as_slice().map(<[u8]>::to_vec), Some(data.clone()));
        prop_assert_eq!(next(), Value::Binary(data.clone()));
        prop_assert_eq!(next(), Value::Ext(32, data.clone()));
        prop_assert!(next().as_ext().is_some());
        prop_assert!(rest.is_empty());
        let mut reader = Reader::new(&out);
        prop_assert_eq!(reader.int(), Ok(i128::from(signed)));
        prop_assert_eq!(reader.nil(), Err(ReadError::Type));
        prop_assert_eq!(reader.int(), Ok(i128::from(small)));
        prop_assert_eq!(reader.int(), Ok(i128::from(unsigned)));
        prop_assert_eq!(reader.float().map(f64::to_bits), Ok(float.to_bits()));
        prop_assert_eq!(reader.bool(), Ok(flag));
        prop_assert_eq!(reader.nil(), Ok(()));
        prop_assert_eq!(reader.bytes(), Ok(data.as_slice()));
        prop_assert_eq!(reader.bytes(), Ok(data.as_slice()));
        prop_assert_eq!(reader.ext(), Ok((32, data.as_slice())));
        prop_assert_eq!(reader.ext().map(|(code, data)| (code, data.len())), Ok((0, 8)));
        prop_assert_eq!(reader.peek(), Err(ReadError::Short));
        let mut out = Vec::new();
        write_array_len(&mut out, length);
        write_map_len(&mut out, length);
        let mut reader = Reader::new(&out);
        prop_assert_eq!(reader.array_len(), Ok(length));
        prop_assert_eq!(reader.map_len(), Ok(length));
        prop_assert_eq!(reader.position(), out.len());
    }
}

#[test]
fn an_entry_may_have_any_encoding_of_an_event_time() {
    let fixext = [&[0x92, 0xd7, 0][..], &[0; 8], &[0x80]].concat();
    let ext8 = [&[0x92, 0xc7, 8, 0][..], &[0; 8], &[0x80]].concat();
    let wide_array = [&[0xdc, 0, 2, 0xd7, 0][..], &[0; 8], &[0x80]].concat();
    for entry in [fixext, ext8, wide_array] {
        assert_eq!(entry_shape(&entry), Shape::Good, "{entry:x?}");
    }
}

#[test]
fn a_float_is_a_time() {
    let (received, float) = (Time(7), 1_795_435_404.25_f64);
    let mut value = vec![0xcb];
    value.extend_from_slice(&float.to_be_bytes());
    assert_eq!(
        replacing_time(&value, received),
        Time::from_parts(1_795_435_404, 250_000_000)
    );
    assert_eq!(replacing_time(&[0xc0], received), received);
    for float in [f64::NAN, f64::INFINITY, 1e300] {
        let value = [&[0xcb][..], &float.to_be_bytes()].concat();
        assert_eq!(replacing_time(&value, received), received, "{float}");
    }
}

#[test]
fn a_nil_time_or_a_float_is_not_a_misfit() {
    assert_eq!(entry_shape(&[0x92, 0xc0, 0x80]), Shape::Timeless);
    let float = [0x92, 0xca, 0, 0, 0, 0, 0x80];
    assert_eq!(entry_shape(&float), Shape::Timeless);
    assert_eq!(
        entry_shape(&[0x92, 0x92, 0xc0, 0x80, 0x80]),
        Shape::Timeless
    );
    for misfit in [
        &[0x92, 0x01, 0xc0][..],
        &[0x93, 0x01, 0x80, 0x80],
        &[0x92, 0xd6, 0, 1, 2, 3, 4, 0x80],
        &[0x92, 0xd7, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0x80],
        &[0x07],
        &[0x80],
    ] {
        assert_eq!(entry_shape(misfit), Shape::Misfit, "{misfit:x?}");
    }
}

#[test]
fn entries_before_a_malformed_byte_are_counted() {
    let good = [0x92, 0x01, 0x80];
    let mut bytes = [good, good].concat();
    bytes.extend_from_slice(&[0x92, 0x01, 0x81, 0xc1]);
    let mut walker = Walker::new();
    assert_eq!(walker.walk(&bytes), Err(Malformed { at: 9 }));
    assert_eq!((walker.entries(), walker.whole()), (2, 6));
}

#[test]
fn a_map_that_claims_four_billion_pairs_only_waits_for_more_bytes() {
    let mut walker = Walker::new();
    let mut bytes = vec![0x92, 0x01];
    for _ in 0..1000 {
        bytes.extend_from_slice(&[0xdf, 0xff, 0xff, 0xff, 0xff]);
    }
    assert_eq!(walker.walk(&bytes), Ok(()));
    assert_eq!((walker.entries(), walker.whole()), (0, 0));
}
