//! Keys of the declared ranges have plans, on every target.

use std::collections::BTreeMap;

use peerwarp::build::emit;
use peerwarp::cli;
use peerwarp::codegen::family::{
    Allowed, DynConfig, DynFamily, FamilyError, FieldInfo, FieldRole, Registry, Target, Value, Variant,
};
use peerwarp::codegen::print::{self, Excess};
use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::harness::choose::{self, Device};
use peerwarp::harness::request::Request;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Keys that are drawn of a family.
const KEYS: usize = 1000;

/// Keys that are drawn of a family for each target.
const KEYS_OF_A_TARGET: usize = 3;

/// A key as a user writes it.
type Key = BTreeMap<&'static str, String>;

/// A value of a field. Of a range, its size is drawn first.
fn drawn(field: &FieldInfo, rng: &mut ChaCha8Rng) -> String {
    match &field.allowed {
        Allowed::Range { min, max, .. } => {
            let [min, max] = [*min, *max].map(|end| (end as f64 + 1.0).ln());
            let value = rng.random_range(min..=max).exp().round() as i128 - 1;
            field.allowed.nearest(value).expect("a range has values").to_string()
        }
        Allowed::Values(values) => values[rng.random_range(0..values.len())].to_string(),
    }
}

fn number(key: &Key, name: &str) -> Option<u64> {
    key.get(name).map(|n| n.parse().expect("a number"))
}

/// A key of a family whose fields go together.
fn key(family: &dyn DynFamily, rng: &mut ChaCha8Rng) -> Key {
    let fields = family.fields().iter().filter(|f| f.role == FieldRole::Key);
    let mut key: Key = fields.map(|f| (f.name, drawn(f, rng))).collect();
    let set = |key: &mut Key, name, value: u64| _ = key.insert(name, value.to_string());
    if let (Some(ranks), Some(nodes)) = (number(&key, "ranks"), number(&key, "nodes")) {
        set(&mut key, "ranks", nodes * (ranks / nodes).clamp(1, 64));
    }
    let ranks = number(&key, "ranks").expect("a family has ranks");
    if let (Some(experts), Some(topk)) = (number(&key, "experts"), number(&key, "topk")) {
        let experts = experts.max(topk);
        let over_nodes = key.contains_key("nodes");
        let experts = if over_nodes { (experts / ranks).clamp(1, 63) * ranks } else { experts };
        set(&mut key, "experts", experts);
        set(&mut key, "topk", topk.min(experts));
        rows(family, &mut key, rng);
    }
    if let Some(inter) = number(&key, "inter") {
        let unit = if key["dtype"] == "fp8" { 128 } else { 16 };
        set(&mut key, "inter", inter.next_multiple_of(unit));
        let hidden = number(&key, "hidden").expect("a number");
        set(&mut key, "hidden", hidden.next_multiple_of(unit.max(8)));
    }
    if let Some(root) = number(&key, "root") {
        set(&mut key, "root", root % ranks);
    }
    if let (Some(n), Some(k)) = (number(&key, "n"), number(&key, "k")) {
        // Words of e2m1 have scales of nvfp4, and nothing else has.
        if key.contains_key("scales") && key["dtype"] == "u32" {
            key.insert("scales", "nvfp4".to_owned());
        } else if key.get("scales").is_some_and(|scales| scales == "nvfp4") {
            key.insert("scales", "mx".to_owned());
        }
        let fp8 = ["fp8", "u32"].contains(&key["dtype"].as_str());
        let gated = key.get("activation").is_some_and(|of| of.starts_with("swiglu"));
        let unit = match key.get("out").is_some_and(|out| out == "fp8") {
            true => 128 * (1 + u64::from(gated)),
            false if gated => 32,
            false => 8,
        };
        set(&mut key, "n", n.next_multiple_of(unit).min((1 << 20) / unit * unit));
        set(&mut key, "k", k.next_multiple_of(if fp8 { 16 } else { 8 }));
        if !fp8 {
            key.remove("scales");
        }
    }
    if let (Some(groups), Some(stride)) = (number(&key, "groups"), number(&key, "stride")) {
        let rows = number(&key, "rows").expect("a number");
        set(&mut key, "stride", stride % (rows / groups + 1));
        if key["stride"] != "0" {
            key.remove("align");
        }
    }
    if key.get("scales").is_some_and(|scales| ["mx", "nvfp4"].contains(&scales.as_str())) {
        let [n, k] = ["n", "k"].map(|name| number(&key, name).expect("a number").next_multiple_of(256));
        set(&mut key, "n", n);
        set(&mut key, "k", k);
        key.remove("gather");
        if let Some(stride) = number(&key, "stride").map(|stride| stride / 128 * 128) {
            set(&mut key, "stride", stride);
            set(&mut key, "align", if stride > 0 { 1 } else { 128 });
        }
    }
    if let Some(m) = number(&key, "m").filter(|_| family.name() != "matmul") {
        set(&mut key, "m", (m / ranks * ranks).max(ranks));
    }
    if key.contains_key("op") && key["dtype"] == "i32" {
        let op =
            if ["max", "min"].contains(&key["op"].as_str()) { key["op"].clone() } else { "sum".to_owned() };
        key.insert("op", op);
        key.entry("hook").and_modify(|hook| *hook = "none".to_owned());
    }
    if family.name() == "all_reduce" {
        let hook = key["hook"] != "none";
        let whole = normalised_rows(&mut key, hook);
        let hidden = number(&key, "hidden").expect("a number").next_multiple_of(whole).max(whole);
        let elements = number(&key, "elements").expect("a number").next_multiple_of(hidden);
        set(&mut key, "elements", elements.min((1 << 28) / hidden * hidden));
        set(&mut key, "hidden", if hook { hidden } else { 0 });
    }
    if key.contains_key("length") {
        any_length(family, &mut key, ranks);
    }
    key
}

