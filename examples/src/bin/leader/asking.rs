//! Whoever has something to be written: asks each candidate in turn, goes where it is sent, and asks once.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use buttress::BoxError;
use reqwest::{Client, redirect::Policy};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    history::{Answer, CANDIDATES},
    settings::{EVERY, PATIENCE},
    stage::{Shared, now},
};

/// Where the fronts of candidates are. It is where they were last, if they are dead.
pub(crate) type Fronts = Arc<Mutex<[Option<SocketAddr>; CANDIDATES]>>;

pub(crate) fn client() -> reqwest::Result<Client> {
    Client::builder().timeout(PATIENCE).redirect(Policy::limited(2)).build()
}

/// Asks for a write every now and then, for ever.
pub(crate) async fn ask(client: Client, fronts: Fronts, history: Shared) {
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 0.. {
        tick.tick().await;
        let Some(front) = fronts.lock().unwrap()[turn % CANDIDATES] else { continue };
        let (client, history) = (client.clone(), history.clone());
        history.lock().unwrap().asked += 1;
        tokio::spawn(async move {
            let fence = write(&client, front).await.ok();
            history.lock().unwrap().answers.push(Answer { came: now(), fence });
        });
    }
}

/// The fence with which it was written.
async fn write(client: &Client, front: SocketAddr) -> Result<u64, BoxError> {
    let request = client.post(format!("http://{front}/entries")).body("one more");
    Ok(request.send().await?.error_for_status()?.text().await?.parse()?)
}
