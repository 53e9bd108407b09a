//! What the picture is drawn with: lines, words and panels in units of the picture, whatever the
//! density of its pixels.

use std::time::Duration;

use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        register_font,
        text_anchor::{HPos, Pos, VPos},
    },
};
use tower::BoxError;

use crate::script::{Mood, Script};

pub(crate) const WIDTH: f64 = 1200.0;
pub(crate) const HEIGHT: f64 = 950.0;
/// Where time begins and where it ends.
const LEFT: f64 = 116.0;
const RIGHT: f64 = WIDTH - 32.0;
/// What stands left of the panels begins here.
pub(crate) const MARGIN: f64 = 32.0;

pub(crate) const INK: RGBColor = RGBColor(0x22, 0x26, 0x2b);
const SOFT: RGBColor = RGBColor(0x5c, 0x65, 0x70);
const GRID: RGBColor = RGBColor(0xd5, 0xda, 0xe0);

pub(crate) type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

type Point = (f64, f64);

/// A sheet of paper with a time axis.
pub(crate) struct Canvas<'a, DB: DrawingBackend> {
    pub(crate) area: &'a DrawingArea<DB, Shift>,
    /// Pixels for one unit.
    pub(crate) density: f64,
    /// How much too high words come out, as a share of their size.
    pub(crate) rise: f64,
    pub(crate) script: Script,
}

/// A strip of the paper, from `top` to `bottom`, as wide as time.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

/// Values from zero to `most`, some of them with a name.
pub(crate) struct Scale {
    most: f64,
    ticks: Vec<(f64, String)>,
}

/// How words look.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    size: f64,
    style: FontStyle,
    color: RGBColor,
    anchor: HPos,
}

// === impl Canvas ===

impl<DB: DrawingBackend> Canvas<'_, DB> {
    /// Where the moment `at` is.
    pub(crate) fn x(&self, at: Duration) -> f64 {
        let share = at.as_secs_f64() / self.script.total().as_secs_f64();
        LEFT + share.min(1.0) * (RIGHT - LEFT)
    }

    pub(crate) fn rect(&self, from: Point, to: Point, color: RGBColor) -> Drawn<DB> {
        let rect = Rectangle::new([self.pixel(from), self.pixel(to)], color.filled());
        self.area.draw(&rect)
    }

    pub(crate) fn line(&self, points: &[Point], color: RGBColor, width: f64) -> Drawn<DB> {
        let points: Vec<_> = points.iter().map(|point| self.pixel(*point)).collect();
        let width = (width * self.density).round() as u32;
        self.area.draw(&PathElement::new(points, color.stroke_width(width)))
    }

    /// Draws a level line in dashes.
    pub(crate) fn dashes(
        &self,
        from: Point,
        until: Point,
        color: RGBColor,
        width: f64,
    ) -> Drawn<DB> {
        const DASH: f64 = 7.0;
        const GAP: f64 = 5.0;
        let mut x = from.0;
        while x < until.0 {
            self.line(&[(x, from.1), ((x + DASH).min(until.0), until.1)], color, width)?;
            x += DASH + GAP;
        }
        Ok(())
    }

    /// Writes `text` with the middle of its height at `at`.
    pub(crate) fn write(&self, text: &str, (x, y): Point, words: Words) -> Drawn<DB> {
        let at = self.pixel((x, y + self.rise * words.size));
        self.area.draw_text(text, &self.style(words), at)
    }

    /// Draws what is behind the lines of a panel: the phases and the scale.
    pub(crate) fn frame(&self, panel: Panel, scale: &Scale) -> Drawn<DB> {
        self.phases(panel)?;
        for (value, name) in &scale.ticks {
            let y = scale.y(panel, *value);
            self.line(&[(LEFT, y), (RIGHT, y)], GRID, 1.0)?;
            self.row_name(name, y)?;
        }
        Ok(())
    }

    /// Names a height, left of where time begins.
    pub(crate) fn row_name(&self, name: &str, y: f64) -> Drawn<DB> {
        self.write(name, (LEFT - 10.0, y), Words::label().right())
    }

    /// Tints a panel with the moods of the server.
    pub(crate) fn phases(&self, panel: Panel) -> Drawn<DB> {
        for phase in self.script.phases() {
            self.rect(
                (self.x(phase.from), panel.top),
                (self.x(phase.until), panel.bottom),
                tint(phase.mood),
            )?;
        }
        Ok(())
    }

    /// Draws `values`, one a beat, as steps.
    pub(crate) fn steps(
        &self,
        panel: Panel,
        scale: &Scale,
        values: &[Option<f64>],
        color: RGBColor,
        width: f64,
    ) -> Drawn<DB> {
        let mut points = Vec::new();
        for (beat, value) in (0..).zip(values) {
            if let Some(value) = value {
                let y = scale.y(panel, *value);
                let from = self.x(self.script.beat() * beat);
                let until = self.x(self.script.beat() * (beat + 1));
                points.extend([(from, y), (until, y)]);
            }
        }
        self.line(&points, color, width)
    }

    /// Writes the seconds beneath the last panel.
    pub(crate) fn seconds(&self, bottom: f64) -> Drawn<DB> {
        for (second, name) in Scale::upto(self.script.total().as_secs_f64(), 13.0, " s").ticks {
            let x = self.x(Duration::from_secs_f64(second));
            self.line(&[(x, bottom), (x, bottom + 5.0)], SOFT, 1.0)?;
            self.write(&name, (x, bottom + 17.0), Words::label().centered())?;
        }
        Ok(())
    }

    fn pixel(&self, (x, y): Point) -> (i32, i32) {
        ((x * self.density).round() as i32, (y * self.density).round() as i32)
    }

    fn style(&self, words: Words) -> TextStyle<'static> {
        (FONT, words.size * self.density, words.style)
            .into_font()
            .color(&words.color)
            .pos(Pos::new(words.anchor, VPos::Center))
    }
}

