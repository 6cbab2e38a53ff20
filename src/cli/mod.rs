//! The `peerwarp` command, as a library: any crate gets all of it for its own families.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     peerwarp::cli::main(&peerwarp::cli::builtin())
//! }
//! ```
//!
//! Every command returns what it found as text and as JSON, and its exit status: 0 when all is well, 1 when something
//! was found (a mismatch, a protocol error, a stale file), 2 when the input cannot be used.

mod args;
mod bench;
mod check;
mod fused;
mod generate;
mod list;
mod output;
mod pack;
mod run;
mod run_gpu;
mod select;
mod show;
mod toolchain;
mod trace;
mod tune;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use peerwarp_codegen::family::{Family, FamilyEntry, Registry, Target, Variant};

use crate::families::moe::kernels::{Combine, Dispatch, RoundTrip};
use crate::families::moe::scenario::MoeScenario;
use crate::harness::scenario::{self, DynScenario, Scenario};
use crate::harness::suite;
use crate::harness::workload::{Suite, Workload};
use crate::input::InputError;

use args::{Cli, Command, When};
use output::{Done, Failure, Style};

/// A family as the command line knows it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    family: FamilyEntry,
    scenario: Option<&'static dyn DynScenario>,
    suite: &'static dyn Suite,
}

/// A family that can be listed, shown and generated.
pub fn entry<F: Family>() -> Entry {
    Entry { family: F::entry(), scenario: None, suite: suite::plain::<F>() }
}

/// A family that can be run and checked too.
pub fn checked<F: Scenario>() -> Entry {
    Entry { scenario: Some(scenario::of::<F>()), ..entry::<F>() }
}

/// A family that can be run, checked, benched and traced, on inputs of its own.
pub fn workload<F: Workload>() -> Entry {
    let suite = suite::of::<F>();
    Entry { family: F::entry(), scenario: Some(scenario::of_workload::<F>()), suite }
}

impl Entry {
    /// The family.
    pub fn family(&self) -> FamilyEntry {
        self.family
    }

    /// Run and checked by a scenario that may be for several families.
    #[must_use]
    pub fn with_scenario(self, scenario: &'static dyn DynScenario) -> Entry {
        Entry { scenario: Some(scenario), ..self }
    }
}

/// The families that come with Peerwarp: MoE dispatch and combine, and both in one launch.
pub fn builtin() -> Vec<Entry> {
    let scenario: &'static dyn DynScenario = &MoeScenario;
    vec![
        entry::<Dispatch>().with_scenario(scenario),
        entry::<Combine>().with_scenario(scenario),
        checked::<RoundTrip>(),
    ]
}

/// The families of a program, and its name.
#[derive(Debug)]
pub struct App {
    name: String,
    registry: Registry,
    scenarios: Vec<&'static dyn DynScenario>,
    suites: Vec<&'static dyn Suite>,
}

/// What a command says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Exit status: 0 when all is well, 1 when something was found, 2 when the input cannot be used.
    pub code: u8,
    /// For standard output.
    pub out: String,
    /// For standard error.
    pub err: String,
}

/// Runs the command line of a program with these families on the process's arguments.
pub fn main(entries: &[Entry]) -> ExitCode {
    let said = App::new(entries).run(std::env::args_os());
    eprint!("{}", said.err);
    match output::print(&said.out) {
        Ok(()) => ExitCode::from(said.code),
        Err(e) => {
            eprintln!("error: {}", InputError::io("output", "standard output", &e));
            ExitCode::from(2)
        }
    }
}

impl App {
    /// A program with these families, called what its executable is called.
    pub fn new(entries: &[Entry]) -> App {
        let exe = std::env::args_os().next().map(PathBuf::from);
        let name = exe.as_deref().and_then(|p| p.file_stem()).map(|n| n.to_string_lossy().into_owned());
        let mut scenarios: Vec<&'static dyn DynScenario> = vec![];
        for scenario in entries.iter().filter_map(|e| e.scenario) {
            if !scenarios.iter().any(|s| s.families() == scenario.families()) {
                scenarios.push(scenario);
            }
        }
        App {
            name: name.unwrap_or_else(|| "peerwarp".into()),
            registry: Registry::new(entries.iter().map(|e| e.family)),
            scenarios,
            suites: entries.iter().map(|e| e.suite).collect(),
        }
    }

