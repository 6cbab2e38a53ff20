//! Copies in bulk on the simulator: what arrives, that each mistake with them is found, and what is refused.

use crate::findings;
use crate::printed::freight;

use std::sync::Arc;

use freight::{FREIGHT_RANKS, FREIGHT_ROW, FREIGHT_ROWS, freight};
use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{Mutation, Site, Slot, mutate};
use peerwarp_codegen::ir::{BulkCopy, CommOp, Dtype, Kernel, OpKind, Planted, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};

const ALL: u32 = FREIGHT_ROW * FREIGHT_ROWS;

fn rows(rank: u32) -> Vec<bf16> {
    (0..ALL).map(|i| bf16::from_f32(((i * 7 + rank * 13) % 251) as f32 - 125.0)).collect()
}

fn words(rank: u32) -> Vec<u32> {
    (0..ALL).map(|i| i * 1001 + rank).collect()
}

fn machine(kernel: Kernel, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(FREIGHT_RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..FREIGHT_RANKS {
        machine.write(rank, "x", 0, &rows(rank)).unwrap();
        machine.write(rank, "words", 0, &words(rank)).unwrap();
    }
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

#[test]
fn what_is_copied_is_there_when_its_flag_is() {
    let all: Vec<bf16> = (0..FREIGHT_RANKS).flat_map(rows).collect();
    for warp_size in [32, 64] {
        let machine = machine(freight(warp_size), 4);
        for seed in 0..12 {
            let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
            for rank in 0..FREIGHT_RANKS {
                assert_eq!(outcome.memory.read::<bf16>(rank, "out").unwrap(), all);
                let before = (rank + FREIGHT_RANKS - 1) % FREIGHT_RANKS;
                assert_eq!(outcome.memory.read::<u32>(rank, "crates_out").unwrap(), words(before));
            }
        }
    }
}

/// The kinds of findings over some seeds.
fn found(mutation: Mutation) -> Vec<FindingKind> {
    findings::kinds(&machine(mutate(&freight(32), &mutation).unwrap().into_kernel(), 4), 24)
}

#[test]
fn mistakes_are_found() {
    let signal = |flag| Site::signal("send", flag);
    for (what, mutation) in [
        ("a flag before the copies", Mutation::SignalFirst(signal("loaded"))),
        ("a flag that orders nothing", Mutation::Relax(signal("arrived"))),
        ("reading without waiting", Mutation::Drop(Site::wait("recv", "loaded"))),
        (
            "a row of another round",
            Mutation::Offset { site: Site::put("send", "inbox"), slot: Slot::Index, by: 8 },
        ),
    ] {
        assert_ne!(found(mutation), [], "{what}");
    }
}

/// A kernel that copies `len` elements from element `from` on.
fn copying(len: u32, from: impl Fn() -> Val<u32>) -> Result<Kernel, String> {
    let traced = trace(TraceMeta::new("copying", 2, 32, 1), |p: &mut Binder| {
        let x: AnyPtr = p.erased("x", 64, Dtype::Bf16);
        let (inbox, flag): (AnySym, Flags) = (p.erased("inbox", 64, Dtype::Bf16), p.arg("flag", 1));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 1, |_| {
            let mut parcel = send_to(Peers::all());
            parcel.copy_any(&inbox, 0, &x, from(), len);
            parcel.signal(&flag, 0, epoch);
        });
    });
    traced.map_err(|e| e.to_string())
}

#[test]
fn lengths_and_indices_are_whole_vectors() {
    let info = EmitInfo { command: "peerwarp generate".into() };
    let printed = |kernel: &Kernel, target: &str| {
        emit(&verify(kernel.clone()).unwrap(), target.parse().unwrap(), &info)
            .map_err(|e| e.to_string())
            .map(drop)
    };
    for target in ["cuda:sm_90a", "cuda:sm_80"] {
        printed(&copying(16, || 8u32.val()).unwrap(), target).unwrap();
        for kernel in [copying(12, || 8u32.val()), copying(16, || 4u32.val()), copying(16, rank)] {
            let refused = printed(&kernel.unwrap(), target).unwrap_err();
            assert!(refused.contains("must be multiples of 8 elements"), "{refused}");
        }
    }
}

#[test]
fn what_cannot_be_copied_is_refused_where_it_is_written() {
    let beyond = copying(40, || 32u32.val()).unwrap_err();
    assert!(beyond.contains("40 elements from element 32 on of `x`, which has 64"), "{beyond}");
    let other = trace(TraceMeta::new("copying", 2, 32, 1), |p: &mut Binder| {
        let x: AnyPtr = p.erased("x", 64, Dtype::Fp16);
        let inbox: AnySym = p.erased("inbox", 64, Dtype::Bf16);
        role("send", 1, |_| {
            let mut parcel = send_to(Peers::all());
            parcel.copy_any(&inbox, 0, &x, 0, 8);
        });
    });
    let other = other.unwrap_err().to_string();
    assert!(other.contains("a copy of `x` to `inbox`: fp16 to bf16"), "{other}");
}

#[test]
fn room_and_types_are_verified() {
    let broken = |change: fn(&mut Kernel, usize)| {
        let mut kernel = copying(16, || 8u32.val()).unwrap();
        let at =
            kernel.ops.iter().position(|op| matches!(op.kind, OpKind::Comm(CommOp::BulkCopy(_)))).unwrap();
        change(&mut kernel, at);
        format!("{:?}", verify(kernel).unwrap_err())
    };
    let room = broken(|kernel, _| kernel.shared[0].len = 15);
    assert!(room.contains("CopyRoom"), "{room}");
    let dtype = broken(|kernel, _| kernel.params[0].dtype = Dtype::Fp16);
    assert!(dtype.contains("CopyDtype"), "{dtype}");
    let kind = broken(|kernel, at| {
        if let OpKind::Comm(CommOp::BulkCopy(BulkCopy { source, buffer, .. })) = &mut kernel.ops[at].kind {
            *source = *buffer;
        }
    });
    assert!(kind.contains("WrongParamKind"), "{kind}");
}

#[test]
fn room_is_there_only_for_gpus_that_copy_in_bulk() {
    let kernel = freight(32);
    let info = EmitInfo { command: "peerwarp generate".into() };
    let shared = |target: &str| {
        emit(&verify(kernel.clone()).unwrap(), target.parse().unwrap(), &info).unwrap().launch.shared_bytes
    };
    // Of four warps a row of 400 bytes each, and of the block one of 800.
    assert_eq!(shared("cuda:sm_90a"), 4 * 400 + 800);
    assert_eq!(shared("cuda:sm_80"), 0);
}
