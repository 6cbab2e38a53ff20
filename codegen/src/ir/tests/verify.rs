mod declarations;
mod protocol;
mod scopes;
mod types;

use crate::ir::samples::{self, Sample};
use crate::ir::*;

/// Ids that minimal kernels use.
#[derive(Clone, Copy)]
struct P {
    x: ParamId,
    inbox: ParamId,
    flag: ParamId,
    word: ParamId,
    n: ParamId,
    epoch: ValueId,
}

const U32: Type = Type::scalar(Dtype::U32);
const U64: Type = Type::scalar(Dtype::U64);
const I32: Type = Type::scalar(Dtype::I32);
const F32: Type = Type::scalar(Dtype::F32);
const BOOL: Type = Type::scalar(Dtype::Bool);

fn tile(dtype: Dtype) -> Type {
    Type::tile(dtype, 64)
}

/// A kernel of one role with one parameter of each kind.
fn with_role(build: impl FnOnce(&mut Sample, P)) -> Kernel {
    let (mut s, p) = start();
    s.role("r", 1, |s| build(s, p));
    s.finish()
}

fn start() -> (Sample, P) {
    let mut s = Sample::new("k");
    let x = s.b.param("x", ParamKind::Local, Dtype::F32, 64);
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::F32, 64);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 4);
    let word = s.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let n = s.b.param("n", ParamKind::Scalar, Dtype::U32, 1);
    let epoch = s.value("epoch", U32, |out| ValueOp::Epoch { out, word, advance: true });
    (s, P { x, inbox, flag, word, n, epoch })
}

fn problems(k: &Kernel) -> Vec<Problem> {
    verify(k.clone()).err().map_or(vec![], |e| e.0).into_iter().map(|e| e.problem).collect()
}

/// Expects exactly one error and returns it as text.
#[track_caller]
fn only(k: &Kernel) -> String {
    match verify(k.clone()).err().map_or(vec![], |e| e.0).as_slice() {
        [one] => one.to_string(),
        other => panic!("expected one error, got {other:#?}\n{k}"),
    }
}

/// Expects exactly one error in a role built by `build`.
#[track_caller]
fn role_error(build: impl FnOnce(&mut Sample, P)) -> String {
    only(&with_role(build))
}

/// As [`role_error`], for an error that a planted protocol bug may have: the structure is sound.
#[track_caller]
fn soft_error(build: impl FnOnce(&mut Sample, P)) -> String {
    let k = with_role(build);
    verify_structure(&k).expect("the structure is sound");
    only(&k)
}

fn load(s: &mut Sample, p: P, ty: Type) -> ValueId {
    let index = s.u32(0);
    s.value("got", ty, |out| MemoryOp::Load { out, place: Place::Param(p.x), index, receipt: None })
}

fn rank(s: &mut Sample) -> ValueId {
    s.value("me", U32, |out| ValueOp::Rank { out })
}

#[test]
fn the_samples_verify() {
    for k in [samples::exchange(), samples::scatter(), with_role(|_, _| {})] {
        assert!(verify(k.clone()).is_ok(), "{k}");
    }
}

#[test]
fn errors_carry_the_line() {
    let k = with_role(|s, _| {
        s.op(ControlOp::Break { depth: 0 });
    });
    let [error] = verify(k).unwrap_err().0.try_into().unwrap();
    assert_eq!((error.loc.file, error.loc.line), ("src/sample.rs", 4));
    assert!(error.to_string().starts_with("src/sample.rs:4: `break`"), "{error}");
}

#[test]
fn several_errors_are_all_reported() {
    let k = with_role(|s, _| {
        s.op(ControlOp::Break { depth: 0 });
        s.op(ControlOp::Continue { depth: 0 });
    });
    assert_eq!(problems(&k).len(), 2);
}
