use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::grpc_timeout;

/// The header that the time which is left goes in.
#[derive(Clone, Debug)]
pub(super) struct Header {
    name: HeaderName,
    form: Form,
}

/// How it is written there.
#[derive(Clone, Copy, Debug)]
enum Form {
    Grpc,
    Millis,
}

// === impl Header ===

impl Header {
    pub(super) const fn grpc() -> Self {
        Self { name: HeaderName::from_static("grpc-timeout"), form: Form::Grpc }
    }

    pub(super) const fn millis(name: HeaderName) -> Self {
        Self { name, form: Form::Millis }
    }

    /// The time that is left, where the headers say so. What makes no sense says nothing; nor do two of
    /// them, for which of them counts?
    pub(super) fn read(&self, headers: &HeaderMap) -> Option<Duration> {
        let mut values = headers.get_all(&self.name).iter();
        let value = values.next()?;
        let left = match (values.next(), self.form) {
            (Some(_), _) => None,
            (None, Form::Grpc) => grpc_timeout::decode(value),
            (None, Form::Millis) => read_millis(value.as_bytes()),
        };
        if left.is_none() {
            tracing::debug!(header = %self.name, "malformed deadline ignored");
        }
        left
    }

    /// Writes it, in place of what is there.
    pub(super) fn write(&self, left: Duration, headers: &mut HeaderMap) {
        let value = match self.form {
            Form::Grpc => grpc_timeout::encode(left),
            Form::Millis => write_millis(left),
        };
        headers.insert(&self.name, value);
    }
}

/// Rounded up, and at least one: zero says that the time is up.
fn write_millis(left: Duration) -> HeaderValue {
    let millis = left.as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(millis).unwrap_or(u64::MAX).into()
}

fn read_millis(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = std::str::from_utf8(value).ok()?;
    // Nothing but digits fails only by being too large.
    Some(digits.parse().map_or(Duration::MAX, Duration::from_millis))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(form: &Header, values: &[&str]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&form.name, value.parse().unwrap());
        }
        form.read(&headers)
    }

    fn millis() -> Header {
        Header::millis(HeaderName::from_static("x-time-left-ms"))
    }

    proptest! {
        #[test]
        fn whole_milliseconds_are_never_less_and_less_than_one_more(
            secs in 0..=u64::MAX / 1000 - 1, nanos in 0..1_000_000_000_u32
        ) {
            let time = Duration::new(secs, nanos);
            let mut headers = HeaderMap::new();
            millis().write(time, &mut headers);
            let read = millis().read(&headers).unwrap();
            prop_assert!(read >= time);
            prop_assert!(read < time + Duration::from_millis(1) || time.is_zero());
        }
    }

    #[test]
    fn milliseconds_are_rounded_up_and_have_no_zero_and_no_end() {
        let table = [
            (Duration::ZERO, "1"),
            (Duration::from_nanos(1), "1"),
            (Duration::from_millis(1), "1"),
            (Duration::new(0, 1_000_001), "2"),
            (Duration::from_secs(5), "5000"),
            (Duration::MAX, "18446744073709551615"),
        ];
        for (time, expected) in table {
            assert_eq!(write_millis(time), expected, "{time:?}");
        }
    }

    #[test]
    fn only_digits_are_milliseconds() {
        assert_eq!(read(&millis(), &["1500"]), Some(Duration::from_millis(1500)));
        assert_eq!(read(&millis(), &["007"]), Some(Duration::from_millis(7)));
        assert_eq!(read(&millis(), &["0"]), Some(Duration::ZERO));
        let most = Some(Duration::from_millis(u64::MAX));
        assert_eq!(read(&millis(), &["18446744073709551615"]), most);
        assert_eq!(read(&millis(), &["18446744073709551616"]), Some(Duration::MAX));
        for value in ["", "+5", "-1", "1.5", "5ms", "5 000", "5,5", "0x5", "soon", "1e3"] {
            assert_eq!(read(&millis(), &[value]), None, "{value:?}");
        }
        assert_eq!(read_millis("\u{0665}".as_bytes()), None);
        assert_eq!(read_millis(b"\xff"), None);
    }

    #[test]
    fn two_of_them_say_nothing() {
        assert_eq!(read(&millis(), &["5", "5"]), None);
        assert_eq!(read(&Header::grpc(), &["5S", "6S"]), None);
        assert_eq!(read(&Header::grpc(), &["5S", "soon"]), None);
        assert_eq!(read(&Header::grpc(), &["5S"]), Some(Duration::from_secs(5)));
        assert_eq!(read(&Header::grpc(), &[]), None);
    }
}
