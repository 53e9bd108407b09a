//! A contract kit for tower layers: probes, planted faults, drops at every poll.
