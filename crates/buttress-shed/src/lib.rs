//! Load shedding for tower services: admission by queue age, concurrency and priority.
