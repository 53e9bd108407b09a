//! A bounded number of calls in flight for tower services, with a bounded queue.
