//! What `peerwarp run` reports.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use peerwarp_codegen::sim::{Findings, Report as Moved};
use serde_json::{Map, Value, json};

use crate::harness::run::SimRun;
use crate::harness::session::{GpuRun, Ran};
use crate::harness::verdict::Verdict;
use crate::harness::workload::{On, Problem, key_in_words};

use super::output::{Done, Style, bytes, table};
use super::select::Chosen;

/// World sizes up to which the table of links is printed: beyond, it is wider than a screen.
const MOST_RANKS: usize = 16;

/// What was run.
pub(super) struct Report<'a> {
    pub chosen: &'a Chosen,
    pub problem: &'a dyn Problem,
    pub seed: u64,
    /// Why it was run where it was.
    pub why: &'a str,
}

/// A column of a table with a row for each rank.
type Column = (String, Vec<String>);

/// Of a run on simulated ranks.
pub(super) fn simulated(report: &Report<'_>, run: &SimRun, style: Style) -> Done {
    match &run.outcome {
        Ok(ran) => ran_through(report, ran, run.seconds, style),
        Err(findings) => stopped(report, findings, style),
    }
}

/// Of a run on GPUs.
pub(super) fn on_gpus(report: &Report<'_>, ran: &GpuRun, style: Style) -> Done {
    let mut columns = vec![("rank".to_owned(), ran.ranks.iter().map(u32::to_string).collect())];
    let of_rank = |values: &[u64]| {
        let value = |rank: &u32| values.get(*rank as usize).map_or_else(String::new, u64::to_string);
        ran.ranks.iter().map(value).collect()
    };
    columns.extend(report.problem.per_rank().into_iter().map(|(name, values)| (name, of_rank(&values))));
    for launch in &ran.launches {
        let us = launch.us.iter().map(|us| format!("{us:.1}")).collect();
        columns.push((format!("{} us", launch.label), us));
    }
    columns.push(("GPU".into(), ran.gpus.clone()));

    let mut facts = report.problem.facts();
    facts.push(("rounds".into(), ran.rounds.into()));
    facts.extend(compared(&ran.verdict));
    if let Some(r) = &ran.replayed {
        let words = format!("{} of {} rounds, {:.1} us a round", r.replays, r.rounds, r.round_us);
        facts.push(("graph replays".into(), words.into()));
        facts.push(("elements compared".into(), format!("{} after replays", r.verdict.compared).into()));
    }
    let wrong = ran.replayed.as_ref().map(|r| &r.verdict).filter(|_| ran.verdict.ok());
    let text = [
        report.head("GPUs", style),
        columns_table(&columns),
        "\n".into(),
        facts_text(&facts),
        verdict(report, wrong.unwrap_or(&ran.verdict), style),
    ];
    let mut json = report.json("gpu", ran.ok);
    json.extend(object(json!(ran)));
    Done { text: text.concat(), json: json.into(), ok: ran.ok }
}

fn stopped(report: &Report<'_>, findings: &Findings, style: Style) -> Done {
    let text = format!("{}\n{findings}\n", style.bad("the checker found something wrong:"));
    let mut json = report.json("sim", false);
    json.extend(object(json!({
        "bytes_on_wire": findings.report.bytes_on_wire(),
        "max_abs_err": null,
        "max_rel_err": null,
        "findings": findings,
    })));
    Done { text, json: json.into(), ok: false }
}

fn ran_through(report: &Report<'_>, ran: &Ran, seconds: f64, style: Style) -> Done {
    let bytes_of = link_table(&ran.report, |r, a, b| r.link_bytes(a, b));
    let flags_of = link_table(&ran.report, |r, a, b| r.link_signals(a, b));
    let mut facts = report.problem.facts();
    facts.push(("bytes on the wire".into(), bytes(ran.report.bytes_on_wire()).into()));
    facts.push(("flags on the wire".into(), off_diagonal(&flags_of).into()));
    if ran.report.far_puts() > 0 {
        facts.push(("messages of cards".into(), ran.report.far_puts().to_string().into()));
    }
    facts.extend(compared(&ran.verdict));
    facts.push(("simulated".into(), format!("{} operations in {seconds:.1} s", ran.report.steps).into()));
    let text = [
        report.head("the simulator", style),
        columns_table(&sim_columns(report.problem, &bytes_of, &flags_of)),
        "\n".into(),
        links(&bytes_of),
        "\n".into(),
        facts_text(&facts),
        verdict(report, &ran.verdict, style),
    ];
    let ok = ran.verdict.ok();
    let mut json = report.json("sim", ok);
    json.extend(object(json!({
        "bytes_on_wire": ran.report.bytes_on_wire(),
        "link_bytes": bytes_of,
        "link_flags": flags_of,
        "steps": ran.report.steps,
        "seconds": seconds,
    })));
    json.extend(object(json!(ran.verdict)));
    Done { text: text.concat(), json: json.into(), ok }
}

