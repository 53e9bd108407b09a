//! What happens to the leader.

use std::time::Duration;

use buttress::BoxError;
use tokio::time::sleep;

use crate::{
    history::{Fault, History, Kind},
    stage::{Stage, now},
};

/// For so long nothing happens.
const CALM: Duration = Duration::from_secs(3);

/// Breaks three leaders, each in its own way, and waits each time until another one does their work.
pub(crate) async fn play(stage: &mut Stage) -> Result<(), BoxError> {
    stage.until("a first leader", |history| history.leading(now()).map(drop)).await?;
    sleep(CALM).await;

    for kind in [Kind::Cut, Kind::Killed, Kind::Stopped] {
        let fault = stage.break_leader(kind).await?;
        let works = |history: &History| history.without_write(&fault);
        stage.until("another leader, and a write of its", works).await?;
        sleep(CALM / 2).await;
        stage.heal(&fault)?;
        if kind == Kind::Stopped {
            // It goes on where it was. Whatever it does now, it does late.
            stage
                .until("an end of the stopped leader's term", |history| ended(history, &fault))
                .await?;
        }
        sleep(CALM).await;
    }
    Ok(())
}

fn ended(history: &History, fault: &Fault) -> Option<()> {
    let term = history.terms.iter().find(|term| term.fence == fault.fence)?;
    term.end.as_ref().map(drop)
}
