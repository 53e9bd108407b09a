//! The timeline as a picture, SVG and PNG.
//!
//! Four panels over the same time: what callers got, how long they waited for it, what the
//! server had to take, and what the breaker did.

use std::path::Path;

use plotters::prelude::*;
use tower::BoxError;

use crate::{
    canvas::{self, Canvas, Drawn, MARGIN, Panel, Scale, Words},
    load::Client,
    plain,
    script::{Mood, Script},
    stack::{self, BreakerState},
    stats::Summary,
    timeline::Timeline,
    workers,
};

/// All that is drawn.
pub(crate) struct Picture<'a> {
    pub(crate) script: Script,
    pub(crate) rate: f64,
    /// In the order of [`Client::ALL`], as is `reached`.
    pub(crate) summaries: &'a [Summary],
    /// What reached the server, by client and beat.
    pub(crate) reached: &'a [Vec<u64>],
    pub(crate) breaker: &'a Timeline,
}

/// Pixels of the PNG for one unit of the picture: sharp on dense screens.
const DENSITY: f64 = 2.0;

/// plotters centers words between their baseline and an em's height in bitmaps, and on the height
/// of an x in SVG. The latter looks right beside a line.
const BITMAP_RISE: f64 = 0.12;

// === impl Picture ===

impl Picture<'_> {
    /// Draws `outage.svg` and `outage.png` into `folder`.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), BoxError> {
        canvas::register_fonts()?;
        let size = |density: f64| {
            let pixels = |units: f64| (units * density) as u32;
            (pixels(canvas::WIDTH), pixels(canvas::HEIGHT))
        };
        let svg = folder.join("outage.svg");
        self.draw(SVGBackend::new(&svg, size(1.0)), 1.0, 0.0)?;
        let png = folder.join("outage.png");
        self.draw(BitMapBackend::new(&png, size(DENSITY)), DENSITY, BITMAP_RISE)
    }

    fn draw<DB>(&self, backend: DB, density: f64, rise: f64) -> Result<(), BoxError>
    where
        DB: DrawingBackend,
        DB::ErrorType: Send + Sync + 'static,
    {
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let canvas = Canvas { area: &area, density, rise, script: self.script };
        self.head(&canvas)?;
        self.success(&canvas, Panel::new(174.0, 334.0))?;
        self.waits(&canvas, Panel::new(388.0, 538.0))?;
        self.load(&canvas, Panel::new(592.0, 742.0))?;
        self.breaker(&canvas, Panel::new(796.0, 898.0))?;
        canvas.seconds(898.0)?;
        area.present()?;
        Ok(())
    }

    /// The title, and who is who.
    fn head<DB: DrawingBackend>(&self, canvas: &Canvas<'_, DB>) -> Drawn<DB> {
        let title = "One server falls ill, three clients keep asking";
        canvas.write(title, (MARGIN, 36.0), Words::title())?;
        let load = format!(
            "{} requests a second each, on time whatever became of the earlier ones",
            self.rate
        );
        canvas.write(&load, (MARGIN, 68.0), Words::label())?;

        for (client, y) in Client::ALL.into_iter().rev().zip([0.0, 1.0, 2.0]) {
            let y = 36.0 + y * 24.0;
            canvas.line(&[(700.0, y), (726.0, y)], color(client), width(client))?;
            canvas.write(client.name(), (736.0, y), Words::strong())?;
            canvas.write(describe(client), (820.0, y), Words::label())?;
        }
        Ok(())
    }

    fn success<DB: DrawingBackend>(&self, canvas: &Canvas<'_, DB>, panel: Panel) -> Drawn<DB> {
        let scale = Scale::percent();
        // The phases are named once, between the first panel and its title.
        canvas.write(
            "Good answers, of those that come in each second",
            (MARGIN, panel.top - 42.0),
            Words::strong(),
        )?;
        for phase in self.script.phases() {
            let middle = canvas.x((phase.from + phase.until) / 2);
            let words = Words::strong().color(ink(phase.mood)).centered();
            canvas.write(phase.mood.name(), (middle, panel.top - 14.0), words)?;
        }
        canvas.frame(panel, &scale)?;
        for (client, summary) in self.clients() {
            canvas.steps(panel, &scale, &summary.success_by_beat, color(client), width(client))?;
        }
        Ok(())
    }

    fn waits<DB: DrawingBackend>(&self, canvas: &Canvas<'_, DB>, panel: Panel) -> Drawn<DB> {
        let waits: Vec<Vec<_>> = self
            .summaries
            .iter()
            .map(|summary| {
                let waits = summary.wait_by_beat.iter();
                waits.map(|wait| wait.map(|wait| wait.as_secs_f64())).collect()
            })
            .collect();
        let title = "Median wait for an answer or an error, by when the request was made";
        self.lines(canvas, panel, title, &waits, " s").map(drop)
    }

    fn load<DB: DrawingBackend>(&self, canvas: &Canvas<'_, DB>, panel: Panel) -> Drawn<DB> {
        let beat = self.script.beat().as_secs_f64();
        let load: Vec<Vec<_>> = self
            .reached
            .iter()
            .map(|beats| beats.iter().map(|count| Some(*count as f64 / beat)).collect())
            .collect();
        let scale =
            self.lines(canvas, panel, "Requests that reach the server, each second", &load, "")?;

        // What the workers can do, where that is little enough to stand on the scale.
        let workers = workers::count(self.rate);
        for phase in self.script.phases().filter(|phase| phase.mood != Mood::Hanging) {
            let can = workers::throughput(workers, phase.mood);
            if scale.holds(can) {
                let y = scale.y(panel, can);
                let (from, until) = (canvas.x(phase.from), canvas.x(phase.until));
                canvas.dashes((from, y), (until, y), canvas::INK, 1.5)?;
                let words = format!("{workers} workers can do {can:.0}");
                canvas.write(&words, (from + 6.0, y - 12.0), Words::label().color(canvas::INK))?;
            }
        }
        Ok(())
    }

    fn breaker<DB: DrawingBackend>(&self, canvas: &Canvas<'_, DB>, panel: Panel) -> Drawn<DB> {
        canvas.phases(panel)?;
        let title = "State of the breaker";
        canvas.write(title, (MARGIN, panel.top - 18.0), Words::strong())?;
        let rows = [BreakerState::Open, BreakerState::HalfOpen, BreakerState::Closed];
        let height = (panel.bottom - panel.top) / 3.0;
        for (state, row) in rows.into_iter().zip([0.0, 1.0, 2.0]) {
            let middle = panel.top + (row + 0.5) * height;
            canvas.row_name(state.as_str(), middle)?;
            for (from, until) in self.breaker.spans(state, self.script.total()) {
                // However short, it is to be seen.
                let until = canvas.x(until);
                let from = canvas.x(from).min(until - 4.0);
                let bar = height * 0.32;
                canvas.rect((from, middle - bar), (until, middle + bar), fill(state))?;
            }
        }
        Ok(())
    }

    /// One panel with a line for each client, and a scale that holds them all.
    fn lines<DB: DrawingBackend>(
        &self,
        canvas: &Canvas<'_, DB>,
        panel: Panel,
        title: &str,
        values: &[Vec<Option<f64>>],
        unit: &str,
    ) -> Result<Scale, DrawingAreaErrorKind<DB::ErrorType>> {
        let most = values.iter().flatten().flatten().copied().fold(0.0, f64::max);
        let scale = Scale::upto(most * 1.04, 6.0, unit);
        canvas.write(title, (MARGIN, panel.top - 18.0), Words::strong())?;
        canvas.frame(panel, &scale)?;
        for ((client, _), values) in self.clients().zip(values) {
            canvas.steps(panel, &scale, values, color(client), width(client))?;
        }
        Ok(scale)
    }

    /// The clients in the order in which they are drawn: the thinner line on top.
    fn clients(&self) -> impl Iterator<Item = (Client, &Summary)> {
        Client::ALL.into_iter().zip(self.summaries)
    }
}

