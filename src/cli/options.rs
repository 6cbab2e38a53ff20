//! Options that suites add to the command line.

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::harness::workload::{Given, On, OptionSpec, Suite};
use crate::input::InputError;

/// Options of every suite that suites read, too, with their values in words.
const COMMON: [&str; 3] = ["ranks", "nodes", "seed"];

/// The commands that have an option.
fn commands(on: On) -> &'static [&'static str] {
    match on {
        On::Selection => {
            &["run", "check", "bench", "tune", "generate", "show", "list", "memory", "trace", "pack"]
        }
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
            command = command.mut_subcommand(name, |command| command.arg(arg(suite, &option, name)));
        }
    }
    command
}

fn arg(suite: &'static str, option: &OptionSpec, command: &str) -> Arg {
    let arg = Arg::new(option.name).long(option.name).help_heading(suite);
    let arg = match option.list && ["bench", "tune"].contains(&command) {
        true => arg.help(format!("{}; several with commas between are a problem each", option.help)),
        false => arg.help(option.help),
    };
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use peerwarp_codegen::family::{FamilyEntry, Variant};

    use super::*;
    use crate::cli::args::Cli;
    use crate::harness::workload::{Inputs, Problem, WorkloadError};

    /// A suite with one option.
    #[derive(Debug)]
    struct One(&'static str, OptionSpec);

    impl Suite for One {
        fn name(&self) -> &'static str {
            self.0
        }

        fn families(&self) -> Vec<FamilyEntry> {
            vec![]
        }

        fn problem(&self, _: &[Variant], _: &Inputs) -> Result<Box<dyn Problem>, WorkloadError> {
            Err(InputError::missing("variant", "").into())
        }

        fn options(&self) -> Vec<OptionSpec> {
            vec![self.1]
        }
    }

    const SIZE: OptionSpec =
        OptionSpec { name: "size", value: Some("N"), help: "How much", on: On::Selection, list: false };
    static A: One = One("a", SIZE);
    static B: One = One("b", SIZE);
    static OTHER: One = One("c", OptionSpec { help: "How many", ..SIZE });
    static JSON: One = One("d", OptionSpec { name: "json", ..SIZE });
    static ROUNDS: One = One("e", OptionSpec { name: "rounds", on: On::Bench, ..SIZE });
    static FAST: One = One("f", OptionSpec { name: "fast", value: None, on: On::Gpu, ..SIZE });
    static PAIRED: One = One("g", OptionSpec { name: "paired", value: Some("BOOL"), ..SIZE });

    fn parsed(suites: &[&'static dyn Suite], args: &str) -> Given {
        let command = add(Cli::command(), suites);
        given(&command.get_matches_from(args.split(' ')), suites)
    }

    #[test]
    fn two_suites_may_have_the_same_option_and_no_other_of_its_name() {
        check(Cli::command(), &[&A, &B]).unwrap();
        assert_eq!(parsed(&[&A, &B], "x show --size 3")["size"], "3");
        let error = check(Cli::command(), &[&A, &OTHER]).unwrap_err().to_string();
        assert!(error.contains("option --size of c") && error.contains("contradicts --size of a"), "{error}");
        for clashing in [&JSON, &ROUNDS] {
            let error = check(Cli::command(), &[clashing]).unwrap_err().to_string();
            assert!(error.contains("contradicts an option of `"), "{error}");
        }
    }

    #[test]
    fn options_stand_with_the_commands_that_they_are_for() {
        let fast = parsed(&[&FAST], "x trace --fast --ranks 2 --seed 7");
        assert_eq!(
            fast.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>(),
            ["fast=true", "ranks=2", "seed=7"]
        );
        assert_eq!(parsed(&[&FAST], "x show --ranks 2").len(), 1);
        let refused = add(Cli::command(), &[&FAST]).try_get_matches_from(["x", "show", "--fast"]);
        assert!(refused.is_err());
    }

    #[test]
    fn truth_values_may_be_left_out() {
        assert_eq!(parsed(&[&PAIRED], "x show --paired")["paired"], "true");
        assert_eq!(parsed(&[&PAIRED], "x show --paired false")["paired"], "false");
    }
}
