//! MoE's options on the command line: which shapes they mean, and which kernels are for them.

#[path = "select_nodes.rs"]
mod nodes;

use std::path::Path;

use peerwarp_codegen::family::{
    Allowed, Choice, DynFamily, Family, FamilyEntry, FieldInfo, FieldRole, Illegal, Registry, Value,
};

use super::gpumode::gpumode;
use super::kernels::{Combine, Dispatch, Layout, RoundTrip};
use super::routing::{self, Source};
use super::{MoeKey, MoeShape, MoeTuning, RowDtype};
use crate::harness::request::Request;
use crate::harness::workload::{Given, On, OptionSpec};
use crate::input::{InputError, from_illegal};
use crate::models::{self, Model, Shape};

/// The key fields that an MoE problem has a value for. A family whose key has `experts`, and nothing beyond these but
/// menus and keys with defaults, is an MoE family and takes part when a model or a shape is selected: a stranger's does so too. What
/// is not given of a menu is its first entry.
const KEYS: [&str; 6] = ["hidden", "experts", "topk", "tokens", "ranks", "dtype"];

/// Options that are fields of families.
const TUNING: [&str; 13] = [
    "combine-dtype",
    "dedup",
    "expert-load",
    "expert-slots",
    "ids",
    "layout",
    "max-rows",
    "missing",
    "quantise",
    "replicas",
    "scale-layout",
    "scale-rounding",
    "weighted",
];

/// The most tokens a rank has, unless the user says.
pub(super) const DEFAULT_TOKENS: &str = "128";
/// The same where few are enough: protocols go wrong with few tokens as well as with many, sooner.
const FEW_TOKENS: &str = "8";
/// World size, unless the user says.
pub(super) const DEFAULT_RANKS: &str = "8";
/// Type of dispatched rows, unless the user says.
pub(super) const DEFAULT_DTYPE: &str = "bf16";

/// A list of settings, by field.
pub(super) type Settings = Vec<(String, String)>;

