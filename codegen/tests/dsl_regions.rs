//! Regions of device control flow, as code that `#[kernel]` rewrote opens and closes them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::rt::{self, OpenRegion, RegionKind};
use peerwarp_codegen::dsl::{FromRaw, TraceMeta, trace};
use peerwarp_codegen::ir::{ControlOp, Kernel, Loc, MemoryOp, OpKind, ValueOp};

/// For what is made only to see what it does.
fn unused<T>(_: T) {}

fn run(body: impl FnOnce(&Ptr<u32>)) -> Result<Kernel, TraceError> {
    trace(TraceMeta::new("test", 2, 32, 4), |p| {
        let x = p.arg("x", 64);
        role("r", 1, |_| body(&x));
    })
}

/// An `if` with a branch that `body` traces.
#[track_caller]
fn when<R>(c: Val<bool>, body: impl FnOnce() -> R) -> R {
    let loc = Loc::caller();
    let cond = rt::use_value(c.to_raw(), loc);
    let region = OpenRegion::open(RegionKind::Then, loc);
    let result = body();
    let then = region.close();
    rt::push(ControlOp::If { cond, then, otherwise: Default::default(), results: vec![] }, loc);
    result
}

fn message(result: Result<Kernel, TraceError>) -> String {
    let e = result.unwrap_err();
    let notes: Vec<&str> = e.notes.iter().map(|n| n.1.as_str()).collect();
    format!("{} [{}] {}", e.message, notes.join("; "), e.help)
}

#[test]
fn what_a_branch_makes_does_not_leave_it() {
    let error = message(run(|x| {
        let v = when(x.get(0).eq_to(1), || x.get(1));
        x.set(2, v);
    }));
    assert!(error.starts_with("a value that escapes its branch of a device `if`"), "{error}");
    assert!(error.contains("[it is made here; the branch begins here]"), "{error}");
    assert!(error.contains("let the `if` yield it"), "{error}");

    let error = message(run(|x| {
        let loc = Loc::caller();
        let region = OpenRegion::open(RegionKind::For, loc);
        let v = when(x.get(0).eq_to(1), || x.get(1));
        let _ = region.close();
        x.set(2, v);
    }));
    assert!(error.starts_with("a value that escapes a device `for`"), "the outermost region: {error}");
    assert!(error.contains("before the loop"), "{error}");
}

#[test]
fn equal_values_are_shared_only_where_they_exist() {
    let kernel = run(|x| {
        let n = x.get(0);
        let outside = n * 3;
        when(n.eq_to(1), || x.set(1, n * 3 + (n * 5)));
        x.set(2, n * 5);
        x.set(3, outside);
    })
    .unwrap();
    let products = |region: &peerwarp_codegen::ir::Region| {
        let ops = region.ops.iter().map(|&op| &kernel.op(op).kind);
        ops.filter(|k| {
            matches!(k, OpKind::Value(ValueOp::Binary { op: peerwarp_codegen::ir::BinaryOp::Mul, .. }))
        })
        .count()
    };
    let body = &kernel.roles[0].body;
    let then = body.ops.iter().find_map(|&op| match &kernel.op(op).kind {
        OpKind::Control(ControlOp::If { then, .. }) => Some(then),
        _ => None,
    });
    assert_eq!(products(body), 2, "n * 3, and n * 5 again after the branch:\n{kernel}");
    assert_eq!(products(then.unwrap()), 1, "n * 5:\n{kernel}");
}

#[test]
fn a_signal_must_be_on_every_path_of_its_puts() {
    let error = trace(TraceMeta::new("test", 2, 32, 4), |p| {
        let x: Ptr<u32> = p.arg("x", 1);
        let inbox: Sym<u32> = p.arg("inbox", 64);
        let flag: Flags = p.arg("flag", 2);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("r", 1, |_| {
            let mut parcel = send_to(Peers::all());
            parcel.put(&inbox, 0, arange(64));
            when(x.get(0).eq_to(1), || parcel.signal(&flag, 0, epoch));
        });
    });
    let error = message(error);
    assert!(error.starts_with("a signal in a branch or loop that a put of its parcel is not in"), "{error}");
    assert!(error.contains("[the put is here]"), "{error}");
}

#[test]
fn a_put_in_a_branch_is_published_by_the_signal_after_it() {
    trace(TraceMeta::new("test", 2, 32, 4), |p| {
        let x: Ptr<u32> = p.arg("x", 1);
        let inbox: Sym<u32> = p.arg("inbox", 64);
        let flag: Flags = p.arg("flag", 2);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("r", 1, |_| {
            let mut parcel = send_to(Peers::all());
            when(x.get(0).eq_to(1), || parcel.put(&inbox, 0, arange(64)));
            parcel.signal(&flag, 0, epoch);
        });
    })
    .unwrap();
}

