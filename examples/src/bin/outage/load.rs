//! Open-loop load: requests start when they are due, whether or not earlier ones are answered.
//!
//! A closed loop would wait for a hanging server and so ask it for less just when it is ill.
//! The world outside does not wait.

use std::{sync::Arc, time::Duration};

use buttress::edge;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    sync::mpsc::UnboundedSender,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tower::{Service, ServiceExt};

use crate::stats::Answer;

/// The header that tells the server who asks.
pub(crate) const CLIENT: &str = "x-client";

/// Who asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Client {
    /// hyper with a timeout.
    Bare,
    /// The same, and three immediate retries.
    Retries,
    /// hyper in the standard stack.
    Standard,
}

/// A client's load: when each request starts, and where answers are told.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) url: Uri,
    pub(crate) origin: Instant,
    pub(crate) starts: Arc<[Duration]>,
    pub(crate) answers: UnboundedSender<(Client, Answer)>,
}

// === impl Client ===

impl Client {
    pub(crate) const ALL: [Self; 3] = [Self::Bare, Self::Retries, Self::Standard];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Retries => "retries",
            Self::Standard => "buttress",
        }
    }
}

// === impl Load ===

impl Load {
    /// Sends all requests of `client` through `service`, and returns when the last is answered.
    pub(crate) async fn drive<S, B>(self, client: Client, service: S)
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Body + Send,
        B::Data: Send,
    {
        let mut flights = JoinSet::new();
        for &at in self.starts.iter() {
            sleep_until(self.origin + at).await;
            let request = Request::get(&self.url)
                .header(CLIENT, client.name())
                .body(Full::default())
                .expect("a URL and a name make a request");
            let service = service.clone();
            let answers = self.answers.clone();
            flights.spawn(async move {
                let sent = edge::now();
                let good = ask(service, request).await;
                let took = edge::now() - sent;
                // Nobody listens any more when the program is about to end.
                let _ = answers.send((client, Answer { at, took, good }));
            });
            while flights.try_join_next().is_some() {}
        }
        flights.join_all().await;
    }
}

/// Whether the answer is a good one, body and all.
async fn ask<S, B>(service: S, request: Request<Full<Bytes>>) -> bool
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    B: Body,
{
    match service.oneshot(request).await {
        Ok(response) if response.status().is_success() => {
            response.into_body().collect().await.is_ok()
        }
        _ => false,
    }
}

/// When requests start: `rate` in each second, evenly spaced, each somewhere in its own slot.
pub(crate) fn starts(rate: f64, total: Duration, seed: u64) -> Arc<[Duration]> {
    let mut dice = SmallRng::seed_from_u64(seed);
    let count = (rate * total.as_secs_f64()).floor() as u32;
    (0..count)
        .map(|slot| {
            let unit: f64 = dice.random();
            Duration::from_secs_f64((f64::from(slot) + unit) / rate)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn the_same_seed_starts_the_same_load() {
        assert_eq!(starts(100.0, TEN, 7), starts(100.0, TEN, 7));
        assert_ne!(starts(100.0, TEN, 7), starts(100.0, TEN, 8));
    }

    #[test]
    fn requests_start_in_order_at_their_rate_and_within_the_time() {
        let starts = starts(50.0, TEN, 1);
        assert_eq!(starts.len(), 500);
        assert!(starts.is_sorted());
        assert!(*starts.last().unwrap() < TEN);
        let first_second = starts.iter().filter(|at| **at < TEN / 10).count();
        assert_eq!(first_second, 50);
    }
}