impl Report<'_> {
    /// The kernels, what they are for, and where they ran.
    fn head(&self, place: &str, style: Style) -> String {
        let mut text = String::new();
        for variant in self.problem.variants() {
            writeln!(text, "{}", style.bold(&variant)).expect("string");
        }
        let key = self.chosen.variants.first().map(|v| key_in_words(&**v)).unwrap_or_default();
        let options = self.chosen.suite.options().into_iter().filter(|o| o.on == On::Inputs);
        let given = options.filter_map(|o| Some(format!("{} {}, ", o.name, self.chosen.given.get(o.name)?)));
        let given: String = given.collect();
        writeln!(text, "{key}\n{given}seed {}\non {place}, {}\n", self.seed, self.why).expect("string");
        text
    }

    /// What runs on all backends report.
    fn json(&self, backend: &str, ok: bool) -> Map<String, Value> {
        let variants = self.problem.variants();
        object(json!({
            "ok": ok,
            "backend": backend,
            "because": self.why,
            "variant": variants.first(),
            "variants": variants,
            "tuned": self.chosen.from,
            "seed": self.seed,
            "per_rank": self.problem.per_rank().into_iter().collect::<BTreeMap<_, _>>(),
            "facts": self.problem.facts().into_iter().collect::<Map<_, _>>(),
        }))
    }

    /// Whether there is anything to compare results with.
    fn has_reference(&self) -> bool {
        (0..self.problem.ranks()).any(|rank| !self.problem.expected(rank, 0).is_empty())
    }
}

fn object(json: Value) -> Map<String, Value> {
    match json {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn compared(verdict: &Verdict) -> [(String, Value); 3] {
    [
        ("elements compared".into(), verdict.compared.into()),
        ("largest absolute error".into(), format!("{:.3e}", verdict.max_abs_err).into()),
        ("largest relative error".into(), format!("{:.3e}", verdict.max_rel_err).into()),
    ]
}

fn verdict(report: &Report<'_>, v: &Verdict, style: Style) -> String {
    let (good, bad) = (style.good("ok"), style.bad("mismatch"));
    match &v.first_wrong {
        Some(first) => {
            format!("\n{bad}: {} of {} elements are wrong, the first at {first}\n", v.wrong, v.compared)
        }
        None if v.compared == 0 && !report.has_reference() => {
            format!("\n{good}: it came to its end; nothing was compared, as the family has no reference\n")
        }
        None => format!("\n{good}: the result agrees with the reference\n"),
    }
}

fn facts_text(facts: &[(String, Value)]) -> String {
    let line = |(name, value): &(String, Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name:<24}{value}\n")
    };
    facts.iter().map(line).collect()
}

fn columns_table(columns: &[Column]) -> String {
    let head: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let rows = columns.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let cell = |column: &Column, row: usize| column.1.get(row).cloned().unwrap_or_default();
    table(&head, (0..rows).map(|row| columns.iter().map(|column| cell(column, row)).collect()))
}

type Links = Vec<Vec<u64>>;

fn link_table(report: &Moved, of: impl Fn(&Moved, u32, u32) -> u64) -> Links {
    let ranks = report.kernels.values().map(|k| k.bytes.len()).max().unwrap_or(0) as u32;
    (0..ranks).map(|from| (0..ranks).map(|to| of(report, from, to)).collect()).collect()
}

fn off_diagonal(links: &Links) -> u64 {
    let row = |(i, row): (usize, &Vec<u64>)| row.iter().sum::<u64>() - row[i];
    links.iter().enumerate().map(row).sum()
}

fn sim_columns(problem: &dyn Problem, bytes_of: &Links, flags_of: &Links) -> Vec<Column> {
    let ranks = 0..bytes_of.len();
    let out = |links: &Links, r: usize| links[r].iter().sum::<u64>() - links[r][r];
    let into = |links: &Links, r: usize| links.iter().map(|row| row[r]).sum::<u64>() - links[r][r];
    let column =
        |name: &str, of: &dyn Fn(usize) -> String| (name.to_owned(), ranks.clone().map(of).collect());
    let mut columns = vec![column("rank", &|r| r.to_string())];
    for (name, values) in problem.per_rank() {
        columns.push((name, values.iter().map(u64::to_string).collect()));
    }
    columns.push(column("bytes out", &|r| bytes(out(bytes_of, r))));
    columns.push(column("bytes in", &|r| bytes(into(bytes_of, r))));
    columns.push(column("flags out", &|r| out(flags_of, r).to_string()));
    columns.push(column("flags in", &|r| into(flags_of, r).to_string()));
    columns
}

fn links(bytes_of: &Links) -> String {
    if bytes_of.len() > MOST_RANKS {
        let pairs =
            bytes_of.iter().enumerate().flat_map(|(a, row)| row.iter().enumerate().map(move |l| (a, l)));
        let mut all: Vec<u64> = pairs.filter(|(from, (to, _))| from != to).map(|(_, (_, n))| *n).collect();
        all.sort_unstable();
        let [least, median, most] = [0, all.len() / 2, all.len() - 1].map(|i| bytes(all[i]));
        return format!("bytes on a link: {least} to {most}, median {median} (each with --json)\n");
    }
    let head: Vec<String> =
        std::iter::once("from".into()).chain((0..bytes_of.len()).map(|to| format!("to {to}"))).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let cell = |from: usize, to: usize, n: u64| if from == to { "-".into() } else { bytes(n) };
    let row = |(from, row): (usize, &Vec<u64>)| {
        let cells = row.iter().enumerate().map(|(to, n)| cell(from, to, *n));
        std::iter::once(from.to_string()).chain(cells).collect()
    };
    let table = table(&head, bytes_of.iter().enumerate().map(row));
    format!("bytes on each link (row sends, column receives)\n{table}")
}
