//! `peerwarp run`.

use std::fmt::Write as _;
use std::time::Instant;

use peerwarp_codegen::family::{DynConfig, FieldRole, Variant};
use peerwarp_codegen::sim::{Findings, Options, Report};
use serde_json::{Value, json};

use crate::families::moe::routing::{self, Source};
use crate::harness::scenario::{DynScenario, Inputs, Prepared, Ran};
use crate::harness::tune::{Choice, Tuned};
use crate::input::InputError;

use super::App;
use super::args::{Backend, InputArgs, RunArgs, Selection};
use super::output::{Done, Failure, Progress, Style, bytes, table};
use super::run_gpu;

/// World sizes up to which the table of links is printed: beyond, it is wider than a screen.
const MOST_RANKS: usize = 16;

pub(super) fn run(app: &App, args: &RunArgs, style: Style) -> Result<Done, Failure> {
    let inputs = inputs(&args.inputs, 1)?;
    let selection = sized(&args.selection, &inputs, None)?;
    if args.backend == Backend::Gpu {
        return run_gpu::run(app, &selection, &inputs, &args.gpu, style);
    }
    let (variants, scenario) = selected(app, &selection)?;
    args.gpu.refuse()?;
    let prepared = scenario.prepare(&variants, &inputs)?;
    let progress = Progress::spinner("simulating");
    let start = Instant::now();
    let result = prepared.run(&Options { seed: inputs.seed, ..Options::default() });
    let seconds = start.elapsed().as_secs_f64();
    progress.finish();
    Ok(match result {
        Ok(ran) => ran_through(&variants, &inputs, &prepared, &ran, seconds, style),
        Err(findings) => stopped(&variants, &findings, style),
    })
}

/// An MoE selection with the sizes that a routing file has, or else `tokens`, where the user does not say.
pub(super) fn sized(
    selection: &Selection,
    inputs: &Inputs,
    tokens: Option<&str>,
) -> Result<Selection, InputError> {
    let mut sized = selection.clone();
    if !selection.is_moe() {
        return Ok(sized);
    }
    if let Source::File(path) = &inputs.routing {
        let [ranks, tokens, _] = routing::file_dims(path)?;
        sized.ranks.get_or_insert_with(|| ranks.to_string());
        sized.tokens.get_or_insert_with(|| tokens.max(1).to_string());
    }
    sized.tokens = sized.tokens.or_else(|| tokens.map(str::to_owned));
    Ok(sized)
}

/// The variants that a selection means, and what can run them.
pub(super) fn selected<'a>(
    app: &'a App,
    selection: &Selection,
) -> Result<(Vec<Variant>, &'a dyn DynScenario), Failure> {
    let (mut variants, _) = resolved(app, selection, selection.tuned(|| None)?.as_ref())?;
    let families: Vec<&str> = variants.iter().map(|v| v.family().name()).collect();
    let scenario = app.scenarios().find(|s| families.iter().any(|f| s.families().contains(f)));
    let scenario = scenario.ok_or_else(|| {
        let known: Vec<_> = app.scenarios().flat_map(|s| s.families()).collect();
        let allowed = format!("families with a scenario (inputs and a reference): {}", known.join(", "));
        InputError::not_allowed("family", families.join(", "), allowed)
    })?;
    variants.retain(|v| scenario.families().contains(&v.family().name()));
    Ok((variants, scenario))
}

/// The variants that a selection means with a table of tuned ones, and where they come from.
pub(super) fn resolved(
    app: &App,
    selection: &Selection,
    tuned: Option<&Tuned>,
) -> Result<(Vec<Variant>, Choice), InputError> {
    let (mut variants, mut from) = (vec![], Choice::Default);
    for request in selection.requests()? {
        let (more, by) = request.resolve_tuned(app.registry(), tuned)?;
        variants.extend(more);
        from = by;
    }
    Ok((variants, from))
}

/// The inputs that flags describe.
pub(super) fn inputs(args: &InputArgs, rounds: u32) -> Result<Inputs, InputError> {
    Ok(Inputs {
        routing: args.routing.parse()?,
        tokens_per_rank: args.tokens_per_rank.as_deref().map(routing::parse_counts).transpose()?,
        seed: args.seed,
        rounds,
        ragged: false,
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
    prepared: &Prepared,
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
        "per_rank": prepared.per_rank.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "facts": prepared.facts.iter().cloned().collect::<serde_json::Map<_, _>>(),
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
    prepared: &Prepared,
    ran: &Ran,
    seconds: f64,
    style: Style,
) -> String {
    let mut text = String::new();
    for variant in variants {
        writeln!(text, "{}", style.bold(&variant.variant_name())).expect("string");
    }
    let problem = variants.first().map(|v| problem(&**v)).unwrap_or_default();
    writeln!(text, "{problem}\nrouting {}, seed {}", inputs.routing, inputs.seed).expect("string");
    let bytes_of = link_table(&ran.report, |r, a, b| r.link_bytes(a, b));
    let flags_of = link_table(&ran.report, |r, a, b| r.link_signals(a, b));
    writeln!(text, "\n{}", per_rank(prepared, &bytes_of, &flags_of)).expect("string");
    writeln!(text, "{}", links(&bytes_of)).expect("string");
    let mut facts = prepared.facts.clone();
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

fn per_rank(prepared: &Prepared, bytes_of: &Links, flags_of: &Links) -> String {
    let out = |links: &Links, r: usize| links[r].iter().sum::<u64>() - links[r][r];
    let into = |links: &Links, r: usize| links.iter().map(|row| row[r]).sum::<u64>() - links[r][r];
    let mut head = vec!["rank"];
    head.extend(prepared.per_rank.iter().map(|c| c.0.as_str()));
    head.extend(["bytes out", "bytes in", "flags out", "flags in"]);
    let row = |r: usize| {
        let mut row = vec![r.to_string()];
        row.extend(prepared.per_rank.iter().map(|c| c.1.get(r).map_or_else(String::new, u64::to_string)));
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
