//! Appends single values to a vector. Integers and lengths have their shortest encoding.

use millstream_record::Time;

use super::EVENT_TIME;

/// Writes nil.
pub fn write_nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

/// Writes a boolean.
pub fn write_bool(out: &mut Vec<u8>, value: bool) {
    out.push(0xc2 + u8::from(value));
}

/// Writes a signed integer.
pub fn write_int(out: &mut Vec<u8>, value: i64) {
    if let Ok(value) = u64::try_from(value) {
        write_uint(out, value);
    } else if value >= -32 {
        out.push(value as u8);
    } else if let Ok(value) = i8::try_from(value) {
        out.extend_from_slice(&[0xd0, value as u8]);
    } else if let Ok(value) = i16::try_from(value) {
        out.push(0xd1);
        out.extend_from_slice(&value.to_be_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(0xd2);
        out.extend_from_slice(&value.to_be_bytes());
    } else {
        out.push(0xd3);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes an unsigned integer.
pub fn write_uint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else if let Ok(value) = u8::try_from(value) {
        out.extend_from_slice(&[0xcc, value]);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(0xcd);
        out.extend_from_slice(&value.to_be_bytes());
    } else if let Ok(value) = u32::try_from(value) {
        out.push(0xce);
        out.extend_from_slice(&value.to_be_bytes());
    } else {
        out.push(0xcf);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes a float of 8 bytes.
pub fn write_f64(out: &mut Vec<u8>, value: f64) {
    out.push(0xcb);
    out.extend_from_slice(&value.to_be_bytes());
}

/// Writes the head of a str of `length` bytes.
pub fn write_str_head(out: &mut Vec<u8>, length: u32) {
    if length < 32 {
        out.push(0xa0 | length as u8);
    } else {
        write_length(out, [0xd9, 0xda, 0xdb], length);
    }
}

/// Writes a str. `text` need not be UTF-8; beyond 4 GiB it is truncated.
pub fn write_str(out: &mut Vec<u8>, text: &[u8]) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    write_str_head(out, length);
    out.extend_from_slice(text.get(..length as usize).unwrap_or(text));
}

/// Writes a bin; beyond 4 GiB it is truncated.
pub fn write_bin(out: &mut Vec<u8>, data: &[u8]) {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    write_length(out, [0xc4, 0xc5, 0xc6], length);
    out.extend_from_slice(data.get(..length as usize).unwrap_or(data));
}

/// Writes the head of an array of `length` values.
pub fn write_array_len(out: &mut Vec<u8>, length: u32) {
    if length < 16 {
        out.push(0x90 | length as u8);
    } else if let Ok(length) = u16::try_from(length) {
        out.push(0xdc);
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.push(0xdd);
        out.extend_from_slice(&length.to_be_bytes());
    }
}

/// Writes the head of a map of `length` pairs.
pub fn write_map_len(out: &mut Vec<u8>, length: u32) {
    if length < 16 {
        out.push(0x80 | length as u8);
    } else if let Ok(length) = u16::try_from(length) {
        out.push(0xde);
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.push(0xdf);
        out.extend_from_slice(&length.to_be_bytes());
    }
}

/// Writes the head of an ext value of `length` bytes (never as fixext).
pub fn write_ext_head(out: &mut Vec<u8>, code: i8, length: u32) {
    write_length(out, [0xc7, 0xc8, 0xc9], length);
    out.push(code as u8);
}

/// Writes an EventTime as fixext 8.
pub fn write_event_time(out: &mut Vec<u8>, seconds: u32, nanos: u32) {
    out.extend_from_slice(&[0xd7, EVENT_TIME as u8]);
    out.extend_from_slice(&seconds.to_be_bytes());
    out.extend_from_slice(&nanos.to_be_bytes());
}

/// Writes a time: an EventTime from 1970 to 2106, otherwise an integer of seconds (without nanoseconds).
pub fn write_time(out: &mut Vec<u8>, time: Time) {
    match u32::try_from(time.seconds()) {
        Ok(seconds) => write_event_time(out, seconds, time.subsec_nanos()),
        Err(_) => write_int(out, time.seconds()),
    }
}

/// Writes a length after its marker. `markers` are those for lengths of 8, 16 and 32 bits.
fn write_length(out: &mut Vec<u8>, markers: [u8; 3], length: u32) {
    if let Ok(length) = u8::try_from(length) {
        out.extend_from_slice(&[markers[0], length]);
    } else if let Ok(length) = u16::try_from(length) {
        out.push(markers[1]);
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.push(markers[2]);
        out.extend_from_slice(&length.to_be_bytes());
    }
}
