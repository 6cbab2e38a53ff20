//! A machine as one HTML file with drawings, which needs no network.

use std::f64::consts::TAU;

use serde::Serialize;

use super::report::{Table, Topo, short};
use crate::harness::bench::plot::{self, LinePlot, Series};

const TEMPLATE: &str = include_str!("report.html.hbs");

/// Width and height of the drawing, and the radius of its ring of GPUs.
const SIZE: f64 = 520.0;
const RING: f64 = 215.0;

/// Colours of links from the narrowest to the widest.
const COLOURS: [&str; 5] = ["#d55e00", "#e69f00", "#56b4e9", "#0072b2", "#009e73"];

/// The page for the template.
#[derive(Debug, Serialize)]
struct Page<'a> {
    topo: &'a Topo,
    size: f64,
    gpus: Vec<Gpu>,
    links: Vec<Line>,
    legend: Vec<Legend>,
    tables: Vec<Table>,
    spread: Vec<Spread>,
    copies: Vec<Vec<String>>,
    worlds: Vec<World>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    x: String,
    y: String,
    name: String,
    label: String,
}

/// What joins two GPUs, drawn once.
#[derive(Debug, Serialize)]
struct Line {
    ends: [String; 4],
    colour: &'static str,
    width: String,
    dashed: bool,
    label: String,
}

#[derive(Debug, Serialize)]
struct Legend {
    colour: &'static str,
    name: String,
}

/// What a GPU sends while several transfers are in flight.
#[derive(Debug, Serialize)]
struct Spread {
    gpu: String,
    cells: Vec<String>,
}

#[derive(Debug, Serialize)]
struct World {
    world: usize,
    plots: Vec<LinePlot>,
}

/// The report.
pub fn html(topo: &Topo) -> String {
    let mut handlebars = handlebars::Handlebars::new();
    handlebars.set_strict_mode(true);
    plot::register(&mut handlebars);
    handlebars.render_template(TEMPLATE, &page(topo)).expect("the template takes what a page has")
}

fn page(topo: &Topo) -> Page<'_> {
    let rates = rates(topo);
    Page {
        topo,
        size: SIZE,
        gpus: (0..topo.gpus.len()).map(|gpu| circle(topo, gpu)).collect(),
        links: lines(topo, &rates),
        legend: rates.iter().enumerate().map(|(at, gbps)| legend(at, *gbps, rates.len())).collect(),
        tables: topo.tables(),
        spread: spread(topo),
        copies: copies(topo),
        worlds: topo.sums.iter().map(world).collect(),
    }
}

fn at(topo: &Topo, gpu: usize) -> (f64, f64) {
    let angle = TAU * (gpu as f64 / topo.gpus.len() as f64 - 0.25);
    (SIZE / 2.0 + RING * angle.cos(), SIZE / 2.0 + RING * angle.sin())
}

fn circle(topo: &Topo, gpu: usize) -> Gpu {
    let (x, y) = at(topo, gpu);
    let label = format!("GPU {gpu}: {}", topo.gpus[gpu]);
    Gpu { x: format!("{x:.1}"), y: format!("{y:.1}"), name: gpu.to_string(), label }
}

/// What a link gets: as measured, or else by the model.
fn gbps(topo: &Topo, from: usize, to: usize) -> Option<f64> {
    let link = topo.link(from, to)?;
    link.measured.and_then(|pair| pair.gbps.best()).or(link.gbps)
}

/// Different rates, from the lowest on, where a tenth does not count.
fn rates(topo: &Topo) -> Vec<f64> {
    let mut all: Vec<f64> = topo.links.iter().filter_map(|l| gbps(topo, l.from, l.to)).collect();
    all.sort_by(f64::total_cmp);
    all.dedup_by(|next, known| *next < 1.1 * *known);
    all
}

/// Colour of the rate with this number among so many.
fn colour(at: usize, count: usize) -> &'static str {
    let last = COLOURS.len() - 1;
    COLOURS[if count <= 1 { last } else { at * last / (count - 1) }]
}

fn legend(at: usize, gbps: f64, count: usize) -> Legend {
    Legend { colour: colour(at, count), name: format!("{} GB/s", short(gbps)) }
}

