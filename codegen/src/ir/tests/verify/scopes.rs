use insta::assert_snapshot;

use super::*;

fn if_true(s: &mut Sample, then: impl FnOnce(&mut Sample)) {
    let cond = s.constant(Const::Bool(true));
    let then = s.region(then);
    s.op(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] });
}

fn split(s: &mut Sample, warps: u32, body: impl FnOnce(&mut Sample)) {
    let body = s.region(body);
    s.op(ControlOp::Split { warps, body });
}

fn bool_true(s: &mut Sample) -> ValueId {
    s.constant(Const::Bool(true))
}

#[test]
fn defined_twice() {
    let twice = role_error(|s, _| {
        let me = rank(s);
        s.op(ValueOp::Rank { out: me });
    });
    assert_snapshot!(twice, @"src/sample.rs:5: %me is defined here and at src/sample.rs:4; a value is defined once");
    let counter = role_error(|s, _| {
        let (zero, four, one) = (s.u32(0), s.u32(4), s.u32(1));
        s.op(ControlOp::For { var: four, start: zero, end: four, step: one, body: Region::default() });
    });
    assert!(counter.contains("is defined here and at"), "{counter}");
}

#[test]
fn used_before_or_without_definition() {
    let never = role_error(|s, p| {
        let ghost = s.b.kernel.add_value(U32, Some("ghost".into()));
        s.binary("", BinaryOp::Add, p.epoch, ghost);
    });
    assert_snapshot!(never, @"src/sample.rs:4: %ghost: u32 is not defined here, or anywhere");
    let early = role_error(|s, p| {
        let late = s.b.kernel.add_value(U32, Some("late".into()));
        s.binary("", BinaryOp::Add, p.epoch, late);
        s.op(ValueOp::Rank { out: late });
    });
    assert_snapshot!(early, @"src/sample.rs:4: %late: u32 is not defined here; that is done at src/sample.rs:5, which does not come before this on every path, or is in another branch, loop, split or role");
    let cond = role_error(|s, _| {
        let ghost = s.b.kernel.add_value(BOOL, Some("ghost".into()));
        s.op(ControlOp::If {
            cond: ghost,
            then: Region::default(),
            otherwise: Region::default(),
            results: vec![],
        });
    });
    assert!(cond.contains("%ghost: bool is not defined here"), "{cond}");
    let target = role_error(|s, p| {
        let ghost = s.b.kernel.add_value(U32, Some("ghost".into()));
        let parcel = s.parcel(Target::Rank(ghost));
        let zero = s.u32(0);
        s.op(CommOp::Signal(Signal {
            parcel,
            flag: p.flag,
            index: zero,
            value: p.epoch,
            order: SignalOrder::Release,
        }));
    });
    assert!(target.contains("%ghost: u32 is not defined here"), "{target}");
}

#[test]
fn values_do_not_leave_their_region() {
    let arm = role_error(|s, _| {
        let mut inner = ValueId(0);
        if_true(s, |s| inner = rank(s));
        s.binary("", BinaryOp::Add, inner, inner);
    });
    assert!(arm.contains("%me: u32 is not defined here; that is done at"), "{arm}");
    let counter = with_role(|s, _| {
        let (zero, four, one) = (s.u32(0), s.u32(4), s.u32(1));
        let mut counter = ValueId(0);
        s.for_each("i", (zero, four, one), |_, i| counter = i);
        s.value("", tile(Dtype::U32), |out| ValueOp::Splat { out, a: counter });
    });
    assert!(only(&counter).contains("%i: u32 is not defined here"));
    let from_split = role_error(|s, _| {
        let mut inner = ValueId(0);
        split(s, 1, |s| inner = rank(s));
        s.value("", tile(Dtype::U32), |out| ValueOp::Splat { out, a: inner });
    });
    assert!(from_split.contains("%me: u32 is not defined here"), "{from_split}");
}

#[test]
fn values_do_not_leave_their_role() {
    let (mut s, _) = start();
    let mut inner = ValueId(0);
    s.role("a", 1, |s| inner = rank(s));
    s.role("b", 1, |s| {
        s.value("", tile(Dtype::U32), |out| ValueOp::Splat { out, a: inner });
    });
    assert!(only(&s.finish()).contains("%me: u32 is not defined here"));
}

