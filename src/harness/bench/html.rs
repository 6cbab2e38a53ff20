//! A result as one HTML file with plots, which needs no network.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plot::{Bars, LinePlot, Series};
use super::report::{facts, short_title, title};
use super::result::{Bench, CaseTimes, What};
use crate::families::moe::MoeShape;

const TEMPLATE: &str = include_str!("report.html.hbs");

/// The page for the template.
#[derive(Debug, Serialize)]
struct Page {
    facts: Vec<(&'static str, String)>,
    groups: Vec<Group>,
    distance: Vec<Bars>,
    cases: Vec<CaseTable>,
    peers: Vec<PeerRow>,
}

/// Cases that differ in their tokens only.
#[derive(Debug, Serialize)]
struct Group {
    title: String,
    plots: Vec<LinePlot>,
}

#[derive(Debug, Serialize)]
struct CaseTable {
    title: String,
    variants: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    by: String,
    us: [String; 5],
    bytes: String,
    gbps: String,
    limit: String,
    distance: String,
}

#[derive(Debug, Serialize)]
struct PeerRow {
    name: String,
    version: String,
    about: String,
    absent: Option<String>,
}

/// The report.
pub fn html(bench: &Bench) -> String {
    let mut handlebars = handlebars::Handlebars::new();
    handlebars.set_strict_mode(true);
    handlebars.render_template(TEMPLATE, &page(bench)).expect("the template takes what a page has")
}

fn page(bench: &Bench) -> Page {
    let peer = |p: &super::Peer| PeerRow {
        name: p.name.clone(),
        version: p.version.clone().unwrap_or_default(),
        about: p.about.clone(),
        absent: p.absent.clone(),
    };
    Page {
        facts: facts(bench),
        groups: groups(bench),
        distance: What::ALL.into_iter().filter_map(|what| distance(bench, what)).collect(),
        cases: bench.cases.iter().enumerate().map(|(number, case)| case_table(bench, number, case)).collect(),
        peers: bench.peers.iter().map(peer).collect(),
    }
}

/// Numbers of the cases by everything but their tokens, in the order in which they come first.
fn groups(bench: &Bench) -> Vec<Group> {
    let mut of_shape: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let shape = |i: usize| MoeShape { tokens: 0, ..bench.cases[i].shape };
    for number in 0..bench.cases.len() {
        let first = (0..number).find(|&i| shape(i) == shape(number)).unwrap_or(number);
        of_shape.entry(first).or_default().push(number);
    }
    let several = of_shape.into_values().filter(|numbers| numbers.len() > 1);
    several.map(|numbers| group(bench, &numbers)).collect()
}

fn group(bench: &Bench, numbers: &[usize]) -> Group {
    let shape = &bench.cases[numbers[0]].shape;
    let title = format!(
        "{} experts, topk {}, hidden {}, {}, {} ranks",
        shape.experts, shape.topk, shape.hidden, shape.dtype, shape.ranks
    );
    let plot = |what: What| LinePlot::new(what.words(bench.method.rounds), &series(bench, numbers, what));
    let timed = |what: &What| numbers.iter().any(|&number| bench.cases[number].time(*what).is_some());
    Group { title, plots: What::ALL.into_iter().filter(timed).map(plot).collect() }
}

/// Ours, the limit, and each peer that has times: microseconds over tokens.
fn series(bench: &Bench, numbers: &[usize], what: What) -> Vec<Series> {
    let tokens = |number: usize| f64::from(bench.cases[number].shape.tokens);
    let ours = |of: fn(&super::Timing) -> Option<f64>| {
        let point = |&n: &usize| Some((tokens(n), of(bench.cases[n].time(what)?)?));
        numbers.iter().filter_map(point).collect::<Vec<_>>()
    };
    let mut all = vec![
        Series {
            name: "peerwarp".into(),
            points: ours(|t| Some(t.us.median)),
            low: ours(|t| Some(t.us.p10)),
            high: ours(|t| Some(t.us.p90)),
            limit: false,
        },
        Series {
            name: "limit".into(),
            points: ours(|t| t.limit.map(|l| l.us)),
            limit: true,
            ..Series::default()
        },
    ];
    for peer in &bench.peers {
        let time = |n: usize| peer.times.iter().find(|t| (t.case, t.what) == (n, what));
        let points = numbers.iter().filter_map(|&n| Some((tokens(n), time(n)?.us.median))).collect();
        all.push(Series { name: peer.name.clone(), points, ..Series::default() });
    }
    all.retain(|series| !series.points.is_empty());
    all
}

/// Medians over the limit, a bar for each case; none where no limit is known.
fn distance(bench: &Bench, what: What) -> Option<Bars> {
    let bar = |case: &CaseTimes| Some((short_title(case), case.time(what)?.over_limit()?));
    let bars: Vec<(String, f64)> = bench.cases.iter().filter_map(bar).collect();
    (!bars.is_empty()).then(|| Bars::new(what.words(bench.method.rounds), &bars))
}

fn case_table(bench: &Bench, number: usize, case: &CaseTimes) -> CaseTable {
    let us = |t: f64| format!("{t:.1}");
    let mut rows = vec![];
    for what in What::ALL {
        let words = what.words(bench.method.rounds);
        if let Some(t) = case.time(what) {
            rows.push(Row {
                what: words.clone(),
                by: "peerwarp".into(),
                us: [t.us.median, t.us.p10, t.us.p90, t.us.p99, t.rank_spread_us].map(us),
                bytes: case.wire.busiest(what).to_string(),
                gbps: us(t.gbps),
                limit: t.limit.map_or_else(|| "unknown".into(), |l| us(l.us)),
                distance: t.over_limit().map_or_else(String::new, |o| format!("{o:.2}x the limit")),
            });
        }
        for (peer, t) in bench.peer_times(number, what) {
            rows.push(Row {
                what: words.clone(),
                by: peer.name.clone(),
                us: [t.us.median, t.us.p10, t.us.p90, t.us.p99, t.rank_spread_us].map(us),
                bytes: String::new(),
                gbps: String::new(),
                limit: String::new(),
                distance: t.over_ours.map_or_else(String::new, |o| format!("{o:.2}x peerwarp")),
            });
        }
    }
    CaseTable { title: title(case), variants: case.variants.clone(), rows }
}

#[cfg(test)]
#[path = "html_tests.rs"]
pub(super) mod tests;
