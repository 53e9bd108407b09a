//! What a cause tells.

use std::io;

use buttress_core::{BoxError, Class, Reason};
use buttress_fallback::{ByClass, Cause, When};

use crate::support::{LATE, OPEN};

#[test]
fn only_the_error_that_is_a_refusal_has_a_reason() {
    let refused = Cause::<()>::new(Err(OPEN.into()), Class::Refused);
    assert_eq!(refused.reason(), Some(Reason::CircuitOpen));
    let deeper: BoxError = io::Error::other(OPEN).into();
    assert_eq!(Cause::<()>::new(Err(deeper), Class::Fatal).reason(), None);
    assert_eq!(Cause::<()>::new(Err(LATE.into()), Class::Fatal).reason(), None);
    assert_eq!(Cause::new(Ok(()), Class::Fatal).reason(), None);
}

#[test]
fn it_is_a_response_or_an_error() {
    let response = Cause::new(Ok(7), Class::Fatal);
    assert_eq!((response.response(), response.error().is_none()), (Some(&7), true));
    let error = Cause::<u32>::new(Err("down".into()), Class::Fatal);
    assert_eq!((error.response(), error.error().unwrap().to_string()), (None, "down".into()));
}

#[test]
fn by_class_the_callers_own_mistakes_pass() {
    let answers = |class| ByClass.applies(&Cause::<()>::new(Err("down".into()), class));
    let after = None;
    for class in [Class::Refused, Class::Transient { after }, Class::Fatal, Class::Unreachable] {
        assert!(answers(class), "{class:?}");
    }
    for class in [Class::Success, Class::CallerError, Class::Throttled { after }] {
        assert!(!answers(class), "{class:?}");
    }
}
