//! The value of gRPC's header `grpc-timeout`.
//!
//! It is one to eight digits and a unit, as `100m` for 100 ms. Both rules are easily broken: 100 ms in
//! nanoseconds have nine digits, and servers answer with a protocol error; the longest that can be written
//! is eleven thousand years, which overflows where somebody multiplies.
//!
//! | unit | `H` | `M` | `S` | `m` | `u` | `n` |
//! |---|---|---|---|---|---|---|
//! | | hours | minutes | seconds | milliseconds | microseconds | nanoseconds |
//!
//! Source: [gRPC over HTTP/2], "Timeout".
//!
//! [gRPC over HTTP/2]: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#requests

use std::time::Duration;

use http::HeaderValue;

/// The most that eight digits can say.
const MOST: u128 = 99_999_999;

/// The units and their nanoseconds, the finest first.
const UNITS: [(char, u128); 6] = [
    ('n', 1),
    ('u', 1_000),
    ('m', 1_000_000),
    ('S', 1_000_000_000),
    ('M', 60 * 1_000_000_000),
    ('H', 3600 * 1_000_000_000),
];

/// Writes so much time, in the finest unit that it fits in.
///
/// It is rounded up, by less than a hundred-thousandth; at least one nanosecond, for there is no zero; at
/// most `99999999H`.
///
/// ```
/// use buttress_http::grpc_timeout;
/// use std::time::Duration;
///
/// assert_eq!(grpc_timeout::encode(Duration::from_millis(100)), "100000u");
/// assert_eq!(grpc_timeout::encode(Duration::MAX), "99999999H");
/// ```
#[must_use]
pub fn encode(time: Duration) -> HeaderValue {
    let nanos = time.as_nanos().max(1);
    let (count, unit) = UNITS
        .into_iter()
        .map(|(unit, size)| (nanos.div_ceil(size), unit))
        .find(|(count, _)| *count <= MOST)
        .unwrap_or((MOST, 'H'));
    HeaderValue::try_from(format!("{count}{unit}")).expect("digits and a letter are a value")
}

/// Reads a value. `None` if it is not one to eight digits and a unit: no sign, no space, no fraction.
///
/// Zero is none that may be sent, but its meaning is plain: [`Duration::ZERO`].
///
/// ```
/// use buttress_http::grpc_timeout;
/// use std::time::Duration;
///
/// assert_eq!(grpc_timeout::decode("1500m"), Some(Duration::from_millis(1500)));
/// assert_eq!(grpc_timeout::decode("1.5S"), None);
/// ```
#[must_use]
pub fn decode(value: impl AsRef<[u8]>) -> Option<Duration> {
    let (unit, digits) = value.as_ref().split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Eight digits of hours are far from the end of u64.
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    match unit {
        b'n' => Some(Duration::from_nanos(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'S' => Some(Duration::from_secs(count)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'H' => Some(Duration::from_secs(count * 3600)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(99_999_999 * 3600);

    /// A duration of any size: of so many nanoseconds, each number of digits as likely as the other.
    fn durations() -> impl Strategy<Value = Duration> {
        (0..=94_u32, any::<u128>()).prop_map(|(bits, random)| {
            let nanos = (random & ((1 << bits) - 1)).max(1).min(Duration::MAX.as_nanos());
            let secs = u64::try_from(nanos / 1_000_000_000).unwrap();
            Duration::new(secs, u32::try_from(nanos % 1_000_000_000).unwrap())
        })
    }

    fn check(time: Duration) {
        let written = encode(time);
        assert!(written.len() <= 9, "{written:?}");
        let read = decode(&written).expect("what was written");
        let expected = time.clamp(Duration::from_nanos(1), LONGEST);
        assert!(read >= expected, "{time:?} became less: {written:?}");
        let most = expected.as_nanos() + expected.as_nanos() / 100_000 + 1;
        assert!(read.as_nanos() <= most, "{time:?} became too much: {written:?}");
    }

    proptest! {
        // GRP-05
        #[test]
        fn what_is_written_is_never_less_and_hardly_more(time in durations()) {
            check(time);
        }

        // GRP-05
        #[test]
        fn whatever_comes_is_read_without_a_panic(value in "[0-9]{0,10}[HMSmun]?|.{0,12}") {
            let digits = value.len().saturating_sub(1);
            let (count, unit) = value.split_at_checked(digits).unwrap_or(("", ""));
            let strict = (1..=8).contains(&count.len())
                && count.bytes().all(|b| b.is_ascii_digit())
                && ["H", "M", "S", "m", "u", "n"].contains(&unit);
            prop_assert_eq!(decode(&value).is_some(), strict);
        }
    }

    // GRP-05
    #[test]
    fn eight_digits_fit_and_nine_take_the_next_unit() {
        let table = [
            (1, "n", "100000u"),
            (1_000, "u", "100000m"),
            (1_000_000, "m", "100000S"),
            (1_000_000_000, "S", "1666667M"),
            (60_000_000_000, "M", "1666667H"),
            (3_600_000_000_000, "H", "99999999H"),
        ];
        for (size, unit, next) in table {
            let times = |n: u128| Duration::from_nanos_u128(n * size);
            assert_eq!(encode(times(99_999_999)), format!("99999999{unit}"));
            assert_eq!(encode(times(100_000_000)), next);
            for n in [99_999_998, 99_999_999, 100_000_000, 100_000_001] {
                check(times(n));
                check(times(n) + Duration::from_nanos(1));
                check(times(n) - Duration::from_nanos(1));
            }
        }
    }

    // GRP-05
    #[test]
    fn the_shortest_is_one_and_the_longest_is_clamped() {
        assert_eq!(encode(Duration::ZERO), "1n");
        assert_eq!(encode(Duration::from_nanos(1)), "1n");
        assert_eq!(encode(Duration::MAX), "99999999H");
        assert_eq!(decode("99999999H"), Some(LONGEST));
    }

    // GRP-05
    #[test]
    fn only_digits_and_a_unit_are_a_timeout() {
        let table = [
            ("0n", Some(Duration::ZERO)),
            ("1n", Some(Duration::from_nanos(1))),
            ("00000007u", Some(Duration::from_micros(7))),
            ("100m", Some(Duration::from_millis(100))),
            ("5S", Some(Duration::from_secs(5))),
            ("3M", Some(Duration::from_secs(180))),
            ("2H", Some(Duration::from_secs(7200))),
            ("99999999H", Some(LONGEST)),
        ];
        for (value, expected) in table {
            assert_eq!(decode(value), expected, "{value}");
        }
        let senseless = [
            "",
            "5",
            "S",
            "+5S",
            "-1S",
            "1.5S",
            "123456789n",
            "000000001n",
            " 5S",
            "5S ",
            "5 S",
            "5s",
            "5h",
            "5N",
            "5U",
            "5SS",
            "5ms",
            "0x5S",
            "\u{0665}S",
            "5\u{00b5}",
        ];
        for value in senseless {
            assert_eq!(decode(value), None, "{value:?}");
        }
        assert_eq!(decode(b"\xff5S"), None);
        assert_eq!(decode(b"5\xff"), None);
    }
}
