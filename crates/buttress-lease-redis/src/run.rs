//! How long a server has run: one that has just started may have forgotten leases that are believed in.

use std::time::Duration;

use buttress_leadership::{BootTime, LeaseClock};

use crate::{
    error::{Failure, Why},
    line::Line,
};

/// A server, from its start to its end.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// By chance, at its start.
    id: String,
    /// How old it was for certain,
    age: Duration,
    /// by then.
    at: BootTime,
}

impl Run {
    /// Asks who it is, and refuses one that would lose leases, or is none to write to. `before` is the one that was
    /// known before; `by_its_clock`, whether what it says of its age counts.
    pub(crate) async fn ask(
        line: &mut Line<'_>,
        before: Option<&Self>,
        by_its_clock: bool,
        clock: &LeaseClock,
    ) -> Result<Self, Failure> {
        let at = clock.now();
        let said: String =
            line.query(&redis::cmd("INFO")).await.map_err(Failure::without_effect)?;
        let said = |name: &str| {
            let mut lines = said.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(of, _)| *of == name).map(|(_, is)| is.trim())
        };
        match said("role") {
            Some("master") => {}
            Some(role) => {
                let why = format!("it is a {role}, and what that shows is old");
                return Err(Why::Passing(why).into());
            }
            None => return Err("it does not say whether it is a master".into()),
        }
        let policy = said("maxmemory_policy").unwrap_or("noeviction");
        if said("maxmemory").is_some_and(|most| most != "0") && policy != "noeviction" {
            let why = format!("it forgets what it has no room for: `maxmemory-policy` is {policy}");
            return Err(why.into());
        }
        let id = said("run_id").unwrap_or_default().to_owned();
        if let Some(before) = before.filter(|before| before.id == id && !id.is_empty()) {
            return Ok(before.clone());
        }
        let uptime = said("uptime_in_seconds").and_then(|is| is.parse().ok()).unwrap_or(0_u64);
        // The seconds are whole, and the first of them may have just begun.
        let age = Duration::from_secs(if by_its_clock { uptime.saturating_sub(1) } else { 0 });
        Ok(Self { id, age, at })
    }

    pub(crate) fn age(&self, clock: &LeaseClock) -> Duration {
        self.age.saturating_add(clock.now().since(self.at))
    }
}
