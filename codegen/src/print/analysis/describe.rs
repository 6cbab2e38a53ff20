//! Names for values that the author left unnamed, from what they are.

use super::Program;
use crate::ir::{
    BinaryOp, CommOp, ControlOp, Deinterleave, Lines, LoadMatrix, LoadRow, MatrixOp, MemoryOp, OpKind,
    ParamKind, Place, ReduceLines, ReduceOp, ValueId, ValueOp,
};

/// Operations between an index and what is named after it.
const MOST_STEPS: u32 = 5;

/// A name that says what a value is.
pub(crate) fn value(p: &Program, v: ValueId) -> String {
    match p.def(v) {
        Some(OpKind::Value(op)) => computed(p, op, v),
        Some(OpKind::Memory(op)) => {
            let what = match op {
                MemoryOp::Load { .. } | MemoryOp::LoadMasked { .. } if p.kernel.ty(v).is_tile() => "tile",
                MemoryOp::Load { .. } | MemoryOp::LoadMasked { .. } => "value",
                MemoryOp::Gather { .. } => "gathered",
                MemoryOp::Atomic { .. } | MemoryOp::Tally { .. } => "before",
                MemoryOp::Ticket { .. } => return "is_last".into(),
                MemoryOp::Store { .. } | MemoryOp::Scatter { .. } => "value",
            };
            format!("{}_{what}", buffer(p, op.accessed().place))
        }
        Some(OpKind::Matrix(op)) => match op {
            MatrixOp::Dot(_) => "product".into(),
            MatrixOp::LoadMatrix(LoadMatrix { at, .. }) => format!("{}_part", buffer(p, at.place)),
            MatrixOp::LoadRow(LoadRow { lines: Lines::Rows, place, .. }) => {
                format!("{}_row", buffer(p, *place))
            }
            MatrixOp::LoadRow(LoadRow { lines: Lines::Columns, place, .. }) => {
                format!("{}_column", buffer(p, *place))
            }
            MatrixOp::ReduceLines(ReduceLines { op, lines: Lines::Rows, .. }) => format!("row_{}", op.name()),
            MatrixOp::ReduceLines(ReduceLines { op, lines: Lines::Columns, .. }) => {
                format!("column_{}", op.name())
            }
            MatrixOp::Deinterleave(Deinterleave { odd, .. }) => {
                format!("{}_blocks", if *odd { "odd" } else { "even" })
            }
            MatrixOp::StoreMatrix(_) => "value".into(),
        },
        Some(OpKind::Comm(op)) => match op {
            CommOp::ReceiveMessages(op) => {
                let what = if op.transport.traits().takes { "taken" } else { "read" };
                format!("{}_{what}", p.kernel.params[op.buffer.index()].name)
            }
            any!(puts, signals, waits, far) | CommOp::SendMessages(_) => used(p, v, "value"),
        },
        Some(OpKind::Control(op)) => match op {
            ControlOp::For { .. } => "i".into(),
            ControlOp::If { .. } => "chosen".into(),
            ControlOp::VarGet { var, .. } => match &p.kernel.vars[var.index()].name {
                Some(n) => format!("{n}_now"),
                None => "state_now".into(),
            },
            ControlOp::While { .. }
            | ControlOp::Break { .. }
            | ControlOp::Continue { .. }
            | ControlOp::VarDecl { .. }
            | ControlOp::VarSet { .. }
            | ControlOp::Split { .. } => used(p, v, "value"),
        },
        None => "value".into(),
    }
}

