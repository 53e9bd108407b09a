use std::{error::Error, fmt};

use buttress_core::Class;

/// There was a response, but it was a failure, and the fallback that was to replace it failed too.
///
/// It stands for the response in the chain of errors: as the [cause](buttress_core::Both::cause) of a
/// [`Both`](buttress_core::Both), whose error is the fallback's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedResponse {
    class: Class,
}

impl FailedResponse {
    pub(crate) const fn new(class: Class) -> Self {
        Self { class }
    }

    /// What the classifier said of the response.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }
}

impl fmt::Display for FailedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed response: {:?}", self.class)
    }
}

impl Error for FailedResponse {}
