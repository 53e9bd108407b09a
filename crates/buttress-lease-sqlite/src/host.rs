//! The host's clock, and which of its starts it counts from.

use std::fs;

use buttress_leadership::LeaseClock;

use crate::error::Why;

/// A host since it was started.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Which start: chance, made by the kernel. The same in all containers.
    pub(crate) boot: String,
    clock: LeaseClock,
    /// How far this process's clock is ahead of the host's. Containers may have been given such an offset,
    /// and without it those of two would disagree about when a lease ends.
    ahead: i64,
}

impl Host {
    /// This host, by that clock.
    pub(crate) fn of(clock: LeaseClock) -> Result<Self, Why> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        let boot = fs::read_to_string(BOOT).map_err(|error| {
            format!("this host does not say when it was started: {BOOT}: {error}")
        })?;
        // Kernels without time namespaces have no such file, and all clocks alike.
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Ok(Self { boot: boot.trim().to_owned(), clock, ahead: ahead(&offsets) })
    }

    /// Nanoseconds since the host was started.
    pub(crate) fn now(&self) -> i64 {
        let nanos = i64::try_from(self.clock.now().as_nanos()).unwrap_or(i64::MAX);
        nanos.saturating_sub(self.ahead).max(0)
    }
}

/// The line `boottime` of `offsets`: seconds and nanoseconds.
fn ahead(offsets: &str) -> i64 {
    let line = offsets.lines().find_map(|line| line.trim().strip_prefix("boottime"));
    let mut parts = line.unwrap_or_default().split_whitespace().map(str::parse::<i64>);
    match (parts.next(), parts.next()) {
        (Some(Ok(secs)), Some(Ok(nanos))) => {
            secs.saturating_mul(1_000_000_000).saturating_add(nanos)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_with_clocks_of_their_own_agree_with_the_host() {
        let shifted = "monotonic      172800         0\nboottime       604800        7\n";
        assert_eq!(ahead(shifted), 604_800_000_000_007);
        assert_eq!(ahead("monotonic 0 0\nboottime -3 -1\n"), -3_000_000_001);
        assert_eq!(ahead(""), 0);
        assert_eq!(ahead("boottime no number\n"), 0);
    }
}
