//! Timing of a dispatch and a combine in the size of a real model, by hand:
//! `cargo test --release -p peerwarp-codegen-tests --test peerwarp_codegen sim::tests::speed -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::ir::samples::Sample;
use crate::ir::*;

const RANKS: u32 = 8;
const TOKENS: u32 = 128;
const HIDDEN: u32 = 7168;
const TOPK: u32 = 8;
const EXPERTS: u32 = 256;
const U: Type = Type::scalar(Dtype::U32);

fn load(s: &mut Sample, ty: Type, p: ParamId, index: ValueId, receipt: Option<ReceiptId>) -> ValueId {
    s.value("", ty, |out| MemoryOp::Load { out, place: Place::Param(p), index, receipt })
}

fn split(s: &mut Sample, build: impl FnOnce(&mut Sample, ValueId, ValueId)) {
    let loc = s.loc();
    let blocks = s.u32(if s.b.kernel.roles.is_empty() { 32 } else { 64 });
    let body = s.region(|s| {
        let first = s.value("first", U, |out| ValueOp::GroupIndex { out });
        let groups = s.u32(2);
        let stride = s.binary("", BinaryOp::Mul, blocks, groups);
        build(s, first, stride);
    });
    s.b.push(ControlOp::Split { warps: 4, body }, loc);
}

fn when(s: &mut Sample, cond: ValueId, build: impl FnOnce(&mut Sample)) {
    let loc = s.loc();
    let then = s.region(build);
    s.b.push(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
}

/// `(a * n) + b`.
fn at(s: &mut Sample, a: ValueId, n: u32, b: ValueId) -> ValueId {
    let n = s.u32(n);
    let a = s.binary("", BinaryOp::Mul, a, n);
    s.binary("", BinaryOp::Add, a, b)
}

fn is_set(s: &mut Sample, mask: ValueId, bit: ValueId) -> ValueId {
    let (one, zero) = (s.u32(1), s.u32(0));
    let m = s.binary("", BinaryOp::Shr, mask, bit);
    let m = s.binary("", BinaryOp::And, m, one);
    s.compare("", CompareOp::Ne, m, zero)
}

fn sample(name: &str) -> (Sample, ValueId, ValueId) {
    let mut s = Sample::new(name);
    s.b.kernel.ranks = RANKS;
    s.b.kernel.block_warps = 8;
    let word = s.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let epoch = s.value("epoch", U, |out| ValueOp::Epoch { out, word, advance: true });
    let me = s.value("me", U, |out| ValueOp::Rank { out });
    (s, epoch, me)
}

/// Rows go to the ranks that own an expert of the token, with a record that says which of the `k` are there.
fn dispatch() -> Kernel {
    let (mut s, epoch, me) = sample("dispatch");
    let slots = u64::from(RANKS * TOKENS);
    let words = HIDDEN / 2;
    let ids = s.b.param("ids", ParamKind::Local, Dtype::U32, u64::from(TOKENS * TOPK));
    let x = s.b.param("x", ParamKind::Local, Dtype::U32, u64::from(TOKENS * words));
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, slots * u64::from(words));
    let record = s.b.param("record", ParamKind::Symmetric, Dtype::U32, slots);
    let rec_flag = s.b.param("rec_flag", ParamKind::Flags, Dtype::U32, slots);
    let row_flag = s.b.param("row_flag", ParamKind::Flags, Dtype::U32, slots);
    let rows = s.b.param("rows", ParamKind::Local, Dtype::U32, slots * u64::from(TOPK * words));
    let tokens = s.u32(TOKENS);
    let (zero, one) = (s.u32(0), s.u32(1));
    s.role("send", 32, |s| {
        split(s, |s, first, stride| {
            s.for_each("t", (first, tokens, stride), |s, t| {
                let topk = s.u32(TOPK);
                let base = s.binary("", BinaryOp::Mul, t, topk);
                let per_rank = s.u32(EXPERTS / RANKS);
                let mut owners = vec![];
                for k in 0..TOPK {
                    let k = s.u32(k);
                    let i = s.binary("", BinaryOp::Add, base, k);
                    let id = load(s, U, ids, i, None);
                    owners.push(s.binary("", BinaryOp::Div, id, per_rank));
                }
                let slot = at(s, me, TOKENS, t);
                let mut mask = s.constant(Const::U64(0));
                for rank in 0..RANKS {
                    let mut bits = zero;
                    let dst = s.u32(rank);
                    for (k, &owner) in owners.iter().enumerate() {
                        let here = s.compare("", CompareOp::Eq, owner, dst);
                        let bit = s.u32(1 << k);
                        let bit = s.value("", U, |out| ValueOp::Select { out, cond: here, a: bit, b: zero });
                        bits = s.binary("", BinaryOp::Or, bits, bit);
                    }
                    let parcel = s.parcel(Target::Rank(dst));
                    s.op(CommOp::Put(Put { parcel, buffer: record, index: slot, value: bits, mask: None }));
                    let order = SignalOrder::Release;
                    s.op(CommOp::Signal(Signal { parcel, flag: rec_flag, index: slot, value: epoch, order }));
                    let some = s.compare("", CompareOp::Ne, bits, zero);
                    let (bit, none) = (s.constant(Const::U64(1 << rank)), s.constant(Const::U64(0)));
                    let bit = s.value("", Type::scalar(Dtype::U64), |out| ValueOp::Select {
                        out,
                        cond: some,
                        a: bit,
                        b: none,
                    });
                    mask = s.binary("", BinaryOp::Or, mask, bit);
                }
                let from = at(s, t, words, zero);
                let row = load(s, Type::tile(Dtype::U32, words), x, from, None);
                let to = at(s, slot, words, zero);
                let parcel = s.parcel(Target::Mask(mask));
                s.op(CommOp::Put(Put { parcel, buffer: inbox, index: to, value: row, mask: None }));
                let order = SignalOrder::Release;
                s.op(CommOp::Signal(Signal { parcel, flag: row_flag, index: slot, value: epoch, order }));
            });
        });
    });
    s.role("recv", 64, |s| {
        let all = s.u32(RANKS * TOKENS);
        split(s, |s, first, stride| {
            let receipt = s.receipt(rec_flag);
            let wait = OpKind::Comm(CommOp::WaitAll(WaitAll {
                receipt,
                flag: rec_flag,
                index: zero,
                count: all,
                only: None,
                per_rank: TOKENS,
                value: epoch,
                or_later: false,
            }));
            s.op(wait);
            s.for_each("slot", (first, all, stride), |s, slot| {
                let bits = load(s, U, record, slot, Some(receipt));
                let some = s.compare("", CompareOp::Ne, bits, zero);
                when(s, some, |s| {
                    let got = s.receipt(row_flag);
                    let from = s.binary("", BinaryOp::Div, slot, tokens);
                    s.op(CommOp::Wait(Wait {
                        receipt: got,
                        flag: row_flag,
                        index: slot,
                        from,
                        value: epoch,
                    }));
                    let i = at(s, slot, words, zero);
                    let row = load(s, Type::tile(Dtype::U32, words), inbox, i, Some(got));
                    let topk = s.u32(TOPK);
                    s.for_each("k", (zero, topk, one), |s, k| {
                        let here = is_set(s, bits, k);
                        when(s, here, |s| {
                            let to = at(s, slot, TOPK, k);
                            let to = at(s, to, words, zero);
                            s.op(MemoryOp::Store {
                                place: Place::Param(rows),
                                index: to,
                                value: row,
                                mask: None,
                            });
                        });
                    });
                });
            });
        });
    });
    s.finish()
}

