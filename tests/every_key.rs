//! Keys of the declared ranges have plans, on every target.

use std::collections::BTreeMap;

use peerwarp::build::emit;
use peerwarp::cli;
use peerwarp::codegen::family::{Allowed, DynConfig, DynFamily, FieldInfo, FieldRole, Registry, Target};
use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::harness::choose;
use peerwarp::harness::request::Request;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Most experts of a drawn key: more than any model has. With more, the counts of a record no longer fit shared memory.
const EXPERTS: u64 = 2048;

/// A value of a field: of a range, one whose size is drawn first.
fn drawn(field: &FieldInfo, rng: &mut ChaCha8Rng) -> String {
    match &field.allowed {
        Allowed::Range { min, max, .. } => {
            let max = if field.name == "experts" { EXPERTS as f64 } else { *max as f64 };
            let value = rng.random_range((*min as f64).max(1.0).ln()..=max.ln()).exp().round();
            field.allowed.nearest(value as i128).expect("a range has values").to_string()
        }
        Allowed::Values(values) => values[rng.random_range(0..values.len())].to_string(),
    }
}

/// A key of a MoE family that is one by its own words: a token has no more ids than there are experts, rows are whole blocks of scales,
/// and kernels look into rows of floats alone.
fn key(family: &dyn DynFamily, rng: &mut ChaCha8Rng) -> Vec<(String, String)> {
    let fields = family.fields().iter().filter(|f| f.role == FieldRole::Key && f.constant().is_none());
    let mut key: BTreeMap<&str, String> = fields.map(|f| (f.name, drawn(f, rng))).collect();
    let number = |key: &BTreeMap<&str, String>, name: &str| key[name].parse::<u64>().expect("a number");
    let experts = number(&key, "experts").max(number(&key, "topk"));
    key.insert("experts", experts.to_string());
    let dtypes = ["bf16", "fp16", "fp8", "mxfp8", "nvfp4"];
    if let Some(hook) = key.get("hook") {
        let dtype =
            if hook == "raw" { dtypes[rng.random_range(0..5)] } else { dtypes[rng.random_range(0..3)] };
        let hook = if hook == "custom" { "expert".to_owned() } else { hook.clone() };
        key.insert("dtype", dtype.to_owned());
        key.insert("hook", hook);
        let hidden = number(&key, "hidden").next_multiple_of(128);
        key.insert("hidden", hidden.to_string());
    }
    key.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[test]
fn at_most_one_key_of_dispatch_and_combine_in_a_hundred_is_refused() {
    let registry = Registry::new(cli::builtin().iter().map(|entry| entry.family()));
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for name in ["moe_dispatch", "moe_combine"] {
        let family = registry.family(name).unwrap();
        let refused = (0..1000).filter_map(|_| {
            let key = key(family, &mut rng);
            family.build(&key).err().map(|why| format!("{why} {key:?}"))
        });
        let refused: Vec<String> = refused.collect();
        assert!(refused.len() <= 10, "{name}: {}: {:#?}", refused.len(), &refused[..refused.len().min(5)]);
    }
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
    let registry = Registry::new(cli::builtin().iter().map(|entry| entry.family()));
    for target in ["cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_120a", "cuda:sm_90a", "hip:gfx942"] {
        let target: Target = target.parse().unwrap();
        for family in ["matmul", "all_gather_matmul", "matmul_reduce_scatter"] {
            for m in [16, 512, 8192] {
                let key = [("m", m), ("n", 4096), ("k", 4096), ("ranks", 2)]
                    .map(|(n, v)| (n.to_owned(), v.to_string()));
                let mut request = Request::family(family, family);
                request.key = key.to_vec();
                request.key.push(("dtype".to_owned(), "bf16".to_owned()));
                let default = request.resolve(&registry).unwrap();
                let fitted = choose::fit(&request, default.clone(), target);
                emit::source("peerwarp", &*fitted, target).unwrap_or_else(|e| panic!("{target}, {m}: {e}"));
                let value = |variant: &dyn DynConfig, field: &str| {
                    let at = variant.family().fields().iter().position(|f| f.name == field).expect("a field");
                    variant.values()[at]
                };
                match target.to_string().as_str() {
                    "cuda:sm_90a" => {
                        assert_eq!(fitted.variant_name(), default.variant_name(), "what fits stays");
                    }
                    // It has more SMs than what defaults are for.
                    "cuda:sm_89" => {
                        let [was, is] = [&default, &fitted].map(|v| value(&**v, "blocks"));
                        assert_eq!(is, was, "{}", fitted.variant_name());
                    }
                    _ => {}
                }
                // What the user sets stays, whether or not it fits.
                request.tuning.push(("stages".to_owned(), "4".to_owned()));
                let default = request.resolve(&registry).unwrap();
                let stages = |v: &str| v.contains("_s4_");
                assert!(stages(&choose::fit(&request, default, target).variant_name()));
            }
        }
    }
}
