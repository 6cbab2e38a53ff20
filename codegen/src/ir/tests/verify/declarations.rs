use insta::assert_snapshot;

use super::*;
use crate::ir::verify::MAX_DEPTH;

fn changed(change: impl FnOnce(&mut Kernel)) -> String {
    let mut k = with_role(|_, _| {});
    change(&mut k);
    only(&k)
}

#[test]
fn ids_out_of_range() {
    let bad = |kind: OpKind| {
        role_error(|s, _| {
            s.op(kind);
        })
    };
    let (v, none) = (ValueId(0), ValueId(99));
    let (p, parcel, receipt) = (ParamId(99), ParcelId(99), ReceiptId(99));
    let at = Place::Param(p);
    let release = SignalOrder::Release;
    let kinds = vec![
        (OpKind::Value(ValueOp::Rank { out: none }), "value 99"),
        (OpKind::Value(ValueOp::Splat { out: v, a: none }), "value 99"),
        (
            OpKind::Control(ControlOp::For { var: none, start: v, end: v, step: v, body: Region::default() }),
            "value 99",
        ),
        (OpKind::Value(ValueOp::ScalarParam { out: v, param: p }), "parameter 99"),
        (OpKind::Value(ValueOp::Epoch { out: v, word: p, advance: false }), "parameter 99"),
        (OpKind::Memory(MemoryOp::Load { out: v, place: at, index: v, receipt: None }), "parameter 99"),
        (
            OpKind::Memory(MemoryOp::Load {
                out: v,
                place: Place::Param(ParamId(0)),
                index: v,
                receipt: Some(receipt),
            }),
            "receipt 99",
        ),
        (OpKind::Memory(MemoryOp::Store { place: at, index: v, value: v, mask: None }), "parameter 99"),
        (
            OpKind::Memory(MemoryOp::Store {
                place: Place::Shared(SharedId(99)),
                index: v,
                value: v,
                mask: None,
            }),
            "shared array 99",
        ),
        (OpKind::Control(ControlOp::VarGet { out: v, var: VarId(99) }), "variable 99"),
        (
            OpKind::Comm(CommOp::Put(Put { parcel, buffer: ParamId(0), index: v, value: v, mask: None })),
            "parcel 99",
        ),
        (
            OpKind::Comm(CommOp::Signal(Signal {
                parcel,
                flag: ParamId(0),
                index: v,
                value: v,
                order: release,
            })),
            "parcel 99",
        ),
        (
            OpKind::Comm(CommOp::Wait(Wait { receipt, flag: ParamId(0), index: v, from: v, value: v })),
            "receipt 99",
        ),
        (
            OpKind::Comm(CommOp::WaitAll(WaitAll {
                receipt,
                flag: ParamId(0),
                index: v,
                count: v,
                only: None,
                per_rank: 1,
                value: v,
                or_later: false,
            })),
            "receipt 99",
        ),
    ];
    for (kind, what) in kinds {
        let name = kind.name();
        let message = bad(kind);
        assert!(message.contains(&format!("{what} does not exist")), "{name}: {message}");
    }
    for kind in [
        OpKind::Comm(CommOp::Wait(Wait { receipt: ReceiptId(0), flag: p, index: v, from: v, value: v })),
        OpKind::Comm(CommOp::Put(Put { parcel: ParcelId(0), buffer: p, index: v, value: v, mask: None })),
    ] {
        let message = role_error(|s, _| {
            s.parcel(Target::Rank(v));
            s.receipt(ParamId(0));
            s.op(kind.clone());
        });
        assert!(message.contains("parameter 99 does not exist"), "{message}");
    }
}

#[test]
fn ids_of_parcels_receipts_and_regions() {
    assert_snapshot!(changed(|k| k.parcels.push(Parcel { target: Target::Mask(ValueId(9)), bare: false, multicast: false, windows: vec![], loc: k.loc })), @"src/sample.rs:1: value 9 does not exist; there are 1");
    assert_snapshot!(changed(|k| k.receipts.push(Receipt { flag: ParamId(9), loc: k.loc })), @"src/sample.rs:1: parameter 9 does not exist; there are 5");
    assert_snapshot!(changed(|k| k.roles[0].body.ops.push(OpId(9))), @"src/sample.rs:3: operation 9 does not exist; there are 1");
}

