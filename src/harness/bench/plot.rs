//! Plots as what stands in an SVG: places in pixels, worked out here so that the template has nothing to compute.

use std::fmt::Write as _;

use serde::Serialize;

/// How a plot of lines stands in a page: the partial `plot`, which takes [`LinePlot`] and the name of its numbers as `over`.
const TEMPLATE: &str = include_str!("plot.html.hbs");

/// Lets templates use the partial `plot`.
pub(crate) fn register(handlebars: &mut handlebars::Handlebars<'_>) {
    handlebars.register_partial("plot", TEMPLATE).expect("the template is well-formed");
}

/// Width and height of a plot of lines.
const SIZE: (f64, f64) = (460.0, 300.0);
/// What is free at its left, right, top and bottom.
const FREE: (f64, f64, f64, f64) = (48.0, 12.0, 10.0, 34.0);

/// Colours that people who see few of them can tell apart; the first is ours.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];
const LIMIT: &str = "#555555";

/// Points of one line, `(number, microseconds)`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// The lower and upper edge of the band around it, if it has one.
    pub low: Vec<(f64, f64)>,
    pub high: Vec<(f64, f64)>,
    /// Whether it is no measurement.
    pub limit: bool,
}

/// Time over a number, both by powers.
#[derive(Debug, Serialize)]
pub(crate) struct LinePlot {
    title: String,
    size: (f64, f64),
    /// Left, right, top and bottom edge of the lines' area.
    area: [f64; 4],
    x_ticks: Vec<Tick>,
    y_ticks: Vec<Tick>,
    lines: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Tick {
    at: String,
    label: String,
}

#[derive(Debug, Serialize)]
struct Line {
    name: String,
    colour: &'static str,
    dashed: bool,
    /// As `points` of a polyline.
    points: String,
    band: String,
    dots: Vec<Dot>,
}

#[derive(Debug, Serialize)]
struct Dot {
    x: String,
    y: String,
    label: String,
}

impl LinePlot {
    /// Over a number of this name.
    pub fn new(title: String, over: &str, series: &[Series]) -> LinePlot {
        let all = || series.iter().flat_map(|s| s.points.iter().chain(&s.low).chain(&s.high));
        let (left, right) = (FREE.0, SIZE.0 - FREE.1);
        let (top, bottom) = (FREE.2, SIZE.1 - FREE.3);
        let x = Scale::new(all().map(|p| p.0), left + 10.0, right - 10.0);
        let y = Scale::new(all().map(|p| p.1), bottom - 6.0, top + 6.0);
        let path = |points: &mut dyn Iterator<Item = &(f64, f64)>| {
            let mut text = String::new();
            points.for_each(|p| write!(text, "{},{} ", x.at(p.0), y.at(p.1)).expect("string"));
            text.trim_end().to_owned()
        };
        let mut colours = COLOURS.into_iter().cycle();
        let line = |s: &Series| Line {
            name: s.name.clone(),
            colour: if s.limit { LIMIT } else { colours.next().unwrap_or(LIMIT) },
            dashed: s.limit,
            points: path(&mut s.points.iter()),
            band: path(&mut s.low.iter().chain(s.high.iter().rev())),
            dots: s
                .points
                .iter()
                .map(|p| Dot {
                    x: x.at(p.0),
                    y: y.at(p.1),
                    label: format!("{}: {over} {}, {:.1} us", s.name, p.0, p.1),
                })
                .collect(),
        };
        let mut numbers: Vec<f64> = series.iter().flat_map(|s| s.points.iter().map(|p| p.0)).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        LinePlot {
            title,
            size: SIZE,
            area: [left, right, top, bottom],
            lines: series.iter().map(line).collect(),
            x_ticks: numbers.iter().map(|n| Tick { at: x.at(*n), label: n.to_string() }).collect(),
            y_ticks: y.ticks().into_iter().map(|t| Tick { at: y.at(t), label: t.to_string() }).collect(),
        }
    }
}

/// From values to places, by their logarithm.
struct Scale {
    values: (f64, f64),
    places: (f64, f64),
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, first: f64, last: f64) -> Scale {
        let ends = values
            .filter(|v| *v > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
        // Nothing, or one value, is put into the middle.
        let values = match ends {
            (low, high) if low < high => ends,
            (low, _) if low.is_finite() => (low / 2.0, low * 2.0),
            _ => (1.0, 10.0),
        };
        Scale { values, places: (first, last) }
    }

    fn at(&self, value: f64) -> String {
        let (low, high) = self.values;
        let part = (value.max(low) / low).ln() / (high / low).ln();
        format!("{:.1}", self.places.0 + part * (self.places.1 - self.places.0))
    }

    /// Round numbers in its range: 1, 2 and 5 times powers of ten.
    fn ticks(&self) -> Vec<f64> {
        let powers = (0..8).flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10f64.powi(power)));
        powers.filter(|v| (self.values.0..=self.values.1).contains(v)).collect()
    }
}

/// Width of the longest bar, and where bars begin.
const LONGEST: f64 = 420.0;
const BEGIN: f64 = 260.0;
/// From one bar to the next.
const STEP: f64 = 20.0;

/// Times over their limits: a bar each, and a line at the limit.
#[derive(Debug, Serialize)]
pub(crate) struct Bars {
    title: String,
    width: f64,
    height: f64,
    /// Where names end, bars begin, and the limit is.
    name_at: f64,
    begin: f64,
    limit_at: String,
    bars: Vec<Bar>,
}

#[derive(Debug, Serialize)]
struct Bar {
    name: String,
    y: f64,
    text_y: f64,
    length: String,
    end: String,
    value: String,
}

impl Bars {
    /// Of names and how many times the limit they are.
    pub fn new(title: String, values: &[(String, f64)]) -> Bars {
        let most = values.iter().fold(1.0f64, |most, v| most.max(v.1));
        let length = |value: f64| value / most * LONGEST;
        let bar = |(i, (name, value)): (usize, &(String, f64))| Bar {
            name: name.clone(),
            y: 4.0 + i as f64 * STEP,
            text_y: 16.0 + i as f64 * STEP,
            length: format!("{:.1}", length(*value)),
            end: format!("{:.1}", BEGIN + length(*value) + 6.0),
            value: format!("{value:.2}x"),
        };
        Bars {
            title,
            width: BEGIN + LONGEST + 60.0,
            height: 8.0 + values.len() as f64 * STEP,
            name_at: BEGIN - 8.0,
            begin: BEGIN,
            limit_at: format!("{:.1}", BEGIN + length(1.0)),
            bars: values.iter().enumerate().map(bar).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_even() {
        let scale = Scale::new([1.0, 100.0].into_iter(), 0.0, 50.0);
        assert_eq!([1.0, 10.0, 100.0].map(|v| scale.at(v)), ["0.0", "25.0", "50.0"]);
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(Scale::new([4.0].into_iter(), 0.0, 50.0).at(4.0), "25.0");
        assert_eq!(Scale::new([].into_iter(), 0.0, 50.0).at(1.0), "0.0");
    }

    #[test]
    fn bars_begin_at_nothing_and_the_longest_fits() {
        let bars = Bars::new("t".into(), &[("a".into(), 2.0), ("b".into(), 4.0)]);
        assert_eq!((bars.bars[0].length.as_str(), bars.bars[1].length.as_str()), ("210.0", "420.0"));
        assert_eq!(bars.limit_at, "365.0");
    }
}
