//! HTTP for resilience layers: classes, Retry-After, replayable bodies, refusals as responses.