fn describe(client: Client) -> &'static str {
    match client {
        Client::Bare => plain::BARE,
        Client::Retries => plain::RETRYING,
        Client::Standard => stack::NAME,
    }
}

/// Colours that are told apart with every kind of colour vision (Okabe and Ito), and a grey.
fn color(client: Client) -> RGBColor {
    match client {
        Client::Bare => RGBColor(0x9a, 0xa3, 0xad),
        Client::Retries => RGBColor(0xd5, 0x5e, 0x00),
        Client::Standard => RGBColor(0x00, 0x72, 0xb2),
    }
}

/// How wide a client's line is. Lines that say the same lie on each other, and each is to be seen.
fn width(client: Client) -> f64 {
    match client {
        Client::Bare => 10.0,
        Client::Retries => 6.0,
        Client::Standard => 2.5,
    }
}

/// The colour in which a phase is named.
fn ink(mood: Mood) -> RGBColor {
    match mood {
        Mood::Healthy => RGBColor(0x5c, 0x65, 0x70),
        Mood::Hanging => RGBColor(0xa3, 0x1f, 0x3d),
        Mood::Failing => RGBColor(0xa8, 0x4a, 0x0b),
        Mood::Slow => RGBColor(0x7d, 0x65, 0x00),
    }
}

fn fill(state: BreakerState) -> RGBColor {
    match state {
        BreakerState::Closed => RGBColor(0x00, 0x72, 0xb2),
        BreakerState::HalfOpen => RGBColor(0xe6, 0x9f, 0x00),
        BreakerState::Open => canvas::INK,
    }
}