#[test]
fn an_operation_in_two_places() {
    assert_snapshot!(changed(|k| k.roles[0].body.ops.push(OpId(0))), @"src/sample.rs:2: operation 0 stands in two places; each operation belongs to one region");
    // One that holds itself must not send the verifier round in circles.
    let message = changed(|k| {
        let itself = OpId(k.ops.len() as u32);
        k.add_op(ControlOp::Split { warps: 1, body: Region { ops: vec![itself] } }, k.loc);
        k.roles[0].body.ops.push(itself);
    });
    assert!(message.contains("stands in two places"), "{message}");
}

#[test]
fn nested_too_deep() {
    fn nest(s: &mut Sample, depth: usize) {
        if depth > 0 {
            let cond = s.constant(Const::Bool(true));
            let then = s.region(|s| nest(s, depth - 1));
            s.op(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] });
        }
    }
    assert_eq!(problems(&with_role(|s, _| nest(s, MAX_DEPTH))), []);
    assert!(role_error(|s, _| nest(s, MAX_DEPTH + 1)).contains("more than 64 deep"));
}

#[test]
fn shape_of_the_launch() {
    assert_snapshot!(changed(|k| k.ranks = 65), @"src/sample.rs:1: a kernel for 65 ranks; 1 to 64 are possible");
    assert_snapshot!(changed(|k| k.ranks = 0), @"src/sample.rs:1: a kernel for 0 ranks; 1 to 64 are possible");
    assert_snapshot!(changed(|k| k.warp_size = 16), @"src/sample.rs:1: warps of 16 lanes; targets have 32 or 64");
    assert_snapshot!(changed(|k| k.block_warps = 0), @"src/sample.rs:1: 0 warps of 32 lanes a block; a block has at least one warp and at most 1024 threads");
    assert_snapshot!(changed(|k| k.block_warps = 33), @"src/sample.rs:1: 33 warps of 32 lanes a block; a block has at least one warp and at most 1024 threads");
    assert_snapshot!(changed(|k| k.roles.clear()), @"src/sample.rs:1: the kernel has no role; declare at least one with `role(name, blocks, ..)`");
    assert_snapshot!(changed(|k| k.roles[0].blocks = 0), @"src/sample.rs:3: role `r` has no blocks; give it at least one or leave the role out");
    assert_snapshot!(changed(|k| k.roles[0].blocks = u32::MAX), @"src/sample.rs:1: the roles have 4294967295 blocks together; a grid has at most 2147483647");
    assert_snapshot!(changed(|k| k.roles[0].goes_on_as = Some("r".into())), @"src/sample.rs:3: role `r` goes on as `r`; it can go on as another role of the kernel that itself goes on as none");
    assert_snapshot!(changed(|k| k.roles[0].goes_on_as = Some("s".into())), @"src/sample.rs:3: role `r` goes on as `s`; it can go on as another role of the kernel that itself goes on as none");
}

#[test]
fn roles_beside_others() {
    let beside = |edit: &dyn Fn(&mut Role)| {
        changed(|k| {
            let mut role = k.roles[0].clone();
            (role.name, role.body) = ("s".into(), Region::default());
            role.beside = Some(Beside { role: "r".into(), warps: 1 });
            edit(&mut role);
            k.roles.push(role);
        })
    };
    let warps = |warps| move |role: &mut Role| role.beside = Some(Beside { role: "r".into(), warps });
    assert_snapshot!(beside(&warps(0)), @"src/sample.rs:3: role `s` has 0 warps beside `r`; it can have 1 to 2 beside a role of as many blocks that runs beside none and that no other goes on as, and goes on as none itself");
    assert_snapshot!(beside(&warps(3)), @"src/sample.rs:3: role `s` has 3 warps beside `r`; it can have 1 to 2 beside a role of as many blocks that runs beside none and that no other goes on as, and goes on as none itself");
    assert_snapshot!(beside(&|role| role.beside = Some(Beside { role: "s".into(), warps: 1 })), @"src/sample.rs:3: role `s` has 1 warps beside `s`; it can have 1 to 2 beside a role of as many blocks that runs beside none and that no other goes on as, and goes on as none itself");
    assert_snapshot!(beside(&|role| role.blocks += 1), @"src/sample.rs:3: role `s` has 1 warps beside `r`; it can have 1 to 2 beside a role of as many blocks that runs beside none and that no other goes on as, and goes on as none itself");
    assert_snapshot!(beside(&|role| role.goes_on_as = Some("r".into())), @"src/sample.rs:3: role `s` has 1 warps beside `r`; it can have 1 to 2 beside a role of as many blocks that runs beside none and that no other goes on as, and goes on as none itself");
}