/// The options that MoE adds to the command line.
pub fn options() -> Vec<OptionSpec> {
    let option =
        |name, value, help| OptionSpec { name, value: Some(value), help, on: On::Selection, list: false };
    let list = |option| OptionSpec { list: true, ..option };
    let on = |on, option| OptionSpec { on, ..option };
    let switch = |option| OptionSpec { value: None, ..option };
    vec![
        option("model", "NAME", "A model of the built-in table (see `list models`)"),
        option(
            "hf-config",
            "FILE",
            "A model's config.json, as found on Hugging Face: a file, its folder, a pipe, or - for standard input",
        ),
        option("hidden", "H", "Elements of a token's row"),
        option("experts", "E", "Routed experts, over all ranks"),
        option("topk", "K", "Experts each token goes to"),
        list(option(
            "layout",
            "LAYOUT",
            "Order of the rows at the rank that receives them: rank-major (by source rank and token, with an index; the \
             experts apply the weights, see --weighted), \
             expert-major, the same with each expert's first row at a multiple of 8, 16 or 128 (expert-major-128), or at a fixed \
             stride (expert-strided) [default: rank-major; expert-major with --dedup false]",
        )),
        list(option(
            "dtype",
            "TYPE",
            "What rows are dispatched as: bf16, fp16, fp8, fp8-ue8m0, fp8-token, fp8-tensor, fp8-fnuz, int8, mxfp8, nvfp4, mxfp4, or \
             bytes-ROW-SCALES: any bytes, and scales of any bytes [default: bf16]",
        )),
        list(option("tokens", "T", "The most tokens a rank has [default: 128; in `check` 8]")),
        option(
            "combined",
            "TYPE",
            "Type in which rows of less than 16 bits an element come back, bf16 or fp16 [default: bf16]",
        ),
        list(option(
            "combine-dtype",
            "TYPE",
            "What rows travel back as: combined, the type in which they are summed; fp8, with a scale for every 128 elements; \
             fp8-token, with one for each row; or nvfp4, with one for every 16 elements and one for each row [default: combined]",
        )),
        option(
            "quantise",
            "FROM",
            "Let dispatch quantise rows to fp8, fp8-ue8m0, fp8-fnuz, int8, mxfp8 or nvfp4, from bf16 or fp16 [default: none, dispatch takes rows in the type of --dtype]",
        ),
        option(
            "scale-rounding",
            "HOW",
            "How scales that are powers of two are rounded: floor, as in OCP's MX specification, or up, so that no element of a \
             quantised block is too large [default: floor]",
        ),
        option(
            "scale-layout",
            "LAYOUT",
            "Order of the scales that dispatch yields: row; column (a column of rows for each word of scales, as DeepGEMM takes them); or \
             128x4 (tiles of 128 rows by four scales, as block-scaled tensor cores take them) [default: row]",
        ),
        option(
            "max-rows",
            "N",
            "The most rows by expert that a rank holds, or that each expert holds at a fixed stride; rows beyond are counted, and \
             contribute nothing [default: every possible row]",
        ),
        option(
            "weighted",
            "BOOL",
            "Let combine apply the weights to rank-major rows; if not, the experts apply them, and combine adds rows as they are \
             [default: false; rows by expert are always weighted]",
        ),
        option(
            "missing",
            "BOOL",
            "Let combine count each token's entries whose experts are on ranks that are not active [default: false]",
        ),
        option(
            "expert-slots",
            "N",
            "Let a table place experts in N slots of each rank [default: none, ranks own experts in order]",
        ),
        option(
            "replicas",
            "N",
            "The most replicas of an expert in the table; tokens go to them in turn [default: 1]",
        ),
        option(
            "expert-load",
            "BOOL",
            "Let dispatch count the entries of each expert, which EPLB reads [default: false]",
        ),
        option("ids", "TYPE", "Type of expert ids, i32 or i64 [default: i32]"),
        option("dedup", "BOOL", "Send a token once to each rank that needs it, and expand it there"),
        option(
            "phase",
            "PHASE",
            "Which half of an operation a launch does: both, send, recv, or split for a launch of each",
        ),
        on(
            On::Inputs,
            option(
                "routing",
                "HOW",
                "Experts of each token: `uniform`, `zipf:S`, or an int32 FILE.npy of shape [ranks, tokens, topk] \
                 [default: uniform]",
            ),
        ),
        on(
            On::Inputs,
            option(
                "tokens-per-rank",
                "N,N,..",
                "How many tokens each rank has, as in `3,0,17,8` [default: --tokens, or what the file has]",
            ),
        ),
        on(
            On::Bench,
            switch(option(
                "gpumode",
                "",
                "The five shapes of gpu-mode's all-to-all task, each rank with a random number of tokens [default: in fp16]",
            )),
        ),
        on(
            On::Gpu,
            switch(option(
                "fused",
                "",
                "The round trip in one launch, with the stand-in expert in it; in `bench` beside dispatch and combine",
            )),
        ),
    ]
}

/// The sets of options that one set stands for: each of gpu-mode's shapes, and what `--fused` adds.
///
/// # Errors
/// Options contradict each other.
pub fn expand(given: &Given) -> Result<Vec<Given>, InputError> {
    let shapes = if is_on(given, "gpumode") { gpumode_sets(given)? } else { vec![given.clone()] };
    let with_fused = |given: Given| match is_on(&given, "fused") {
        false => vec![given],
        true => {
            let mut plain = given.clone();
            plain.remove("fused");
            vec![plain, given]
        }
    };
    Ok(shapes.into_iter().flat_map(with_fused).collect())
}

