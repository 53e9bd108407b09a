//! Budgeted, jittered, deadline-aware retries for tower services.