/// The narrowest first, so that wide ones are drawn over them.
fn lines(topo: &Topo, rates: &[f64]) -> Vec<Line> {
    let mut drawn: Vec<(usize, Line)> = vec![];
    for link in topo.links.iter().filter(|l| l.from < l.to) {
        let (Some(rate), Some(class)) = (gbps(topo, link.from, link.to), link.class) else { continue };
        let number = rates.iter().rposition(|known| *known <= rate).unwrap_or(0);
        let ((x1, y1), (x2, y2)) = (at(topo, link.from), at(topo, link.to));
        let staged = if link.staged { ", no peer access" } else { "" };
        let line = Line {
            ends: [x1, y1, x2, y2].map(|place| format!("{place:.1}")),
            colour: colour(number, rates.len()),
            width: format!("{:.1}", 1.0 + 4.0 * (number + 1) as f64 / rates.len() as f64),
            dashed: link.staged,
            label: format!(
                "GPU {} to GPU {}: {}, {} GB/s{staged}",
                link.from,
                link.to,
                class.words(),
                short(rate)
            ),
        };
        drawn.push((number, line));
    }
    drawn.sort_by_key(|(number, _)| *number);
    drawn.into_iter().map(|(_, line)| line).collect()
}

/// By the model, and measured, for each GPU: one to all, all to all.
fn spread(topo: &Topo) -> Vec<Spread> {
    let number = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), short);
    let row = |gpu: usize| {
        let model = topo.patterns.as_ref().map(|p| [p.one_to_all[gpu], p.all_to_all[gpu]]);
        let measured = topo.measured.as_ref().map(|p| &p.gpus[gpu]);
        let cells = [
            model.map(|m| m[0]),
            model.map(|m| m[1]),
            measured.and_then(|g| g.one_to_all.best()),
            measured.and_then(|g| g.all_to_all.best()),
        ];
        Spread { gpu: format!("gpu{gpu}"), cells: cells.map(number).into() }
    };
    (0..topo.gpus.len()).map(row).collect()
}

fn copies(topo: &Topo) -> Vec<Vec<String>> {
    let Some(copies) = &topo.copies else { return vec![] };
    let row = |c: &super::Copy| {
        vec![
            format!("{} to {}", copies.from, c.to),
            c.class.words(),
            c.stops.join(", "),
            short(c.gbps),
            short(c.alone_us / 1e3),
            short(c.together_us / 1e3),
        ]
    };
    copies.copies.iter().map(row).collect()
}

/// Microseconds over KiB of each rank.
fn world(sums: &super::WorldSums) -> World {
    let series = |times: &super::report::SumTimes| Series {
        name: times.algorithm.name().into(),
        points: times.by_bytes.iter().map(|(&bytes, p)| (bytes as f64 / 1024.0, p.us)).collect(),
        ..Series::default()
    };
    let series: Vec<Series> = sums.times.iter().map(series).collect();
    let title = format!("Sums over {} GPUs", sums.world);
    World { world: sums.world, plots: vec![LinePlot::new(title, "KiB of each GPU", &series)] }
}

#[cfg(test)]
mod tests {
    use crate::harness::kinds;

    use super::super::{Description, Network, copies};
    use super::*;

    #[test]
    fn a_report_is_one_file_that_needs_no_other() {
        let network = Network::from(&Description::named("--machine", "dgx-1-cube-mesh").unwrap());
        let mut topo = Topo::new(&network, None);
        topo.copies = Some(copies(&network, 0, &[1, 2, 4], 200 << 20).unwrap());
        topo.about += " <b>";
        let html = html(&topo);
        insta::assert_snapshot!(kinds::of_lines(&html));
        for foreign in ["http", "<script", "<link", "<img", "url(", "@import", "<b>"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn rates_that_are_nearly_the_same_have_one_colour() {
        let network = Network::from(&Description::named("--machine", "dgx-1-cube-mesh").unwrap());
        let rates = rates(&Topo::new(&network, None));
        assert_eq!(rates, [3.95, 23.95, 47.9]);
        let colours: Vec<&str> = (0..3).map(|at| colour(at, 3)).collect();
        assert_eq!(colours, [COLOURS[0], COLOURS[2], COLOURS[4]]);
    }
}
