//! Fencing tokens from a leader's election to what it writes to: over real sockets, and into a database.
//!
//! Nothing here asserts how long anything takes. What must come to pass is waited for.

mod recipes;
