//! What the kernel is traced to and what is emitted for it: a change shows up here, line by line.

use add_all_gather::AddAllGather;
use peerwarp::build::emit;
use peerwarp::codegen::family::Target;
use peerwarp::prelude::*;

/// 2500 elements: two full chunks and a rest.
fn config() -> AddAllGather {
    AddAllGather::from_text("elements=2500 ranks=4 dtype=bf16").unwrap()
}

#[test]
fn ir() {
    insta::assert_snapshot!(config().trace(32).unwrap().to_string());
}

#[test]
fn cuda_and_hip() {
    let entry = AddAllGather::entry();
    let variant = entry.parse(&config().variant_name()).unwrap();
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        let target: Target = target.parse().unwrap();
        insta::assert_snapshot!(target.backend(), emit::roles(&*variant, target).unwrap());
    }
}

#[test]
fn names_are_stable_and_parse_back() {
    let name = config().variant_name();
    assert_eq!(name, "add_all_gather_n2500_r4_bf16__w8_flags_c256_s16_r16");
    assert_eq!(AddAllGather::parse_variant(&name).unwrap(), config());
}