    /// With another name. It stands in help texts, and in the commands that emitted files name.
    #[must_use]
    pub fn name(self, name: &str) -> App {
        App { name: name.to_owned(), ..self }
    }

    /// Runs on these arguments, the first of which is the program's path. Prints nothing but progress.
    pub fn run(&self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Said {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let parsed = self.clap().try_get_matches_from(&args).and_then(|m| Cli::from_arg_matches(&m));
        let cli = match parsed {
            Ok(cli) => cli,
            Err(e) => return refused(&e),
        };
        match self.command(&cli, &args) {
            Ok(done) => {
                let code = if done.ok { 0 } else { 1 };
                Said { code, out: done.said(cli.json), err: String::new() }
            }
            Err(failure) => {
                let err = format!("{} {failure}\n", Style::stderr(cli.color).bad("error:"));
                let out = if cli.json { output::pretty(&failure.json()) } else { String::new() };
                Said { code: failure.code(), out, err }
            }
        }
    }

    fn clap(&self) -> clap::Command {
        Cli::command().display_name(self.name.clone()).bin_name(self.name.clone())
    }

    fn command(&self, cli: &Cli, args: &[OsString]) -> Result<Done, Failure> {
        let style = Style::stdout(cli.color);
        match &cli.command {
            Command::Run(run) => run::run(self, run, style),
            Command::Check(check) => check::check(self, check, &check::Replay::new(&self.name, args), style),
            Command::Bench(args) => bench::bench(self, args, style),
            Command::Tune(args) => tune::tune(self, args, style),
            Command::Generate(generate) => generate::generate(self, generate, style),
            Command::Show(show) => show::show(self, show),
            Command::List(list) => list::list(self, list, style),
            Command::Trace(args) => trace::trace(self, args, style),
            Command::Pack(args) => pack::pack(self, args, style),
            Command::Toolchain(args) => toolchain::toolchain(args),
            Command::Completions { shell } => Ok(self.completions(*shell)),
        }
    }

    fn program(&self) -> &str {
        &self.name
    }

    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn scenarios(&self) -> impl Iterator<Item = &'static dyn DynScenario> {
        self.scenarios.iter().copied()
    }

    /// The variants that a selection means, and the suite that says what they are run on.
    fn suite_of(&self, selection: &args::Selection) -> Result<(Vec<Variant>, &'static dyn Suite), Failure> {
        let (variants, _) = run::resolved(self, selection, selection.tuned(|| None)?.as_ref())?;
        let named = |suite: &&&'static dyn Suite| {
            suite.families().iter().any(|f| f.name() == variants[0].family().name())
        };
        let suite = self.suites.iter().find(named).expect("every family has one");
        Ok((variants, *suite))
    }

    fn completions(&self, shell: clap_complete::Shell) -> Done {
        let mut script = vec![];
        clap_complete::generate(shell, &mut self.clap(), &self.name, &mut script);
        let text = String::from_utf8_lossy(&script).into_owned();
        let json = serde_json::json!({ "shell": shell.to_string(), "script": text });
        Done { text, json, ok: true }
    }
}

/// What clap says: help for who asks, and errors.
fn refused(e: &clap::Error) -> Said {
    let style = if e.use_stderr() { Style::stderr(When::Auto) } else { Style::stdout(When::Auto) };
    let text = if style.on() { e.render().ansi().to_string() } else { e.render().to_string() };
    let (out, err) = if e.use_stderr() { (String::new(), text) } else { (text, String::new()) };
    Said { code: u8::try_from(e.exit_code()).unwrap_or(2), out, err }
}

/// Reads a target.
fn target(text: &str) -> Result<Target, InputError> {
    text.parse().map_err(|_| crate::harness::catalogue::unknown_target("--target", text))
}