/// Lets the fields of lengths that launches say go together.
fn any_length(family: &dyn DynFamily, key: &mut Key, ranks: u64) {
    let (length, [mut row, elements]) =
        (key["length"].clone(), ["row", "elements"].map(|name| number(key, name)));
    if let Some(hidden) = number(key, "hidden").filter(|hidden| *hidden > 0) {
        row = row.map(|row| (row / hidden).max(1) * hidden);
    }
    let (Some(row), Some(elements)) = (row, elements) else { panic!("{} has rows", family.name()) };
    if length == "whole" {
        return drop(key.remove("row"));
    }
    if length == "each" {
        key.insert("in_place", "false".to_owned());
    }
    let parts = if ["reduce_scatter", "all_to_all"].contains(&family.name()) { ranks } else { 1 };
    let (whole, most) = (row * parts, if length == "each" { (1 << 28) / ranks } else { 1 << 28 });
    let elements = elements.min(most).next_multiple_of(whole);
    key.insert("row", row.to_string());
    key.insert(
        "elements",
        if elements > most { (elements - whole).max(whole) } else { elements }.to_string(),
    );
}

/// Lets fields of rows that an all-reduce normalises go together, and says what the length of a row is a multiple of.
fn normalised_rows(key: &mut Key, hook: bool) -> u64 {
    if !hook {
        for name in ["weights", "plus_one", "quantise"] {
            key.remove(name);
        }
    }
    let quantise = key.get("quantise").map_or("none", String::as_str).to_owned();
    match quantise.as_str() {
        "none" => drop(key.remove("normalised")),
        _ => drop(key.insert("in_place", "false".to_owned())),
    }
    if quantise != "nvfp4" {
        key.remove("scale_layout");
        return if quantise == "none" { 8 } else { 16 };
    }
    let hidden = number(key, "hidden").expect("a number").min(13312);
    key.insert("hidden", hidden.to_string());
    64
}

/// Lets the rows of a key of MoE go together with its other fields.
fn rows(family: &dyn DynFamily, key: &mut Key, rng: &mut ChaCha8Rng) {
    if family.name() == "moe_round_trip" || key.get("hook").is_some_and(|hook| hook == "custom") {
        key.insert("hook", "expert".to_owned());
    }
    let looks_into = key.get("hook").is_some_and(|hook| hook == "expert");
    if looks_into && !["bf16", "fp16", "fp8"].contains(&key["dtype"].as_str()) {
        key.insert("dtype", ["bf16", "fp16", "fp8"][rng.random_range(0..3)].to_owned());
    }
    if family.name() == "moe_round_trip" && ["fp8-token", "nvfp4"].contains(&key["combine_dtype"].as_str()) {
        key.insert("combine_dtype", "fp8".to_owned());
    }
    let dtype = key["dtype"].clone();
    let returns_fp8 = key.get("combine_dtype").is_some_and(|dtype| dtype != "combined");
    let block = match dtype.as_str() {
        "mxfp8" | "mxfp4" => 128,
        "nvfp4" => 64,
        "fp8" => 16,
        _ if returns_fp8 => 16,
        _ => 8,
    };
    let in_four = key.get("combine_dtype").is_some_and(|dtype| dtype == "nvfp4");
    let block = if in_four { block.max(32) } else { block };
    key.insert("hidden", number(key, "hidden").expect("a number").next_multiple_of(block).to_string());
    if dtype != "bytes" {
        key.remove("row_bytes");
        key.remove("scale_bytes");
    } else if key["row_bytes"] == "0" {
        key.insert("row_bytes", "4".to_owned());
    }
    let quantised = ["fp8", "fp8-ue8m0", "fp8-fnuz", "int8", "mxfp8", "nvfp4"].contains(&dtype.as_str());
    if key.contains_key("quantise") && !quantised {
        key.remove("quantise");
    }
    if !["fp8-ue8m0", "mxfp8"].contains(&dtype.as_str())
        || key.get("quantise").is_none_or(|from| from == "none")
    {
        key.remove("scale_rounding");
    }
    let no_scales = looks_into || ["bf16", "fp16", "fp8-tensor", "bytes"].contains(&dtype.as_str());
    let in_tiles = key.get("scale_layout").is_some_and(|layout| layout == "128x4");
    if no_scales || (in_tiles && !["mxfp8", "nvfp4", "mxfp4"].contains(&dtype.as_str())) {
        key.remove("scale_layout");
    }
    let by_token = key.get("layout").is_none_or(|layout| layout == "rank-major");
    if !by_token {
        key.remove("weighted");
    }
    placement(key);
    if key.contains_key("max_rows") {
        let most = number(key, "ranks").expect("a number") * number(key, "tokens").expect("a number");
        let max_rows = number(key, "max_rows").expect("a number") % (most + 1) / 128 * 128;
        key.insert("max_rows", if by_token { 0 } else { max_rows }.to_string());
    }
}