#[test]
fn if_results_are_visible_in_their_arms_only() {
    let k = with_role(|s, p| {
        let cond = bool_true(s);
        let mut inner = ValueId(0);
        let then = s.region(|s| inner = rank(s));
        let otherwise = s.region(|_| {});
        let out = s.b.kernel.add_value(U32, Some("chosen".into()));
        s.op(ControlOp::If { cond, then, otherwise, results: vec![(out, inner, p.epoch)] });
        s.value("", tile(Dtype::U32), |o| OpKind::Value(ValueOp::Splat { out: o, a: out }));
    });
    assert_eq!(problems(&k), []);
    for first in [true, false] {
        let wrong = role_error(|s, p| {
            let cond = bool_true(s);
            let mut inner = ValueId(0);
            let (then, otherwise) = match first {
                true => (s.region(|_| {}), s.region(|s| inner = rank(s))),
                false => (s.region(|s| inner = rank(s)), s.region(|_| {})),
            };
            let out = s.b.kernel.add_value(U32, None);
            let results = vec![if first { (out, inner, p.epoch) } else { (out, p.epoch, inner) }];
            s.op(ControlOp::If { cond, then, otherwise, results });
        });
        assert!(wrong.contains("%me: u32 is not defined here"), "{wrong}");
    }
}

#[test]
fn while_conditions_come_from_the_header() {
    let outside = role_error(|s, _| {
        let mut cond = ValueId(0);
        let header = s.region(|_| {});
        let body = s.region(|s| cond = bool_true(s));
        s.op(ControlOp::While { header, cond, body });
    });
    assert!(outside.contains("true: bool is not defined here"), "{outside}");
    let in_body = role_error(|s, _| {
        let (mut cond, mut inner) = (ValueId(0), ValueId(0));
        let header = s.region(|s| {
            inner = rank(s);
            cond = bool_true(s);
        });
        let body = s.region(|s| {
            s.binary("", BinaryOp::Add, inner, inner);
        });
        s.op(ControlOp::While { header, cond, body });
    });
    assert!(in_body.contains("%me: u32 is not defined here"), "{in_body}");
}

#[test]
fn variables() {
    let twice = role_error(|s, p| {
        let var = s.var("v", p.epoch);
        s.op(ControlOp::VarDecl { var, init: p.epoch });
    });
    assert_snapshot!(twice, @"src/sample.rs:5: variable $v is declared here and at src/sample.rs:4");
    let outside = role_error(|s, p| {
        let mut var = VarId(0);
        if_true(s, |s| var = s.var("v", p.epoch));
        s.op(ControlOp::VarSet { var, value: p.epoch });
    });
    assert_snapshot!(outside, @"src/sample.rs:7: variable $v is not declared here; that is done at src/sample.rs:5, which does not come before this on every path, or is in another branch, loop, split or role");
    let never = role_error(|s, _| {
        let loc = s.loc();
        let var = s.b.var(U32, loc);
        s.value("", U32, |out| ControlOp::VarGet { out, var });
    });
    assert_snapshot!(never, @"src/sample.rs:5: variable $0 is not declared here, or anywhere");
    let in_split = role_error(|s, p| {
        let var = s.var("v", p.epoch);
        split(s, 1, |s| {
            s.value("", U32, |out| ControlOp::VarGet { out, var });
            s.op(ControlOp::VarSet { var, value: p.epoch });
        });
    });
    assert_snapshot!(in_split, @"src/sample.rs:6: variable $v is declared outside this `split` and assigned in it; each group would have its own value");
}

#[test]
fn tiles_do_not_enter_a_split() {
    let value = role_error(|s, p| {
        let row = load(s, p, tile(Dtype::F32));
        split(s, 1, |s| {
            s.value("", F32, |out| ValueOp::Reduce { out, op: ReduceOp::Sum, a: row });
        });
    });
    assert_snapshot!(value, @"src/sample.rs:6: tile %got: f32[64] is spread over the block and used by a group inside `split`; store it to shared memory, or load it inside");
    let variable = role_error(|s, p| {
        let row = load(s, p, tile(Dtype::F32));
        let var = s.var("acc", row);
        split(s, 1, |s| {
            s.value("", tile(Dtype::F32), |out| ControlOp::VarGet { out, var });
        });
    });
    assert_snapshot!(variable, @"src/sample.rs:7: tile $acc is spread over the block and used by a group inside `split`; store it to shared memory, or load it inside");
    let inside = with_role(|s, p| {
        split(s, 1, |s| {
            let row = load(s, p, tile(Dtype::F32));
            s.value("", F32, |out| ValueOp::Reduce { out, op: ReduceOp::Sum, a: row });
        });
    });
    assert_eq!(problems(&inside), []);
}

