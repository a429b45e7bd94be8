//! Functions that return the time or random values, made repeatable: a record that is read again gets the same values.
//!
//! `now()` is the receive time of the batch, which a durable channel stores. A random value is a SHA-256 hash of that time, the
//! tag, the event time and the bytes of the record, the index of the record among those that were received together, and the number
//! of random values that were generated earlier for the same record. The index gives equal records different values.

use bytes::Bytes;
use vrl::{
    compiler::{Context, ExpressionError, Resolved},
    prelude::NotNan,
    value::Value,
};

use crate::target::{NOW, RANDOM};

/// The largest length that `random_bytes` accepts, as in the original.
const RANDOM_BYTES_MAX: i64 = 64 * 1024;

/// Returns the receive time of the batch.
pub(super) fn now(_: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    let value = context.target().target_get(&NOW);
    value.ok().flatten().cloned().ok_or_else(no_record)
}

fn draw(context: &mut Context<'_>) -> Result<[u8; 32], ExpressionError> {
    let drawn = context.target_mut().target_get_mut(&RANDOM).ok().flatten();
    match drawn {
        Some(Value::Bytes(bytes)) => <[u8; 32]>::try_from(&bytes[..]).map_err(|_| no_record()),
        _ => Err(no_record()),
    }
}

fn draw_u64(context: &mut Context<'_>) -> Result<u64, ExpressionError> {
    let [a, b, c, d, e, f, g, h, ..] = draw(context)?;
    Ok(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

/// The error of a function that is called without a record. This does not happen.
fn no_record() -> ExpressionError {
    "there is no record".into()
}

pub(super) fn random_bool(_: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    Ok(Value::Boolean(draw_u64(context)? >> 63 == 1))
}

pub(super) fn random_int(arguments: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    let [Some(Value::Integer(min)), Some(Value::Integer(max)), ..] = *arguments else {
        return Err("min and max must be integers".into());
    };
    if max <= min {
        return Err("max must be greater than min".into());
    }
    let span = u128::from(min.abs_diff(max));
    // The high half of the product is a number below `span`. All numbers are equally likely, except for a bias of 2^-64.
    let offset = (u128::from(draw_u64(context)?) * span) >> 64;
    let value = i128::from(min) + i128::try_from(offset).unwrap_or(0);
    Ok(Value::Integer(i64::try_from(value).unwrap_or(min)))
}

pub(super) fn random_float(arguments: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    let [Some(Value::Float(min)), Some(Value::Float(max)), ..] = arguments else {
        return Err("min and max must be floats".into());
    };
    let (min, max) = (min.into_inner(), max.into_inner());
    if max <= min {
        return Err("max must be greater than min".into());
    }
    // 53 bits fit exactly into the mantissa of a float, so `part` is evenly distributed in [0, 1).
    let part = (draw_u64(context)? >> 11) as f64 / (1_u64 << 53) as f64;
    let value = min * (1.0 - part) + max * part;
    let value = if value < max { value } else { min };
    NotNan::new(value)
        .map(Value::Float)
        .map_err(|_| "the range is too large".into())
}

pub(super) fn random_bytes(arguments: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    let length = match arguments.first() {
        Some(Some(Value::Integer(length @ 0..=RANDOM_BYTES_MAX))) => *length as usize,
        _ => return Err("the length must be between 0 and 65536".into()),
    };
    let mut bytes = Vec::with_capacity(length + 32);
    while bytes.len() < length {
        bytes.extend_from_slice(&draw(context)?);
    }
    bytes.truncate(length);
    Ok(Value::Bytes(Bytes::from(bytes)))
}

pub(super) fn uuid_v4(_: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    let drawn = draw(context)?;
    let (bytes, _) = drawn.split_first_chunk().ok_or_else(no_record)?;
    Ok(uuid(u128::from_be_bytes(*bytes), 4))
}

/// A UUID of version 7: 48 bits of milliseconds since 1970, followed by random bits.
pub(super) fn uuid_v7(arguments: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    let time = match arguments.first() {
        Some(Some(time)) => time.clone(),
        _ => now(&[], context)?,
    };
    let Value::Timestamp(time) = time else {
        return Err("the timestamp must be a timestamp".into());
    };
    let millis = u64::try_from(time.timestamp_millis())
        .ok()
        .filter(|millis| *millis < 1 << 48)
        .ok_or("the timestamp must be between 1970 and 10889")?;
    let drawn = draw(context)?;
    let (bytes, _) = drawn.split_first_chunk().ok_or_else(no_record)?;
    let random = u128::from_be_bytes(*bytes) >> 48;
    Ok(uuid(u128::from(millis) << 80 | random, 7))
}

/// Formats a UUID of this version, in the variant of RFC 9562.
fn uuid(bits: u128, version: u128) -> Value {
    let bits = bits & !(0xf << 76) | version << 76;
    let bits = bits & !(0b11 << 62) | 0b10 << 62;
    let hex = format!("{bits:032x}");
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    Value::from(format!(
        "{}-{}-{}-{}-{}",
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32)
    ))
}
