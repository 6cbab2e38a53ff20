//! Names for values that the author left unnamed, from what they are.

use crate::ir::{
    BinaryOp, BulkCopy, CommOp, ControlOp, MemoryOp, OpKind, ParamKind, Place, Put, ReadLl, ReduceOp, Signal,
    ValueId, ValueOp, Wait,
};

use super::{memory::place_of, program::Program};

/// A name that says what a value is.
pub(super) fn value(p: &Program, v: ValueId) -> String {
    let Some(kind) = p.def(v) else { return "value".into() };
    let tile = p.kernel.ty(v).is_tile();
    match kind {
        OpKind::Memory(MemoryOp::Load { place, .. } | MemoryOp::LoadMasked { place, .. }) => {
            format!("{}_{}", buffer(p, *place), if tile { "tile" } else { "value" })
        }
        OpKind::Memory(MemoryOp::Gather { place, .. }) => format!("{}_gathered", buffer(p, *place)),
        OpKind::Comm(CommOp::ReadLl(ReadLl { ll, .. })) => {
            format!("{}_read", p.kernel.params[ll.index()].name)
        }
        OpKind::Memory(MemoryOp::Atomic { place, .. } | MemoryOp::Tally { place, .. }) => {
            format!("{}_before", buffer(p, *place))
        }
        OpKind::Control(ControlOp::For { .. }) => "i".into(),
        OpKind::Value(ValueOp::GroupIndex { .. }) => "group_index".into(),
        OpKind::Value(ValueOp::Rank { .. }) => "rank".into(),
        OpKind::Value(ValueOp::Epoch { word, .. }) => {
            let name = &p.kernel.params[word.index()].name;
            if p.kernel.params.iter().filter(|q| q.kind == ParamKind::EpochWord).count() > 1 {
                format!("{name}_now")
            } else {
                "epoch".into()
            }
        }
        OpKind::Value(ValueOp::ScalarParam { param, .. }) => p.kernel.params[param.index()].name.clone(),
        OpKind::Value(ValueOp::Reduce { op, .. }) => match op {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "smallest",
            ReduceOp::Max => "largest",
            ReduceOp::And => "all_of",
            ReduceOp::Or => "any_of",
        }
        .into(),
        OpKind::Value(ValueOp::Scan { .. }) => "prefix".into(),
        OpKind::Value(ValueOp::Compare { .. }) => "holds".into(),
        OpKind::Value(ValueOp::Select { .. }) | OpKind::Control(ControlOp::If { .. }) => "chosen".into(),
        OpKind::Control(ControlOp::VarGet { var, .. }) => match &p.kernel.vars[var.index()].name {
            Some(n) => format!("{n}_now"),
            None => "state_now".into(),
        },
        OpKind::Value(ValueOp::Cast { out, a } | ValueOp::Bitcast { out, a }) => {
            let of = p.name(*a).map_or("as".into(), str::to_string);
            format!("{of}_{}", p.kernel.ty(*out).dtype)
        }
        OpKind::Value(ValueOp::Binary { op: BinaryOp::Shl, .. }) => {
            use_of(p, v).unwrap_or_else(|| "bit".into())
        }
        OpKind::Value(ValueOp::Binary { op: BinaryOp::Rem, .. }) => {
            use_of(p, v).unwrap_or_else(|| "remainder".into())
        }
        _ => use_of(p, v).unwrap_or_else(|| "value".into()),
    }
}

/// What a computed value is used for: an index is named after what it indexes.
fn use_of(p: &Program, v: ValueId) -> Option<String> {
    p.users(v).iter().find_map(|&u| {
        let kind = &p.kernel.op(u).kind;
        let index = match kind {
            OpKind::Memory(
                MemoryOp::Load { index, .. }
                | MemoryOp::LoadMasked { index, .. }
                | MemoryOp::Gather { index, .. }
                | MemoryOp::Store { index, .. }
                | MemoryOp::Scatter { index, .. }
                | MemoryOp::Atomic { index, .. }
                | MemoryOp::Tally { index, .. },
            )
            | OpKind::Comm(CommOp::Put(Put { index, .. })) => *index,
            OpKind::Comm(CommOp::BulkCopy(BulkCopy { source, from, .. })) if *from == v => {
                return Some(format!("{}_index", p.kernel.params[source.index()].name));
            }
            OpKind::Comm(CommOp::BulkCopy(BulkCopy { buffer, index, .. })) if *index == v => {
                return Some(format!("{}_index", p.kernel.params[buffer.index()].name));
            }
            OpKind::Comm(
                CommOp::Signal(Signal { flag, index, .. }) | CommOp::Wait(Wait { flag, index, .. }),
            ) if *index == v => {
                return Some(format!("{}_index", p.kernel.params[flag.index()].name));
            }
            _ => return None,
        };
        (index == v).then(|| format!("{}_index", buffer(p, place_of(kind).expect("it has an index"))))
    })
}

fn buffer<'k>(p: &Program<'k>, place: Place) -> &'k str {
    match place {
        Place::Param(id) => &p.kernel.params[id.index()].name,
        Place::Shared(id) => &p.kernel.shared[id.index()].name,
    }
}
