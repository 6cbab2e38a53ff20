use insta::assert_snapshot;

use super::*;

const RELEASE: SignalOrder = SignalOrder::Release;

fn put(s: &mut Sample, p: P, parcel: ParcelId) {
    let (index, value) = (s.u32(0), s.constant(Const::F32(0)));
    s.op(CommOp::Put(Put { parcel, buffer: p.inbox, index, value, mask: None }));
}

fn signal(s: &mut Sample, p: P, parcel: ParcelId) {
    let index = s.u32(0);
    s.op(CommOp::Signal(Signal { parcel, flag: p.flag, index, value: p.epoch, order: RELEASE }));
}

fn wait(s: &mut Sample, p: P) -> ReceiptId {
    let receipt = s.receipt(p.flag);
    let zero = s.u32(0);
    s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index: zero, from: zero, value: p.epoch }));
    receipt
}

fn read(s: &mut Sample, p: P, receipt: Option<ReceiptId>) {
    let index = s.u32(0);
    s.value("got", F32, |out| MemoryOp::Load { out, place: Place::Param(p.inbox), index, receipt });
}

fn to_one(s: &mut Sample) -> ParcelId {
    let to = s.u32(1);
    s.parcel(Target::Rank(to))
}

fn looped(s: &mut Sample, body: impl FnOnce(&mut Sample)) {
    let (zero, four, one) = (s.u32(0), s.u32(4), s.u32(1));
    s.for_each("i", (zero, four, one), |s, _| body(s));
}

/// `if` on something that is only known when the kernel runs.
fn when(s: &mut Sample, then: impl FnOnce(&mut Sample), otherwise: impl FnOnce(&mut Sample)) {
    let zero = s.u32(0);
    let me = rank(s);
    let cond = s.compare("first", CompareOp::Eq, me, zero);
    let (then, otherwise) = (s.region(then), s.region(otherwise));
    s.op(ControlOp::If { cond, then, otherwise, results: vec![] });
}

fn send(s: &mut Sample, p: P) {
    let parcel = to_one(s);
    put(s, p, parcel);
    signal(s, p, parcel);
}

#[test]
fn reading_needs_a_receipt() {
    assert_snapshot!(soft_error(|s, p| read(s, p, None)), @"src/sample.rs:5: `inbox` is read without a receipt; peers write it: wait for their flag and pass what `wait` returned");
    let (zero, ty) = (ValueId(0), tile(Dtype::F32));
    let masked = with_role(|s, p| {
        let index = s.u32(0);
        let truth = s.constant(Const::Bool(true));
        let mask = s.value("", tile(Dtype::Bool), |out| ValueOp::Splat { out, a: truth });
        let none = s.constant(Const::F32(zero.0));
        let other = s.value("", ty, |out| ValueOp::Splat { out, a: none });
        let lanes = s.value("", tile(Dtype::U32), |out| ValueOp::Arange { out });
        let place = Place::Param(p.inbox);
        s.value("", ty, |out| MemoryOp::LoadMasked { out, place, index, mask, other, receipt: None });
        s.value("", ty, |out| MemoryOp::Gather { out, place, index: lanes, mask, other, receipt: None });
    });
    let missing = |p: &Problem| matches!(p, Problem::ReceiptMissing { .. });
    assert_eq!(problems(&masked).iter().filter(|p| missing(p)).count(), 2);
}