#[test]
fn roles_of_some_ranks() {
    let on = |ranks: &[u32]| changed(|k| k.roles[0].ranks = Some(ranks.to_vec()));
    assert_snapshot!(on(&[]), @"src/sample.rs:3: role `r` is on ranks []; name ranks of 0 to 3, at least one, each once and in order");
    assert_snapshot!(on(&[1, 0]), @"src/sample.rs:3: role `r` is on ranks [1, 0]; name ranks of 0 to 3, at least one, each once and in order");
    assert_snapshot!(on(&[0, 99]), @"src/sample.rs:3: role `r` is on ranks [0, 99]; name ranks of 0 to 3, at least one, each once and in order");
    let shared = |edit: fn(&mut Role)| {
        changed(|k| {
            let mut role = k.roles[0].clone();
            (role.name, role.body, role.ranks) = ("s".into(), Region::default(), Some(vec![0]));
            edit(&mut role);
            k.roles.push(role);
        })
    };
    assert_snapshot!(shared(|role| role.goes_on_as = Some("r".into())), @"src/sample.rs:3: role `s` shares blocks with `r`, which is on other ranks");
    assert_snapshot!(shared(|role| role.beside = Some(Beside { role: "r".into(), warps: 1 })), @"src/sample.rs:3: role `s` shares blocks with `r`, which is on other ranks");
}

#[test]
fn names() {
    assert_snapshot!(changed(|k| k.name = "a b".into()), @"src/sample.rs:1: the kernel name `a b` is no identifier; use ASCII letters, digits and `_`");
    assert_snapshot!(changed(|k| k.variant = "1a".into()), @"src/sample.rs:1: the variant name `1a` is no identifier; use ASCII letters, digits and `_`");
    assert_snapshot!(changed(|k| k.params[0].name = String::new()), @"src/sample.rs:1: the parameter name `` is no identifier; use ASCII letters, digits and `_`");
    assert_snapshot!(changed(|k| k.params[0].name = "inbox".into()), @"src/sample.rs:1: two parameters are named `inbox`");
    assert_snapshot!(changed(|k| k.roles[0].name = "sénd".into()), @"src/sample.rs:3: the role name `sénd` is no identifier; use ASCII letters, digits and `_`");
    let twin = changed(|k| {
        let loc = k.loc;
        k.roles.push(Role {
            name: "r".into(),
            blocks: 1,
            ranks: None,
            body: Region::default(),
            goes_on_as: None,
            beside: None,
            loc,
        });
    });
    assert_snapshot!(twin, @"src/sample.rs:1: two roles are named `r`");
    let shared = role_error(|s, _| {
        let loc = s.loc();
        s.b.shared("a-b", Dtype::U32, 1, 1, loc);
    });
    assert_snapshot!(shared, @"src/sample.rs:4: the shared array name `a-b` is no identifier; use ASCII letters, digits and `_`");
}

#[test]
fn parameters() {
    assert_snapshot!(changed(|k| k.params[0].dtype = Dtype::Bool), @"src/sample.rs:1: parameter `x` is a local buffer of bool; truth values live in registers only; use u32");
    assert_snapshot!(changed(|k| k.params[1].dtype = Dtype::Bool), @"src/sample.rs:1: parameter `inbox` is a symmetric buffer of bool; truth values live in registers only; use u32");
    assert_snapshot!(changed(|k| k.params[2].dtype = Dtype::U64), @"src/sample.rs:1: parameter `flag` is a flag array of u64; it is always u32");
    assert_snapshot!(changed(|k| k.params[3].dtype = Dtype::U64), @"src/sample.rs:1: parameter `epoch` is an epoch word of u64; it is always u32");
    assert_snapshot!(changed(|k| k.params[4].dtype = Dtype::Fp16), @"src/sample.rs:1: parameter `n` is a scalar of fp16; scalars are passed as i32, u32, u64 or f32");
    assert_snapshot!(changed(|k| k.params[3].len = 2), @"src/sample.rs:1: parameter `epoch` is an epoch word with 2 elements; it has exactly one");
    assert_snapshot!(changed(|k| k.params[4].len = 2), @"src/sample.rs:1: parameter `n` is a scalar with 2 elements; it has exactly one");
    assert_snapshot!(changed(|k| k.params[0].len = u64::MAX), @"src/sample.rs:1: buffer `x` of 18446744073709551615 elements is larger than any address space");
    assert_snapshot!(changed(|k| k.params[0].len = (i64::MAX as u64) / 4 + 1), @"src/sample.rs:1: buffer `x` of 2305843009213693952 elements is larger than any address space");
}

