use insta::assert_snapshot;

use crate::ir::explain::Deed;
use crate::ir::samples::{self, Sample};
use crate::ir::*;

const U32: Type = Type::scalar(Dtype::U32);

#[test]
fn an_exchange_in_words() {
    assert_snapshot!(explain(&samples::exchange()));
}

#[test]
fn a_scatter_in_words() {
    assert_snapshot!(explain(&samples::scatter()));
}

/// A role on a local `x: f32[4096]`; its description without what stands before the steps.
fn steps(build: impl FnOnce(&mut Sample, Place)) -> String {
    let mut s = Sample::new("k");
    let x = s.b.param("x", ParamKind::Local, Dtype::U32, 4096);
    s.role("r", 2, |s| build(s, Place::Param(x)));
    let k = s.finish();
    verify(k.clone()).unwrap();
    explain(&k).to_string().split_once("## Role").unwrap().1.into()
}

fn rank(s: &mut Sample) -> ValueId {
    s.value("me", U32, |out| ValueOp::Rank { out })
}

fn load(s: &mut Sample, place: Place, index: ValueId, len: u32) -> ValueId {
    s.value("", Type::tile(Dtype::U32, len), |out| MemoryOp::Load { out, place, index, receipt: None })
}

fn is_first(s: &mut Sample) -> ValueId {
    let me = rank(s);
    let zero = s.u32(0);
    s.value("", Type::scalar(Dtype::Bool), |out| ValueOp::Compare { out, op: CompareOp::Eq, a: me, b: zero })
}

#[test]
fn unrolled_accesses_are_told_once() {
    let text = steps(|s, x| {
        for at in [0, 512, 1024] {
            let index = s.u32(at);
            load(s, x, index, if at == 1024 { 100 } else { 512 });
        }
    });
    assert_snapshot!(text, @"
     `r`: 2 blocks, 0 to 1

    Reads x.

    - reads 4496 B in 3 pieces of `x[0 ..]`
    ");
}

#[test]
fn unrolled_sequences_are_told_once() {
    let text = steps(|s, x| {
        for k in 0..4 {
            let index = s.u32(k);
            let cond = is_first(s);
            let then = s.region(|s| {
                let v = load(s, x, index, 32);
                s.op(MemoryOp::Store { place: x, index, value: v, mask: None });
            });
            s.op(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] });
        }
        let zero = s.u32(0);
        load(s, x, zero, 64);
    });
    assert_snapshot!(text, @"
     `r`: 2 blocks, 0 to 1

    Reads x; writes x.

    - 4 times:
      - if `me == 0`:
        - reads 128 B of `x`
        - writes 128 B to `x`
    - reads 256 B of `x[0]`
    ");
}

