//! `peerwarp generate`.

use std::fmt::Write as _;

use serde_json::json;

use crate::build::emit;
use crate::build::tree::Differences;

use crate::harness::workload::Given;

use super::App;
use super::args::GenerateArgs;
use super::output::{Done, Failure, Progress, Style, shown};

pub(super) fn generate(app: &App, args: &GenerateArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    let jobs = app.jobs(&args.wanted, given)?;
    let progress = Progress::new("emitting", jobs.len() as u64);
    let options = args.wanted.recording.options();
    let (program, families) = (app.program(), app.families_with(&jobs));
    let tree = if args.split_primitives {
        emit::split_tree(program, &jobs, &families, &options, || progress.tick())?
    } else {
        emit::tree(program, &jobs, &families, &options, || progress.tick())?
    };
    progress.finish();
    let sources = tree.files().filter(|f| f.0.ends_with(".cu") || f.0.ends_with(".hip")).count();
    let found = if args.check { tree.compare(&args.out)? } else { tree.write(&args.out)? };
    let ok = !args.check || found.is_empty();
    let text =
        if args.check { checked(&found, sources, args, style) } else { written(&found, sources, args) };
    let json = json!({
        "ok": ok,
        "out": shown(&args.out),
        "checked": args.check,
        "files": tree.files().map(|f| f.0).collect::<Vec<_>>(),
        "differences": found,
    });
    Ok(Done { text, json, ok })
}

fn written(found: &Differences, sources: usize, args: &GenerateArgs) -> String {
    let (new, changed) = (found.missing.len(), found.changed.len());
    let dir = args.out.display();
    if found.is_empty() {
        return format!("{sources} kernels in {dir}, all up to date\n");
    }
    let removed = match found.extra.len() {
        0 => String::new(),
        n => format!(", {n} removed"),
    };
    format!("{sources} kernels in {dir}: {new} files new, {changed} changed{removed}\n")
}

fn checked(found: &Differences, sources: usize, args: &GenerateArgs, style: Style) -> String {
    let dir = args.out.display();
    if found.is_empty() {
        return format!("{}: {sources} kernels in {dir} are as emitted\n", style.good("ok"));
    }
    let mut text = String::new();
    if found.unfinished {
        writeln!(text, "unfinished: a run that writes here was stopped, or is at work").expect("string");
    }
    let stale: Vec<_> = found.changed.iter().filter(|f| !found.edited.contains(f)).cloned().collect();
    let lists = [
        ("missing", &found.missing, ""),
        ("stale", &stale, ": not what is emitted now"),
        ("edited", &found.edited, ": changed by hand since it was emitted"),
        ("extra", &found.extra, ": not emitted any more"),
        ("foreign", &found.foreign, ": never emitted, to be removed by hand"),
    ];
    for (what, files, why) in lists {
        for file in files {
            writeln!(text, "{what}: {file}{why}").expect("string");
        }
    }
    let differ = style.bad("not as emitted");
    writeln!(text, "{differ}: {dir}; the same command without --check brings it up to date").expect("string");
    text
}
