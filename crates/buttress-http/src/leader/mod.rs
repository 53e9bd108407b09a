//! Requests that came to a process which does not lead.
//!
//! A balancer knows of no leaders: it sends a write to any process, and all but one refuse it. The client asks again, and is
//! as likely to be refused. Either it is told where the leader is, by [`RedirectToLeaderLayer`], or the process asks
//! for it, by `ForwardToLeaderLayer` of `buttress-leadership`, with [`ForwardedOnce`] on what it hands on.

mod forwarded;
mod redirect;

pub use self::{
    forwarded::{ForwardedOnce, LEADERSHIP_FORWARDED},
    redirect::{RedirectToLeader, RedirectToLeaderFuture, RedirectToLeaderLayer},
};
