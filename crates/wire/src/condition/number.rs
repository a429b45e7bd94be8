//! Numbers, compared by their exact values: no integer of 64 bits is rounded to a float.

use std::cmp::Ordering;

use crate::msgpack::Reader;

/// A number of a record or of a condition.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    /// The number at the start of `bytes`; `None` for any other type.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        match reader.int() {
            Ok(number) => Some(Self::Integer(number)),
            Err(_) => reader.float().ok().map(Self::Float),
        }
    }

    /// Which of two numbers is larger; `None` if one of them is NaN.
    #[inline]
    pub(super) fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a.cmp(&b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(&b),
            (Self::Integer(a), Self::Float(b)) => mixed(a, b),
            (Self::Float(a), Self::Integer(b)) => mixed(b, a).map(Ordering::reverse),
        }
    }
}

/// Compares an integer of at most 65 bits with a float: first with the whole part of the float, then with its fraction.
/// The conversion of the whole part to `i128` is exact. For floats far beyond 65 bits it saturates, which does not
/// change the order.
fn mixed(integer: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    let whole = float.trunc();
    let fraction = || 0.0_f64.partial_cmp(&(float - whole));
    match integer.cmp(&(whole as i128)) {
        Ordering::Equal => fraction(),
        order => Some(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_floats_are_compared_without_rounding() {
        use Number::{Float, Integer};
        use Ordering::{Equal, Greater, Less};
        let big = i128::from(u64::MAX);
        for (a, b, order) in [
            (Integer(1), Float(1.0), Some(Equal)),
            (Integer(1), Float(1.5), Some(Less)),
            (Integer(-1), Float(-1.5), Some(Greater)),
            (Integer(0), Float(-0.0), Some(Equal)),
            (Integer(0), Float(-0.25), Some(Greater)),
            // No float equals 2^53 + 1; rounding would make it equal to 2^53.
            (
                Integer(9_007_199_254_740_993),
                Float(9_007_199_254_740_992.0),
                Some(Greater),
            ),
            (
                Integer(big),
                Float(18_446_744_073_709_551_616.0),
                Some(Less),
            ),
            (Integer(big), Float(1e300), Some(Less)),
            (Integer(big), Float(f64::INFINITY), Some(Less)),
            (Integer(-big), Float(f64::NEG_INFINITY), Some(Greater)),
            (Integer(1), Float(f64::NAN), None),
            (Float(f64::NAN), Float(f64::NAN), None),
        ] {
            assert_eq!(a.compare(b), order, "{a:?} {b:?}");
            assert_eq!(b.compare(a), order.map(Ordering::reverse), "{b:?} {a:?}");
        }
    }

    #[test]
    fn only_numbers_are_read() {
        assert!(
            matches!(Number::read(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), Some(Number::Integer(n)) if n == i128::from(u64::MAX))
        );
        assert!(matches!(
            Number::read(b"\xca\x3f\x80\0\0"),
            Some(Number::Float(1.0))
        ));
        for bytes in [&b""[..], b"\xa11", b"\xc3", b"\xc0", b"\xcb\0"] {
            assert!(Number::read(bytes).is_none(), "{bytes:?}");
        }
    }
}