fn gpumode_sets(given: &Given) -> Result<Vec<Given>, InputError> {
    for (option, allowed) in [
        ("model", "one of them"),
        ("hf-config", "one of them"),
        ("hidden", "one of them"),
        ("experts", "one of them"),
        ("topk", "one of them"),
        ("tokens", "--gpumode without it"),
        ("tokens-per-rank", "--gpumode without it"),
    ] {
        if let Some(value) = given.get(option) {
            return Err(InputError::conflict(
                format!("--{option}"),
                value,
                "--gpumode, which says it",
                allowed,
            ));
        }
    }
    let number = |option: &str, default: &str| {
        let text = given.get(option).map_or(default, String::as_str);
        text.parse().map_err(|_| InputError::not_allowed(option, text, "a whole number"))
    };
    let (ranks, seed) = (number("ranks", DEFAULT_RANKS)?, number("seed", "0")?);
    let ranks = u32::try_from(ranks).ok().filter(|n| (2..=64).contains(n));
    let ranks = ranks.ok_or_else(|| InputError::not_allowed("ranks", &given["ranks"], "1 to 64"))?;
    let set = |shape: &super::gpumode::GpuModeShape| {
        let tokens: Vec<String> = shape.tokens(ranks, seed).iter().map(u32::to_string).collect();
        let mut given = given.clone();
        given.remove("gpumode");
        given.entry("dtype".into()).or_insert_with(|| "fp16".into());
        given.extend(
            [
                ("hidden", shape.hidden_dim.to_string()),
                ("experts", shape.num_experts.to_string()),
                ("topk", shape.experts_per_token.to_string()),
                ("tokens", shape.max_num_tokens.to_string()),
                ("tokens-per-rank", tokens.join(",")),
            ]
            .map(|(option, value)| (option.to_owned(), value)),
        );
        given
    };
    Ok(gpumode().iter().map(set).collect())
}

fn is_on(given: &Given, switch: &str) -> bool {
    given.get(switch).is_some_and(|value| value == "true")
}

/// The requests that options ask for: one for each MoE family, or the round trip in one launch; none unless a model or a shape
/// is given.
///
/// # Errors
/// Options contradict each other, or a value cannot be read.
pub fn select(given: &Given, small: bool, registry: &Registry) -> Result<Vec<Request>, InputError> {
    let Some(asked) = shape_of(given)? else { return Ok(vec![]) };
    let tokens = if small { FEW_TOKENS } else { DEFAULT_TOKENS };
    let file = file_sizes(given)?;
    let sizes =
        [("tokens", tokens), ("ranks", DEFAULT_RANKS), ("dtype", DEFAULT_DTYPE)].map(|(field, default)| {
            let value = given.get(field).or_else(|| file.get(field));
            (field.to_owned(), value.map_or_else(|| default.to_owned(), Clone::clone))
        });
    let tuning = given.iter().filter(|(name, _)| TUNING.contains(&name.as_str()));
    let mut tuning: Vec<Settings> = vec![tuning.map(|(name, value)| (name.clone(), value.clone())).collect()];
    if given.get("dedup").is_some_and(|dedup| dedup == "false") && !given.contains_key("layout") {
        // A row that goes once for every entry has no place by token.
        tuning[0].push(("layout".into(), Layout::ExpertMajor.name().into()));
    }
    if let Some(nodes) = nodes::of(given).filter(|_| !is_on(given, "fused")) {
        let requests = nodes::requests((&asked.label, &asked.shape), (nodes, &sizes), given, &tuning[0])?;
        let from = |request| Request { origin: asked.origin.clone(), ..request };
        return Ok(requests.into_iter().map(from).collect());
    }
    if let Some(phase) = given.get("phase") {
        let phases = if phase == "split" { vec!["send", "recv"] } else { vec![phase.as_str()] };
        let with = |phase: &str| [&tuning[0][..], &[("phase".into(), phase.into())]].concat();
        tuning = phases.into_iter().map(with).collect();
    }
    let families = match is_on(given, "fused") {
        true => fused(given, registry)?,
        false => families(registry, &asked.label)?,
    };
    let request = |tuning: &Settings, family: &FamilyEntry| {
        let own = tuning.iter().filter(|(name, _)| has(*family, name)).cloned().collect();
        let mut request = request(&asked.label, *family, (&asked.shape, &sizes), own);
        if let (Some(combined), Combine::NAME) = (given.get("combined"), family.name()) {
            let dtype = request.key.iter_mut().filter(|(name, _)| name == "dtype");
            dtype.for_each(|(_, dtype)| combined.clone_into(dtype));
        }
        Request { origin: asked.origin.clone(), ..request }
    };
    Ok(tuning.iter().flat_map(|tuning| families.iter().map(move |f| request(tuning, f))).collect())
}

