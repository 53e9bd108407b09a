use std::time::{Duration, SystemTime};

use buttress_core::edge;
use http::{
    HeaderMap, HeaderValue,
    header::{DATE, RETRY_AFTER},
};

/// How long a response asks us to wait: its `Retry-After` ([RFC 9110, 10.2.3]).
///
/// Both forms are read: seconds, and a date in each of its three forms. A date is compared with the
/// response's own `Date` where it has one, so that a callee whose clock is wrong does no harm, else
/// with [`edge::wall`]. A date that has passed asks for no wait at all: [`Duration::ZERO`].
///
/// `None` where there is none, or none that makes sense: garbage, a sign, a fraction, or two of
/// them. A number of seconds that is beyond `u64` is [`Duration::MAX`]: over every cap.
///
/// ```
/// use buttress_http::retry_after;
/// use http::{HeaderMap, header::RETRY_AFTER};
/// use std::time::Duration;
///
/// let mut headers = HeaderMap::new();
/// headers.insert(RETRY_AFTER, "7".parse().unwrap());
/// assert_eq!(retry_after(&headers), Some(Duration::from_secs(7)));
/// ```
///
/// [RFC 9110, 10.2.3]: https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let mut values = headers.get_all(RETRY_AFTER).iter();
    let value = text(values.next()?)?;
    if values.next().is_some() {
        return None;
    }
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // Nothing but digits fails only by being too large.
        return Some(value.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    let sent = sent_at(headers).unwrap_or_else(edge::wall);
    Some(at.duration_since(sent).unwrap_or(Duration::ZERO))
}

fn sent_at(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(text(headers.get(DATE)?)?).ok()
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(|value| value.trim_matches([' ', '\t']))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Sun, 06 Nov 1994 08:49:37 GMT`
    const NOW: Duration = Duration::from_secs(784_111_777);
    const IN_SEVEN: [&str; 3] = [
        "Sun, 06 Nov 1994 08:49:44 GMT",
        "Sunday, 06-Nov-94 08:49:44 GMT",
        "Sun Nov  6 08:49:44 1994",
    ];

    fn read(values: &[&str]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(RETRY_AFTER, value.parse().unwrap());
        }
        retry_after(&headers)
    }

    // BKO-07
    #[tokio::test(start_paused = true)]
    async fn seconds_and_all_three_dates_are_read() {
        edge::set_wall(SystemTime::UNIX_EPOCH + NOW);
        let seven = Some(Duration::from_secs(7));
        assert_eq!(read(&["7"]), seven);
        assert_eq!(read(&[" 7\t"]), seven);
        assert_eq!(read(&["007"]), seven);
        for date in IN_SEVEN {
            assert_eq!(read(&[date]), seven, "{date}");
        }
        assert_eq!(read(&["0"]), Some(Duration::ZERO));
    }

    // BKO-07
    #[test]
    fn what_makes_no_sense_asks_for_nothing() {
        let senseless = [
            "",
            " ",
            "7.5",
            "-1",
            "+7",
            "7s",
            "soon",
            "1e3",
            "0x7",
            "7 8",
            "7, 7",
            "\u{0667}",
            "Sun, 06 Nov 1994",
            "Sun, 32 Nov 1994 08:49:44 GMT",
            "Sun, 06 Nov 1994 08:49:44 CET",
        ];
        for value in senseless {
            assert_eq!(read(&[value]), None, "{value:?}");
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["7", "8"]), None, "which of the two?");
        assert_eq!(read(&["7", "7"]), None);
        assert_eq!(read(&["7", "soon"]), None);
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_bytes(b"\xff7").unwrap());
        assert_eq!(retry_after(&headers), None);
    }

    // BKO-08
    #[tokio::test(start_paused = true)]
    async fn a_date_that_has_passed_asks_for_no_wait() {
        edge::set_wall(SystemTime::UNIX_EPOCH + NOW + Duration::from_secs(3600));
        for date in IN_SEVEN {
            assert_eq!(read(&[date]), Some(Duration::ZERO), "{date}");
        }
    }

    // BKO-08
    #[tokio::test(start_paused = true)]
    async fn a_callee_whose_clock_is_wrong_is_taken_at_its_own_word() {
        for ours in [NOW - Duration::from_secs(3600), NOW + Duration::from_secs(3600)] {
            edge::set_wall(SystemTime::UNIX_EPOCH + ours);
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, IN_SEVEN[0].parse().unwrap());
            headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
            assert_eq!(retry_after(&headers), Some(Duration::from_secs(7)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_date_header_of_garbage_is_no_clock() {
        edge::set_wall(SystemTime::UNIX_EPOCH + NOW);
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, IN_SEVEN[0].parse().unwrap());
        headers.insert(DATE, "yesterday".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(7)));
    }

    // BKO-09
    #[test]
    fn no_number_is_too_large() {
        assert_eq!(read(&["18446744073709551615"]), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(read(&["18446744073709551616"]), Some(Duration::MAX));
        assert_eq!(read(&["99999999999999999999999"]), Some(Duration::MAX));
    }

    #[test]
    fn the_last_date_that_can_be_written_is_read() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "Fri, 31 Dec 9999 23:59:59 GMT".parse().unwrap());
        headers.insert(DATE, "Thu, 01 Jan 1970 00:00:00 GMT".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(253_402_300_799)));
    }
}
