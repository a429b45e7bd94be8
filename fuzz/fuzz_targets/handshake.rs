//! Fuzzes the handshake of the forward protocol with any bytes as a HELO, a PING and a PONG. A message that can be read stays the same
//! when it is written and read again. Without its last byte it is reported as short.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_wire::{
    forward::handshake::{read_helo, read_ping, read_pong, write_helo, write_ping, write_pong},
    msgpack::ReadError,
};

fuzz_target!(|data: &[u8]| {
    let mut out = Vec::new();
    if let Ok((helo, length)) = read_helo(data) {
        write_helo(&mut out, &helo);
        assert_eq!(read_helo(&out).map(|(again, _)| again), Ok(helo));
        prefix(&data[..length - 1], read_helo(&data[..length - 1]).err());
    }
    out.clear();
    if let Ok((ping, length)) = read_ping(data) {
        write_ping(&mut out, &ping);
        assert_eq!(read_ping(&out).map(|(again, _)| again), Ok(ping));
        prefix(&data[..length - 1], read_ping(&data[..length - 1]).err());
    }
    out.clear();
    if let Ok((pong, length)) = read_pong(data) {
        write_pong(&mut out, &pong);
        assert_eq!(read_pong(&out).map(|(again, _)| again), Ok(pong));
        prefix(&data[..length - 1], read_pong(&data[..length - 1]).err());
    }
});

fn prefix(bytes: &[u8], error: Option<ReadError>) {
    assert_eq!(error, Some(ReadError::Short), "{bytes:?}");
}
