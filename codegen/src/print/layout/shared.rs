//! Shared memory of a block: what its arrays take, and what products, copies and reductions need beside them.

use std::collections::{BTreeSet, HashSet};

use super::{Fragments, Layouts};
use crate::family::Target;
use crate::ir::{
    BulkCopy, CommOp, Dot, Dtype, Kernel, Lines, MatrixOp, OpKind, ReduceLines, Region, SharedId, dot_columns,
};
use crate::print::analysis::Program;

/// Bytes that the shared memory of a block is aligned to.
pub(crate) fn shared_align(kernel: &Kernel, target: Target) -> u32 {
    // Matrix instructions let 16 bytes of eight rows change places, of 1024 bytes.
    if target.matrix_unit().reads_shared() && kernel.ops.iter().any(|op| product_room(&op.kind).is_some()) {
        1024
    } else {
        16
    }
}

/// Elements that a shared array takes on a target: of those that products go through, AMD's need room for one piece.
pub(crate) fn shared_len(kernel: &Kernel, id: SharedId, target: Target) -> u32 {
    let pieces = kernel.ops.iter().filter(|op| product_room(&op.kind) == Some(id)).filter_map(|op| {
        let (rows, columns) = op.kind.outs().first().and_then(|out| kernel.ty(*out).shape())?;
        Some((rows + columns) * dot_columns(kernel.shared[id.index()].dtype))
    });
    match (target, pieces.max()) {
        (Target::Hip(_), Some(one)) => one,
        (Target::Hip(_) | Target::Cuda(_), _) => kernel.shared[id.index()].len,
    }
}

/// The shared array by way of which an operation multiplies.
pub(crate) fn product_room(kind: &OpKind) -> Option<SharedId> {
    let OpKind::Matrix(MatrixOp::Dot(Dot { room, .. })) = *kind else { return None };
    Some(room)
}

/// The shared array that a copy goes through, on targets that copy in bulk.
pub(crate) fn copy_room(kind: &OpKind, target: Target) -> Option<SharedId> {
    let OpKind::Comm(CommOp::BulkCopy(BulkCopy { room, .. })) = *kind else { return None };
    target.copies_in_bulk().then_some(room)
}

/// The shared arrays that a region uses on a target.
pub(crate) fn shared_of(kernel: &Kernel, region: &Region, target: Target) -> BTreeSet<SharedId> {
    let mut found = BTreeSet::new();
    kernel.walk(region, &mut |_, op| {
        found.extend(op.kind.accesses().into_iter().filter_map(|a| a.place.shared()));
        found.extend(copy_room(&op.kind, target));
        found.extend(product_room(&op.kind));
    });
    found
}

/// How many warps have parts of a line, one after the other.
fn parts(fragments: Fragments, lines: Lines) -> u32 {
    match lines {
        Lines::Rows => fragments.across,
        Lines::Columns => fragments.down,
    }
}

/// Whether warps meet in a reduction: where several have parts of a line.
pub(crate) fn warps_meet(layouts: &Layouts, reduce: &ReduceLines) -> bool {
    layouts.of(reduce.a).fragments.is_some_and(|fragments| parts(fragments, reduce.lines) > 1)
}

/// Bytes of shared memory by way of which warps hand each other their parts of lines, beside a block's arrays: each kind of reduction
/// has its own.
pub(crate) fn lines_bytes(p: &Program, layouts: &Layouts) -> u64 {
    let kernel = p.kernel;
    let mut kinds = HashSet::new();
    for &id in p.ops() {
        let OpKind::Matrix(MatrixOp::ReduceLines(reduce)) = &kernel.op(id).kind else { continue };
        let lanes = p.lanes(id);
        if let Some(fragments) = layouts.of(reduce.a).fragments.filter(|_| warps_meet(layouts, reduce)) {
            kinds.insert((reduce.op, reduce.lines, fragments, lanes));
        }
    }
    let bytes = |(_, lines, fragments, lanes): (_, Lines, Fragments, u32)| {
        let all = if lines == Lines::Rows { fragments.rows } else { fragments.columns };
        let groups = (kernel.block_threads() / lanes).max(1);
        u64::from(groups * parts(fragments, lines) * all * Dtype::F32.bytes())
    };
    kinds.into_iter().map(bytes).sum()
}
