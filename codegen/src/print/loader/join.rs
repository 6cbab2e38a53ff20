//! Products along the same rows, one block of columns after the other, as where each has scales: the loader brings them as one.

use crate::ir::{
    BinaryOp, Const, ControlOp, Dot, Kernel, MatrixOp, MemoryOp, OpId, OpKind, Region, Rows, ValueOp,
    dot_columns, mutate::constant,
};
use crate::print::analysis::Program;

/// Joins products of a loader's region that begin where the one before ends, in the same rows of both matrices. So their pieces come without
/// a stop, and those of the right operand while the left one's are awaited.
pub(super) fn joined(kernel: &mut Kernel, p: &Program, region: Region) -> Region {
    let (mut kept, mut last) = (vec![], None::<Run>);
    for id in region.ops {
        if let Some(run) = &mut last
            && let Some(end) = run.goes_on(kernel, p, id)
        {
            run.end = end;
            let count = u32::try_from(end - run.start).expect("a matrix has less than 2^32 columns");
            let count = constant(kernel, Const::U32(count));
            if let OpKind::Matrix(MatrixOp::Dot(dot)) = &mut kernel.ops[run.first.index()].kind {
                dot.count = count;
            }
            continue;
        }
        let mut kind = kernel.op(id).kind.clone();
        if let OpKind::Matrix(MatrixOp::Dot(dot)) = &kind {
            last = columns(p, dot).map(|[start, end]| Run { first: id, start, end });
        } else if !is_transparent(&kind) {
            last = None;
        }
        for inner in kind.regions_mut() {
            *inner = joined(kernel, p, std::mem::take(inner));
        }
        kernel.ops[id.index()].kind = kind;
        kept.push(id);
    }
    Region { ops: kept }
}

/// Products that are one.
struct Run {
    first: OpId,
    /// The first column of both operands, and the one behind the last.
    start: i128,
    end: i128,
}

impl Run {
    /// Where it ends with an operation, which is another product, or a loop of nothing but such.
    fn goes_on(&self, kernel: &Kernel, p: &Program, id: OpId) -> Option<i128> {
        let first = product(kernel, self.first)?;
        let columns_each = dot_columns(kernel.params[first.a.place.param()?.index()].dtype);
        if (self.end - self.start) % i128::from(columns_each) != 0 {
            return None;
        }
        if let Some(next) = product(kernel, id) {
            let [start, end] = columns(p, next)?;
            return (start == self.end && same_rows(first, next)).then_some(end);
        }
        let OpKind::Control(ControlOp::For { var, start, end, step, body }) = &kernel.op(id).kind else {
            return None;
        };
        let mut products = body.ops.iter().filter(|id| !is_transparent(&kernel.op(**id).kind));
        let next = product(kernel, *products.next()?).filter(|next| same_rows(first, next))?;
        let OpKind::Value(ValueOp::Binary { op: BinaryOp::Mul, a, b, .. }) = p.def(next.from)? else {
            return None;
        };
        let (each, count, turns) = (p.int(*b)?, p.int(next.count)?, [p.int(*start)?, p.int(*end)?]);
        let fits = a == var && each == count && p.int(*step)? == 1 && turns[0] * each == self.end;
        let whole = count % i128::from(columns_each) == 0 && turns[0] <= turns[1];
        (products.next().is_none() && fits && whole).then_some(turns[1] * each)
    }
}

fn product(kernel: &Kernel, id: OpId) -> Option<&Dot> {
    if let OpKind::Matrix(MatrixOp::Dot(dot)) = &kernel.op(id).kind { Some(dot) } else { None }
}

/// The columns that a product is over, if they are known.
fn columns(p: &Program, dot: &Dot) -> Option<[i128; 2]> {
    let start = p.int(dot.from)?;
    Some([start, start + p.int(dot.count)?])
}

fn same_rows(one: &Dot, other: &Dot) -> bool {
    let plain = |rows: &Rows| rows.list.is_none() && rows.scales.is_none();
    [one.a, one.b] == [other.a, other.b] && plain(&one.a) && plain(&one.b)
}

/// Whether an operation brings nothing, and waits for nothing.
fn is_transparent(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Value(_) | OpKind::Memory(MemoryOp::Load { .. }))
}
