//! `peerwarp pack`.

use std::collections::BTreeMap;

use serde_json::json;

use crate::build::pack::{self, BuildError, Built, Options};
use crate::build::toolchain::Tool;
use crate::harness::workload::Given;
use crate::input::InputError;

use super::App;
use super::args::PackArgs;
use super::output::{Done, Failure, Progress, Style, bytes, shown};

pub(super) fn pack(app: &App, args: &PackArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    let options = Options {
        compilers: args.compiler.iter().map(|name| compiler(name)).collect::<Result<_, _>>()?,
        sms: args.sms,
        allow_spills: args.allow_spills,
        emit: args.wanted.recording.options(),
    };
    let jobs = app.jobs(&args.wanted, given)?;
    let progress = Progress::new("compiling", jobs.len() as u64);
    let families = app.families_with(&jobs);
    let built = pack::build(app.program(), &jobs, &families, &args.out, &options, || progress.tick());
    progress.finish();
    match built {
        Ok(built) => packed(&built, args),
        Err(BuildError::Refused(refused)) => {
            let lines = refused.iter().map(|r| format!("{}: {r}\n", style.bad("refused")));
            let text = lines.collect::<String>() + "nothing was written\n";
            Ok(Done {
                text,
                json: json!({ "ok": false, "out": shown(&args.out), "refused": refused }),
                ok: false,
            })
        }
        Err(e) => Err(e.into()),
    }
}

fn packed(built: &Built, args: &PackArgs) -> Result<Done, Failure> {
    let differences = built.tree.write(&args.out)?;
    let kernels = &built.manifest.kernels;
    let size: u64 = kernels.iter().map(|k| k.object.bytes).sum();
    let mut targets: BTreeMap<_, usize> = BTreeMap::new();
    for kernel in kernels {
        *targets.entry(kernel.target).or_default() += 1;
    }
    let each: Vec<String> = targets.iter().map(|(t, n)| format!("{n} for {t}")).collect();
    let text = format!(
        "{} kernels in {} ({}), {} compiled: {}\n",
        kernels.len(),
        args.out.display(),
        bytes(size),
        built.compiled,
        each.join(", "),
    );
    let json = json!({
        "ok": true,
        "out": shown(&args.out),
        "kernels": kernels.len(),
        "compiled": built.compiled,
        "bytes": size,
        "differences": differences,
        "manifest": built.manifest,
    });
    Ok(Done { text, json, ok: true })
}

fn compiler(name: &str) -> Result<Tool, InputError> {
    let all = [Tool::Nvrtc, Tool::Nvcc, Tool::Clang, Tool::Zig, Tool::Hipcc];
    let found = all.into_iter().find(|t| t.name() == name);
    found.ok_or_else(|| InputError::unknown("--compiler", name, all.map(Tool::name)))
}
