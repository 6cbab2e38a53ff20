//! Options that suites add to the command line.

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::harness::workload::{Given, On, OptionSpec, Suite};
use crate::input::InputError;

/// Options of every suite that suites read, too, with their values in words.
const COMMON: [&str; 2] = ["ranks", "seed"];

/// The commands that have an option.
fn commands(on: On) -> &'static [&'static str] {
    match on {
        On::Selection => &["run", "check", "bench", "tune", "generate", "show", "list", "trace", "pack"],
        On::Inputs => &["run", "check", "bench", "trace"],
        On::Bench => &["bench"],
        On::Gpu => &["bench", "run", "trace"],
    }
}

/// The options of all suites, each with the suite that it is first of.
fn all<'a>(suites: &'a [&'static dyn Suite]) -> impl Iterator<Item = (&'static str, OptionSpec)> + 'a {
    let mut seen: Vec<&str> = vec![];
    let all = suites.iter().flat_map(|s| s.options().into_iter().map(|option| (s.name(), option)));
    all.filter(move |(_, option)| {
        let new = !seen.contains(&option.name);
        seen.push(option.name);
        new
    })
}

/// Whether options of suites are told from each other and from those of all commands.
///
/// # Errors
/// Two options have one name.
pub(super) fn check(mut command: Command, suites: &[&'static dyn Suite]) -> Result<(), InputError> {
    command.build();
    for (suite, option) in suites.iter().flat_map(|s| s.options().into_iter().map(|o| (s.name(), o))) {
        let field = || format!("option --{} of {suite}", option.name);
        for name in commands(option.on) {
            let command = command.find_subcommand(name).expect("a command of the grammar");
            let taken = |arg: &Arg| arg.get_id() == option.name || arg.get_long() == Some(option.name);
            if command.get_arguments().any(taken) {
                let with = format!("an option of `{name}`");
                return Err(InputError::conflict(field(), "", with, "another name"));
            }
        }
        let (first, other) = all(suites).find(|(_, o)| o.name == option.name).expect("one of them");
        if other != option {
            let with = format!("--{} of {first}", option.name);
            return Err(InputError::conflict(field(), "", with, "the same option, or another name"));
        }
    }
    Ok(())
}

/// The grammar with the options of suites.
pub(super) fn add(mut command: Command, suites: &[&'static dyn Suite]) -> Command {
    for (suite, option) in all(suites) {
        for name in commands(option.on) {
            command = command.mut_subcommand(name, |command| command.arg(arg(suite, &option)));
        }
    }
    command
}

fn arg(suite: &'static str, option: &OptionSpec) -> Arg {
    let arg = Arg::new(option.name).long(option.name).help(option.help).help_heading(suite);
    match option.value {
        None => arg.action(ArgAction::SetTrue),
        Some("BOOL") => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true"),
        Some(value) => arg.value_name(value),
    }
}

/// What was given of the options of suites.
pub(super) fn given(matches: &ArgMatches, suites: &[&'static dyn Suite]) -> Given {
    let mut given = Given::new();
    let Some((name, matches)) = matches.subcommand() else { return given };
    for (_, option) in all(suites).filter(|(_, o)| commands(o.on).contains(&name)) {
        let value = match option.value {
            None => matches.get_flag(option.name).then(|| "true".to_owned()),
            Some(_) => matches.get_one::<String>(option.name).cloned(),
        };
        given.extend(value.map(|value| (option.name.to_owned(), value)));
    }
    for name in COMMON {
        let text = matches.try_get_one::<String>(name).ok().flatten().cloned();
        let number = || matches.try_get_one::<u64>(name).ok().flatten().map(u64::to_string);
        given.extend(text.or_else(number).map(|value| (name.to_owned(), value)));
    }
    given
}
