//! Bytes in an annotation, which holds text.

/// As it is where it is plain, and `%` with two digits where it is not: an address can be read.
pub(crate) fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'%' => text.push_str("%25"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The bytes again. None, if somebody else has written it.
pub(crate) fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(left.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b' '..=b'~' => byte,
            _ => return None,
        };
        bytes.push(byte);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_comes_back_byte_for_byte_and_what_is_plain_can_be_read() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encoded(&all)), Some(all));
        assert_eq!(encoded(b"10.0.0.7:8080 100%"), "10.0.0.7:8080 100%25");
        assert_eq!(encoded(b"\0\xff"), "%00%FF");
    }

    #[test]
    fn what_nobody_of_us_has_written_is_nothing() {
        for text in ["%", "%4", "%zz", "%+1", "100%", "\u{e4}", "a\nb"] {
            assert_eq!(decoded(text), None, "{text:?}");
        }
    }
}