/// Owners add up the rows of each token and send the sum back; the token's rank adds those up.
fn combine() -> Kernel {
    let (mut s, epoch, me) = sample("combine");
    let slots = u64::from(RANKS * TOKENS);
    let hidden = u64::from(HIDDEN);
    let rows = s.b.param("rows", ParamKind::Local, Dtype::Bf16, slots * u64::from(TOPK) * hidden);
    let record = s.b.param("seen", ParamKind::Local, Dtype::U32, slots);
    let masks = s.b.param("masks", ParamKind::Local, Dtype::U32, u64::from(TOKENS));
    let pieces = s.b.param("pieces", ParamKind::Symmetric, Dtype::Bf16, slots * hidden);
    let flag = s.b.param("piece_flag", ParamKind::Flags, Dtype::U32, slots);
    let y = s.b.param("y", ParamKind::Local, Dtype::Bf16, u64::from(TOKENS) * hidden);
    let (bf16, f32s) = (Type::tile(Dtype::Bf16, HIDDEN), Type::tile(Dtype::F32, HIDDEN));
    let (zero, one, tokens) = (s.u32(0), s.u32(1), s.u32(TOKENS));
    let sum = |s: &mut Sample, place: (ParamId, ValueId, Option<ReceiptId>), acc: VarId| {
        let row = load(s, bf16, place.0, place.1, place.2);
        let row = s.value("", f32s, |out| ValueOp::Cast { out, a: row });
        let weight = s.constant(Const::F32(0.5f32.to_bits()));
        let weight = s.value("", f32s, |out| ValueOp::Splat { out, a: weight });
        let old = s.value("", f32s, |out| ControlOp::VarGet { out, var: acc });
        let value = s.value("", f32s, |out| ValueOp::Fma { out, a: row, b: weight, c: old });
        s.op(ControlOp::VarSet { var: acc, value });
    };
    let start = |s: &mut Sample| {
        let none = s.constant(Const::F32(0));
        let none = s.value("", f32s, |out| ValueOp::Splat { out, a: none });
        s.var("acc", none)
    };
    let result = |s: &mut Sample, acc: VarId| {
        let total = s.value("", f32s, |out| ControlOp::VarGet { out, var: acc });
        s.value("", bf16, |out| ValueOp::Cast { out, a: total })
    };
    s.role("send", 32, |s| {
        let all = s.u32(RANKS * TOKENS);
        split(s, |s, first, stride| {
            s.for_each("slot", (first, all, stride), |s, slot| {
                let bits = load(s, U, record, slot, None);
                let some = s.compare("", CompareOp::Ne, bits, zero);
                when(s, some, |s| {
                    let acc = start(s);
                    let topk = s.u32(TOPK);
                    s.for_each("k", (zero, topk, one), |s, k| {
                        let here = is_set(s, bits, k);
                        when(s, here, |s| {
                            let i = at(s, slot, TOPK, k);
                            let i = at(s, i, HIDDEN, zero);
                            sum(s, (rows, i, None), acc);
                        });
                    });
                    let value = result(s, acc);
                    let src = s.binary("", BinaryOp::Div, slot, tokens);
                    let t = s.binary("", BinaryOp::Rem, slot, tokens);
                    let index = at(s, me, TOKENS, t);
                    let to = at(s, index, HIDDEN, zero);
                    let parcel = s.parcel(Target::Rank(src));
                    s.op(CommOp::Put(Put { parcel, buffer: pieces, index: to, value, mask: None }));
                    let order = SignalOrder::Release;
                    s.op(CommOp::Signal(Signal { parcel, flag, index, value: epoch, order }));
                });
            });
        });
    });
    s.role("recv", 64, |s| {
        split(s, |s, first, stride| {
            s.for_each("t", (first, tokens, stride), |s, t| {
                let mask = load(s, U, masks, t, None);
                let acc = start(s);
                let ranks = s.u32(RANKS);
                s.for_each("owner", (zero, ranks, one), |s, owner| {
                    let here = is_set(s, mask, owner);
                    when(s, here, |s| {
                        let index = at(s, owner, TOKENS, t);
                        let receipt = s.receipt(flag);
                        s.op(CommOp::Wait(Wait { receipt, flag, index, from: owner, value: epoch }));
                        let i = at(s, index, HIDDEN, zero);
                        sum(s, (pieces, i, Some(receipt)), acc);
                    });
                });
                let value = result(s, acc);
                let to = at(s, t, HIDDEN, zero);
                s.op(MemoryOp::Store { place: Place::Param(y), index: to, value, mask: None });
            });
        });
    });
    s.finish()
}

