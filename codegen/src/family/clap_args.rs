//! Fields as arguments of a [`clap`] command, made at run time: a command line can so offer the fields of families it
//! has never heard of.
//!
//! ```
//! use clap::Command;
//! use peerwarp_codegen::family::{FieldInfo, clap_args};
//!
//! let fields = [
//!     FieldInfo::key::<u32>("hidden").range(8, 65536, 8).help("Elements of a row."),
//!     FieldInfo::tune::<bool>("dedup"),
//! ];
//! let command = Command::new("generate").args(clap_args::arguments(&fields));
//! let matches = command.clone().try_get_matches_from(["generate", "--hidden", "7168", "--dedup"])?;
//! let settings = clap_args::settings(&fields, &matches);
//! assert_eq!(settings, [("hidden".into(), "7168".into()), ("dedup".into(), "true".into())]);
//! assert!(command.try_get_matches_from(["generate", "--hidden", "7169"]).is_err());
//! # Ok::<(), clap::Error>(())
//! ```

use clap::{
    Arg, ArgMatches,
    builder::{PossibleValuesParser, ValueParser},
};

use super::{Allowed, FieldDefault, FieldInfo, FieldRole, Value};

/// One `--option` for each field. None is required, because a command may have other ways to say what a key is: what is
/// missing is reported by [`Family::from_settings`](super::Family::from_settings).
pub fn arguments(fields: &[FieldInfo]) -> Vec<Arg> {
    fields.iter().map(argument).collect()
}

/// What the user gave, as settings for [`Family::from_settings`](super::Family::from_settings).
pub fn settings(fields: &[FieldInfo], matches: &ArgMatches) -> Vec<(String, String)> {
    let given = |f: &FieldInfo| {
        let text = matches.try_get_one::<String>(f.name).ok().flatten()?;
        Some((f.name.to_owned(), text.clone()))
    };
    fields.iter().filter_map(given).collect()
}

fn argument(field: &FieldInfo) -> Arg {
    let heading = match field.role {
        FieldRole::Key => "Problem",
        FieldRole::Tune => "Tuning",
    };
    let arg = Arg::new(field.name)
        .long(field.long())
        .value_name(field.name.to_uppercase())
        .help(help(field))
        .help_heading(heading)
        .value_parser(parser(field));
    let negative = matches!(field.allowed, Allowed::Range { min, .. } if min < 0);
    let switch = field.allowed.contains(Value::Bool(true));
    // `--dedup` alone means true.
    let arg = if switch { arg.num_args(0..=1).default_missing_value("true") } else { arg };
    arg.allow_negative_numbers(negative)
}

/// Menus become clap's own possible values, which completions list; ranges are checked by the field.
fn parser(field: &FieldInfo) -> ValueParser {
    match &field.allowed {
        Allowed::Values(values) => {
            PossibleValuesParser::new(values.iter().map(Value::to_string).collect::<Vec<_>>()).into()
        }
        Allowed::Range { .. } => {
            let field = field.clone();
            ValueParser::new(move |text: &str| match field.parse(text) {
                Ok(value) => Ok(value.to_string()),
                Err(why) => Err(format!("it must be {}", why.allowed)),
            })
        }
    }
}

fn help(field: &FieldInfo) -> String {
    let mut help = field.help.trim_end_matches('.').to_owned();
    if let Allowed::Range { .. } = field.allowed {
        let open = if help.is_empty() { "" } else { ": " };
        help.push_str(&format!("{open}{}", field.allowed));
    }
    if field.default != FieldDefault::None {
        let space = if help.is_empty() { "" } else { " " };
        help.push_str(&format!("{space}[default: {}]", field.default));
    }
    help
}
