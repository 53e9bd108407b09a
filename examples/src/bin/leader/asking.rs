//! Whoever has something to be written: asks each candidate in turn, goes where it is sent, and asks once.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use buttress::BoxError;
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header::LOCATION};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::{
    history::{Answer, CANDIDATES},
    settings::{EVERY, PATIENCE},
    stage::{Shared, now},
};

type Asking = Client<HttpConnector, Full<Bytes>>;

/// Where the fronts of candidates are. It is where they were last, if they are dead.
pub(crate) type Fronts = Arc<Mutex<[Option<SocketAddr>; CANDIDATES]>>;

/// Asks for a write every now and then, for ever.
pub(crate) async fn ask(fronts: Fronts, history: Shared) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 0.. {
        tick.tick().await;
        let Some(front) = fronts.lock().unwrap()[turn % CANDIDATES] else { continue };
        let (client, history) = (client.clone(), history.clone());
        history.lock().unwrap().asked += 1;
        tokio::spawn(async move {
            let fence = timeout(PATIENCE, write(&client, front)).await;
            let fence = fence.ok().and_then(Result::ok);
            history.lock().unwrap().answers.push(Answer { came: now(), fence });
        });
    }
}

/// The fence with which it was written.
async fn write(client: &Asking, front: SocketAddr) -> Result<u64, BoxError> {
    let mut uri: Uri = format!("http://{front}/entries").parse()?;
    for _ in 0..3 {
        let response = client.request(Request::post(uri).body(Full::from("one more"))?).await?;
        match (response.status(), response.headers().get(LOCATION)) {
            (StatusCode::OK, _) => {
                let fence = response.into_body().collect().await?.to_bytes();
                return Ok(str::from_utf8(&fence)?.parse()?);
            }
            // `//host:port/entries`, by the scheme that it was asked by.
            (StatusCode::TEMPORARY_REDIRECT, Some(leader)) => {
                uri = format!("http:{}", leader.to_str()?).parse()?;
            }
            (status, _) => return Err(status.to_string().into()),
        }
    }
    Err("each sends to another one".into())
}