/// Lets the fields of the table that places experts go together: slots that are counted in 16 bits, and replicas only where there are some.
fn placement(key: &mut Key) {
    let Some(slots) = number(key, "expert_slots") else { return };
    let of_node = key.get("of_node").is_some_and(|of_node| of_node == "true");
    let most = if of_node { 0 } else { 65535 / number(key, "ranks").expect("a number") };
    if of_node {
        ["expert_load", "ids"].into_iter().for_each(|name| drop(key.remove(name)));
    }
    key.insert("expert_slots", slots.min(most).to_string());
    if slots.min(most) == 0 {
        key.remove("replicas");
    }
}

fn settings(key: &Key) -> Vec<(String, String)> {
    key.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// What is refused is a value that the user has set: a number of the key that is beyond what a kernel numbers.
#[test]
fn at_most_one_key_of_a_family_in_a_hundred_is_refused() {
    for entry in cli::builtin() {
        let (family, mut rng) = (entry.family(), ChaCha8Rng::seed_from_u64(1));
        let mut refused = vec![];
        for _ in 0..KEYS {
            let key = key(family, &mut rng);
            match family.build(&settings(&key)) {
                Ok(_) => {}
                Err(FamilyError::Illegal { source, .. }) if key.contains_key(source.field.as_str()) => {
                    refused.push(format!("{source}: {key:?}"));
                }
                Err(other) => panic!("{other}: {key:?}"),
            }
        }
        let few = &refused[..refused.len().min(5)];
        assert!(refused.len() <= KEYS / 100, "{}: {}: {few:#?}", family.name(), refused.len());
    }
}

/// All families.
fn registry() -> Registry {
    Registry::new(cli::builtin().iter().map(|entry| entry.family()))
}

/// The variant that a request gets on a target, of no suite: the defaults, as they fit.
fn chosen(request: &Request, registry: &Registry, target: Target) -> Variant {
    let device = Device::of_target(target);
    let found = choose::for_requests(None, std::slice::from_ref(request), registry, &device);
    found.unwrap_or_else(|e| panic!("{target}: {e}")).variants.remove(0)
}

#[test]
fn keys_fit_the_devices_of_all_targets() {
    let registry = registry();
    for entry in cli::builtin() {
        let (family, mut rng) = (entry.family(), ChaCha8Rng::seed_from_u64(2));
        let targets = Target::all().flat_map(|target| [target; KEYS_OF_A_TARGET]);
        for target in targets {
            let mut key = key(family, &mut rng);
            let scales = key.get("scales").map_or("", String::as_str);
            if ["mx", "nvfp4"].contains(&scales) && !target.has_block_scales() {
                key.extend([("scales", "row".to_owned()), ("dtype", "fp8".to_owned())]);
            }
            if family.build(&settings(&key)).is_err() {
                continue;
            }
            let request = Request { key: settings(&key), ..Request::family(family.name(), family.name()) };
            let fitted = chosen(&request, &registry, target);
            let kernel = emit::trace(&*fitted, target.warp_size());
            let kernel = kernel.unwrap_or_else(|e| panic!("{target}: {e}: {key:?}"));
            let excess = print::excess(&kernel, target);
            let excess = excess.unwrap_or_else(|e| panic!("{target}: {e}: {key:?}"));
            assert_eq!(excess, Excess::default(), "{target}: {}", fitted.variant_name());
        }
    }
}

/// The last key that 32 bits count all elements of, the first one that they do not, and the first element of a row there.
#[test]
fn kernels_have_64_bit_indices_where_32_bits_do_not_count_elements() {
    let rows = ["elements=67108864 dtype=bf16 ranks=63", "elements=67108864 dtype=bf16 ranks=64"];
    let in_place = rows.map(|key| format!("{key} in_place=true"));
    let ragged = rows.map(|key| key.replace("elements", "capacity"));
    let gathered =
        [32767, 32768].map(|m| format!("m={} n=128 k=32768 dtype=bf16 ranks=2 gathered=true", 2 * m));
    let whole = [4096, 1 << 20].map(|m| format!("m={m} n=128 k=131072 dtype=bf16 ranks=2"));
    let keys = [
        ("all_gather", rows.map(str::to_owned), "u64(from) * 67108864"),
        ("all_gather", in_place, "u64(from) * 67108864"),
        ("ragged_all_to_all", ragged, "u64(to) * 67108864"),
        ("all_gather_matmul", gathered, "u64(bank) * 32768"),
        // A rank's own rows have more elements than that, and the pieces of them as well.
        ("all_gather_matmul", whole, "u64(number) * 32768"),
    ];
    let registry = registry();
    for (family, keys, row) in keys {
        let emitted = |key: String| {
            let variant = variant(registry.family(family).unwrap(), &key);
            emit::roles(&*variant, "cuda:sm_90a".parse().unwrap()).unwrap()
        };
        let [narrow, wide] = keys.map(emitted);
        assert!(!narrow.contains(row) && wide.contains(row), "{family}, {row}: {narrow}\n{wide}");
    }
}

/// The variant of a key in words.
fn variant(family: &dyn DynFamily, key: &str) -> Variant {
    let settings = key.split(' ').map(|pair| pair.split_once('=').expect("field=value"));
    let settings: Vec<_> = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    family.build(&settings).unwrap_or_else(|e| panic!("{key}: {e}"))
}

/// Models with many experts and ids a token, and many tokens.
#[test]
fn models_with_many_experts_have_plans_for_all_tokens() {
    let models = [(4096, 512, 22), (7168, 384, 8), (2048, 512, 10), (7168, 256, 8)];
    for (hidden, experts, topk) in models {
        for tokens in [8192, 16384] {
            for ranks in [2, 8, 64] {
                for layout in [Layout::RankMajor, Layout::ExpertMajor] {
                    let shape = MoeShape { hidden, experts, topk, tokens, ranks, dtype: RowDtype::Bf16 };
                    let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout);
                    let tuning = tuning.unwrap_or_else(|e| panic!("{shape}, {layout:?}: {e}"));
                    tuning.check(&shape).unwrap_or_else(|e| panic!("{shape}, {layout:?}: {e}"));
                }
            }
        }
    }
}