fn machine() -> Machine {
    let kernels = [dispatch(), combine()].map(|k| Arc::new(Compiled::new(verify(k).unwrap())));
    let mut machine = Machine::new(RANKS);
    for k in &kernels {
        machine.buffers_of(k.kernel()).unwrap();
    }
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    let mut seen = vec![vec![0u32; (RANKS * TOKENS) as usize]; RANKS as usize];
    for rank in 0..RANKS {
        let mut ids = vec![];
        let mut masks = vec![0; TOKENS as usize];
        for t in 0..TOKENS {
            for k in 0..TOPK {
                let id = random() % EXPERTS;
                let owner = id / (EXPERTS / RANKS);
                ids.push(id);
                masks[t as usize] |= 1 << owner;
                seen[owner as usize][(rank * TOKENS + t) as usize] |= 1 << k;
            }
        }
        let x: Vec<u32> = (0..TOKENS * HIDDEN / 2).map(|_| random() & 0x3fff_3fff).collect();
        machine.write(rank, "ids", 0, &ids).unwrap();
        machine.write(rank, "masks", 0, &masks).unwrap();
        machine.write(rank, "x", 0, &x).unwrap();
    }
    for rank in 0..RANKS {
        machine.write(rank, "seen", 0, &seen[rank as usize]).unwrap();
    }
    for k in &kernels {
        machine.launch_all(k, &Bindings::new()).unwrap();
    }
    machine
}

#[test]
#[ignore = "takes seconds; run by hand in release"]
fn large() {
    let machine = machine();
    for strategy in [Strategy::Random, Strategy::Adversarial] {
        for race_checks in [false, true] {
            let options = Options { strategy, race_checks, ..Options::default() };
            let start = Instant::now();
            let outcome = machine.run(&options).unwrap_or_else(|f| panic!("{f}"));
            println!(
                "{strategy:?}, checks {race_checks}: {:.2} s, {} steps, {} picks, {} MB put",
                start.elapsed().as_secs_f64(),
                outcome.report.steps,
                outcome.report.picks,
                (0..RANKS * RANKS).map(|l| outcome.report.link_bytes(l / RANKS, l % RANKS)).sum::<u64>()
                    >> 20
            );
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default());
}

#[test]
#[ignore = "timing; run by hand in release"]
fn small() {
    let machine = super::tokens::machine(super::tokens::kernel(super::tokens::Bug::None, false).0, 3);
    for strategy in [Strategy::Random, Strategy::Adversarial] {
        let start = Instant::now();
        let options = Options { strategy, ..Options::default() };
        let runs = check(&machine, 0..1000, &options, &|_| {}).unwrap();
        assert!(runs.first_failure.is_none());
        println!(
            "{strategy:?}: 1000 seeds in {:.2} s, {} steps each",
            start.elapsed().as_secs_f64(),
            runs.steps / 1000
        );
    }
}