#[test]
fn a_region_that_return_leaves_is_reported() {
    fn early(x: &Ptr<u32>) -> Option<()> {
        let _region = OpenRegion::open(RegionKind::Then, Loc::caller());
        x.set(0, 1u32);
        None?;
        x.set(1, 1u32);
        Some(())
    }
    let error = message(run(|x| {
        early(x);
        x.set(2, 2u32);
    }));
    assert!(error.starts_with("`return` or `?` leaves its branch of a device `if`"), "{error}");
    assert!(error.contains("put the rest into an `else`"), "{error}");
}

#[test]
fn an_error_in_a_region_is_the_one_that_is_reported() {
    let error = message(run(|x| {
        let _region = OpenRegion::open(RegionKind::Then, Loc::caller());
        x.set(64, 1u32);
    }));
    assert!(error.starts_with("element 64 of `x`"), "{error}");
}

#[test]
fn device_control_flow_stands_in_roles() {
    let error = trace(TraceMeta::new("test", 2, 32, 4), |p| {
        let n: Val<u32> = p.arg("n", 1);
        when(n.eq_to(1), || ());
    });
    assert!(message(error).starts_with("a device `if` outside a role"));
}

#[test]
fn a_spliced_region_belongs_to_the_region_around_it() {
    let kernel = run(|x| {
        let region = OpenRegion::open(RegionKind::Condition, Loc::caller());
        let n = x.get(0);
        assert!(!region.is_pure());
        region.splice();
        x.set(1, n + 1);
    })
    .unwrap();
    let kinds: Vec<_> = kernel.roles[0].body.ops.iter().map(|&op| &kernel.op(op).kind).collect();
    let [
        ..,
        OpKind::Memory(MemoryOp::Load { .. }),
        OpKind::Value(ValueOp::Const { .. }),
        OpKind::Value(ValueOp::Binary { .. }),
        OpKind::Memory(MemoryOp::Store { .. }),
    ] = kinds[..]
    else {
        panic!("{kernel}")
    };
}

#[test]
fn pure_regions() {
    run(|x| {
        let n = x.get(0);
        let m = var(0u32);
        let pure = |body: &dyn Fn()| {
            let region = OpenRegion::open(RegionKind::Then, Loc::caller());
            body();
            let pure = region.is_pure();
            region.splice();
            pure
        };
        assert!(pure(&|| unused((n + 3).lt(7))));
        assert!(pure(&|| unused(n % 3 + &m)));
        assert!(!pure(&|| unused(n / (n + 1))), "it may divide by zero");
        assert!(!pure(&|| unused(x.get(3))));
        assert!(!pure(&|| x.set(3, 0u32)));
    })
    .unwrap();
}

#[test]
fn marks_see_the_branches_opened_since() {
    assert!(rt::mark().conditional_since().is_none(), "nothing is traced");
    run(|x| {
        let before = rt::mark();
        when(x.get(0).eq_to(1), || {
            let inside = rt::mark();
            assert_eq!(before.conditional_since().map(|c| c.0), Some(RegionKind::Then));
            assert!(inside.conditional_since().is_none());
        });
        assert!(before.conditional_since().is_none());
        let region = OpenRegion::open(RegionKind::For, Loc::caller());
        assert!(before.conditional_since().is_some_and(|c| c.0.is_loop()));
        let _ = region.close();
    })
    .unwrap();
}

#[test]
fn names_go_to_what_a_let_binds() {
    let kernel = run(|x| {
        let m = rt::mark();
        let n = x.get(0);
        rt::name(m, "n");
        let m = rt::mark();
        let again = n + 0;
        rt::name(m, "again");
        let m = rt::mark();
        let total = var(again);
        rt::name(m, "total");
        let m = rt::mark();
        x.set(n + 7, &total);
        rt::name(m, "unit");
        let m = rt::mark();
        let eight = bit(3);
        rt::name(m, "constant");
        x.set(0, eight.to_u32() + n);
        let m = rt::mark();
        rt::name(m, "nothing");
    })
    .unwrap();
    let names: Vec<_> = kernel.values.iter().filter_map(|v| v.name.as_deref()).collect();
    assert_eq!(names, ["n"], "{kernel}");
    assert_eq!(kernel.vars[0].name.as_deref(), Some("total"));
}

#[test]
fn a_value_of_the_typed_kind_comes_back() {
    run(|x| {
        let loc = Loc::caller();
        let ty = rt::type_of(x.get(0).to_raw(), loc);
        let fresh: Val<u32> = Val::from_raw(rt::fresh(ty, loc));
        assert_eq!(rt::known((fresh + 0).to_raw(), loc), None);
        assert!(rt::known(var(3u32).get().to_raw(), loc).is_none(), "a variable may change");
        assert_eq!(rt::open_regions().len(), 2, "the prologue and the role");
    })
    .unwrap();
}
