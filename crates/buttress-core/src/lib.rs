//! What resilience layers say to each other: classes, refusals, deadlines, context.
