//! The retry as its users see it: a layer around a callee that does what a script says.

mod budget;
mod cancel;
mod charge;
mod repeats;
mod support;
mod waits;
