//! `peerwarp memory`.

use std::fmt::Write as _;

use peerwarp_codegen::family::{CudaArch, Target};
use serde_json::json;

use crate::harness::choose::Device;
use crate::harness::workload::{Given, Inputs};
use crate::runtime::op::{Memory, Taken};

use super::App;
use super::args::MemoryArgs;
use super::output::{Done, Failure, Style, bytes, table};

pub(super) fn memory(app: &App, args: &MemoryArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    let target =
        args.target.as_deref().map(super::target).transpose()?.unwrap_or(Target::Cuda(CudaArch::Sm90a));
    let device = args.selection.tables(app)?.on(Device::of_target(target));
    let (mut text, mut all) = (String::new(), vec![]);
    for chosen in app.choose_all(&args.selection, given, false, &device)? {
        let inputs = Inputs { seed: 0, rounds: 1, ragged: false, given: chosen.given.clone() };
        let problem = chosen.suite.problem(&chosen.variants, &inputs)?;
        let memory = Memory::of(problem.launches())?;
        let names: Vec<String> = chosen.variants.iter().map(|v| v.variant_name()).collect();
        writeln!(text, "{}", style.bold(&problem.title())).expect("string");
        names.iter().for_each(|name| writeln!(text, "{name}").expect("string"));
        let row = |taken: &Taken| vec![bytes(taken.bytes), taken.whose.name().to_owned(), taken.name.clone()];
        writeln!(text, "\n{}", table(&["bytes", "memory", "buffer"], memory.buffers.iter().map(row)))
            .expect("string");
        let (own, caller) = (bytes(memory.operation_bytes), bytes(memory.caller_bytes));
        writeln!(text, "each GPU  {own} of the operation, {caller} of the caller\n").expect("string");
        all.push(json!({ "title": problem.title(), "ranks": problem.ranks(), "variants": names, "memory": memory }));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(Done { text, json: all.into(), ok: true })
}