#[test]
fn the_wait_comes_first_on_every_path() {
    let in_branch = soft_error(|s, p| {
        let mut receipt = ReceiptId(0);
        when(s, |s| receipt = wait(s, p), |_| {});
        read(s, p, Some(receipt));
    });
    assert_snapshot!(in_branch, @"src/sample.rs:12: `inbox` is read with a receipt whose wait at src/sample.rs:9 does not come before it on every path");
    let after = soft_error(|s, p| {
        let receipt = s.receipt(p.flag);
        read(s, p, Some(receipt));
        let zero = s.u32(0);
        s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index: zero, from: zero, value: p.epoch }));
    });
    assert!(after.contains("does not come before it"), "{after}");
    let dropped = soft_error(|s, p| {
        let receipt = s.receipt(p.flag);
        read(s, p, Some(receipt));
    });
    assert_snapshot!(dropped, @"src/sample.rs:6: `inbox` is read with a receipt whose wait does not come before it on every path");
    let (mut s, p) = start();
    let mut receipt = ReceiptId(0);
    s.role("a", 1, |s| receipt = wait(s, p));
    s.role("b", 1, |s| read(s, p, Some(receipt)));
    assert!(only(&s.finish()).contains("does not come before it"));
    let wait_all = with_role(|s, p| {
        let receipt = s.receipt(p.flag);
        let (zero, four) = (s.u32(0), s.u32(4));
        s.op(CommOp::WaitAll(WaitAll {
            receipt,
            flag: p.flag,
            index: zero,
            count: four,
            only: None,
            per_rank: 1,
            value: p.epoch,
            or_later: false,
        }));
        looped(s, |s| read(s, p, Some(receipt)));
    });
    assert_eq!(problems(&wait_all), []);
}

#[test]
fn receipts_belong_to_one_wait() {
    let twice = soft_error(|s, p| {
        let receipt = wait(s, p);
        let zero = s.u32(0);
        s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index: zero, from: zero, value: p.epoch }));
    });
    assert_snapshot!(twice, @"src/sample.rs:8: the receipt of this wait is also that of the wait at src/sample.rs:6");
    let wrong_flag = soft_error(|s, p| {
        let other = s.b.param("other", ParamKind::Flags, Dtype::U32, 4);
        let receipt = s.receipt(other);
        let zero = s.u32(0);
        s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index: zero, from: zero, value: p.epoch }));
    });
    assert_snapshot!(wrong_flag, @"src/sample.rs:6: the receipt of this wait on `flag` names `other`");
}

#[test]
fn a_receipt_covers_what_is_put_under_its_flag() {
    let both = |put_there: bool| {
        with_role(|s, p| {
            let other = s.b.param("other", ParamKind::Symmetric, Dtype::F32, 64);
            let parcel = to_one(s);
            let (index, value) = (s.u32(0), s.constant(Const::F32(0)));
            let buffer = if put_there { p.inbox } else { other };
            s.op(CommOp::Put(Put { parcel, buffer, index, value, mask: None }));
            signal(s, p, parcel);
            let receipt = wait(s, p);
            read(s, p, Some(receipt));
        })
    };
    assert_eq!(problems(&both(true)), []);
    assert_snapshot!(only(&both(false)), @"src/sample.rs:15: `inbox` is read after a wait on `flag`, but no parcel that signals `flag` puts into `inbox`");
    let elsewhere = with_role(|s, p| {
        let receipt = wait(s, p);
        read(s, p, Some(receipt));
    });
    assert_eq!(problems(&elsewhere), [], "another kernel may be the one that signals");
}

#[test]
fn parcels_are_signalled_once_after_their_puts() {
    assert_eq!(problems(&with_role(send)), []);
    let never = soft_error(|s, p| {
        let parcel = to_one(s);
        put(s, p, parcel);
    });
    assert_snapshot!(never, @"src/sample.rs:8: puts to `inbox` that no signal publishes; signal the parcel");
    let twice = soft_error(|s, p| {
        let parcel = to_one(s);
        put(s, p, parcel);
        signal(s, p, parcel);
        signal(s, p, parcel);
    });
    assert_snapshot!(twice, @"src/sample.rs:12: this parcel is signalled here and at src/sample.rs:10; signal it once");
    let empty = soft_error(|s, p| {
        let parcel = to_one(s);
        signal(s, p, parcel);
    });
    assert_snapshot!(empty, @"src/sample.rs:7: `flag` is signalled for a parcel into which nothing was put; signalling what was not sent");
    let filled = soft_error(|s, p| {
        let to = s.u32(1);
        let parcel = s.bare_parcel(Target::Rank(to));
        put(s, p, parcel);
        signal(s, p, parcel);
    });
    assert_snapshot!(filled, @"src/sample.rs:8: put to `inbox` in a parcel that is a signal without data; open a parcel for the put");
    let before = soft_error(|s, p| {
        let parcel = to_one(s);
        signal(s, p, parcel);
        put(s, p, parcel);
    });
    assert_snapshot!(before, @"src/sample.rs:10: put to `inbox` after the parcel's signal at src/sample.rs:7; put before signalling");
    let relaxed = soft_error(|s, p| {
        let parcel = to_one(s);
        put(s, p, parcel);
        let index = s.u32(0);
        let order = SignalOrder::Relaxed;
        s.op(CommOp::Signal(Signal { parcel, flag: p.flag, index, value: p.epoch, order }));
    });
    assert_snapshot!(relaxed, @"src/sample.rs:10: relaxed signal of `flag`: it does not order what is done before it");
}

