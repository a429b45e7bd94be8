use proptest::prelude::*;

use super::*;

/// A request as the kernel writes it.
fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(40 + body.len() as u32).to_ne_bytes());
    bytes.extend_from_slice(&opcode.to_ne_bytes());
    for number in [7_u64, 3] {
        bytes.extend_from_slice(&number.to_ne_bytes());
    }
    for number in [1000_u32, 100, 4242, 0] {
        bytes.extend_from_slice(&number.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

fn numbers(of: &[u64]) -> Vec<u8> {
    of.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

#[test]
fn a_request_names_the_asking_process_the_operation_and_the_node() {
    let bytes = request(1, b"app.log\0");
    let request = Request::parse(&bytes).unwrap();
    let header = Header {
        unique: 7,
        node: 3,
        uid: 1000,
        gid: 100,
        thread: 4242,
    };
    assert_eq!(request.header, header);
    assert_eq!(request.operation, Operation::Lookup { name: b"app.log" });
}

#[test]
fn the_data_of_a_write_is_at_the_documented_offset() {
    let mut body = numbers(&[9, 4096]);
    body.extend_from_slice(&3_u32.to_ne_bytes());
    body.extend_from_slice(&[0; 12]);
    body.extend_from_slice(&0o2001_u32.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(b"a\nb");
    let bytes = request(16, &body);
    assert_eq!(&bytes[WRITE_DATA_AT..], b"a\nb");
    let write = Operation::Write {
        handle: 9,
        offset: 4096,
        size: 3,
        flags: 0o2001,
    };
    assert_eq!(Request::parse(&bytes).unwrap().operation, write);
    // The data has one byte less than the size field states.
    let short = request(16, &body[..body.len() - 1]);
    let malformed = Malformed {
        unique: 7,
        opcode: 16,
    };
    assert_eq!(Request::parse(&short), Err(malformed));
}

#[test]
fn both_names_of_a_rename_are_read() {
    let mut body = numbers(&[12]);
    body.extend_from_slice(b"old\0new\0");
    let rename = |flags| Operation::Rename {
        name: b"old",
        to_node: 12,
        to_name: b"new",
        flags,
    };
    let bytes = request(12, &body);
    assert_eq!(Request::parse(&bytes).unwrap().operation, rename(0));
    let mut body = numbers(&[12, 1]);
    body.extend_from_slice(b"old\0new\0");
    let bytes = request(45, &body);
    assert_eq!(Request::parse(&bytes).unwrap().operation, rename(1));
}

#[test]
fn only_the_attributes_in_the_mask_are_set() {
    let mut body = vec![0; 88];
    body[..4].copy_from_slice(&0b1_1001_1001_u32.to_ne_bytes());
    body[16..24].copy_from_slice(&77_u64.to_ne_bytes());
    body[40..48].copy_from_slice(&5_u64.to_ne_bytes());
    body[68..72].copy_from_slice(&0o600_u32.to_ne_bytes());
    let bytes = request(4, &body);
    let set = SetAttributes {
        mode: Some(0o600),
        size: Some(77),
        atime: Some(TimeSet::Now),
        ..SetAttributes::default()
    };
    let operation = Request::parse(&bytes).unwrap().operation;
    assert_eq!(operation, Operation::SetAttributes(set));
}

#[test]
fn answers_have_the_lengths_that_the_kernel_expects() {
    let of = Attributes::default();
    assert_eq!(attributes(&of, 1).len(), 104);
    assert_eq!(entry(&of, 9, 0, 1).len(), 128);
    assert_eq!(created(&of, 0, 1, 2, 0).len(), 144);
    assert_eq!(init(0, 1 << 20, 4096).len(), 64);
    assert_eq!(init(0, 1 << 20, 4096)[28..30], 256_u16.to_ne_bytes());
    let all = FileSystem {
        block_bytes: 4096,
        blocks: (1, 1),
        nodes: (1, 1),
        name_bytes_max: 255,
    };
    assert_eq!(statistics(&all).len(), 80);
    assert_eq!(header(7, 5, 8)[4..8], (-5_i32).to_ne_bytes());
}

#[test]
fn a_listing_takes_as_many_entries_as_fit() {
    let mut entries = Entries::new(70);
    assert!(entries.add(2, 1, 0o100_644, b"a"));
    assert!(entries.add(3, 2, 0o040_755, b"longer-name"[..8].as_ref()));
    assert!(!entries.add(4, 3, 0o100_644, b"c"));
    let bytes = entries.finish();
    assert_eq!(bytes.len(), 64);
    assert_eq!(bytes[20..24], 8_u32.to_ne_bytes());
    assert_eq!(bytes[32 + 20..32 + 24], 4_u32.to_ne_bytes());
}

proptest! {
    #[test]
    fn no_request_makes_the_decoder_panic(opcode in 0..60_u32, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::parse(&request(opcode, &body));
        let _ = Request::parse(&body);
    }
}
