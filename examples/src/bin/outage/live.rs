//! The live line: on a terminal it is drawn anew in place; elsewhere each phase gets a plain line.

use std::{io, time::Duration};

use buttress_examples::cli;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    load::Client,
    script::{Mood, Script},
    stack::BreakerState,
    stats::{self, Answer},
};

/// What the line says, and where it is drawn.
pub(crate) struct Live {
    bar: ProgressBar,
    script: Script,
    mood: Option<Mood>,
}

/// How far back the line looks for the share of good answers.
const RECENT: Duration = Duration::from_secs(1);

// === impl Live ===

impl Live {
    pub(crate) fn new(script: Script) -> Self {
        let bar = ProgressBar::new(script.total().as_millis() as u64).with_style(
            ProgressStyle::with_template("{bar:26.blue/white} {wide_msg}")
                .expect("the template is well formed")
                .progress_chars("━╸─"),
        );
        Self { bar, script, mood: None }
    }

    /// Shows how things stand at `now`.
    pub(crate) fn show(
        &mut self,
        now: Duration,
        answers: &[Vec<Answer>],
        breaker: BreakerState,
    ) -> io::Result<()> {
        let mood = self.script.mood_at(now);
        if self.bar.is_hidden() && self.mood != Some(mood) {
            let now = now.as_secs_f64();
            cli::note(format_args!("{now:>4.1} s  the server is {}", mood.name()))?;
        }
        self.mood = Some(mood);

        let mut line = format!("{:>4.1} s  {:<8}", now.as_secs_f64(), mood.name());
        for (client, answers) in Client::ALL.iter().zip(answers) {
            let recent = answers.iter().rev().take_while(|answer| answer.came() + RECENT > now);
            let good = stats::success(recent)
                .map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
            line.push_str(&format!("  {} {good:>5}", client.name()));
        }
        line.push_str(&format!("  breaker {}", breaker.as_str()));
        self.bar.set_message(line);
        self.bar.set_position(now.as_millis() as u64);
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
