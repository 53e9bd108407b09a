//! Draws what `drive time` has printed: a bar for each subject, on a logarithmic scale.

use std::{env, error::Error, fs, process::ExitCode};

use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        register_font,
        text_anchor::{HPos, Pos, VPos},
    },
};

const REGULAR: &[u8] = include_bytes!("../../../examples/fonts/Roboto-Regular.ttf");
const BOLD: &[u8] = include_bytes!("../../../examples/fonts/Roboto-Bold.ttf");

/// In units of two pixels, so that it is sharp on dense screens.
const WIDTH: i32 = 1000;
/// Where bars begin and where they may end. What they are of stands left of them, what they say right.
const LEFT: i32 = 320;
const RIGHT: i32 = 900;
const TOP: i32 = 84;
const BAR: i32 = 20;
/// Above each group, for its title.
const TITLE: i32 = 38;

const INK: RGBColor = RGBColor(0x22, 0x26, 0x2b);
const SOFT: RGBColor = RGBColor(0x5c, 0x65, 0x70);
const GRID: RGBColor = RGBColor(0xd5, 0xda, 0xe0);
const OURS: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const THEIRS: RGBColor = RGBColor(0x9a, 0xa3, 0xad);

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// Subjects that do the same.
struct Group {
    title: String,
    bars: Vec<Bar>,
}

struct Bar {
    whose: String,
    ours: bool,
    ns: f64,
}

fn main() -> ExitCode {
    let args: Vec<_> = env::args().skip(1).collect();
    let [figures, picture] = &args[..] else {
        eprintln!("error: picture is for `cargo xtask bench`, which names what to draw, and where");
        return ExitCode::from(2);
    };
    match fs::read_to_string(figures)
        .map_err(Into::into)
        .and_then(|text| draw(&groups(&text)?, picture))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// In the order in which they come.
fn groups(text: &str) -> Result<Vec<Group>, Box<dyn Error>> {
    let mut groups: Vec<Group> = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.split('\t').collect();
        let [title, maker, form, ns, _] = words[..] else {
            return Err(format!("what is `{line}`?").into());
        };
        let whose = if form.is_empty() { maker.to_owned() } else { format!("{maker}: {form}") };
        let bar = Bar { whose, ours: maker == "buttress", ns: ns.parse()? };
        match groups.iter_mut().find(|group| group.title == title) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { title: title.to_owned(), bars: vec![bar] }),
        }
    }
    Ok(groups)
}

fn draw(groups: &[Group], picture: &str) -> Result<(), Box<dyn Error>> {
    for (style, font) in [(FontStyle::Normal, REGULAR), (FontStyle::Bold, BOLD)] {
        register_font("sans-serif", style, font).map_err(|_| "a font is damaged")?;
    }
    let bars = groups.iter().flat_map(|group| &group.bars);
    let decades = bars.map(|bar| bar.ns).fold(10.0, f64::max).log10().ceil();
    let heights = groups.iter().map(|group| TITLE + group.bars.len() as i32 * BAR);
    let bottom = TOP + heights.sum::<i32>();

    let size = |units: i32| 2 * units.unsigned_abs();
    let area = BitMapBackend::new(picture, (size(WIDTH), size(bottom + 24))).into_drawing_area();
    area.fill(&WHITE)?;
    write(&area, "What a call costs on one thread", (24, 28), 20, INK, true, HPos::Left)?;
    let words = "nanoseconds around a service that does nothing; each line to the right is ten times as much";
    write(&area, words, (24, 54), 14, SOFT, false, HPos::Left)?;

    let x = |ns: f64| LEFT + ((RIGHT - LEFT) as f64 * ns.max(1.0).log10() / decades) as i32;
    for decade in 0..=decades as i32 {
        let at = x(10f64.powi(decade));
        rect(&area, (at, TOP), (at + 1, bottom), GRID)?;
        let name = 10u64.pow(decade.unsigned_abs()).to_string();
        write(&area, &name, (at, TOP - 10), 12, SOFT, false, HPos::Center)?;
    }
    let mut y = TOP;
    for group in groups {
        write(&area, &group.title, (24, y + TITLE - 14), 14, INK, true, HPos::Left)?;
        y += TITLE;
        for bar in &group.bars {
            let (middle, color) = (y + BAR / 2, if bar.ours { OURS } else { THEIRS });
            write(
                &area,
                &bar.whose,
                (LEFT - 10, middle),
                13,
                if bar.ours { INK } else { SOFT },
                bar.ours,
                HPos::Right,
            )?;
            // However short, it is to be seen.
            let end = x(bar.ns).max(LEFT + 2);
            rect(&area, (LEFT, y + 3), (end, y + BAR - 3), color)?;
            let ns =
                if bar.ns < 10.0 { format!("{:.1}", bar.ns) } else { format!("{:.0}", bar.ns) };
            write(&area, &ns, (end + 8, middle), 13, INK, false, HPos::Left)?;
            y += BAR;
        }
    }
    area.present()?;
    Ok(())
}

fn rect(
    area: &Area<'_>,
    from: (i32, i32),
    to: (i32, i32),
    color: RGBColor,
) -> Result<(), Box<dyn Error>> {
    let pixels = |(x, y): (i32, i32)| (2 * x, 2 * y);
    area.draw(&Rectangle::new([pixels(from), pixels(to)], color.filled()))?;
    Ok(())
}

/// Writes with the middle of the height at `y`.
fn write(
    area: &Area<'_>,
    text: &str,
    (x, y): (i32, i32),
    size: i32,
    color: RGBColor,
    bold: bool,
    side: HPos,
) -> Result<(), Box<dyn Error>> {
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    let font = ("sans-serif", 2 * size, style).into_font();
    let style = TextStyle::from(font).color(&color).pos(Pos::new(side, VPos::Center));
    // It centers an em's height, of which what is below the line of the words is empty.
    area.draw_text(text, &style, (2 * x, 2 * y + size / 4))?;
    Ok(())
}