#[test]
fn branches_and_loops_in_words() {
    let text = steps(|s, x| {
        let (zero, one, four) = (s.u32(0), s.u32(1), s.u32(4));
        s.for_each("i", (zero, four, one), |s, _| {
            let cond = is_first(s);
            let nothing = Region::default();
            let otherwise = s.region(|s| _ = load(s, x, zero, 8));
            s.op(ControlOp::If { cond, then: nothing.clone(), otherwise, results: vec![] });
            let mut cond = ValueId(0);
            let header = s.region(|s| cond = is_first(s));
            let body = s.region(|s| {
                let value = load(s, x, one, 8);
                let leave = is_first(s);
                let then = s.region(|s| _ = s.op(ControlOp::Break { depth: 1 }));
                let otherwise = s.region(|s| {
                    s.op(MemoryOp::Store { place: x, index: four, value, mask: None });
                    s.op(ControlOp::Continue { depth: 0 });
                });
                s.op(ControlOp::If { cond: leave, then, otherwise, results: vec![] });
            });
            s.op(ControlOp::While { header, cond, body });
        });
        s.for_each("quiet", (zero, four, one), |s, _| _ = rank(s));
    });
    assert_snapshot!(text, @"
     `r`: 2 blocks, 0 to 1

    Reads x; writes x.

    - for each `i` in `0..4`:
      - unless `me == 0`:
        - reads 32 B of `x[0]`
      - while `me == 0`:
        - reads 32 B of `x[1]`
        - if `me == 0`:
          - no further `i`
        - else:
          - writes 32 B to `x[4]`
          - on to the next round
    ");
}

#[test]
fn expressions_keep_their_parentheses() {
    let text = steps(|s, x| {
        let me = rank(s);
        let (two, three) = (s.u32(2), s.u32(3));
        let sum = s.binary("", BinaryOp::Add, me, two);
        let product = s.binary("", BinaryOp::Mul, sum, three);
        let inner = s.binary("", BinaryOp::Sub, me, two);
        let index = s.binary("", BinaryOp::Sub, product, inner);
        let v = load(s, x, index, 1);
        s.op(MemoryOp::Store { place: x, index: three, value: v, mask: None });
        let shifted = s.binary("", BinaryOp::Shl, index, two);
        let index = s.binary("", BinaryOp::Min, shifted, three);
        let v = load(s, x, index, 2);
        s.op(MemoryOp::Store { place: x, index: two, value: v, mask: None });
    });
    assert_snapshot!(text, @"
     `r`: 2 blocks, 0 to 1

    Reads x; writes x.

    - reads 4 B of `x[(me + 2) * 3 - (me - 2)]`
    - writes 4 B to `x[3]`
    - reads 8 B of `x[min((me + 2) * 3 - (me - 2) << 2, 3)]`
    - writes 8 B to `x[2]`
    ");
}

#[test]
fn a_group_index_with_another_step_is_no_dealing_out() {
    let text = steps(|s, x| {
        let (three, four) = (s.u32(3), s.u32(4));
        let group = s.value("", U32, |out| ValueOp::GroupIndex { out });
        s.for_each("t", (group, four, three), |s, t| _ = load(s, x, t, 1));
    });
    assert_snapshot!(text, @"
     `r`: 2 blocks, 0 to 1

    Reads x.

    - for each `t` in `group..4` by `3`:
      - reads 4 B of `x[t]`
    ");
}

#[test]
fn one_line_a_role_and_traffic() {
    let e = explain(&samples::scatter());
    let lines: Vec<String> = e.roles.iter().map(|r| format!("{}: {}", r.name, r.one_line())).collect();
    assert_snapshot!(lines.join("\n"), @"
    send: reads ids, x; puts to inbox; signals row_flag
    close: puts to sent; signals end_flag
    recv: waits for end_flag, row_flag; writes counts, rows; reads sent, inbox
    ");
    let puts: Vec<_> = e.roles[0].traffic.iter().filter(|t| t.deed == Deed::Puts).collect();
    assert_eq!((puts.len(), puts[0].bytes, puts[0].places), (1, 128, 1));
    assert_eq!((e.symmetric_bytes, e.flags, e.shared_bytes), (2048 * 2 + 32 * 4 + 36 * 4, 36, 256));
}

#[test]
fn traffic_counts_every_round_of_an_unrolled_loop() {
    let mut s = Sample::new("k");
    let x = s.b.param("x", ParamKind::Local, Dtype::U32, 4096);
    let y = s.b.param("y", ParamKind::Local, Dtype::U32, 4096);
    s.role("r", 1, |s| {
        for k in 0..3 {
            let index = s.u32(k);
            let v = load(s, Place::Param(x), index, 8);
            s.op(MemoryOp::Store { place: Place::Param(y), index, value: v, mask: None });
        }
    });
    let traffic = explain(&s.finish()).roles.remove(0).traffic;
    let got: Vec<_> = traffic.iter().map(|t| (t.deed, t.places, t.bytes)).collect();
    assert_eq!(got, [(Deed::Reads, 3, 96), (Deed::Writes, 3, 96)]);
}

#[test]
fn as_json() {
    let e = serde_json::to_value(explain(&samples::exchange())).unwrap();
    assert_eq!(e["roles"][0]["steps"][1]["deed"], "puts");
    assert_eq!(e["roles"][0]["steps"][1]["bytes"], 384);
    assert_eq!(e["buffers"][2]["kind"], "symmetric");
    assert_eq!(e["roles"][0]["steps"][3]["step"], "for_each");
}

#[test]
fn a_shared_array_may_be_called_like_a_buffer() {
    let mut s = Sample::new("k");
    let x = s.b.param("x", ParamKind::Local, Dtype::U32, 64);
    s.role("r", 1, |s| {
        let loc = s.loc();
        let shared = Place::Shared(s.b.shared("x", Dtype::U32, 64, 1, loc));
        let zero = s.u32(0);
        load(s, Place::Param(x), zero, 8);
        load(s, shared, zero, 8);
    });
    let e = explain(&s.finish());
    let role = &e.roles[0];
    assert_eq!(
        role.traffic.iter().map(|t| (t.shared, t.bytes)).collect::<Vec<_>>(),
        [(false, 32), (true, 32)]
    );
    assert_eq!(role.one_line(), "reads x");
    assert!(e.to_string().contains("- reads 32 B of `x[0]`\n- reads 32 B of shared `x[0]`\n"), "{e}");
}

#[test]
fn masks_of_true_and_waits_for_a_computed_count() {
    let mut s = Sample::new("k");
    let x = s.b.param("x", ParamKind::Local, Dtype::U32, 64);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 64);
    s.role("r", 1, |s| {
        let truth = s.constant(Const::Bool(true));
        let tile = Type::tile(Dtype::U32, 8);
        let mask = s.value("", tile.with_dtype(Dtype::Bool), |out| ValueOp::Splat { out, a: truth });
        let index = s.value("", tile, |out| ValueOp::Arange { out });
        let place = Place::Param(x);
        s.value("", tile, |out| MemoryOp::Gather { out, place, index, mask, other: index, receipt: None });
        let any =
            s.value("", Type::scalar(Dtype::Bool), |out| ValueOp::Reduce { out, op: ReduceOp::Or, a: mask });
        let me = rank(s);
        let receipt = s.receipt(flag);
        let then = s.region(|s| {
            let (count, per_rank) = (s.binary("", BinaryOp::Mul, me, me), 1);
            s.op(CommOp::WaitAll(WaitAll {
                receipt,
                flag,
                index: me,
                count,
                only: None,
                per_rank,
                value: me,
                or_later: false,
            }));
        });
        s.op(ControlOp::If { cond: any, then, otherwise: Region::default(), results: vec![] });
    });
    let text = explain(&s.finish()).to_string();
    assert_snapshot!(text.split_once("\n- ").unwrap().1, @"
    reads 32 B of `x[lanes]`
    - if `any(true)`:
      - waits for `me * me` flags from `flag[me]` on
    ");
}
