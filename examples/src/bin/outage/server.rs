//! The server that falls ill: a real hyper server on loopback, in a process of its own, with a
//! fixed number of [`Workers`] for each client.
//!
//! It speaks with its parent in lines of text. It says `port N` when it listens; `start` begins
//! the script; `report` is answered with a line `reached <client> <count by beat>...` for each
//! client. When its standard input ends, so does the process: whatever becomes of the parent, no
//! server is left behind.

use std::{
    convert::Infallible,
    io::{self, BufRead, Write},
    net::Ipv4Addr,
    process,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use buttress::edge;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep_until},
};

use crate::{
    load::{self, Client},
    script::{BEATS, Mood, Script},
    workers::{Work, Workers},
};

struct Server {
    script: Script,
    started: OnceLock<Instant>,
    /// In the order of [`Client::ALL`].
    counters: [Mutex<Counter>; Client::ALL.len()],
}

/// Where one client is served.
struct Counter {
    workers: Workers,
    dice: SmallRng,
    /// Requests by beat.
    reached: [u64; BEATS as usize],
}

/// Serves until standard input ends.
pub(crate) fn serve(script: Script, rate: f64, seed: u64) -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let counter = |client| Mutex::new(Counter::new(client, script, rate, seed));
        let server = Arc::new(Server {
            script,
            started: OnceLock::new(),
            counters: Client::ALL.map(counter),
        });

        writeln!(io::stdout(), "port {}", listener.local_addr()?.port())?;
        let parent = server.clone();
        thread::spawn(move || parent.obey());

        loop {
            server.clone().accept(&listener).await;
        }
    })
}

// === impl Server ===

impl Server {
    /// Does what the parent says, line by line, and ends the process when it is gone.
    fn obey(&self) {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let told = match line.as_str() {
                "start" => {
                    self.started.get_or_init(edge::now);
                    Ok(())
                }
                "report" => self.report(&mut io::stdout().lock()),
                _ => Ok(()),
            };
            if told.is_err() {
                break;
            }
        }
        process::exit(0);
    }

    fn report(&self, out: &mut impl Write) -> io::Result<()> {
        for (client, counter) in Client::ALL.iter().zip(&self.counters) {
            let reached = counter.lock().unwrap_or_else(PoisonError::into_inner).reached;
            write!(out, "reached {}", client.name())?;
            for count in reached {
                write!(out, " {count}")?;
            }
            writeln!(out)?;
        }
        out.flush()
    }

    async fn accept(self: Arc<Self>, listener: &TcpListener) {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of sockets, most likely: some come back as callers give up.
            tokio::time::sleep(Duration::from_millis(10)).await;
            return;
        };
        // Answers are small, and each is awaited.
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = service_fn(|request| self.answer(request));
            // A caller that gives up cuts its connection. That is no news here.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let name = request.headers().get(load::CLIENT);
        let client =
            Client::ALL.iter().position(|client| name.is_some_and(|name| name == client.name()));
        let Some(client) = client else {
            return Ok(response(StatusCode::BAD_REQUEST, "who asks?"));
        };

        let now = edge::now();
        let started = self.started.get().copied().unwrap_or(now);
        let at = now - started;
        let work = self.counters[client]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take_on(at, self.script.beat_at(at));
        // Who finds no room gets no answer, as with a listener whose backlog is full.
        let Some(work) = work else { std::future::pending().await };
        sleep_until(started + work.done).await;
        let status = match work.mood {
            Mood::Failing => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        };
        Ok(response(status, work.mood.name()))
    }
}

// === impl Counter ===

impl Counter {
    fn new(client: Client, script: Script, rate: f64, seed: u64) -> Self {
        Self {
            workers: Workers::new(rate, script),
            // Dice of its own, lest what one client does changes what another gets; and others
            // than those that say when requests start.
            dice: SmallRng::seed_from_u64(seed.wrapping_mul(4).wrapping_add(1 + client as u64)),
            reached: [0; BEATS as usize],
        }
    }

    fn take_on(&mut self, at: Duration, beat: usize) -> Option<Work> {
        self.reached[beat] += 1;
        self.workers.take_on(at, self.dice.random())
    }
}

fn response(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}
