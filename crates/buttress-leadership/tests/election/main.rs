//! Elections over a store that fails as it is told to, under a paused clock. The numbers of public reports stand where a test
//! shows what they ask for.

mod common;
mod leaving;
mod losing;
mod pace;
mod renewing;
mod standing;
