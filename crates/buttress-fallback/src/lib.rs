//! An answer for when there is none, for tower services.
