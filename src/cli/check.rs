//! `peerwarp check`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::Instant;

use peerwarp_codegen::family::Variant;
use serde_json::json;

use crate::harness::check::{Exploration, Wrong, WrongDeath, deaths, default_epochs, explore};
use crate::harness::choose::Device;
use crate::harness::hints::{Hint, hints, spares};
use crate::harness::workload::{Given, Inputs, Suite};

use super::App;
use super::args::CheckArgs;
use super::output::{Done, Failure, Progress, Style};
use super::select::Chosen;

const ALL_NEEDED: &str = "no hints: the kernel needs all credits and second banks of its channels\n";
const NO_SPARES: &str = "no hints: the kernel has no channel with credits or a second bank\n";

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
    let device = args.selection.tables(app)?.on(Device::default());
    let Chosen { suite, variants, given, .. } = app.choose(&args.selection, given, true, &device)?;
    let first = args.inputs.seed;
    let epochs = args.epochs.map_or_else(|| default_epochs(&variants), Ok)?;
    let inputs = Inputs { seed: first, rounds: epochs, ragged: true, given };
    let exploration = Exploration { inputs, seeds: args.seeds, resident_blocks: args.resident_blocks };
    let progress = Progress::new("exploring", args.seeds);
    let start = Instant::now();
    let found = explore(suite, &variants, &exploration, || progress.tick());
    progress.finish();
    let found = found?;
    let names: Vec<String> = variants.iter().map(|v| v.variant_name()).collect();
    let seconds = start.elapsed().as_secs_f64();
    let mut json = json!({
        "ok": found.is_none(),
        "variants": names,
        "first_seed": first,
        "seeds": args.seeds,
        "epochs": epochs,
        "resident_blocks": args.resident_blocks,
        "seconds": seconds,
    });
    let Some((seed, wrong)) = found else {
        let mut text = format!(
            "{}\n\n{}: explored {} schedules of {} epochs (seeds {first} to {}), found nothing wrong, in {seconds:.1} s\n",
            names.join("\n"),
            style.good("ok"),
            args.seeds,
            epochs,
            first.saturating_add(args.seeds - 1),
        );
        if let Some(count) = args.deaths {
            let died = died(suite, &variants, &exploration, count)?;
            json["deaths"] = count.into();
            match died {
                None => writeln!(
                    text,
                    "{}: let a rank die {count} times and the others go on without it, found nothing wrong",
                    style.good("ok")
                )
                .expect("string"),
                Some(WrongDeath { seed, death, without, wrong }) => {
                    let bad = style.bad("found something wrong");
                    let (rank, after) = (death.rank, death.after);
                    writeln!(text, "{bad}: seed {seed}, rank {rank} dies after {after} stores")
                        .expect("string");
                    if let Some(without) = without {
                        let left: Vec<String> =
                            (0..64).filter(|r| without >> r & 1 != 0).map(|r: u32| r.to_string()).collect();
                        writeln!(text, "the others go on without rank {}", left.join(" and "))
                            .expect("string");
                    }
                    json["ok"] = false.into();
                    json["death"] = json!({ "seed": seed, "rank": rank, "after": after, "without": without });
                    tell(&wrong, &mut text, &mut json);
                    return Ok(Done { text, json, ok: false });
                }
            }
        }
        if args.hints {
            let found = hinted(suite, &variants, &exploration);
            found.iter().for_each(|hint| writeln!(text, "hint: {hint}").expect("string"));
            if found.is_empty() {
                let has_spares = !spares(&variants).is_empty();
                text.push_str(if has_spares { ALL_NEEDED } else { NO_SPARES });
            }
            json["hints"] = json!(found);
        }
        return Ok(Done { text, json, ok: true });
    };
    let replay = replay.with(seed);
    json["seed"] = seed.into();
    json["replay"] = replay.clone().into();
    let mut text = format!("{}\n\n{}: seed {seed}\n", names.join("\n"), style.bad("found something wrong"));
    tell(&wrong, &mut text, &mut json);
    writeln!(text, "\nreplay: {replay}").expect("string");
    Ok(Done { text, json, ok: false })
}

/// Says what is wrong.
fn tell(wrong: &Wrong, text: &mut String, json: &mut serde_json::Value) {
    match wrong {
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
}

/// The first death after which something is wrong.
fn died(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
    count: u64,
) -> Result<Option<WrongDeath>, Failure> {
    let progress = Progress::new("letting ranks die", count);
    let found = deaths(suite, variants, exploration, count, || progress.tick());
    progress.finish();
    Ok(found?)
}

/// What the channels have and do not need.
fn hinted(suite: &dyn Suite, variants: &[Variant], exploration: &Exploration) -> Vec<Hint> {
    let progress = Progress::new("leaving out", spares(variants).len() as u64);
    let found = hints(suite, variants, exploration, || progress.tick());
    progress.finish();
    found
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
}
