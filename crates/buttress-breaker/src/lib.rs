//! A circuit breaker for tower services: sliding windows, epochs, leased probes.
