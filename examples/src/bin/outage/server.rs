//! The server that falls ill: a real hyper server on loopback, in a process of its own.
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
use tokio::{net::TcpListener, time::Instant};

use crate::{
    load::{self, Client},
    script::{BEATS, Mood, Script},
};

struct Server {
    script: Script,
    started: OnceLock<Instant>,
    dice: Mutex<SmallRng>,
    /// Requests by client and beat.
    reached: Mutex<[[u64; BEATS as usize]; Client::ALL.len()]>,
}

/// Serves until standard input ends.
pub(crate) fn serve(script: Script, seed: u64) -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let server = Arc::new(Server {
            script,
            started: OnceLock::new(),
            dice: Mutex::new(SmallRng::seed_from_u64(seed)),
            reached: Mutex::default(),
        });

        println!("port {}", listener.local_addr()?.port());
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
        let reached = *self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        for (client, beats) in Client::ALL.iter().zip(reached) {
            write!(out, "reached {}", client.name())?;
            for count in beats {
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
        let at = self.started.get().map_or(Duration::ZERO, |started| edge::now() - *started);
        self.count(&request, at);

        let unit = self.dice.lock().unwrap_or_else(PoisonError::into_inner).random();
        let mood = self.script.mood_at(at);
        match mood.delay(unit) {
            Some(delay) => tokio::time::sleep(delay).await,
            None => std::future::pending().await,
        }
        let mut response = Response::new(Full::from(mood.name()));
        if mood == Mood::Failing {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        Ok(response)
    }

    fn count(&self, request: &Request<Incoming>, at: Duration) {
        let name = request.headers().get(load::CLIENT);
        let client =
            Client::ALL.iter().position(|client| name.is_some_and(|name| name == client.name()));
        if let Some(client) = client {
            let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
            reached[client][self.script.beat_at(at)] += 1;
        }
    }
}
