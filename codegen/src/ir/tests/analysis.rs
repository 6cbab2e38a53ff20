use crate::ir::analysis::{Def, DefUse, Facts, Tree, banks};
use crate::ir::samples::{self, Sample};
use crate::ir::*;

const U32: Type = Type::scalar(Dtype::U32);

/// Facts about the values that `build` returns, made in a role.
fn facts(build: impl FnOnce(&mut Sample) -> Vec<ValueId>) -> (Vec<ValueId>, Facts) {
    let mut s = Sample::new("k");
    let mut values = vec![];
    s.role("r", 1, |s| values = build(s));
    let k = s.finish();
    verify_structure(&k).unwrap();
    let tree = Tree::of(&k);
    (values, Facts::of(&k, &tree))
}

fn unknown(s: &mut Sample) -> ValueId {
    s.value("", U32, |out| ValueOp::Rank { out })
}

#[test]
fn constants_fold_and_wrap() {
    let cases: Vec<(BinaryOp, Const, Const, Option<Const>)> = vec![
        (BinaryOp::Add, Const::U32(u32::MAX), Const::U32(2), Some(Const::U32(1))),
        (BinaryOp::Sub, Const::U32(1), Const::U32(2), Some(Const::U32(u32::MAX))),
        (BinaryOp::Mul, Const::U64(u64::MAX), Const::U64(u64::MAX), Some(Const::U64(1))),
        (BinaryOp::Div, Const::I32(-7), Const::I32(2), Some(Const::I32(-3))),
        (BinaryOp::Div, Const::U32(1), Const::U32(0), None),
        (BinaryOp::Rem, Const::I32(-7), Const::I32(2), Some(Const::I32(-1))),
        (BinaryOp::Shr, Const::I32(-8), Const::I32(1), Some(Const::I32(-4))),
        (BinaryOp::Shl, Const::U32(1 << 31), Const::U32(1), Some(Const::U32(0))),
        (BinaryOp::Shl, Const::U32(1), Const::U32(32), None),
        (BinaryOp::And, Const::Bool(true), Const::Bool(false), Some(Const::Bool(false))),
        (BinaryOp::Add, Const::F32(0), Const::F32(0), None),
    ];
    for (op, a, b, want) in cases {
        let (v, f) = facts(|s| {
            let (x, y) = (s.constant(a), s.constant(b));
            vec![s.binary("", op, x, y)]
        });
        assert_eq!(f.constant(v[0]), want, "{a} {} {b}", op.symbol());
    }
}

#[test]
fn constants_fold_through_unary_compare_select_and_cast() {
    let (v, f) = facts(|s| {
        let minus = s.constant(Const::I32(-1));
        let (zero, four) = (s.u32(0), s.u32(4));
        let bits = s.value("", U32, |out| ValueOp::Unary { out, op: UnaryOp::PopCount, a: minus });
        let none = s.value("", U32, |out| ValueOp::Unary { out, op: UnaryOp::TrailingZeros, a: zero });
        let less = s.compare("", CompareOp::Lt, zero, four);
        let chosen = s.value("", U32, |out| ValueOp::Select { out, cond: less, a: four, b: zero });
        let wide = s.value("", Type::scalar(Dtype::U64), |out| ValueOp::Cast { out, a: minus });
        let me = unknown(s);
        let maybe = s.binary("", BinaryOp::Add, me, four);
        vec![bits, none, less, chosen, wide, maybe]
    });
    let got: Vec<_> = v.iter().map(|&v| f.constant(v)).collect();
    assert_eq!(
        got,
        [
            Some(Const::U32(32)),
            Some(Const::U32(32)),
            Some(Const::Bool(true)),
            Some(Const::U32(4)),
            Some(Const::U64(u64::MAX)),
            None
        ]
    );
}

