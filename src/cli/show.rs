//! `peerwarp show`.

use std::fmt::Display;

use peerwarp_codegen::device::FarPath;
use peerwarp_codegen::family::{CudaArch, DynConfig, HipArch, Target};
use peerwarp_codegen::print::{FarEngine, Warning};
use serde_json::json;

use crate::build::emit;
use crate::harness::choose::Device;
use crate::harness::topo::Description;
use crate::harness::workload::Given;
use crate::input::InputError;

use super::App;
use super::args::ShowArgs;
use super::output::{Done, Failure};

/// What to show of a variant.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Ir,
    Source,
    Header,
    Explain,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Ir => "ir",
            Form::Source => "source",
            Form::Header => "header",
            Form::Explain => "explain",
        }
    }
}

pub(super) fn show(app: &App, args: &ShowArgs, given: &Given) -> Result<Done, Failure> {
    let (form, target) = form(args)?;
    let far = args.machine.as_deref().map(far_path).transpose()?;
    let mut texts = vec![];
    let mut json = vec![];
    let device = args.selection.tables(app)?.on(Device::of_target(target));
    let requests = app.requests(&args.selection, given)?;
    for variant in app.resolve(&requests, &device)?.variants {
        let text = one(app, &*variant, form, target, args, far.as_ref())?;
        for warning in emit::warnings(&*variant, target)?.iter().filter(|warning| !is_shipped(warning)) {
            log::warn!("{warning}");
        }
        json.push(json!({
            "variant": variant.variant_name(),
            "family": variant.family().name(),
            "form": form.name(),
            "target": target,
            "text": text,
        }));
        texts.push(text);
    }
    Ok(Done { text: texts.join("\n"), json: json.into(), ok: true })
}

/// Whether a warning is about a kernel that comes with Peerwarp: a user cannot change that. The names of its files begin as this one's.
fn is_shipped(warning: &Warning) -> bool {
    let own = file!().strip_suffix("cli/show.rs").unwrap_or_default();
    warning.loc.file.strip_prefix(own).is_some_and(|rest| rest.starts_with("families/"))
}

fn one(
    app: &App,
    variant: &dyn DynConfig,
    form: Form,
    target: Target,
    args: &ShowArgs,
    far: Option<&FarPath>,
) -> Result<String, Failure> {
    let (program, options) = (app.program(), args.recording.options());
    let source = || {
        if args.split_primitives {
            emit::split_source(program, variant, target, &options).map(|split| split.source)
        } else {
            emit::source_with(program, variant, target, &options)
        }
    };
    Ok(match form {
        Form::Source => source()?.text,
        Form::Header => source()?.abi,
        Form::Ir => emit::trace(variant, target.warp_size())?.to_string(),
        Form::Explain => {
            let explained = emit::explain(variant, target)?;
            match far {
                Some(path) => explained.with_far_path(path).to_string(),
                None => explained.to_string(),
            }
        }
    })
}

/// The way between the nodes of a machine, of each GPU while all of a node put.
fn far_path(name: &str) -> Result<FarPath, InputError> {
    let machine = Description::named("--machine", name)?;
    let nodes = machine.nodes.as_ref().map(|nodes| nodes.path(machine.gpus));
    nodes.ok_or_else(|| {
        InputError::not_allowed("--machine", name, "a machine with [nodes], as h200-cx7-nodes")
    })
}

/// Whether an option asks for a source of a kind.
fn shapes_source(args: &ShowArgs) -> bool {
    args.recording.timeline.is_some() || args.recording.far != FarEngine::Ring || args.split_primitives
}

fn form(args: &ShowArgs) -> Result<(Form, Target), InputError> {
    let target = args.target.as_deref().map(super::target).transpose()?;
    if let (Some(target), true) = (target, args.cuda || args.hip) {
        let backend = if args.cuda { "cuda" } else { "hip" };
        if target.backend() != backend {
            let allowed = format!("a target that starts with {backend}:");
            return Err(InputError::conflict("--target", target, format!("--{backend}"), allowed));
        }
    }
    let default = if args.hip { Target::Hip(HipArch::Gfx942) } else { Target::Cuda(CudaArch::Sm90a) };
    let form = if args.ir {
        Form::Ir
    } else if args.header {
        Form::Header
    } else if args.explain || !(args.cuda || args.hip || target.is_some() || shapes_source(args)) {
        Form::Explain
    } else {
        Form::Source
    };
    if let (Some(machine), true) = (&args.machine, form != Form::Explain) {
        return Err(InputError::conflict("--machine", machine, format!("--{}", form.name()), "--explain"));
    }
    if matches!(form, Form::Ir | Form::Explain) {
        let conflict = |option: &str, value: &dyn Display| {
            let with = format!("--{}", form.name());
            InputError::conflict(option, value, with, "--cuda, --hip or --header")
        };
        if let Some(slots) = args.recording.timeline {
            return Err(conflict("--timeline", &slots));
        }
        if args.recording.far != FarEngine::Ring {
            return Err(conflict("--far", &args.recording.far));
        }
        if args.split_primitives {
            return Err(conflict("--split-primitives", &true));
        }
    }
    Ok((form, target.unwrap_or(default)))
}