#[test]
fn signals_stand_where_their_puts_are_or_further_out() {
    let in_branch = soft_error(|s, p| {
        let parcel = to_one(s);
        put(s, p, parcel);
        when(s, |s| signal(s, p, parcel), |_| {});
    });
    assert_snapshot!(in_branch, @"src/sample.rs:13: the signal of `flag` stands in a branch or loop that the put at src/sample.rs:8 is not in: on some path the put is not signalled, or signalled twice");
    let in_loop = soft_error(|s, p| {
        let parcel = to_one(s);
        put(s, p, parcel);
        looped(s, |s| signal(s, p, parcel));
    });
    assert!(in_loop.contains("stands in a branch or loop"), "{in_loop}");
    let puts_inside = with_role(|s, p| {
        let parcel = to_one(s);
        looped(s, |s| put(s, p, parcel));
        when(s, |s| put(s, p, parcel), |_| {});
        signal(s, p, parcel);
    });
    assert_eq!(problems(&puts_inside), []);
}

#[test]
fn no_jump_passes_a_signal_by() {
    let jump = |s: &mut Sample, depth| {
        when(
            s,
            |s| {
                s.op(ControlOp::Continue { depth });
            },
            |_| {},
        );
    };
    let between = soft_error(|s, p| {
        looped(s, |s| {
            let parcel = to_one(s);
            put(s, p, parcel);
            jump(s, 0);
            signal(s, p, parcel);
        });
    });
    assert_snapshot!(between, @"src/sample.rs:16: `continue` leaves between the put at src/sample.rs:12 and the parcel's signal at src/sample.rs:19");
    let a_round_later = soft_error(|s, p| {
        looped(s, |s| {
            let parcel = to_one(s);
            looped(s, |s| {
                jump(s, 1);
                put(s, p, parcel);
            });
            signal(s, p, parcel);
        });
    });
    assert!(a_round_later.contains("leaves between"), "{a_round_later}");
    let harmless = with_role(|s, p| {
        looped(s, |s| {
            jump(s, 0);
            let parcel = to_one(s);
            looped(s, |s| {
                jump(s, 0);
                put(s, p, parcel);
                jump(s, 0);
            });
            when(
                s,
                |s| put(s, p, parcel),
                |s| {
                    s.op(ControlOp::Break { depth: 0 });
                },
            );
            signal(s, p, parcel);
            jump(s, 0);
        });
    });
    let [skipped] = problems(&harmless).try_into().unwrap();
    let Problem::SignalSkipped { op: "break", put: at, .. } = skipped else { panic!("{skipped}") };
    assert_eq!(
        at.line, 26,
        "the break in the `else` arm passes the put in the inner loop by, and no other jump any"
    );
    let exclusive = with_role(|s, p| {
        looped(s, |s| {
            let parcel = to_one(s);
            when(
                s,
                |s| put(s, p, parcel),
                |s| {
                    s.op(ControlOp::Break { depth: 0 });
                },
            );
            signal(s, p, parcel);
        });
    });
    assert_eq!(problems(&exclusive), []);
}

