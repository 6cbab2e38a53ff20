//! Splats for each of their uses.

use crate::ir::{
    Kernel, OpKind, ValueOp,
    analysis::{DefUse, Tree},
    mutate::insert_before,
};

/// The kernel with a splat of its own for every operation that reads one. A splat is written out where it is used, so it
/// says nothing about how the tiles that it meets are spread over lanes; as one value, which equal splats are, it would
/// make them all be spread in the same way.
pub(crate) fn apart(kernel: &Kernel) -> Kernel {
    let tree = Tree::of(kernel);
    let uses = DefUse::of(kernel, &tree);
    let mut apart = kernel.clone();
    for &id in tree.in_order() {
        let OpKind::Value(ValueOp::Splat { out, a }) = kernel.op(id).kind else { continue };
        for user in uses.uses(out).iter().skip(1) {
            let copy = apart.add_value(kernel.ty(out), None);
            insert_before(&mut apart, id, ValueOp::Splat { out: copy, a });
            let operands = apart.ops[user.index()].kind.operands_mut();
            operands.into_iter().filter(|v| **v == out).for_each(|v| *v = copy);
        }
    }
    apart
}