/// The family of round trips in one launch.
fn fused(given: &Given, registry: &Registry) -> Result<Vec<FamilyEntry>, InputError> {
    if given.get("dedup").is_some_and(|value| value == "false") {
        let allowed = "--fused with dedup: in one launch a row goes to a rank once";
        return Err(InputError::conflict("--fused", "true", "--dedup = false", allowed));
    }
    let known = || registry.families().iter().map(|f| f.name());
    let family = registry.family(RoundTrip::NAME);
    Ok(vec![family.map_err(|_| InputError::unknown("--fused", RoundTrip::NAME, known()))?])
}

/// What options say of a shape.
struct Asked {
    label: String,
    origin: Option<String>,
    /// The families say which sizes are allowed.
    shape: Shape,
}

/// The shape that options give in one of three ways, if they do.
fn shape_of(given: &Given) -> Result<Option<Asked>, InputError> {
    const NUMBERS: [&str; 3] = ["hidden", "experts", "topk"];
    let ways = ["model", "hf-config"].into_iter().chain(NUMBERS).filter(|option| given.contains_key(*option));
    let ways: Vec<&str> = ways.collect();
    let numbers = ways.iter().filter(|option| NUMBERS.contains(*option)).count();
    if let [first, second, ..] = ways[..]
        && numbers < ways.len()
    {
        let with = format!("--{second} = {}", given[second]);
        return Err(InputError::conflict(
            format!("--{first}"),
            &given[first],
            with,
            "one way to give a shape",
        ));
    }
    let known = |model: &Model, origin| {
        let (label, shape) = (model.name.clone(), model.shape);
        Ok(Some(Asked { label, origin, shape }))
    };
    match ways[..] {
        [] => Ok(None),
        ["model"] => known(models::find(&given["model"])?, None),
        ["hf-config"] => {
            let path = Path::new(&given["hf-config"]);
            known(&models::from_hf_file(path)?, Some(path.display().to_string()))
        }
        _ if numbers < NUMBERS.len() => {
            let absent = NUMBERS.iter().filter(|option| !given.contains_key(**option));
            let absent: Vec<String> = absent.map(|option| format!("--{option}")).collect();
            Err(InputError::missing(absent.join(", "), "all of --hidden, --experts and --topk"))
        }
        _ => {
            let number = |option: &str| {
                let text = given[option].trim();
                text.parse().map_err(|_| from_illegal(Illegal::new(option, text, allowed(option))))
            };
            let (hidden, experts, topk) = (number("hidden")?, number("experts")?, number("topk")?);
            let shape = Shape { hidden, experts, topk };
            Ok(Some(Asked { label: shape.label(), origin: None, shape }))
        }
    }
}

/// What a key field of dispatch may be.
fn allowed(field: &str) -> String {
    let found = Dispatch::key_fields().iter().find(|own| own.name == field);
    found.map_or_else(String::new, |field| field.allowed.to_string())
}

/// The sizes that a routing file has.
fn file_sizes(given: &Given) -> Result<Given, InputError> {
    let Some(text) = given.get("routing") else { return Ok(Given::new()) };
    let Source::File(path) = text.parse()? else { return Ok(Given::new()) };
    let [ranks, tokens, _] = routing::file_dims(&path)?;
    Ok([("ranks", ranks), ("tokens", tokens.max(1))].map(|(f, n)| (f.to_owned(), n.to_string())).into())
}

/// Every family of dispatch and combine, and those of strangers whose key is like theirs.
pub(super) fn families(registry: &Registry, label: &str) -> Result<Vec<FamilyEntry>, InputError> {
    let moe: Vec<_> = registry.families().iter().copied().filter(|f| is_moe(*f)).collect();
    if moe.is_empty() {
        let names: Vec<&str> = registry.families().iter().map(|f| f.name()).collect();
        let allowed = format!("--family with one of {}", names.join(", "));
        return Err(InputError::not_allowed("--model or --hidden", label, allowed));
    }
    Ok(moe)
}

