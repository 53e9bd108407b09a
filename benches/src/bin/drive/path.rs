//! What the subjects do. Those that do the same stand in one group of the table.

pub(crate) const BARE: &str = "bare service";
pub(crate) const BARE_WAITS: &str = "bare service, pending once";
pub(crate) const TIMEOUT: &str = "timeout";
pub(crate) const TIMEOUT_WAITS: &str = "timeout, pending once";
pub(crate) const RETRY: &str = "retry, first attempt succeeds";
pub(crate) const BREAKER: &str = "breaker, closed";
pub(crate) const OPEN: &str = "breaker, open: refused";
pub(crate) const BULKHEAD: &str = "bulkhead";
pub(crate) const FULL: &str = "bulkhead, full: refused";
pub(crate) const SHED: &str = "shed";
pub(crate) const SHEDDING: &str = "shed, full: refused";
pub(crate) const FALLBACK: &str = "fallback, not needed";
pub(crate) const CLOCK: &str = "bare read of the lease's clock";
pub(crate) const LEADS: &str = "leadership, asked";
pub(crate) const ENTERS: &str = "leadership, let in and left";
pub(crate) const LEADERSHIP: &str = "leadership, layer";
pub(crate) const STACK: &str = "stack";
pub(crate) const STACK_WAITS: &str = "stack, pending once";
