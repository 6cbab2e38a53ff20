//! What cannot be printed says why and what to do.

use crate::dsl::prelude::*;
use crate::dsl::{TraceMeta, trace};
use crate::ir::{CommOp, Kernel, MemoryOp, OpKind, ParamKind, Signal, SignalOrder, Type};
use crate::print::PrintError;

use super::{kernel, printed};

#[track_caller]
fn said(k: &Kernel, target: &str) -> String {
    // The package of tests names this file from its own folder.
    printed(k, target)
        .expect_err("this cannot be printed")
        .to_string()
        .replace("codegen/tests/../", "codegen/")
}

/// A kernel of so many warps of so many lanes, that splits into groups of so many warps.
fn splits(warp_size: u32, warps: u32, group: u32) -> Kernel {
    trace(TraceMeta::new("sample", 4, warp_size, warps), |p| {
        let x = p.arg::<Ptr<u32>>("x", 4096);
        role("main", 1, |b| b.split(group, |g| x.set(g.index(), 1)));
    })
    .unwrap()
}

#[test]
fn groups_that_have_no_barrier() {
    insta::assert_snapshot!(said(&splits(32, 32, 2), "cuda:sm_90a"), @"codegen/src/print/tests/errors.rs:23: a block splits into 16 groups of 2 warps, and only 15 can have a named barrier; use single warps or groups of at least 4 warps");
    for (k, target) in [
        (splits(64, 8, 1), "hip:gfx942"),
        (splits(64, 8, 2), "hip:gfx942"), // these meet at a counter in LDS
        (splits(64, 8, 8), "hip:gfx90a"),
        (splits(32, 30, 2), "cuda:sm_80"),
    ] {
        assert!(printed(&k, target).is_ok());
    }
}

#[test]
fn shapes_that_a_target_does_not_have() {
    insta::assert_snapshot!(said(&splits(32, 4, 1), "hip:gfx942"), @"`sample` was traced for warps of 32 lanes but hip:gfx942 has 64; trace it for this target");
    let mut k = splits(64, 8, 1);
    k.block_warps = 32;
    insta::assert_snapshot!(said(&k, "hip:gfx942"), @"`sample` has blocks of 2048 threads and hip:gfx942 allows 1024; use at most 16 warps a block");
    let shared_words = |n: u32| {
        kernel(|p| {
            let x = p.arg::<Ptr<u32>>("x", 4096);
            role("small", 1, |_| x.set(0, shared::<u32>("little", 4).get(0)));
            role("main", 1, |_| x.set(0, shared::<u32>("much", n).get(0)));
        })
    };
    insta::assert_snapshot!(said(&shared_words(30000), "cuda:sm_89"), @"`sample` needs 120000 bytes of shared memory a block and cuda:sm_89 has 99328; shrink its shared arrays");
    let told = |target: &str| {
        let kernel = crate::ir::verify(shared_words(30000)).unwrap();
        crate::print::explain(&kernel, target.parse().unwrap()).unwrap()
    };
    assert_eq!((told("cuda:sm_89").shared_limit, told("cuda:sm_90a").shared_limit), (Some(99_328), None));
    let text = told("cuda:sm_89").to_string();
    assert!(
        text.contains(
            "It is not emitted for this target: a block has 99328 bytes of shared memory there, not 120000."
        ),
        "{text}"
    );
    // A block has one role: roles' arrays overlap.
    assert_eq!(printed(&shared_words(30000), "cuda:sm_90a").unwrap().launch.shared_bytes, 120_000);
}

#[test]
fn arguments_that_do_not_fit() {
    let meta = TraceMeta::new("sample", 64, 64, 4);
    let k = trace(meta, |p| {
        for i in 0..8 {
            p.arg::<Sym<u32>>(&format!("buffer{i}"), 16);
        }
        let x = p.arg::<Ptr<u32>>("x", 4);
        role("main", 1, |_| x.set(0, 1));
    })
    .unwrap();
    insta::assert_snapshot!(said(&k, "hip:gfx942"), @"`sample` passes 4632 bytes of arguments (each symmetric buffer takes 8 bytes a rank) and hip:gfx942 takes 4096; merge symmetric buffers or use fewer ranks");
}

