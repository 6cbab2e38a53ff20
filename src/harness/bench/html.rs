//! A result as one HTML file with plots, which needs no network.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::plot::{self, Bars, LinePlot, Series};
use super::report::{facts, notes};
use super::result::{Bench, CaseTimes, in_words};

const TEMPLATE: &str = include_str!("report.html.hbs");

/// The page for the template.
#[derive(Debug, Serialize)]
struct Page {
    facts: Vec<(&'static str, String)>,
    groups: Vec<Group>,
    distance: Vec<Bars>,
    cases: Vec<CaseTable>,
    baselines: Vec<BaselineRow>,
}

/// Cases that differ in one number only.
#[derive(Debug, Serialize)]
struct Group {
    title: String,
    /// The number.
    over: String,
    plots: Vec<LinePlot>,
}

#[derive(Debug, Serialize)]
struct CaseTable {
    title: String,
    notes: Vec<String>,
    variants: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    metric: String,
    by: String,
    us: [String; 5],
    bytes: String,
    gbps: String,
    limit: String,
    distance: String,
}

#[derive(Debug, Serialize)]
struct BaselineRow {
    name: String,
    version: String,
    about: String,
    absent: Option<String>,
}

/// The report.
pub fn html(bench: &Bench) -> String {
    let mut handlebars = handlebars::Handlebars::new();
    handlebars.set_strict_mode(true);
    plot::register(&mut handlebars);
    handlebars.render_template(TEMPLATE, &page(bench)).expect("the template takes what a page has")
}

fn page(bench: &Bench) -> Page {
    let baseline = |b: &super::BaselineTimes| BaselineRow {
        name: b.name.clone(),
        version: b.version.clone().unwrap_or_default(),
        about: b.about.clone(),
        absent: b.absent.clone(),
    };
    Page {
        facts: facts(bench),
        groups: groups(bench),
        distance: bench.metrics().into_iter().filter_map(|metric| distance(bench, &metric)).collect(),
        cases: bench.cases.iter().enumerate().map(|(number, case)| case_table(bench, number, case)).collect(),
        baselines: bench.baselines.iter().map(baseline).collect(),
    }
}

/// The key of a case but for one field.
fn key_but(case: &CaseTimes, field: &str) -> BTreeMap<String, Value> {
    case.key.iter().filter(|(name, _)| *name != field).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// Numbers of the cases that differ in this field only, in the order in which they come first; those alone are left out.
fn differing(bench: &Bench, field: &str) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in 0..bench.cases.len() {
        let key = |i: usize| key_but(&bench.cases[i], field);
        let first = (0..number).find(|&i| key(i) == key(number)).unwrap_or(number);
        groups.entry(first).or_default().push(number);
    }
    let at = |number: &usize| bench.cases[*number].key.get(field).map(Value::to_string);
    groups.into_values().filter(|numbers| numbers.iter().any(|n| at(n) != at(&numbers[0]))).collect()
}

/// Plots of times over the number in which most cases differ.
fn groups(bench: &Bench) -> Vec<Group> {
    let Some(first) = bench.cases.first() else { return vec![] };
    let numbers = first.key.iter().filter(|(_, value)| value.is_number()).map(|(name, _)| name);
    let all = numbers.map(|field| (field, differing(bench, field)));
    let best = all.rev().max_by_key(|(_, groups)| groups.iter().map(Vec::len).sum::<usize>());
    let of = |(over, groups): (&String, Vec<Vec<usize>>)| {
        groups.iter().map(|numbers| group(bench, over, numbers)).collect()
    };
    best.map_or_else(Vec::new, of)
}

fn group(bench: &Bench, over: &str, numbers: &[usize]) -> Group {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let same = key_but(&bench.cases[numbers[0]], over);
    let same: Vec<String> = same.iter().map(|(name, value)| format!("{name} {}", word(value))).collect();
    let timed = |metric: &(String, u32)| {
        numbers.iter().any(|&number| bench.cases[number].time(&metric.0, metric.1).is_some())
    };
    let plot = |metric: (String, u32)| {
        LinePlot::new(in_words(&metric.0, metric.1), over, &series(bench, over, numbers, &metric))
    };
    let plots = bench.metrics().into_iter().filter(timed).map(plot).collect();
    Group { title: same.join(", "), over: over.to_owned(), plots }
}

/// Ours, the limit, and each baseline that has times: microseconds over a number.
fn series(bench: &Bench, over: &str, numbers: &[usize], (metric, rounds): &(String, u32)) -> Vec<Series> {
    let at = |number: usize| bench.cases[number].key.get(over).and_then(Value::as_f64).unwrap_or(0.0);
    let ours = |of: fn(&super::Timing) -> Option<f64>| {
        let point = |&n: &usize| Some((at(n), of(bench.cases[n].time(metric, *rounds)?)?));
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
    for baseline in &bench.baselines {
        let of = |t: &&super::BaselineTiming| (&t.metric, t.rounds) == (metric, *rounds);
        let time = |n: usize| baseline.times.iter().filter(of).find(|t| t.case == n);
        let points = numbers.iter().filter_map(|&n| Some((at(n), time(n)?.us.median))).collect();
        all.push(Series { name: baseline.name.clone(), points, ..Series::default() });
    }
    all.retain(|series| !series.points.is_empty());
    all
}

/// Medians over the limit, a bar for each case; none where no limit is known.
fn distance(bench: &Bench, (metric, rounds): &(String, u32)) -> Option<Bars> {
    let bar = |case: &CaseTimes| Some((case.short_title.clone(), case.time(metric, *rounds)?.over_limit()?));
    let bars: Vec<(String, f64)> = bench.cases.iter().filter_map(bar).collect();
    (!bars.is_empty()).then(|| Bars::new(in_words(metric, *rounds), &bars))
}

fn case_table(bench: &Bench, number: usize, case: &CaseTimes) -> CaseTable {
    let us = |t: f64| format!("{t:.1}");
    let stats = |s: &super::Stats, spread: f64| [s.median, s.p10, s.p90, s.p99, spread].map(us);
    let mut rows = vec![];
    for t in &case.times {
        let metric = in_words(&t.metric, t.rounds);
        rows.push(Row {
            metric: metric.clone(),
            by: "peerwarp".into(),
            us: stats(&t.us, t.rank_spread_us),
            bytes: t.bytes.map_or_else(String::new, |bytes| bytes.to_string()),
            gbps: t.gbps.map_or_else(String::new, us),
            limit: t.limit.map_or_else(|| "unknown".into(), |l| us(l.us)),
            distance: t.over_limit().map_or_else(String::new, |o| format!("{o:.2}x the limit")),
        });
        for (baseline, t) in bench.baseline_times(number, &t.metric, t.rounds) {
            rows.push(Row {
                metric: metric.clone(),
                by: baseline.name.clone(),
                us: stats(&t.us, t.rank_spread_us),
                bytes: String::new(),
                gbps: String::new(),
                limit: String::new(),
                distance: t.over_ours.map_or_else(String::new, |o| format!("{o:.2}x peerwarp")),
            });
        }
    }
    CaseTable { title: case.title.clone(), notes: notes(case), variants: case.variants.clone(), rows }
}

#[cfg(test)]
#[path = "html_tests.rs"]
pub(super) mod tests;