#[test]
fn divisibility_of_arithmetic() {
    let (v, f) = facts(|s| {
        let (me, six, eight, twelve) = (unknown(s), s.u32(6), s.u32(8), s.u32(12));
        let by12 = s.binary("", BinaryOp::Mul, me, twelve);
        let sum = s.binary("", BinaryOp::Add, by12, six);
        let product = s.binary("", BinaryOp::Mul, by12, eight);
        let quotient = s.binary("", BinaryOp::Div, product, eight);
        let third = s.binary("", BinaryOp::Div, product, six);
        let two = s.u32(2);
        let shifted = s.binary("", BinaryOp::Shr, product, two);
        let up = s.binary("", BinaryOp::Shl, me, two);
        let rest = s.binary("", BinaryOp::Rem, product, twelve);
        let masked = s.binary("", BinaryOp::And, me, eight);
        let wide = s.value("", Type::scalar(Dtype::U64), |out| ValueOp::Cast { out, a: product });
        vec![by12, sum, product, quotient, third, shifted, up, rest, masked, wide, me]
    });
    let got: Vec<_> = v.iter().map(|&v| f.multiple_of(v)).collect();
    assert_eq!(got, [4, 2, 32, 4, 1, 8, 4, 4, 8, 32, 1]);
}

#[test]
fn divisibility_of_counters_and_variables() {
    let (v, f) = facts(|s| {
        let (zero, two, sixteen, end) = (s.u32(0), s.u32(2), s.u32(16), s.u32(100));
        let at = s.var("at", sixteen);
        let still = s.var("still", sixteen);
        let mut seen = vec![];
        s.for_each("i", (zero, end, sixteen), |s, i| {
            let get = s.value("", U32, |out| ControlOp::VarGet { out, var: at });
            let kept = s.value("", U32, |out| ControlOp::VarGet { out, var: still });
            let next = s.binary("", BinaryOp::Add, get, two);
            s.op(ControlOp::VarSet { var: at, value: next });
            seen.extend([i, get, kept]);
        });
        seen
    });
    let got: Vec<_> = v.iter().map(|&v| f.multiple_of(v)).collect();
    assert_eq!(got, [16, 2, 16], "the assignment at the end of the loop reaches the read before it");
}

#[test]
fn results_of_if_take_what_both_arms_share() {
    let (v, f) = facts(|s| {
        let (me, four, twelve) = (unknown(s), s.u32(4), s.u32(12));
        let cond = s.compare("", CompareOp::Lt, me, four);
        let out = s.b.kernel.add_value(U32, None);
        let (then, otherwise) = (s.region(|_| {}), s.region(|_| {}));
        let eight = s.u32(8);
        s.op(ControlOp::If { cond, then, otherwise, results: vec![(out, eight, twelve)] });
        vec![out]
    });
    assert_eq!((f.multiple_of(v[0]), f.constant(v[0])), (4, None));
}

#[test]
fn an_exclusive_scan_keeps_divisibility_only_if_its_identity_is_zero() {
    let (v, f) = facts(|s| {
        let ty = Type::tile(Dtype::U32, 4);
        let lanes = s.value("", ty, |out| ValueOp::Arange { out });
        let eight = s.u32(8);
        let by = s.value("", ty, |out| ValueOp::Splat { out, a: eight });
        let a = s.binary("", BinaryOp::Mul, lanes, by);
        let mut scan = |op, exclusive| s.value("", ty, |out| ValueOp::Scan { out, op, a, exclusive });
        vec![scan(ReduceOp::Sum, true), scan(ReduceOp::Min, true), scan(ReduceOp::Min, false)]
    });
    let got: Vec<_> = v.iter().map(|&v| f.multiple_of(v)).collect();
    assert_eq!(got, [8, 1, 8]);
}

#[test]
fn definitions_and_uses() {
    let k = samples::exchange();
    let tree = Tree::of(&k);
    let table = DefUse::of(&k, &tree);
    let named = |n: &str| ValueId(k.values.iter().position(|v| v.name.as_deref() == Some(n)).unwrap() as u32);
    let Def::Op(epoch) = table.def(named("epoch")) else { panic!("an operation defines the epoch") };
    assert!(matches!(k.op(epoch).kind, OpKind::Value(ValueOp::Epoch { .. })));
    let kinds: Vec<_> = table.uses(named("epoch")).iter().map(|&o| k.op(o).kind.name()).collect();
    assert_eq!(kinds, ["&", "signal", "wait"]);
    assert!(matches!(table.def(named("from")), Def::Counter(_)));
    let OpKind::Comm(CommOp::Put(Put { parcel, .. })) =
        k.op(tree.in_order().iter().copied().find(|&o| k.op(o).kind.name() == "put").unwrap()).kind
    else {
        unreachable!()
    };
    let (Target::Rank(mask) | Target::Mask(mask)) = k.parcels[parcel.index()].target;
    assert_eq!(table.uses(mask).len(), 2, "the put and the signal use their parcel's target");
}

