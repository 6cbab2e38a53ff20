//! `peerwarp run`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use peerwarp_codegen::family::{DynConfig, FieldRole, Variant};
use peerwarp_codegen::sim::{Findings, Options, Report};
use serde_json::{Value, json};

use crate::harness::session::{Ran, SimSession};
use crate::harness::workload::{Given, Inputs, Problem};

use super::App;
use super::args::RunArgs;
use super::output::{Done, Failure, Progress, Style, bytes, table};

/// World sizes up to which the table of links is printed: beyond, it is wider than a screen.
const MOST_RANKS: usize = 16;

pub(super) fn run(app: &App, args: &RunArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    args.gpu.refuse()?;
    let tuned = args.selection.tuned(app, || None)?;
    let chosen = app.choose(&args.selection, given, false, tuned.as_ref())?;
    let inputs = Inputs { seed: args.inputs.seed, rounds: 1, ragged: false, given: chosen.given };
    let problem = Arc::from(chosen.suite.problem(&chosen.variants, &inputs)?);
    let session = SimSession::new(problem)?;
    let progress = Progress::spinner("simulating");
    let start = Instant::now();
    let result = session.run(&Options { seed: inputs.seed, ..Options::default() });
    let seconds = start.elapsed().as_secs_f64();
    progress.finish();
    let variants = &chosen.variants;
    Ok(match result {
        Ok(ran) => ran_through(variants, &inputs, &**session.problem(), &ran, seconds, style),
        Err(findings) => stopped(variants, &findings, style),
    })
}

fn names(variants: &[Variant]) -> Vec<String> {
    variants.iter().map(|v| v.variant_name()).collect()
}

fn stopped(variants: &[Variant], findings: &Findings, style: Style) -> Done {
    let variants = names(variants);
    let text = format!("{}\n{findings}\n", style.bad("the checker found something wrong:"));
    let json = json!({
        "ok": false,
        "backend": "sim",
        "variant": variants.first(),
        "variants": variants,
        "bytes_on_wire": findings.report.bytes_on_wire(),
        "max_abs_err": null,
        "max_rel_err": null,
        "findings": findings,
    });
    Done { text, json, ok: false }
}

fn ran_through(
    variants: &[Variant],
    inputs: &Inputs,
    prepared: &dyn Problem,
    ran: &Ran,
    seconds: f64,
    style: Style,
) -> Done {
    let ok = ran.verdict.ok();
    let text = report(variants, inputs, prepared, ran, seconds, style);
    let variants = names(variants);
    let ranks = link_table(&ran.report, |r, a, b| r.link_bytes(a, b));
    let mut json = json!({
        "ok": ok,
        "backend": "sim",
        "variant": variants.first(),
        "variants": variants,
        "seed": inputs.seed,
        "bytes_on_wire": ran.report.bytes_on_wire(),
        "link_bytes": ranks,
        "link_flags": link_table(&ran.report, |r, a, b| r.link_signals(a, b)),
        "per_rank": prepared.per_rank().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "facts": prepared.facts().into_iter().collect::<serde_json::Map<_, _>>(),
        "steps": ran.report.steps,
        "seconds": seconds,
    });
    let verdict = json!(ran.verdict);
    if let (Value::Object(all), Value::Object(verdict)) = (&mut json, verdict) {
        all.extend(verdict);
    }
    Done { text, json, ok }
}

/// The values of a variant's key fields.
fn problem(variant: &dyn DynConfig) -> String {
    let fields = variant.family().fields().iter().zip(variant.values());
    let key = fields.filter(|(f, _)| f.role == FieldRole::Key).map(|(f, v)| format!("{} {v}", f.name));
    key.collect::<Vec<_>>().join(", ")
}

fn report(
    variants: &[Variant],
    inputs: &Inputs,
    prepared: &dyn Problem,
    ran: &Ran,
    seconds: f64,
    style: Style,
) -> String {
    let mut text = String::new();
    for variant in variants {
        writeln!(text, "{}", style.bold(&variant.variant_name())).expect("string");
    }
    let problem = variants.first().map(|v| problem(&**v)).unwrap_or_default();
    writeln!(text, "{problem}\nseed {}", inputs.seed).expect("string");
    let bytes_of = link_table(&ran.report, |r, a, b| r.link_bytes(a, b));
    let flags_of = link_table(&ran.report, |r, a, b| r.link_signals(a, b));
    writeln!(text, "\n{}", per_rank(prepared, &bytes_of, &flags_of)).expect("string");
    writeln!(text, "{}", links(&bytes_of)).expect("string");
    let mut facts = prepared.facts();
    let flags: u64 = off_diagonal(&flags_of);
    facts.push(("bytes on the wire".into(), bytes(ran.report.bytes_on_wire()).into()));
    facts.push(("flags on the wire".into(), flags.into()));
    facts.push(("elements compared".into(), ran.verdict.compared.into()));
    facts.push(("largest absolute error".into(), format!("{:.3e}", ran.verdict.max_abs_err).into()));
    facts.push(("largest relative error".into(), format!("{:.3e}", ran.verdict.max_rel_err).into()));
    facts.push(("simulated".into(), format!("{} operations in {seconds:.1} s", ran.report.steps).into()));
    for (name, value) in &facts {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        writeln!(text, "{name:<24}{value}").expect("string");
    }
    writeln!(text, "\n{}", verdict(ran, style)).expect("string");
    text
}

fn verdict(ran: &Ran, style: Style) -> String {
    let v = &ran.verdict;
    match &v.first_wrong {
        None => format!("{}: the result agrees with the reference", style.good("ok")),
        Some(first) => format!(
            "{}: {} of {} elements are wrong, the first at {first}",
            style.bad("mismatch"),
            v.wrong,
            v.compared
        ),
    }
}

type Links = Vec<Vec<u64>>;

fn link_table(report: &Report, of: impl Fn(&Report, u32, u32) -> u64) -> Links {
    let ranks = report.kernels.values().map(|k| k.bytes.len()).max().unwrap_or(0) as u32;
    (0..ranks).map(|from| (0..ranks).map(|to| of(report, from, to)).collect()).collect()
}

fn off_diagonal(links: &Links) -> u64 {
    let row = |(i, row): (usize, &Vec<u64>)| row.iter().sum::<u64>() - row[i];
    links.iter().enumerate().map(row).sum()
}

fn per_rank(prepared: &dyn Problem, bytes_of: &Links, flags_of: &Links) -> String {
    let out = |links: &Links, r: usize| links[r].iter().sum::<u64>() - links[r][r];
    let into = |links: &Links, r: usize| links.iter().map(|row| row[r]).sum::<u64>() - links[r][r];
    let columns = prepared.per_rank();
    let mut head = vec!["rank"];
    head.extend(columns.iter().map(|c| c.0.as_str()));
    head.extend(["bytes out", "bytes in", "flags out", "flags in"]);
    let row = |r: usize| {
        let mut row = vec![r.to_string()];
        row.extend(columns.iter().map(|c| c.1.get(r).map_or_else(String::new, u64::to_string)));
        row.extend([out(bytes_of, r), into(bytes_of, r)].map(bytes));
        row.extend([out(flags_of, r), into(flags_of, r)].map(|n| n.to_string()));
        row
    };
    table(&head, (0..bytes_of.len()).map(row))
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