fn computed(p: &Program, op: &ValueOp, v: ValueId) -> String {
    match op {
        ValueOp::GroupIndex { .. } => "group_index".into(),
        ValueOp::Rank { .. } => "rank".into(),
        ValueOp::Node { .. } => "node".into(),
        ValueOp::Active { .. } => "active".into(),
        ValueOp::Epoch { word, .. } => {
            let name = &p.kernel.params[word.index()].name;
            if p.kernel.params.iter().filter(|q| q.kind == ParamKind::EpochWord).count() > 1 {
                format!("{name}_now")
            } else {
                "epoch".into()
            }
        }
        ValueOp::ScalarParam { param, .. } => p.kernel.params[param.index()].name.clone(),
        ValueOp::Reduce { op, a, .. } => {
            let (with, alone) = match op {
                ReduceOp::Sum => ("sum_of", "sum"),
                ReduceOp::Min => ("smallest", "smallest"),
                ReduceOp::Max => ("largest", "largest"),
                ReduceOp::And => ("all", "all_of"),
                ReduceOp::Or => ("any", "any_of"),
            };
            p.name(*a).map_or(alone.into(), |name| format!("{with}_{name}"))
        }
        ValueOp::Scan { .. } => "prefix".into(),
        ValueOp::Compare { .. } => "holds".into(),
        ValueOp::Select { .. } => "chosen".into(),
        ValueOp::Cast { out, a } | ValueOp::Bitcast { out, a } => match p.name(*a) {
            Some(of) => format!("{of}_{}", p.kernel.ty(*out).dtype),
            None => used(p, v, &format!("as_{}", p.kernel.ty(*out).dtype)),
        },
        ValueOp::Binary { op: BinaryOp::And, a, b, .. } if is_epoch(p, *a) && p.int(*b) == Some(1) => {
            "parity".into()
        }
        ValueOp::Binary { op: BinaryOp::Shl, .. } => used(p, v, "bit"),
        ValueOp::Binary { op: BinaryOp::Rem, .. } => used(p, v, "remainder"),
        ValueOp::Const { .. }
        | ValueOp::Binary { .. }
        | ValueOp::Unary { .. }
        | ValueOp::Fma { .. }
        | ValueOp::Splat { .. }
        | ValueOp::Arange { .. } => used(p, v, "value"),
    }
}

/// What a value is used for, if that says something, else `plain`.
fn used(p: &Program, v: ValueId, plain: &str) -> String {
    use_of(p, v).unwrap_or_else(|| plain.into())
}

fn is_epoch(p: &Program, v: ValueId) -> bool {
    matches!(p.def(v), Some(OpKind::Value(ValueOp::Epoch { .. })))
}

/// What a computed value is used for: an index is named after what it indexes, and so is what something is added to for one, or what
/// is scaled to one as the number of a row.
fn use_of(p: &Program, v: ValueId) -> Option<String> {
    let index = |v| indexed(p, v).map(|place| format!("{}_index", buffer(p, place)));
    let part = || part_of(p, v, MOST_STEPS).map(|(place, what)| format!("{}_{what}", buffer(p, place)));
    index(v).or_else(part)
}

/// What a value is an index of.
fn indexed(p: &Program, v: ValueId) -> Option<Place> {
    p.users(v).iter().find_map(|&u| {
        let kind = &p.kernel.op(u).kind;
        let accesses = if names_index(kind) { kind.accesses() } else { vec![] };
        accesses.into_iter().find(|a| a.index == Some(v)).map(|a| a.place)
    })
}

/// What a value is a part of the index of, after so many operations at most, and which part.
fn part_of(p: &Program, v: ValueId, most: u32) -> Option<(Place, &'static str)> {
    let most = most.checked_sub(1)?;
    p.users(v).iter().find_map(|&u| {
        let OpKind::Value(op) = &p.kernel.op(u).kind else { return None };
        let (out, part) = match op {
            ValueOp::Binary { op: BinaryOp::Add, out, .. } | ValueOp::Splat { out, .. } => (*out, "start"),
            ValueOp::Cast { out, .. } => (*out, "start"),
            ValueOp::Binary { op: BinaryOp::Mul, out, b, .. } if p.int(*b).is_some() => (*out, "row"),
            any!(given, pointwise, reductions)
            | ValueOp::Binary { .. }
            | ValueOp::Select { .. }
            | ValueOp::Bitcast { .. }
            | ValueOp::Arange { .. } => return None,
        };
        let (place, further) = match indexed(p, out) {
            Some(place) => (place, "start"),
            None => part_of(p, out, most)?,
        };
        Some((place, if part == "row" || further == "row" { "row" } else { "start" }))
    })
}

/// Whether an index of an operation is named after the buffer.
fn names_index(kind: &OpKind) -> bool {
    match kind {
        OpKind::Memory(_) | OpKind::Matrix(_) => true,
        OpKind::Comm(op) => match op {
            any!(puts, signals, far) | CommOp::Wait(_) | CommOp::BlockWait(_) => true,
            CommOp::SendMessages(_) => true,
            // These have one index for several.
            CommOp::WaitAll(_) => false,
            CommOp::ReceiveMessages(op) => op.tiles.len() == 1,
        },
        OpKind::Value(_) | OpKind::Control(_) => false,
    }
}

fn buffer<'k>(p: &Program<'k>, place: Place) -> &'k str {
    match place {
        Place::Param(id) | Place::Peer(id, _) | Place::All(id, _) => &p.kernel.params[id.index()].name,
        Place::Shared(id) => &p.kernel.shared[id.index()].name,
    }
}
