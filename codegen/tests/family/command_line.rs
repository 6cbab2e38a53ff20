//! Fields as options of a command.

use clap::Command;
use peerwarp_codegen::family::{Fields, clap_args};

use crate::odd::*;

fn command() -> Command {
    Command::new("generate").args(clap_args::arguments(Odd::fields()))
}

#[test]
fn fields_are_options_that_say_what_they_take() {
    insta::assert_snapshot!(command().render_long_help());
}

#[test]
fn options_become_settings_and_bad_ones_are_told() {
    let given =
        ["generate", "--hidden", "64", "--ranks=4", "--offset", "-4", "--dedup", "--order", "by-expert"];
    let matches = command().try_get_matches_from(given).unwrap();
    let settings = clap_args::settings(Odd::fields(), &matches);
    let settings: Vec<String> = settings.into_iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(settings, ["hidden=64", "ranks=4", "offset=-4", "dedup=true", "order=by-expert"]);
    // Options of another command's fields are not there, which is no reason to fail.
    assert_eq!(clap_args::settings(Bare::fields(), &matches).len(), 1);
    let said = |args: &[&str]| {
        let all = ["generate"].iter().chain(args);
        command().try_get_matches_from(all).unwrap_err().to_string()
    };
    let all = [said(&["--hidden", "7170"]), said(&["--rows", "bf61"]), said(&["--warps=5"])];
    insta::assert_snapshot!(all.join("\n"));
}
