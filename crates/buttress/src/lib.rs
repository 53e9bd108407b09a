//! The resilience stack for tower: deadlines, retry, circuit breaking, bulkheads, shedding, fallback.