/// Whether a family's problem is an MoE problem. Round trips have the experts in them: only their name selects them.
fn is_moe(family: &dyn DynFamily) -> bool {
    if family.name() == RoundTrip::NAME {
        return false;
    }
    let mut keys = family.fields().iter().filter(|f| f.role == FieldRole::Key);
    keys.clone().any(|f| f.name == "experts")
        && keys.all(|f| KEYS.contains(&f.name) || menu(f).is_some() || f.constant().is_some())
}

/// The first entry of a menu.
fn menu(field: &FieldInfo) -> Option<Value> {
    match &field.allowed {
        Allowed::Values(values) => values.first().copied(),
        Allowed::Range { .. } => None,
    }
}

fn has(family: &dyn DynFamily, field: &str) -> bool {
    family.fields().iter().any(|f| f.answers_to(field))
}

/// A request for a family's variant for a shape. What it leaves open of the key is the first entry of a menu; round trips
/// have the stand-in expert.
pub(super) fn request(
    label: &str,
    family: FamilyEntry,
    (shape, sizes): (&Shape, &[(String, String)]),
    tuning: Settings,
) -> Request {
    let (known, mut key, mut tuning) = (known_of(shape), sizes.to_vec(), tuning);
    let mut defaults = vec![];
    if family.name() == Combine::NAME {
        tuning.extend(as_planned(shape, &key, &tuning));
    }
    let is_known = |field: &FieldInfo| known.iter().any(|(name, _)| field.answers_to(name));
    for field in family.fields().iter().filter(|f| f.role == FieldRole::Key && !is_known(f)) {
        let first = if family.name() == RoundTrip::NAME && field.name == "hook" {
            Some("expert".to_owned())
        } else {
            menu(field).map(|first| first.to_string())
        };
        match (key.iter_mut().find(|(name, _)| field.answers_to(name)), first) {
            (None, Some(first)) => defaults.push((field.name.into(), first)),
            // What experts put out is combined in bf16 where there are no fp8 rows; of bytes, sizes are fields of their own.
            (Some((_, dtype)), Some(_)) if field.name == "dtype" && field.parse(dtype).is_err() => {
                if let Ok(row) = dtype.parse::<RowDtype>() {
                    let of_bytes = has(family, "row_bytes");
                    *dtype = if of_bytes { row.format().to_string() } else { row.combined().to_string() };
                    if of_bytes {
                        let sizes = [("row_bytes", row.sizes().0), ("scale_bytes", row.sizes().1)];
                        defaults.extend(sizes.map(|(name, bytes)| (name.into(), bytes.to_string())));
                    }
                }
            }
            _ => {}
        }
    }
    Request { known, key, tuning, defaults, ..Request::family(label, family.name()) }
}

/// What combine does otherwise than its own type says, where rows cannot go out as packets: as the operation's plan has it.
fn as_planned(shape: &Shape, key: &Settings, tuning: &Settings) -> Settings {
    let value =
        |name: &str| key.iter().chain(tuning).find(|(field, _)| field == name).map(|(_, value)| value);
    let number = |name: &str| value(name)?.parse().ok();
    let planned = || {
        let Shape { hidden, experts, topk } = *shape;
        let (tokens, ranks) = (number("tokens")?, number("ranks")?);
        let dtype = value("dtype")?.parse::<RowDtype>().ok().filter(|row| !row.survives_packets())?;
        let layout = value("layout").map_or(Some(Layout::RankMajor), |name| Layout::from_name(name))?;
        let shape = MoeShape { hidden, experts, topk, tokens, ranks, dtype };
        MoeKey { layout, ..MoeKey::new(shape) }.defaults().ok()
    };
    let Some(MoeTuning { plan, .. }) = planned().filter(|_| value("protocol").is_none()) else {
        return vec![];
    };
    let fields = [
        ("protocol", plan.way.back().name().to_owned()),
        ("group_warps", plan.combine.group_warps.to_string()),
    ];
    fields.map(|(field, value)| (field.to_owned(), value)).into()
}

/// The key fields of a shape.
pub(super) fn known_of(shape: &Shape) -> Vec<(String, Value)> {
    [("hidden", shape.hidden), ("experts", shape.experts), ("topk", shape.topk)]
        .map(|(field, value)| (field.to_owned(), Value::Int(value.into())))
        .into()
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