#[test]
fn shared_arrays() {
    let shared = |dtype, len, copies| {
        role_error(|s, _| {
            let loc = s.loc();
            s.b.shared("a", dtype, len, copies, loc);
        })
    };
    assert_snapshot!(shared(Dtype::Bool, 4, 1), @"src/sample.rs:4: shared array `a` of bool: truth values live in registers only; use u32");
    assert_snapshot!(shared(Dtype::U32, 0, 1), @"src/sample.rs:4: shared array `a` has no elements");
    assert_snapshot!(shared(Dtype::U32, 4, 0), @"src/sample.rs:4: shared array `a` has 0 copies a block, which is no number of groups of 2 warps");
    assert_snapshot!(shared(Dtype::U32, 4, 3), @"src/sample.rs:4: shared array `a` has 3 copies a block, which is no number of groups of 2 warps");
}

#[test]
fn tile_lengths() {
    let tile = |len| {
        role_error(|s, _| {
            s.value("t", Type::tile(Dtype::U32, len), |out| ValueOp::Arange { out });
        })
    };
    assert_snapshot!(tile(0), @"src/sample.rs:4: %t has 0 elements; a tile has 1 to 65536");
    assert_snapshot!(tile(65537), @"src/sample.rs:4: %t has 65537 elements; a tile has 1 to 65536");
    let var = role_error(|s, _| {
        let loc = s.loc();
        s.b.var(Type::tile(Dtype::U32, 0), loc);
    });
    assert_snapshot!(var, @"src/sample.rs:4: $0 has 0 elements; a tile has 1 to 65536");
}

#[test]
fn more_shared_memory_than_any_device_has() {
    let shared = |bytes: u32| {
        let mut k = with_role(|_, _| {});
        let array =
            |name: &str, len| Shared { name: name.into(), dtype: Dtype::F32, len, copies: 1, loc: k.loc };
        k.shared = vec![array("small", 16), array("stage", bytes / 4 - 16)];
        k
    };
    assert_eq!(problems(&shared(227 << 10)), []);
    assert_snapshot!(only(&shared(512 << 10)), @"src/sample.rs:1: shared arrays that a block has at once take 524224 bytes: `stage` 524224; the device with the most, gfx1250, has 327680: let arrays be smaller");
    // Arrays of one role are there at once; those of two roles share a place.
    let two = |roles: bool| {
        let mut s = Sample::new("k");
        let out = s.b.param("out", ParamKind::Local, Dtype::F32, 4);
        let array = |s: &mut Sample, name: &str| {
            let shared =
                Shared { name: name.into(), dtype: Dtype::F32, len: 50_000, copies: 1, loc: s.loc() };
            s.b.kernel.shared.push(shared);
            Place::Shared(SharedId(s.b.kernel.shared.len() as u32 - 1))
        };
        let (first, second) = (array(&mut s, "s"), array(&mut s, "t"));
        let copy = |s: &mut Sample, place| {
            let zero = s.u32(0);
            let value = s.value("", Type::scalar(Dtype::F32), |out| MemoryOp::Load {
                out,
                place,
                index: zero,
                receipt: None,
            });
            s.op(MemoryOp::Store { place: Place::Param(out), index: zero, value, mask: None });
        };
        s.role("r", 1, |s| {
            copy(s, first);
            if !roles {
                copy(s, second);
            }
        });
        if roles {
            s.role("q", 1, |s| copy(s, second));
        }
        s.finish()
    };
    assert_eq!(problems(&two(true)), []);
    assert_snapshot!(only(&two(false)), @"src/sample.rs:3: shared arrays that a block has at once take 400000 bytes: `s` 200000 and `t` 200000; the device with the most, gfx1250, has 327680: let arrays be smaller");
}

#[test]
fn more_blocks_that_wait_than_any_device_holds() {
    let blocks = |blocks: u32, waits: bool| {
        let mut k = with_role(|s, p| {
            if waits {
                let (zero, from) = (s.u32(0), rank(s));
                let receipt = s.receipt(p.flag);
                s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index: zero, from, value: p.epoch }));
            }
        });
        k.roles[0].blocks = blocks;
        k
    };
    assert_eq!(problems(&blocks(132, true)), []);
    assert_eq!(problems(&blocks(1_000_000, false)), []);
    assert_snapshot!(only(&blocks(1_000_000, true)), @"src/sample.rs:1: 1000000 blocks of 64 threads and 0 bytes of shared memory wait and must be resident at once; the device that holds the most, gfx1250, holds 8192: let roles have fewer or smaller blocks");
}