// === impl Panel ===

impl Panel {
    pub(crate) fn new(top: f64, bottom: f64) -> Self {
        Self { top, bottom }
    }
}

// === impl Scale ===

impl Scale {
    pub(crate) fn percent() -> Self {
        let tick = |share: f64| (share, format!("{:.0} %", share * 100.0));
        Self { most: 1.0, ticks: vec![tick(0.0), tick(0.5), tick(1.0)] }
    }

    /// A scale that holds `most`, with about `count` round ticks.
    pub(crate) fn upto(most: f64, count: f64, unit: &str) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let size = 10_f64.powf((most / count).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|nice| nice * size)
            .into_iter()
            .find(|step| most / step <= count)
            .unwrap_or(most);
        let last = (most / step + 1e-6).floor() as u32;
        Self {
            most,
            ticks: (0..=last)
                .map(|tick| f64::from(tick) * step)
                // Rounded, so that 3 steps of 0.1 are 0.3.
                .map(|value| (value, format!("{}{unit}", (value * 1e3).round() / 1e3)))
                .collect(),
        }
    }

    pub(crate) fn holds(&self, value: f64) -> bool {
        (0.0..=self.most).contains(&value)
    }

    pub(crate) fn y(&self, panel: Panel, value: f64) -> f64 {
        // Room for the lines at both ends.
        let (top, bottom) = (panel.top + 10.0, panel.bottom - 10.0);
        bottom - value / self.most * (bottom - top)
    }
}

// === impl Words ===

impl Words {
    pub(crate) fn title() -> Self {
        Self { size: 30.0, style: FontStyle::Bold, color: INK, anchor: HPos::Left }
    }

    pub(crate) fn strong() -> Self {
        Self { size: 18.0, ..Self::title() }
    }

    pub(crate) fn label() -> Self {
        Self { size: 18.0, style: FontStyle::Normal, color: SOFT, anchor: HPos::Left }
    }

    pub(crate) fn color(self, color: RGBColor) -> Self {
        Self { color, ..self }
    }

    pub(crate) fn centered(self) -> Self {
        Self { anchor: HPos::Center, ..self }
    }

    pub(crate) fn right(self) -> Self {
        Self { anchor: HPos::Right, ..self }
    }
}

/// The family that the fonts are known by: in an SVG, what the viewer has of that kind.
const FONT: &str = "sans-serif";

/// Makes the letters known, so that no system font is needed.
pub(crate) fn register_fonts() -> Result<(), BoxError> {
    let regular = include_bytes!("../../../fonts/Roboto-Regular.ttf");
    let bold = include_bytes!("../../../fonts/Roboto-Bold.ttf");
    register_font(FONT, FontStyle::Normal, regular).map_err(|_| "the regular font is broken")?;
    register_font(FONT, FontStyle::Bold, bold).map_err(|_| "the bold font is broken")?;
    Ok(())
}

/// The colour behind a phase.
fn tint(mood: Mood) -> RGBColor {
    match mood {
        Mood::Healthy => RGBColor(0xf6, 0xf8, 0xf9),
        Mood::Hanging => RGBColor(0xf7, 0xdf, 0xe3),
        Mood::Failing => RGBColor(0xfb, 0xe8, 0xdc),
        Mood::Slow => RGBColor(0xfd, 0xf5, 0xd3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_round_ticks_and_holds_its_greatest_value() {
        for (most, count) in [(26.0, 13.0), (412.0, 5.0), (4.01, 5.0), (0.3, 5.0), (1e-3, 5.0)] {
            let scale = Scale::upto(most, count, "");
            assert_eq!(scale.ticks[0].0, 0.0);
            assert!(scale.ticks.len() >= 2 && scale.ticks.len() as f64 <= count + 1.0);
            assert!(scale.ticks.iter().all(|(value, _)| *value <= most * 1.001));
        }
        let names =
            |scale: Scale| scale.ticks.into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names(Scale::upto(412.0, 5.0, "")), ["0", "100", "200", "300", "400"]);
        assert_eq!(names(Scale::upto(0.3, 5.0, " s")), ["0 s", "0.1 s", "0.2 s", "0.3 s"]);
    }

    #[test]
    fn a_value_is_drawn_at_its_own_height() {
        let (panel, scale) = (Panel::new(100.0, 200.0), Scale::percent());
        assert_eq!([1.0, 0.5, 0.0].map(|share| scale.y(panel, share)), [110.0, 150.0, 190.0]);
        assert!(scale.holds(0.0) && scale.holds(1.0) && !scale.holds(1.01));
    }

    #[test]
    fn a_scale_of_nothing_is_still_a_scale() {
        assert_eq!(Scale::upto(0.0, 5.0, "").most, 1.0);
    }
}