#[test]
fn bounds_of_constant_accesses() {
    let mut all = String::new();
    let mut note = |build: &dyn Fn(&mut Sample, P)| all += &format!("{}\n", soft_error(build));
    let load = |s: &mut Sample, p: P, ty: Type, first: u32| {
        let index = s.u32(first);
        s.value("", ty, |out| MemoryOp::Load { out, place: Place::Param(p.x), index, receipt: None });
    };
    assert_eq!(problems(&with_role(|s, p| load(s, p, F32, 63))), []);
    assert_eq!(problems(&with_role(|s, p| load(s, p, tile(Dtype::F32), 0))), []);
    note(&|s, p| load(s, p, F32, 64));
    note(&|s, p| load(s, p, tile(Dtype::F32), 1));
    note(&|s, p| {
        let index = rank(s);
        let place = Place::Param(p.x);
        let ty = Type::tile(Dtype::F32, 65);
        s.value("", ty, |out| MemoryOp::Load { out, place, index, receipt: None });
    });
    note(&|s, p| {
        let (value, index) = (s.constant(Const::F32(0)), s.u32(64));
        s.op(MemoryOp::Store { place: Place::Param(p.x), index, value, mask: None });
    });
    note(&|s, p| {
        let (value, index) = (s.constant(Const::F32(0)), s.u32(64));
        let place = Place::Param(p.x);
        s.value("", F32, |out| MemoryOp::Atomic { out, op: ReduceOp::Sum, place, index, value });
    });
    note(&|s, p| {
        let parcel = to_one(s);
        let (value, index) = (s.constant(Const::F32(0)), s.u32(64));
        s.op(CommOp::Put(Put { parcel, buffer: p.inbox, index, value, mask: None }));
        signal(s, p, parcel);
    });
    note(&|s, p| {
        let parcel = to_one(s);
        put(s, p, parcel);
        let index = s.u32(4);
        s.op(CommOp::Signal(Signal { parcel, flag: p.flag, index, value: p.epoch, order: RELEASE }));
    });
    note(&|s, p| {
        let receipt = s.receipt(p.flag);
        let (index, from) = (s.u32(4), s.u32(0));
        s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index, from, value: p.epoch }));
    });
    note(&|s, p| {
        let receipt = s.receipt(p.flag);
        let (index, count) = (s.u32(1), s.u32(4));
        s.op(CommOp::WaitAll(WaitAll {
            receipt,
            flag: p.flag,
            index,
            count,
            only: None,
            per_rank: 1,
            value: p.epoch,
            or_later: false,
        }));
    });
    note(&|s, _| {
        let loc = s.loc();
        let place = Place::Shared(s.b.shared("a", Dtype::U32, 4, 1, loc));
        let index = s.u32(4);
        s.op(MemoryOp::Store { place, index, value: index, mask: None });
    });
    assert_snapshot!(all);
}

#[test]
fn a_mask_may_keep_an_access_in_bounds() {
    let k = with_role(|s, p| {
        let truth = s.constant(Const::Bool(false));
        let mask = s.value("", tile(Dtype::Bool), |out| ValueOp::Splat { out, a: truth });
        let value = load(s, p, tile(Dtype::F32));
        let index = s.u32(1);
        s.op(MemoryOp::Store { place: Place::Param(p.x), index, value, mask: Some(mask) });
        let parcel = to_one(s);
        s.op(CommOp::Put(Put { parcel, buffer: p.inbox, index, value, mask: Some(mask) }));
        signal(s, p, parcel);
    });
    assert_eq!(problems(&k), []);
}