#[test]
fn tiles_that_cross_into_a_split() {
    let k = kernel(|p| {
        let x = p.arg::<Ptr<u32>>("x", 4096);
        role("main", 1, |b| b.split(1, |g| x.store(g.index() * 64, x.load(0, 64))));
    });
    assert!(printed(&k, "cuda:sm_80").is_ok());
    // The tracer refuses this; IR from elsewhere must not slip through.
    let mut k = kernel(|p| {
        let x = p.arg::<Ptr<u32>>("x", 4096);
        role("main", 1, |b| {
            x.store(2048, x.load(0, 64));
            b.split(1, |g| x.store(g.index() * 64, x.load(0, 64)));
        });
    });
    let mut loads = k.ops.iter().filter_map(|op| match op.kind {
        OpKind::Memory(MemoryOp::Load { out, .. }) => Some(out),
        _ => None,
    });
    let (outside, inside) = (loads.next().unwrap(), loads.next().unwrap());
    for op in &mut k.ops {
        if let OpKind::Memory(MemoryOp::Store { value, .. }) = &mut op.kind
            && *value == inside
        {
            *value = outside;
        }
    }
    assert!(matches!(printed(&k, "cuda:sm_80"), Err(PrintError::TileAcrossSplit { .. })));
}

#[test]
fn kernels_that_are_called_like_something_else() {
    for (name, taken) in [("broadcast", true), ("once", true), ("while", true), ("broadcast_rows", false)] {
        let kernel = trace(TraceMeta::new(name, 4, 32, 4), |p| {
            let x = p.arg::<Ptr<u32>>("x", 64);
            role("main", 1, |_| x.set(0, 1));
        });
        for target in ["cuda:sm_90a", "hip:gfx942"] {
            let mut kernel = kernel.clone().unwrap();
            kernel.warp_size = target.parse::<crate::family::Target>().unwrap().warp_size();
            let error = printed(&kernel, target).err();
            assert_eq!(error.is_some(), taken, "{name}: {error:?}");
            let named = |e: PrintError| e.to_string().contains(&format!("`{name}`"));
            assert!(error.is_none_or(named), "{name}");
        }
    }
}

#[test]
fn planted_relaxed_signals_and_dtypes_without_arithmetic() {
    let mut k = kernel(|p| {
        let inbox = p.arg::<Sym<u32>>("inbox", 16);
        let flag = p.arg::<Flags>("flag", 16);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::rank(1));
            parcel.put_value(&inbox, 0, 1);
            parcel.signal(&flag, 0, epoch);
        });
    });
    assert!(printed(&k, "cuda:sm_80").is_ok());
    for op in &mut k.ops {
        if let OpKind::Comm(CommOp::Signal(Signal { order, .. })) = &mut op.kind {
            *order = SignalOrder::Relaxed;
        }
    }
    assert!(matches!(printed(&k, "cuda:sm_80"), Err(PrintError::RelaxedSignal { .. })));

    let mut k = kernel(|p| {
        let x = p.arg::<Ptr<f32>>("x", 64);
        role("main", 1, |_| x.store(0, x.load(0, 32) + 1.0));
    });
    for v in &mut k.values {
        if v.ty == Type::tile(crate::ir::Dtype::F32, 32) {
            v.ty.dtype = crate::ir::Dtype::Bf16;
        }
    }
    let error = said(&k, "cuda:sm_80");
    assert!(
        error.ends_with("arithmetic has no meaning on bf16; cast to f32 or to an integer first"),
        "{error}"
    );
}

#[test]
fn names_that_c_does_not_have() {
    let mut k = splits(32, 4, 1);
    k.variant = "7up".into();
    insta::assert_snapshot!(said(&k, "cuda:sm_80"), @"`7up` (a variant) is not a C identifier; use letters, digits and underscores, and start with a letter");
    // Names that C++ or the printer has already are another matter: they get a number.
    let mut k = splits(32, 4, 1);
    k.params[0].name = "class".into();
    assert_eq!(k.params[0].kind, ParamKind::Local);
    assert!(printed(&k, "cuda:sm_80").unwrap().text.contains("u32* class_2;"));
}
