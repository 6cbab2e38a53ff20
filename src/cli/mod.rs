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
mod generate;
mod list;
mod memory;
mod options;
mod output;
mod pack;
mod run;
mod run_gpu;
mod run_report;
mod select;
mod show;
mod toolchain;
mod topo;
mod topo_text;
mod trace;
mod tune;
mod warnings;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use peerwarp_codegen::family::{Family, FamilyEntry, Registry, Target};

use crate::families::moe::MoeSuite;
use crate::families::{collectives, matmul, moe};
use crate::harness::suite;
use crate::harness::workload::{Given, Suite, Workload};
use crate::input::{InputError, nearest};

use args::{Cli, Command, When};
use output::{Done, Failure, Style};

/// A family as the command line knows it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    family: FamilyEntry,
    suite: &'static dyn Suite,
}

/// A family of which nothing is known but its parameters: inputs are random, and nothing is compared.
pub fn entry<F: Family>() -> Entry {
    Entry::of_suite(F::entry(), suite::plain::<F>())
}

/// A family with inputs and a reference.
pub fn workload<F: Workload>() -> Entry {
    Entry::of_suite(F::entry(), suite::of::<F>())
}

impl Entry {
    /// A family of a suite, which may have others.
    pub fn of_suite(family: FamilyEntry, suite: &'static dyn Suite) -> Entry {
        Entry { family, suite }
    }

    /// The family.
    pub fn family(&self) -> FamilyEntry {
        self.family
    }

    /// Its suite.
    pub fn suite(&self) -> &'static dyn Suite {
        self.suite
    }
}

/// The families that come with Peerwarp: MoE dispatch and combine, both in one launch, collectives, and products of matrices.
pub fn builtin() -> Vec<Entry> {
    let moe = MoeSuite.families().into_iter().map(|family| Entry::of_suite(family, &MoeSuite));
    let others = moe::layer::families().into_iter().chain(collectives::families()).chain(matmul::families());
    let others = others.map(|(family, suite)| Entry::of_suite(family, suite));
    moe.chain(others).collect()
}

/// The families of a program, and its name.
#[derive(Debug)]
pub struct App {
    name: String,
    registry: Registry,
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

/// Shows on standard error what the library warns of, unless the program has a logger of its own. [`main`] does so.
pub fn show_warnings() {
    warnings::show();
}

/// Runs the command line of a program with these families on the process's arguments.
pub fn main(entries: &[Entry]) -> ExitCode {
    show_warnings();
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
        let mut suites: Vec<&'static dyn Suite> = vec![];
        for suite in entries.iter().map(|e| e.suite) {
            if !suites.iter().any(|s| s.name() == suite.name()) {
                suites.push(suite);
            }
        }
        App {
            name: name.unwrap_or_else(|| "peerwarp".into()),
            registry: Registry::new(entries.iter().map(|e| e.family)),
            suites,
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
        if let Err(clash) = options::check(Cli::command(), &self.suites) {
            return Said { code: 2, out: String::new(), err: format!("error: {clash}\n") };
        }
        let parsed = self.clap().try_get_matches_from(&args);
        let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
        let (cli, given) = match parsed {
            Ok((cli, matches)) => (cli, options::given(&matches, &self.suites)),
            Err(e) => return refused(&suggesting(e, &self.clap())),
        };
        match self.command(&cli, &given, &args) {
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
        let command = Cli::command().display_name(self.name.clone()).bin_name(self.name.clone());
        options::add(command, &self.suites)
    }

    fn command(&self, cli: &Cli, given: &Given, args: &[OsString]) -> Result<Done, Failure> {
        let style = Style::stdout(cli.color);
        match &cli.command {
            Command::Run(args) => run::run(self, args, given, style),
            Command::Check(check) => {
                check::check(self, check, given, &check::Replay::new(&self.name, args), style)
            }
            Command::Bench(args) => bench::bench(self, args, given, style),
            Command::Tune(args) => tune::tune(self, args, given, style),
            Command::Generate(args) => generate::generate(self, args, given, style),
            Command::Show(args) => show::show(self, args, given),
            Command::List(args) => list::list(self, args, given, style),
            Command::Memory(args) => memory::memory(self, args, given, style),
            Command::Trace(args) => trace::trace(self, args, given, style),
            Command::Topo(args) => topo::topo(self, args, style),
            Command::Pack(args) => pack::pack(self, args, given, style),
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

    fn suites(&self) -> impl Iterator<Item = &'static dyn Suite> {
        self.suites.iter().copied()
    }

    fn completions(&self, shell: clap_complete::Shell) -> Done {
        let mut script = vec![];
        clap_complete::generate(shell, &mut self.clap(), &self.name, &mut script);
        let text = String::from_utf8_lossy(&script).into_owned();
        let json = serde_json::json!({ "shell": shell.to_string(), "script": text });
        Done { text, json, ok: true }
    }
}

/// An error with the commands whose names look like the one that was given, where clap finds none.
fn suggesting(mut e: clap::Error, command: &clap::Command) -> clap::Error {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let (ErrorKind::InvalidSubcommand, None) = (e.kind(), e.get(ContextKind::SuggestedSubcommand)) else {
        return e;
    };
    let Some(ContextValue::String(given)) = e.get(ContextKind::InvalidSubcommand) else { return e };
    let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let nearest = nearest(given, &known);
    if !nearest.is_empty() {
        e.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(nearest));
    }
    e
}

/// What clap says: help, and errors.
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