#[test]
fn narrow_indices() {
    let narrow = |build: &dyn Fn(&mut Sample, P)| {
        let mut k = with_role(build);
        k.params[0].len = (1 << 32) + 1;
        k.params[1].len = (1 << 32) + 1;
        only(&k)
    };
    let scalar = narrow(&|s, p| {
        let index = rank(s);
        s.value("", F32, |out| MemoryOp::Load { out, place: Place::Param(p.x), index, receipt: None });
    });
    assert_snapshot!(scalar, @"src/sample.rs:5: `load` indexes `x` of 4294967297 elements with u32 %me, which cannot reach all; use `.to_u64()`");
    let scatter = narrow(&|s, p| {
        let lanes = s.value("lanes", tile(Dtype::U32), |out| ValueOp::Arange { out });
        let value = s.value("", tile(Dtype::F32), |out| ValueOp::Cast { out, a: lanes });
        s.op(MemoryOp::Scatter { place: Place::Param(p.x), index: lanes, value, mask: None, adds: false });
    });
    assert!(scatter.contains("u32 %lanes"), "{scatter}");
    let masked_put = narrow(&|s, p| {
        let truth = s.constant(Const::Bool(false));
        let mask = s.value("", tile(Dtype::Bool), |out| ValueOp::Splat { out, a: truth });
        let none = s.constant(Const::F32(0));
        let value = s.value("", tile(Dtype::F32), |out| ValueOp::Splat { out, a: none });
        let index = rank(s);
        let parcel = to_one(s);
        s.op(CommOp::Put(Put { parcel, buffer: p.inbox, index, value, mask: Some(mask) }));
        let zero = s.u32(0);
        s.op(CommOp::Signal(Signal { parcel, flag: p.flag, index: zero, value: p.epoch, order: RELEASE }));
    });
    assert!(masked_put.contains("u32 %me"), "{masked_put}");
    let masked_load = narrow(&|s, p| {
        let truth = s.constant(Const::Bool(false));
        let mask = s.value("", tile(Dtype::Bool), |out| ValueOp::Splat { out, a: truth });
        let none = s.constant(Const::F32(0));
        let other = s.value("", tile(Dtype::F32), |out| ValueOp::Splat { out, a: none });
        let index = rank(s);
        let place = Place::Param(p.x);
        let ty = tile(Dtype::F32);
        s.value("", ty, |out| MemoryOp::LoadMasked { out, place, index, mask, other, receipt: None });
    });
    assert!(masked_load.contains("u32 %me"), "{masked_load}");
    let mut wide = with_role(|s, p| {
        let index = s.constant(Const::U64(1 << 32));
        s.value("", F32, |out| MemoryOp::Load { out, place: Place::Param(p.x), index, receipt: None });
    });
    wide.params[0].len = (1 << 32) + 1;
    assert_eq!(problems(&wide), []);
    let mut wide = with_role(|s, p| _ = load(s, p, F32));
    wide.params[0].len = (1 << 32) + 1;
    assert_eq!(problems(&wide), []);
}

#[test]
fn constants_that_cannot_be() {
    let mut all = String::new();
    let mut note = |build: &dyn Fn(&mut Sample, P)| all += &format!("{}\n", soft_error(build));
    let by = |op: BinaryOp, n: u32| {
        move |s: &mut Sample, p: P| {
            let n = s.u32(n);
            s.binary("", op, p.epoch, n);
        }
    };
    note(&by(BinaryOp::Div, 0));
    note(&by(BinaryOp::Rem, 0));
    note(&by(BinaryOp::Shl, 32));
    note(&by(BinaryOp::Shr, 33));
    note(&|s, _| {
        let minus = s.constant(Const::I32(-1));
        s.binary("", BinaryOp::Shl, minus, minus);
    });
    note(&|s, p| {
        let zero = s.u32(0);
        s.for_each("i", (p.epoch, p.epoch, zero), |_, _| {});
    });
    note(&|s, _| {
        let minus = s.constant(Const::I32(-1));
        s.for_each("i", (minus, minus, minus), |_, _| {});
    });
    note(&|s, p| {
        let receipt = s.receipt(p.flag);
        let (zero, four) = (s.u32(0), s.u32(4));
        s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index: zero, from: four, value: p.epoch }));
    });
    assert_snapshot!(all);
    for (target, rank) in [(Const::U64(0b10_1111), 5), (Const::U64(1 << 63), 63), (Const::U32(4), 4)] {
        let k = with_role(|s, p| {
            let to = s.constant(target);
            let parcel =
                s.parcel(if target.dtype() == Dtype::U64 { Target::Mask(to) } else { Target::Rank(to) });
            put(s, p, parcel);
            signal(s, p, parcel);
        });
        let bad = Problem::NoSuchRank { rank, ranks: 4 };
        assert_eq!(problems(&k), [bad.clone(), bad], "the put and the signal");
    }
}
