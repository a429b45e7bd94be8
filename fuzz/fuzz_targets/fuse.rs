//! Fuzzes the parser of requests to the mounted directory with any bytes as the result of one read of `/dev/fuse`. Half of the inputs
//! get a correct length and an existing operation in the header, so that the fuzzer reaches the fields after it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_wire::fuse::{Operation, Request, WRITE_DATA_AT};

/// The operations in `linux/fuse.h` that the kernel requests from a file tree.
const OPERATIONS: [u8; 32] = [
    1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 25, 26, 27, 28, 29, 30, 35, 36, 37, 38, 42, 43, 45, 46,
];

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else {
        return;
    };
    let mut bytes = data.to_vec();
    if how % 2 == 0 && bytes.len() >= 8 {
        let length = bytes.len() as u32;
        let operation = u32::from(OPERATIONS[usize::from(how / 2) % OPERATIONS.len()]);
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..8].copy_from_slice(&operation.to_ne_bytes());
    }
    let Ok(request) = Request::parse(&bytes) else {
        return;
    };
    let within = |name: &[u8]| assert!(name.len() < bytes.len() && !name.contains(&0));
    match &request.operation {
        Operation::Write { size, .. } => assert_eq!(WRITE_DATA_AT + *size as usize, bytes.len()),
        Operation::BatchForget(forgotten) => assert!(forgotten.len() * 16 <= bytes.len()),
        Operation::Lookup { name } | Operation::Create { name, .. } | Operation::MakeNode { name, .. } => within(name),
        Operation::Rename { name, to_name, .. } => {
            within(name);
            within(to_name);
        }
        _ => {}
    }
    // A truncated request is an error.
    for end in 0..bytes.len() {
        assert!(Request::parse(&bytes[..end]).is_err());
    }
});
