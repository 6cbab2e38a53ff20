//! Tests of the printer's passes and of what they make of small kernels.

mod errors;
mod join;
mod lane_order;
mod loader;
mod sync;
mod text;
mod told;

use crate::{
    dsl::{Binder, TraceMeta, trace},
    ir::Kernel,
    print::{EmitInfo, EmitOptions, PrintError, Source, source::assemble},
};

/// A kernel of 4 ranks with 4 warps of 32 lanes a block.
#[track_caller]
fn kernel(body: impl FnOnce(&mut Binder)) -> Kernel {
    trace(TraceMeta::new("sample", 4, 32, 4), body).unwrap_or_else(|e| panic!("{e}"))
}

/// Emits a kernel for `target`. It need not verify: what the printer refuses by itself is tested, too.
fn printed(kernel: &Kernel, target: &str) -> Result<Source, PrintError> {
    let info = EmitInfo { command: "peerwarp generate sample".into() };
    assemble::emit(
        kernel,
        target.parse().expect("tests name targets that exist"),
        &info,
        &EmitOptions::default(),
    )
}

/// The body of the only role of a kernel, as CUDA.
#[track_caller]
fn role_body(kernel: &Kernel) -> String {
    let text = printed(kernel, "cuda:sm_90a").unwrap_or_else(|e| panic!("{e}")).text;
    let from = text.find("_role(const Args& args").expect("there is a role");
    let body = &text[from..];
    let start = body.find("{\n").expect("a function has a body") + 2;
    let end = body.find("\n}\n").expect("a function ends");
    body[start..end + 1].to_string()
}
