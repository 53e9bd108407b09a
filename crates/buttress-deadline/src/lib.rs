//! A total deadline and an attempt timeout for tower services, readiness counted.