#[test]
fn the_prologue_is_scalar_and_silent() {
    let in_prologue = |build: &dyn Fn(&mut Sample, P)| {
        let (mut s, p) = start();
        build(&mut s, p);
        s.role("r", 1, |_| {});
        only(&s.finish())
    };
    assert_snapshot!(in_prologue(&|s, p| _ = load(s, p, F32)), @"src/sample.rs:4: `load` in the prologue; only constants, rank, scalar parameters, epochs and scalar arithmetic go there");
    let splat = in_prologue(&|s, p| {
        s.value("", tile(Dtype::U32), |out| ValueOp::Splat { out, a: p.epoch });
    });
    assert!(splat.contains("`splat` in the prologue"), "{splat}");
    let group = in_prologue(&|s, _| {
        s.value("", U32, |out| ValueOp::GroupIndex { out });
    });
    assert!(group.contains("`group_index` in the prologue"), "{group}");
    let signal = in_prologue(&|s, p| {
        let zero = s.u32(0);
        let receipt = s.receipt(p.flag);
        s.op(CommOp::Wait(Wait { receipt, flag: p.flag, index: zero, from: zero, value: p.epoch }));
    });
    assert!(signal.contains("`wait` in the prologue"), "{signal}");
}

#[test]
fn epochs() {
    let late = role_error(|s, _| {
        let word = s.b.param("other", ParamKind::EpochWord, Dtype::U32, 1);
        s.value("", U32, |out| ValueOp::Epoch { out, word, advance: true });
    });
    assert_snapshot!(late, @"src/sample.rs:4: an epoch is read inside a role; read it once, before the roles");
    let (mut s, p) = start();
    s.value("", U32, |out| ValueOp::Epoch { out, word: p.word, advance: false });
    s.role("r", 1, |_| {});
    assert_snapshot!(only(&s.finish()), @"src/sample.rs:3: epoch word `epoch` is read here and at src/sample.rs:2; read it once");
}

#[test]
fn breaks() {
    let outside = role_error(|s, _| {
        s.op(ControlOp::Break { depth: 0 });
    });
    assert_snapshot!(outside, @"src/sample.rs:4: `break` leaves loop 1, counting outwards; there are 0 up to its role, split or loop condition");
    let in_loop = |depth| {
        with_role(|s, _| {
            let (zero, four, one) = (s.u32(0), s.u32(4), s.u32(1));
            s.for_each("i", (zero, four, one), |s, _| {
                s.op(ControlOp::Continue { depth });
            });
        })
    };
    assert_eq!(problems(&in_loop(0)), []);
    assert_snapshot!(only(&in_loop(1)), @"src/sample.rs:8: `continue` leaves loop 2, counting outwards; there are 1 up to its role, split or loop condition");
    let across_split = role_error(|s, _| {
        let (zero, four, one) = (s.u32(0), s.u32(4), s.u32(1));
        s.for_each("i", (zero, four, one), |s, _| {
            split(s, 1, |s| {
                s.op(ControlOp::Break { depth: 0 });
            });
        });
    });
    assert!(across_split.contains("there are 0 up to"), "{across_split}");
    let in_header = role_error(|s, _| {
        let mut cond = ValueId(0);
        let header = s.region(|s| {
            s.op(ControlOp::Break { depth: 0 });
            cond = bool_true(s);
        });
        let body = s.region(|_| {});
        s.op(ControlOp::While { header, cond, body });
    });
    assert!(in_header.contains("there are 0 up to"), "{in_header}");
}

#[test]
fn splits() {
    let nested = role_error(|s, _| split(s, 2, |s| split(s, 1, |_| {})));
    assert_snapshot!(nested, @"src/sample.rs:4: `split` inside `split`");
    let uneven = role_error(|s, _| split(s, 3, |_| {}));
    assert_snapshot!(uneven, @"src/sample.rs:4: `split(3)`: groups of 3 warps do not divide a block of 2");
    let none = role_error(|s, _| split(s, 0, |_| {}));
    assert_snapshot!(none, @"src/sample.rs:4: `split(0)`: groups of 0 warps do not divide a block of 2");
}

#[test]
fn shared_arrays_belong_to_the_split_they_are_declared_in() {
    let used = |copies: u32, warps: Option<u32>| {
        with_role(|s, _| {
            let loc = s.loc();
            let place = Place::Shared(s.b.shared("a", Dtype::U32, 4, copies, loc));
            let touch = |s: &mut Sample| {
                let index = s.u32(0);
                s.op(MemoryOp::Store { place, index, value: index, mask: None });
            };
            match warps {
                Some(w) => split(s, w, touch),
                None => touch(s),
            }
        })
    };
    for (copies, warps) in [(1, None), (2, Some(1)), (1, Some(2)), (1, Some(1))] {
        assert_eq!(problems(&used(copies, warps)), [], "{copies} copies, split {warps:?}");
    }
    assert_snapshot!(only(&used(2, None)), @"src/sample.rs:6: shared array `a` is one a group of a split into 2; here 1 groups share a block");
    assert_snapshot!(only(&used(2, Some(2))), @"src/sample.rs:6: shared array `a` is one a group of a split into 2; here 1 groups share a block");
}
