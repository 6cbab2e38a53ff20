use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Illegal, Legal};
use peerwarp_codegen::ir::Dtype;
use peerwarp_codegen::kernel;

use super::*;
use crate::families::moe::MoeSuite;
use crate::families::moe::kernels::Phase;
use crate::harness::request::resolve;
use crate::harness::workload::Suite;

fn registry() -> Registry {
    Registry::new(MoeSuite.families())
}

fn given(options: &[(&str, &str)]) -> Given {
    options.iter().map(|(option, value)| ((*option).to_owned(), (*value).to_owned())).collect()
}

/// What a stranger calls a kernel for MoE problems.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "own_dispatch", kernel = own_dispatch, args = OwnArgs, warps = warps)]
struct OwnDispatch {
    #[key(short = "h", range = 8..=65536)]
    hidden: u32,
    #[key(short = "e", range = 1..=65535)]
    experts: u32,
    #[key(short = "r", range = 2..=64, ranks)]
    ranks: u32,
    #[key(values = [Dtype::Bf16, Dtype::Fp16])]
    dtype: Dtype,
    #[key]
    way: Phase,
    #[key(short = "k", range = 1..=32)]
    topk: u32,
    #[key(short = "t", range = 1..=65536)]
    tokens: u32,
    #[tune(short = "w", values = [1, 2])]
    warps: u32,
}

impl Legal for OwnDispatch {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = OwnDispatch)]
struct OwnArgs {
    #[len(|c| c.hidden.into())]
    x: Ptr<u32>,
}

#[kernel]
fn own_dispatch(c: &OwnDispatch, a: &OwnArgs) {
    role("add", 1, |_| a.x.store(0, a.x.load(0, c.hidden) + 1));
}

#[test]
fn a_strangers_family_for_moe_problems_takes_part_in_selections_of_models() {
    let registry = Registry::new(MoeSuite.families().into_iter().chain([OwnDispatch::entry()]));
    let options =
        given(&[("model", "mixtral-8x7b"), ("dtype", "fp8"), ("layout", "expert-major"), ("dedup", "false")]);
    let requests = select(&options, false, &registry).unwrap();
    let names: Vec<String> =
        resolve(&requests, &registry).unwrap().iter().map(|v| v.variant_name()).collect();
    let starts = [
        "moe_dispatch_h4096_e8_k2_t128_r8_fp8_raw_expertmajor_both__",
        "moe_combine_h4096_e8_k2_t128_r8_bf16_expertmajor_both__",
        // The first of several ways; its rows have no scales, so that they are what is combined.
        "own_dispatch_h4096_e8_r8_bf16_",
    ];
    assert_eq!(names.len(), starts.len());
    for (name, start) in names.iter().zip(starts) {
        assert!(name.starts_with(start), "{name}");
    }
    assert!(names[0].contains("nodedup"), "{}", names[0]);
}

#[test]
fn shapes_are_given_in_one_way() {
    let error =
        |options: &[(&str, &str)]| select(&given(options), false, &registry()).unwrap_err().to_string();
    let both = error(&[("model", "glm-4.5"), ("hidden", "64")]);
    assert!(both.starts_with("--model = glm-4.5: contradicts --hidden = 64"), "{both}");
    let half = error(&[("hidden", "64"), ("topk", "2")]);
    assert!(half.starts_with("--experts is missing"), "{half}");
    assert_eq!(select(&given(&[("tokens", "8")]), false, &registry()).unwrap(), []);
}

#[test]
fn checks_have_few_tokens() {
    let tokens = |small| {
        let requests = select(&given(&[("model", "glm-4.5")]), small, &registry()).unwrap();
        requests[0].key.iter().find(|(field, _)| field == "tokens").unwrap().1.clone()
    };
    assert_eq!([tokens(false), tokens(true)], ["128", "8"]);
}

#[test]
fn split_phases_are_requests_of_their_own() {
    let requests = select(&given(&[("model", "glm-4.5"), ("phase", "split")]), false, &registry()).unwrap();
    let names: Vec<String> =
        resolve(&requests, &registry()).unwrap().iter().map(|v| v.variant_name()).collect();
    let halves: Vec<&str> =
        names.iter().map(|n| if n.contains("_send__") { "send" } else { "recv" }).collect();
    assert_eq!(halves, ["send", "send", "recv", "recv"]);
}

/// What rows go out as, combine does not know by its own type: the selection sets it, here as where a program asks for the defaults.
#[test]
fn what_comes_back_goes_as_what_went_out() {
    let bytes = RowDtype::Bytes { row: 1028, scales: 36 };
    for dtype in RowDtype::NAMED.iter().chain([&bytes]).map(ToString::to_string) {
        let asked = given(&[
            ("hidden", "2048"),
            ("experts", "64"),
            ("topk", "6"),
            ("tokens", "8"),
            ("dtype", &dtype),
        ]);
        let requests = select(&asked, false, &registry()).unwrap();
        let names: Vec<String> =
            resolve(&requests, &registry()).unwrap().iter().map(|v| v.variant_name()).collect();
        let dtype = dtype.parse().unwrap();
        let shape = MoeShape { hidden: 2048, experts: 64, topk: 6, tokens: 8, ranks: 8, dtype };
        let defaults = MoeTuning::defaults(&shape).unwrap();
        assert_eq!(names, [defaults.dispatch().variant_name(), defaults.combine().variant_name()]);
    }
}

#[test]
fn gpumode_is_five_shapes_and_fused_is_another_problem_of_each() {
    let sets =
        expand(&given(&[("gpumode", "true"), ("fused", "true"), ("ranks", "2"), ("seed", "1")])).unwrap();
    assert_eq!(sets.len(), 10);
    let own = |set: &Given| select(set, false, &registry()).unwrap();
    assert_eq!([own(&sets[0]).len(), own(&sets[1]).len()], [2, 1]);
    let round_trip = resolve(&own(&sets[1]), &registry()).unwrap()[0].variant_name();
    assert!(
        round_trip.starts_with("moe_round_trip_") && round_trip.contains("_fp16_expert__"),
        "{round_trip}"
    );
    assert_eq!(sets[0]["tokens-per-rank"].split(',').count(), 2);
    let error = expand(&given(&[("gpumode", "true"), ("tokens", "8")])).unwrap_err().to_string();
    assert!(error.starts_with("--tokens = 8: contradicts --gpumode"), "{error}");
    let wrong = given(&[("model", "glm-4.5"), ("fused", "true"), ("dedup", "false")]);
    let error = select(&wrong, false, &registry()).unwrap_err().to_string();
    assert!(error.starts_with("--fused = true: contradicts --dedup = false"), "{error}");
}
