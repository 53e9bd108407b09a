//! Elections on real stores while everything breaks, and whether they keep what they promise.
//!
//! The simulation of `buttress-leadership` breaks a store that it has made up. This breaks those that there are. Five
//! [candidates](candidate), a process each, stand for election on a real server. A [nemesis](run) stops them, kills
//! them, cuts them off from the server in one direction or in both, stops the server, starts it anew with its data or
//! without, sets its clock, and deletes the record. Whoever leads writes to a [register] that takes nothing
//! from a former leader. Who believed what and what was written goes into one [file](history), by the clock that all
//! processes of a machine share; and when it is over, it is [judged](verdict).
//!
//! ```text
//! cargo xtask chaos --store redis --seconds 60 --seed 7
//! ```
//!
//! Each run begins with a seed, which deals the faults. What they meet is another matter: time is real here, and the
//! same seed need not tell the same story.
#![cfg(unix)]

pub mod arena;
pub mod candidate;
pub mod faults;
pub mod history;
pub mod process;
pub mod register;
pub mod run;
pub mod stores;
pub mod table;
pub mod verdict;