#[test]
fn products_fit_the_devices_of_all_targets() {
    let registry = registry();
    for target in ["cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_120a", "cuda:sm_90a", "hip:gfx942"] {
        let target: Target = target.parse().unwrap();
        for family in ["matmul", "all_gather_matmul", "matmul_reduce_scatter", "grouped_matmul"] {
            for m in [16, 512, 8192] {
                let rows = if family == "grouped_matmul" { "rows" } else { "m" };
                let groups = (family == "grouped_matmul").then_some(("groups", 8));
                let key = [(rows, m), ("n", 4096), ("k", 4096), ("ranks", 2)].into_iter().chain(groups);
                let key = key.map(|(n, v)| (n.to_owned(), v.to_string())).collect();
                let mut request = Request::family(family, family);
                request.key = key;
                request.key.push(("dtype".to_owned(), "bf16".to_owned()));
                let default = request.resolve(&registry).unwrap();
                let fitted = chosen(&request, &registry, target);
                emit::source("peerwarp", &*fitted, target).unwrap_or_else(|e| panic!("{target}, {m}: {e}"));
                let value = |variant: &dyn DynConfig, field: &str| {
                    let at = variant.family().fields().iter().position(|f| f.name == field).expect("a field");
                    variant.values()[at]
                };
                match target.to_string().as_str() {
                    "cuda:sm_90a" => {
                        assert_eq!(fitted.variant_name(), default.variant_name(), "what fits stays");
                    }
                    // It has more SMs than what defaults are for, with room for one block each.
                    "cuda:sm_89" if family == "grouped_matmul" => {
                        let Value::Int(blocks) = value(&*fitted, "blocks") else { continue };
                        assert!(blocks <= 142, "{}", fitted.variant_name());
                    }
                    "cuda:sm_89" => {
                        let [was, is] = [&default, &fitted].map(|v| value(&**v, "blocks"));
                        assert_eq!(is, was, "{}", fitted.variant_name());
                    }
                    _ => {}
                }
                // What the user sets stays, whether or not it fits.
                request.tuning.push(("stages".to_owned(), "4".to_owned()));
                assert!(chosen(&request, &registry, target).variant_name().contains("_s4_"));
            }
        }
    }
}
