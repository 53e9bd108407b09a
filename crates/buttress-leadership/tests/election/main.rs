//! Elections over a store that fails as it is told to, under a paused clock. Where a test stands for what
//! somebody ran into, the report is named above it.

mod common;
mod counting;
mod isolated;
mod leaving;
mod losing;
mod pace;
mod renewing;
mod resigning;
mod standing;
mod walking;
