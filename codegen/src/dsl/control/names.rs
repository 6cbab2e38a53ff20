//! Names of values for emitted source.

use crate::dsl::trace::{
    Nameable, Trace,
    rt::{self, Mark},
    tracer::try_current,
};
use crate::dsl::values::FromRaw;
use crate::ir::{ControlOp, OpKind};

/// Names what a `let` bound. One name goes to what was yielded last since the mark; several go to the results of a
/// device `if`, when that is what came last.
pub fn name(mark: Mark, names: &[&str]) {
    if let [name] = names {
        return rt::name(mark, name);
    }
    try_current(|t| {
        if mark.at.map(|at| at.0) == Some(t.id) && t.yielded.len() >= mark.made + names.len() {
            name_results(t, names);
        }
    });
}

/// Names what `value` bound, of which the mark was taken before.
pub fn named<T>(mark: Mark, value: T, name: &str) -> T {
    rt::name(mark, name);
    value
}

fn name_results(t: &mut Trace, names: &[&str]) {
    let last = t.builder.open_ops(t.builder.depth() - 1).last().copied();
    let Some(OpKind::Control(ControlOp::If { results, .. })) = last.map(|op| &t.builder.kernel.op(op).kind)
    else {
        return;
    };
    let outs: Vec<_> = results.iter().map(|r| r.0).collect();
    let new = &t.yielded[t.yielded.len() - names.len()..];
    let same = outs.len() == names.len()
        && new.iter().zip(&outs).all(|(n, out)| matches!(n, Nameable::Value(v) if v == out));
    if !same {
        return;
    }
    for (out, name) in outs.iter().zip(names).filter(|(_, name)| !name.is_empty()) {
        t.builder.kernel.values[out.index()].name.get_or_insert_with(|| name.to_string());
    }
}

/// Names a value that came in through a parameter, unless it has a name.
pub fn name_value<V: FromRaw>(value: V, name: &str) {
    let raw = value.to_raw();
    try_current(|t| {
        if t.id == raw.trace {
            t.builder.kernel.values[raw.id.index()].name.get_or_insert_with(|| name.into());
        }
    });
}
