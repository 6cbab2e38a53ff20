//! A kernel of each family, and more where they differ in what they signal and wait for.

use peerwarp::build::emit;
use peerwarp::cli;
use peerwarp::codegen::family::{Registry, Variant};
use peerwarp::codegen::print::Source;

/// Families with their keys, and what is set of their tuning.
pub(super) const KERNELS: &[&str] = &[
    "moe_dispatch hidden=7168 experts=256 topk=8 tokens=128 ranks=8 dtype=bf16 hook=raw layout=rank-major phase=both",
    "moe_dispatch hidden=7168 experts=256 topk=8 tokens=128 ranks=8 dtype=fp8 hook=raw layout=expert-major phase=both protocol=flags",
    "moe_combine hidden=7168 experts=256 topk=8 tokens=128 ranks=8 dtype=bf16 layout=expert-major phase=both",
    "moe_combine hidden=2880 experts=128 topk=4 tokens=128 ranks=8 dtype=bf16 layout=rank-major phase=both protocol=flags",
    "moe_round_trip hidden=7168 experts=256 topk=8 tokens=128 ranks=8 dtype=bf16 hook=expert",
    "moe_layer hidden=7168 inter=2048 experts=256 topk=8 tokens=128 ranks=8 dtype=bf16",
    "moe_dispatch_nodes hidden=7168 experts=256 topk=8 tokens=128 ranks=16 nodes=2 dtype=bf16 phase=both",
    "moe_combine_nodes hidden=7168 experts=256 topk=8 tokens=128 ranks=16 nodes=2 dtype=bf16 phase=both",
    "all_reduce elements=10007 ranks=5 dtype=bf16",
    "all_reduce elements=4194304 ranks=8 dtype=bf16 algorithm=pull-two-shot protocol=flags",
    "all_reduce elements=1048576 ranks=8 dtype=bf16 hook=rms-norm hidden=8192",
    "registered_all_reduce elements=1048576 ranks=8 dtype=bf16",
    "all_reduce_nodes elements=1048576 ranks=16 nodes=2 dtype=bf16",
    "reduce_scatter elements=4194304 ranks=8 dtype=bf16",
    "reduce_scatter_nodes elements=1048576 ranks=16 nodes=2 dtype=bf16",
    "all_gather elements=4194304 ranks=8 dtype=bf16",
    "all_gather elements=10007 ranks=5 dtype=bf16 algorithm=pull protocol=flags",
    "all_gather_nodes elements=1048576 ranks=16 nodes=2 dtype=bf16",
    "all_to_all elements=1048576 ranks=8 dtype=bf16",
    "all_to_all_nodes elements=1048576 ranks=16 nodes=2 dtype=bf16",
    "ragged_all_to_all capacity=10007 ranks=5 dtype=bf16",
    "broadcast elements=4194304 ranks=8 dtype=bf16",
    "broadcast_nodes elements=1048576 ranks=16 nodes=2 dtype=bf16",
    "matmul m=512 n=4096 k=4096 ranks=2 dtype=bf16 split=2",
    "grouped_matmul groups=8 rows=4096 n=4096 k=4096 ranks=2 dtype=bf16",
    "grouped_matmul groups=8 rows=4096 n=4096 k=4096 dtype=bf16 activation=swiglu",
    "grouped_matmul groups=8 rows=4096 n=4096 k=4096 dtype=fp8 scales=block activation=swiglu",
    "grouped_matmul groups=8 rows=4096 n=4096 k=4096 dtype=fp8 scales=block activation=swiglu out=fp8",
    "grouped_matmul groups=8 rows=4096 n=4096 k=4096 gather=1024 dtype=bf16",
    "all_gather_matmul m=512 n=4096 k=4096 ranks=2 dtype=bf16",
    "matmul_reduce_scatter m=512 n=4096 k=4096 ranks=2 dtype=bf16",
];

/// All families of the program.
pub(super) fn registry() -> Registry {
    Registry::new(cli::builtin().iter().map(|entry| entry.family()))
}

/// The name of a family, and fields with their values.
pub(super) fn parts(kernel: &str) -> (&str, Vec<(String, String)>) {
    let (family, fields) = kernel.split_once(' ').expect("a family and its fields");
    let pair = |field: &str| {
        let (name, value) = field.split_once('=').expect("field=value");
        (name.to_owned(), value.to_owned())
    };
    (family, fields.split(' ').map(pair).collect())
}

/// What is emitted of a kernel for a target, with the defaults of what is not set.
pub(super) fn emitted(kernel: &str, target: &str) -> Source {
    let (family, fields) = parts(kernel);
    let variant: Variant = registry()
        .family(family)
        .expect("it is built in")
        .build(&fields)
        .unwrap_or_else(|e| panic!("{kernel}: {e}"));
    emit::source("peerwarp", &*variant, target.parse().unwrap())
        .unwrap_or_else(|e| panic!("{target}, {kernel}: {e}"))
}

#[test]
fn every_family_has_a_kernel() {
    for family in registry().families() {
        assert!(KERNELS.iter().any(|kernel| parts(kernel).0 == family.name()), "{}", family.name());
    }
}
