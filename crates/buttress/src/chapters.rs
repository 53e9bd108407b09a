//! The code of the README and of the chapters, run with the tests.

#[doc = include_str!("../../../README.md")]
struct Readme;
