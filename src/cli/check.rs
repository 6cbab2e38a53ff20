//! `peerwarp check`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use peerwarp_codegen::family::Variant;
use peerwarp_codegen::sim::{Findings, Options, Strategy};
use rayon::prelude::*;
use serde_json::json;

use crate::harness::session::SimSession;
use crate::harness::verdict::Verdict;
use crate::harness::workload::{Given, Inputs, Suite, WorkloadError};

use super::App;
use super::args::CheckArgs;
use super::output::{Done, Failure, Progress, Style};
use super::select::Chosen;

/// What a schedule showed.
enum Wrong {
    /// The protocol is.
    Protocol(Box<Findings>),
    /// The result is.
    Result(Verdict),
}

/// The command line, without what decides the seeds.
pub(super) struct Replay(String);

impl Replay {
    pub(super) fn new(program: &str, args: &[OsString]) -> Replay {
        let mut command = vec![quoted(program)];
        let mut args = args.iter().skip(1).map(|a| a.to_string_lossy());
        while let Some(arg) = args.next() {
            match arg.as_ref() {
                "--seed" | "--seeds" => drop(args.next()),
                a if a.starts_with("--seed=") || a.starts_with("--seeds=") => {}
                a => command.push(quoted(a)),
            }
        }
        Replay(command.join(" "))
    }

    fn with(&self, seed: u64) -> String {
        format!("{} --seed {seed} --seeds 1", self.0)
    }
}

/// As a shell would take it.
fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/@%+".contains(c);
    match !arg.is_empty() && arg.chars().all(plain) {
        true => arg.to_owned(),
        false => format!("'{}'", arg.replace('\'', r"'\''")),
    }
}

pub(super) fn check(
    app: &App,
    args: &CheckArgs,
    given: &Given,
    replay: &Replay,
    style: Style,
) -> Result<Done, Failure> {
    let tuned = args.selection.tuned(app, || None)?;
    let Chosen { suite, variants, given, .. } = app.choose(&args.selection, given, true, tuned.as_ref())?;
    let inputs = Inputs { seed: args.inputs.seed, rounds: args.epochs, ragged: true, given };
    // Now, not under the progress bar, and once instead of for every seed.
    SimSession::new(Arc::from(suite.problem(&variants, &inputs)?))?;
    let progress = Progress::new("exploring", args.seeds);
    let start = Instant::now();
    let first = inputs.seed;
    let failed = (first..first.saturating_add(args.seeds)).into_par_iter().find_map_first(|seed| {
        let found = explore(suite, &variants, &Inputs { seed, ..inputs.clone() });
        progress.tick();
        found.transpose().map(|found| (seed, found))
    });
    progress.finish();
    let names: Vec<String> = variants.iter().map(|v| v.variant_name()).collect();
    let seconds = start.elapsed().as_secs_f64();
    let mut json = json!({
        "ok": failed.is_none(),
        "variants": names,
        "first_seed": first,
        "seeds": args.seeds,
        "epochs": args.epochs,
        "seconds": seconds,
    });
    let Some((seed, wrong)) = failed else {
        let text = format!(
            "{}\n\n{}: explored {} schedules of {} epochs (seeds {first} to {}), found nothing wrong, in {seconds:.1} s\n",
            names.join("\n"),
            style.good("ok"),
            args.seeds,
            args.epochs,
            first.saturating_add(args.seeds - 1),
        );
        return Ok(Done { text, json, ok: true });
    };
    let replay = replay.with(seed);
    json["seed"] = seed.into();
    json["replay"] = replay.clone().into();
    let mut text = format!("{}\n\n{}: seed {seed}\n", names.join("\n"), style.bad("found something wrong"));
    match wrong? {
        Wrong::Protocol(findings) => {
            writeln!(text, "{findings}").expect("string");
            json["findings"] = json!(findings);
        }
        Wrong::Result(verdict) => {
            let first = verdict.first_wrong.as_deref().unwrap_or_default();
            let (wrong, all) = (verdict.wrong, verdict.compared);
            writeln!(text, "{wrong} of {all} elements differ from the reference, the first at {first}")
                .expect("string");
            json["verdict"] = json!(verdict);
        }
    }
    writeln!(text, "\nreplay: {replay}").expect("string");
    Ok(Done { text, json, ok: false })
}

/// Odd seeds seek bad schedules; even ones are random. So the seed alone says what to replay.
fn options(seed: u64) -> Options {
    let strategy = if seed % 2 == 1 { Strategy::Adversarial } else { Strategy::Random };
    Options { seed, strategy, ..Options::default() }
}

fn explore(suite: &dyn Suite, variants: &[Variant], inputs: &Inputs) -> Result<Option<Wrong>, WorkloadError> {
    let prepared = SimSession::new(Arc::from(suite.problem(variants, inputs)?))?;
    Ok(match prepared.run(&options(inputs.seed)) {
        Err(findings) => Some(Wrong::Protocol(findings)),
        Ok(ran) if !ran.verdict.ok() => Some(Wrong::Result(ran.verdict)),
        Ok(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_command_has_the_seed_instead_of_the_search() {
        let args = ["/bin/x", "check", "--model", "m", "--seeds", "9", "--seed=3", "--set", "a b", "it's"];
        let replay = Replay::new("peerwarp", &args.map(OsString::from));
        assert_eq!(replay.with(17), r"peerwarp check --model m --set 'a b' 'it'\''s' --seed 17 --seeds 1");
    }

    #[test]
    fn both_strategies_get_their_turn() {
        let strategies = [0, 1, 2].map(|seed| options(seed).strategy);
        assert_eq!(strategies, [Strategy::Random, Strategy::Adversarial, Strategy::Random]);
        assert_eq!(options(5).seed, 5);
    }
}
