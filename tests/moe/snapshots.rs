//! Emitted source of one small configuration of each kernel, pinned. Rows end in a partial step here; `generated/` shows rows that
//! do not, the round trip, and text for HIP.

#[path = "../../codegen/tests/printed/digest.rs"]
mod digest;

use digest::{ENTRY, digest, excerpt};
use peerwarp::build::emit;
use peerwarp::codegen::family::Family;
use peerwarp::codegen::print::{EmitOptions, Source};
use peerwarp::families::moe::kernels::RoundTrip;
use peerwarp::families::moe::run::MoeTuning;

use crate::support::{shape, small};

fn tuning() -> MoeTuning {
    let mut tuning = small(&shape(2880, 10, 4, 16, 4));
    tuning.plan.dispatch.chunk = 8;
    tuning
}

fn emitted(config: &impl Family, target: &str) -> Source {
    let variant = config.clone().into_variant();
    let options = EmitOptions { lines: false, ..EmitOptions::default() };
    emit::source_with("peerwarp", &*variant, target.parse().unwrap(), &options).unwrap()
}

fn fused() -> RoundTrip {
    RoundTrip::defaults(&shape(2880, 10, 4, 16, 4)).unwrap().small()
}

#[test]
fn cuda_of_dispatch() {
    let left_out = ["ready", ENTRY];
    insta::assert_snapshot!(excerpt(emitted(&tuning().dispatch(), "cuda:sm_90a").roles(), &left_out));
}

#[test]
fn cuda_of_combine() {
    let left_out = ["ready", ENTRY];
    insta::assert_snapshot!(excerpt(emitted(&tuning().combine(), "cuda:sm_90a").roles(), &left_out));
}

#[test]
fn digests() {
    let tuning = tuning();
    let mut all = String::new();
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        for (name, source) in [
            ("dispatch", emitted(&tuning.dispatch(), target)),
            ("combine", emitted(&tuning.combine(), target)),
            ("round_trip", emitted(&fused(), target)),
        ] {
            all += &format!("{name} {target} {}\n", digest(&source));
        }
    }
    insta::assert_snapshot!(all);
}
