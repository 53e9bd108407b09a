use std::{fmt, num::NonZeroU64};

/// Which term of a lease it is: each next one has a greater token.
///
/// No lease keeps two leaders apart by itself. One that was stopped for longer than its lease, and goes on,
/// writes what it had in hand, while its successor leads. So it sends its token along, and what it writes to
/// refuses any that is less than the greatest it has seen.
///
/// Tokens have an order and nothing else: they are not counted, and none is made from another. With the
/// feature `serde` they are decimal strings, since JavaScript's numbers end at 2^53.
///
/// ```
/// use buttress_core::FencingToken;
///
/// let (old, new) = (FencingToken::new(33).unwrap(), FencingToken::new(34).unwrap());
/// assert!(old < new);
/// assert_eq!(new.to_string().parse(), Ok(new));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

/// What is not a [`FencingToken`]: a decimal number from 1 to 2^64 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAToken(());

impl FencingToken {
    /// The token of that number. Zero is none.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Digits alone, so that two texts which differ are never one token.
impl std::str::FromStr for FencingToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        let number = if is_plain { text.parse().ok() } else { None };
        number.map(Self).ok_or(NotAToken(()))
    }
}

impl fmt::Display for NotAToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fencing token is a decimal number from 1 to 18446744073709551615")
    }
}

impl std::error::Error for NotAToken {}

#[cfg(feature = "serde")]
impl serde::Serialize for FencingToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for FencingToken {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_digits_are_a_token() {
        let max: FencingToken = "18446744073709551615".parse().unwrap();
        assert_eq!(max.get(), u64::MAX);
        for wrong in ["", "0", "-1", "+1", "01", " 1", "1.0", "18446744073709551616", "0x1"] {
            assert_eq!(wrong.parse::<FencingToken>(), Err(NotAToken(())), "{wrong:?}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_token_that_is_stored_is_a_string() {
        let token = FencingToken::new(u64::MAX).unwrap();
        let text = serde_json::to_string(&token).unwrap();
        assert_eq!(text, "\"18446744073709551615\"");
        assert_eq!(serde_json::from_str::<FencingToken>(&text).unwrap(), token);
        assert!(serde_json::from_str::<FencingToken>("7").is_err());
    }
}