#[test]
fn dominance_follows_regions() {
    let k = samples::scatter();
    let tree = Tree::of(&k);
    let find = |name: &str| -> Vec<OpId> {
        tree.in_order().iter().copied().filter(|&o| k.op(o).kind.name() == name).collect()
    };
    let (wait_all, wait, masked) = (find("wait_all")[0], find("wait")[0], find("load_where")[0]);
    assert!(tree.dominates(wait_all, wait) && tree.dominates(wait, masked));
    assert!(!tree.dominates(masked, wait) && !tree.dominates(wait, wait));
    let (then, otherwise) = (find("min")[0], find("select")[0]);
    assert!(!tree.dominates(then, otherwise), "arms of one if");
    let store = find("store")[0];
    assert!(!tree.dominates(then, store), "an arm does not come before what follows the if on every path");
}

/// Banks of a kernel whose role does something with the epoch and a word of memory.
fn banks_of(build: impl FnOnce(&mut Sample, ValueId, ParamId)) -> u32 {
    let mut s = Sample::new("k");
    let word = s.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let state = s.b.param("state", ParamKind::Local, Dtype::U32, 8);
    let epoch = s.value("epoch", U32, |out| ValueOp::Epoch { out, word, advance: true });
    s.role("r", 1, |s| build(s, epoch, state));
    let k = s.finish();
    verify_structure(&k).unwrap();
    banks(&k)
}

#[test]
fn banks_are_the_remainders_of_numbers_of_launches() {
    let rest = |s: &mut Sample, v, op, n| {
        let n = s.u32(n);
        s.binary("", op, v, n)
    };
    let load = |s: &mut Sample, state, index| {
        let place = Place::Param(state);
        s.value("", U32, |out| MemoryOp::Load { out, place, index, receipt: None })
    };
    assert_eq!(banks_of(|_, _, _| ()), 1);
    assert_eq!(banks_of(|s, epoch, _| _ = rest(s, epoch, BinaryOp::And, 1)), 2);
    assert_eq!(banks_of(|s, epoch, _| _ = rest(s, epoch, BinaryOp::Rem, 5)), 5);
    // Every bank of two is used in two launches, and no mask of bits that are not the lowest is one.
    let halves = |s: &mut Sample, epoch, _| {
        let half = rest(s, epoch, BinaryOp::Shr, 1);
        rest(s, half, BinaryOp::Rem, 3);
        rest(s, epoch, BinaryOp::And, 8);
    };
    assert_eq!(banks_of(halves), 6);
    // Through a variable.
    let kept = |s: &mut Sample, epoch, _| {
        let var = s.var("bank", epoch);
        let held = s.value("", U32, |out| ControlOp::VarGet { out, var });
        rest(s, held, BinaryOp::Rem, 7);
    };
    assert_eq!(banks_of(kept), 7);
    // A counter of its own, which it counts up; what it only reads is none, and neither is a hash.
    let counts = |stored: bool| {
        move |s: &mut Sample, epoch, state| {
            let zero = s.u32(0);
            let old = load(s, state, zero);
            rest(s, old, BinaryOp::Rem, 4);
            rest(s, epoch, BinaryOp::Rem, 1009);
            if stored {
                let value = rest(s, old, BinaryOp::Add, 1);
                s.op(MemoryOp::Store { place: Place::Param(state), index: zero, value, mask: None });
            }
        }
    };
    assert_eq!((banks_of(counts(true)), banks_of(counts(false))), (4, 1));
}
