//! IR and emitted source of one small configuration of each kernel, pinned.

use peerwarp::build::emit;
use peerwarp::codegen::family::Family;
use peerwarp::families::moe::kernels::RoundTrip;
use peerwarp::families::moe::run::MoeTuning;

use crate::support::{shape, small};

fn tuning() -> MoeTuning {
    let mut tuning = small(&shape(2880, 10, 4, 16, 4));
    tuning.dispatch.chunk = 8;
    tuning
}

fn emitted(config: &impl Family, target: &str) -> String {
    emit::roles(&*config.clone().into_variant(), target.parse().unwrap()).unwrap()
}

fn fused() -> RoundTrip {
    RoundTrip::defaults(&shape(2880, 10, 4, 16, 4)).unwrap().small()
}

#[test]
fn cuda_of_round_trip() {
    insta::assert_snapshot!(emitted(&fused(), "cuda:sm_90a"));
}

#[test]
fn hip_of_round_trip() {
    insta::assert_snapshot!(emitted(&fused(), "hip:gfx942"));
}

#[test]
fn ir_of_dispatch() {
    insta::assert_snapshot!(tuning().dispatch.trace(32).unwrap());
}

#[test]
fn ir_of_combine() {
    insta::assert_snapshot!(tuning().combine.trace(32).unwrap());
}

#[test]
fn cuda_of_dispatch() {
    insta::assert_snapshot!(emitted(&tuning().dispatch, "cuda:sm_90a"));
}

#[test]
fn cuda_of_combine() {
    insta::assert_snapshot!(emitted(&tuning().combine, "cuda:sm_90a"));
}

#[test]
fn hip_of_dispatch() {
    insta::assert_snapshot!(emitted(&tuning().dispatch, "hip:gfx942"));
}

#[test]
fn hip_of_combine() {
    insta::assert_snapshot!(emitted(&tuning().combine, "hip:gfx942"));
}
