//! The timeline as it grows: on a terminal it is drawn anew in place, beneath what has happened; elsewhere there is
//! only the latter.

use std::{convert::Infallible, io, iter, time::Duration};

use buttress_examples::cli::say;
use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::interval;

use crate::{
    stage::{Shared, now},
    timeline,
};

pub(crate) struct Live {
    history: Shared,
    all: MultiProgress,
    rows: Vec<ProgressBar>,
    /// How much of the log was shown.
    shown: usize,
}

const TICK: Duration = Duration::from_millis(100);

// === impl Live ===

impl Live {
    pub(crate) fn new(history: Shared) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        Self { history, all, rows: Vec::new(), shown: 0 }
    }

    /// Shows what there is, again and again.
    pub(crate) async fn run(&mut self) -> io::Result<Infallible> {
        let mut tick = interval(TICK);
        loop {
            tick.tick().await;
            self.show_log()?;
            if !self.all.is_hidden() {
                self.draw();
            }
        }
    }

    /// Takes the drawing away, and shows what has happened since.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.all.clear()?;
        self.all.set_draw_target(ProgressDrawTarget::hidden());
        self.show_log()
    }

    fn show_log(&mut self) -> io::Result<()> {
        let lines = {
            let history = self.history.lock().unwrap();
            let lines = history.log[self.shown..].to_vec();
            self.shown = history.log.len();
            lines
        };
        for line in lines {
            self.all.suspend(|| say(line))?;
        }
        Ok(())
    }

    fn draw(&mut self) {
        let width = usize::from(Term::stdout().size().1);
        let rows = timeline::rows(&self.history.lock().unwrap(), now(), Some(width));
        let apart = String::new();
        for (n, row) in iter::once(apart).chain(rows).enumerate() {
            if self.rows.len() == n {
                let style = ProgressStyle::with_template("{wide_msg}");
                let style = style.expect("the template is well formed");
                self.rows.push(self.all.add(ProgressBar::new(1).with_style(style)));
            }
            self.rows[n].set_message(row);
        }
    }
}
