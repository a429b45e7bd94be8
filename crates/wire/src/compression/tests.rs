//! Compressed data reads back; damaged data is detected, with bounded memory.

use proptest::prelude::*;

use super::*;

/// Inflates into a buffer that grows by `step` bytes up to `bytes_max`.
fn inflate(
    codec: Codec,
    input: &[u8],
    step: usize,
    bytes_max: usize,
) -> Result<(Inflated, Vec<u8>), InflateError> {
    let mut inflater = Inflater::new(codec).unwrap();
    let mut output = Vec::with_capacity(step);
    loop {
        match inflater.inflate(input, &mut output)? {
            Inflated::Full if output.len() < bytes_max => output.reserve_exact(step),
            how => return Ok((how, output)),
        }
    }
}

fn compressed(codec: Codec, parts: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        compress(codec, part, &mut out).unwrap();
    }
    out
}

fn codec() -> impl Strategy<Value = Codec> {
    prop_oneof![Just(Codec::Gzip), Just(Codec::Zstd)]
}

proptest! {
    #[test]
    fn several_members_or_frames_read_as_one(
        codec in codec(),
        parts in prop::collection::vec(prop::collection::vec(0u8..4, 0..2000), 0..4),
        step in 1usize..5000,
    ) {
        let input = compressed(codec, &parts);
        let (how, output) = inflate(codec, &input, step, usize::MAX).unwrap();
        prop_assert_eq!(how, Inflated::Done);
        prop_assert_eq!(output, parts.concat());
    }

    #[test]
    fn a_truncated_payload_is_detected(
        codec in codec(),
        part in prop::collection::vec(any::<u8>(), 1..2000),
        cut in any::<prop::sample::Index>(),
    ) {
        let input = compressed(codec, &[part]);
        let end = 1 + cut.index(input.len() - 1);
        prop_assert_eq!(inflate(codec, &input[..end], 100, usize::MAX).unwrap_err(), InflateError::Truncated);
    }

    #[test]
    fn random_bytes_cause_no_panic_and_no_endless_output(codec in codec(), input in prop::collection::vec(any::<u8>(), 1..500)) {
        if let Ok((_, output)) = inflate(codec, &input, 64, 1 << 16) {
            prop_assert!(output.len() <= (1 << 16) + 1024);
        }
    }
}

#[test]
fn bytes_of_another_format_are_corrupt() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let found = inflate(codec, b"these are plain words, and many", 100, 1000);
        assert_eq!(found.unwrap_err(), InflateError::Corrupt);
    }
}

#[test]
fn a_damaged_checksum_is_corrupt() {
    let mut input = compressed(Codec::Gzip, &[vec![7; 1000]]);
    let place = input.len() - 6;
    input[place] ^= 1;
    let found = inflate(Codec::Gzip, &input, 100, 10_000);
    assert_eq!(found.unwrap_err(), InflateError::Corrupt);
}

#[test]
fn a_decompression_bomb_stops_at_the_limit_of_the_caller() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let input = compressed(codec, &[vec![0; 50 << 20]]);
        let (how, output) = inflate(codec, &input, 64 << 10, 1 << 20).unwrap();
        assert_eq!(how, Inflated::Full);
        assert!(output.len() <= (1 << 20) + (64 << 10) && output.capacity() < 2 << 20);
    }
}

#[test]
fn a_zstd_window_above_the_limit_is_rejected() {
    use std::io::Write as _;
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&vec![1; 20 << 20]).unwrap();
    let input = encoder.finish().unwrap();
    let found = inflate(Codec::Zstd, &input, 1 << 20, 64 << 20);
    assert_eq!(found.unwrap_err(), InflateError::Corrupt);
}

#[test]
fn the_size_that_a_member_or_frame_claims_is_read() {
    let mut frame = Vec::new();
    compress(Codec::Gzip, &[7; 12_345], &mut frame).unwrap();
    assert_eq!(size_claimed(Codec::Gzip, &frame), Some(12_345));
    assert_eq!(size_claimed(Codec::Gzip, &[1, 2]), None);
    let frame = zstd::bulk::compress(&[7; 12_345], 1).unwrap();
    assert_eq!(size_claimed(Codec::Zstd, &frame), Some(12_345));
    assert_eq!(size_claimed(Codec::Zstd, b"no zstd"), None);
}
