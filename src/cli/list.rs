//! `peerwarp list`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use peerwarp_codegen::device;
use peerwarp_codegen::family::{CudaArch, DynFamily, FieldDefault, FieldInfo, FieldRole, Target, Variant};
use peerwarp_codegen::print::Paths;
use serde_json::{Value, json};

use crate::build::toolchain::Tool;
use crate::harness::choose::Device;
use crate::harness::request;
use crate::harness::workload::Given;
use crate::input::InputError;
use crate::models;

use super::App;
use super::args::{ListArgs, Listed};
use super::output::{Done, Failure, Style, table};

/// The most variants of one family that are listed in text.
const MOST: usize = 50;

pub(super) fn list(app: &App, args: &ListArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    match args.what {
        Listed::Families => families(app, args, style),
        Listed::Models => Ok(models()),
        Listed::Targets => Ok(targets()),
        Listed::Variants if app.selects_nothing(&args.selection, given)? => defaults(app),
        Listed::Variants => tuning_space(app, args, given),
    }
}

/// The families that are named, or all.
fn families(app: &App, args: &ListArgs, style: Style) -> Result<Done, Failure> {
    let (all, wanted) = (app.registry().families(), &args.selection);
    let names: Vec<&str> = wanted.family.iter().chain(&wanted.items).map(String::as_str).collect();
    for name in &names {
        if !all.iter().any(|family| family.name() == *name) {
            return Err(InputError::unknown("family", name, all.iter().map(|family| family.name())).into());
        }
    }
    let mut text = String::new();
    let mut json = vec![];
    for family in all.iter().filter(|family| names.is_empty() || names.contains(&family.name())) {
        let suite = app.suites().find(|s| s.families().iter().any(|f| f.name() == family.name()));
        let suite = suite.map_or("", |s| s.name());
        writeln!(text, "{}: {}", style.bold(family.name()), family.doc()).expect("string");
        writeln!(text, "  variants: {}", family.name_form()).expect("string");
        writeln!(text, "  suite: {suite}\n").expect("string");
        for line in fields(*family).lines() {
            writeln!(text, "  {line}").expect("string");
        }
        text.push('\n');
        json.push(json!({
            "name": family.name(),
            "doc": family.doc(),
            "name_form": family.name_form(),
            "fields": family.fields(),
            "suite": suite,
        }));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(Done { text, json: json.into(), ok: true })
}

fn fields(family: &dyn DynFamily) -> String {
    let row = |f: &FieldInfo| {
        let role = match f.role {
            FieldRole::Key => "key",
            FieldRole::Tune => "tune",
        };
        let default = match f.default {
            FieldDefault::None => String::new(),
            default => default.to_string(),
        };
        vec![f.name.to_owned(), role.to_owned(), f.allowed.to_string(), default, f.help.to_owned()]
    };
    table(&["field", "role", "allowed", "default", "meaning"], family.fields().iter().map(row))
}

fn models() -> Done {
    let all = models::builtin();
    let text = table(&models::Model::COLUMNS, all.iter().map(|m| m.row().into()));
    Done { text, json: json!(all), ok: true }
}

/// What kernels are emitted for, the oldest compilers that do, and the instructions that are taken.
fn targets() -> Done {
    let columns = [
        "target",
        "device",
        "SMs",
        "compilers",
        "products",
        "fp8 as",
        "pieces",
        "copies",
        "all ranks",
        "launches",
        "packets",
    ];
    let mut rows = vec![];
    let mut json = vec![];
    for target in Target::all() {
        let (device, paths) = (device::Device::of(target), Paths::of(target));
        let least = |tool: Tool| Some((tool.name(), tool.oldest_for(target)?.to_string()));
        let compilers: Vec<_> =
            [Tool::Nvrtc, Tool::Clang, Tool::Zig, Tool::Hipcc].into_iter().filter_map(least).collect();
        let named: Vec<String> =
            compilers.iter().map(|(name, version)| format!("{name} {version}")).collect();
        rows.push(vec![
            target.to_string(),
            device.name.to_owned(),
            device.sms.to_string(),
            named.join(", "),
            paths.products.to_owned(),
            paths.fp8_products.to_owned(),
            paths.pieces.to_owned(),
            paths.copies.to_owned(),
            paths.all_ranks.unwrap_or("refused").to_owned(),
            paths.launches.to_owned(),
            format!("{} bytes", paths.packet_bytes),
        ]);
        let compilers: BTreeMap<_, _> = compilers.into_iter().collect();
        json.push(json!({ "target": target, "device": device.name, "sms": device.sms, "compilers": compilers, "paths": paths }));
    }
    Done { text: table(&columns, rows), json: json.into(), ok: true }
}

/// The default variants of each suite's first catalogue.
fn defaults(app: &App) -> Result<Done, Failure> {
    let mut rows = vec![];
    let mut json = vec![];
    let catalogues = app.suites().filter_map(|s| s.catalogues().first());
    for requests in catalogues.map(|(name, _)| app.catalogue_with(name, &Given::new())) {
        for requests in requests?.problems {
            let variants = request::resolve(&requests, app.registry())?;
            for (request, variant) in requests.iter().zip(&variants) {
                json.push(with_label(&request.label, variant));
                rows.push(vec![request.label.clone(), variant.variant_name()]);
            }
        }
    }
    if rows.is_empty() {
        let allowed = "a family or a variant whose tuning space to list";
        return Err(InputError::missing("selection", allowed).into());
    }
    Ok(Done { text: table(&["model", "variant"], rows), json: json.into(), ok: true })
}

/// Every legal variant for a key, the default one first.
fn tuning_space(app: &App, args: &ListArgs, given: &Given) -> Result<Done, Failure> {
    let mut text = String::new();
    let mut json = vec![];
    let device = args.selection.tables(app)?.on(Device::of_target(Target::Cuda(CudaArch::Sm90a)));
    let requests = app.requests(&args.selection, given)?;
    for default in app.resolve(&requests, &device)?.variants {
        let family = default.family();
        let fields = family.fields().iter().zip(default.values());
        let settings: Vec<_> = fields.map(|(f, v)| (f.name.to_owned(), v.to_string())).collect();
        let name = default.variant_name();
        let others = family.candidates(&settings).into_iter().flatten();
        let names: Vec<String> = others.map(|v| v.variant_name()).filter(|n| *n != name).collect();
        writeln!(text, "{name} (selected)").expect("string");
        for other in names.iter().take(MOST) {
            writeln!(text, "{other}").expect("string");
        }
        if names.len() > MOST {
            let more = names.len() - MOST;
            writeln!(text, "... and {more} more of {} (all of them with --json)", family.name())
                .expect("string");
        }
        json.push(json!({ "family": family.name(), "selected": name, "others": names }));
    }
    Ok(Done { text, json: json.into(), ok: true })
}

fn with_label(label: &str, variant: &Variant) -> Value {
    json!({ "model": label, "family": variant.family().name(), "variant": variant.variant_name() })
}
