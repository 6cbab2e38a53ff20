//! Names for values that the author left unnamed, from what they are.

use crate::ir::{BinaryOp, OpKind, ParamKind, Place, ReduceOp, ValueId};

use super::{memory::place_of, program::Program};

/// A name that says what a value is.
pub(super) fn value(p: &Program, v: ValueId) -> String {
    let Some(kind) = p.def(v) else { return "value".into() };
    let tile = p.kernel.ty(v).is_tile();
    match kind {
        OpKind::Load { place, .. } | OpKind::LoadMasked { place, .. } => {
            format!("{}_{}", buffer(p, *place), if tile { "tile" } else { "value" })
        }
        OpKind::Gather { place, .. } => format!("{}_gathered", buffer(p, *place)),
        OpKind::ReadLl { ll, .. } => format!("{}_read", p.kernel.params[ll.index()].name),
        OpKind::Atomic { place, .. } | OpKind::Tally { place, .. } => {
            format!("{}_before", buffer(p, *place))
        }
        OpKind::For { .. } => "i".into(),
        OpKind::GroupIndex { .. } => "group_index".into(),
        OpKind::Rank { .. } => "rank".into(),
        OpKind::Epoch { word, .. } => {
            let name = &p.kernel.params[word.index()].name;
            if p.kernel.params.iter().filter(|q| q.kind == ParamKind::EpochWord).count() > 1 {
                format!("{name}_now")
            } else {
                "epoch".into()
            }
        }
        OpKind::ScalarParam { param, .. } => p.kernel.params[param.index()].name.clone(),
        OpKind::Reduce { op, .. } => match op {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "smallest",
            ReduceOp::Max => "largest",
            ReduceOp::And => "all_of",
            ReduceOp::Or => "any_of",
        }
        .into(),
        OpKind::Scan { .. } => "prefix".into(),
        OpKind::Compare { .. } => "holds".into(),
        OpKind::Select { .. } | OpKind::If { .. } => "chosen".into(),
        OpKind::VarGet { var, .. } => match &p.kernel.vars[var.index()].name {
            Some(n) => format!("{n}_now"),
            None => "state_now".into(),
        },
        OpKind::Cast { out, a } | OpKind::Bitcast { out, a } => {
            let of = p.name(*a).map_or("as".into(), str::to_string);
            format!("{of}_{}", p.kernel.ty(*out).dtype)
        }
        OpKind::Binary { op: BinaryOp::Shl, .. } => use_of(p, v).unwrap_or_else(|| "bit".into()),
        OpKind::Binary { op: BinaryOp::Rem, .. } => use_of(p, v).unwrap_or_else(|| "remainder".into()),
        _ => use_of(p, v).unwrap_or_else(|| "value".into()),
    }
}

/// What a computed value is used for: an index is named after what it indexes.
fn use_of(p: &Program, v: ValueId) -> Option<String> {
    p.users(v).iter().find_map(|&u| {
        let kind = &p.kernel.op(u).kind;
        let index = match kind {
            OpKind::Load { index, .. }
            | OpKind::LoadMasked { index, .. }
            | OpKind::Gather { index, .. }
            | OpKind::Store { index, .. }
            | OpKind::Scatter { index, .. }
            | OpKind::Atomic { index, .. }
            | OpKind::Tally { index, .. }
            | OpKind::Put { index, .. } => *index,
            OpKind::Copy { source, from, .. } if *from == v => {
                return Some(format!("{}_index", p.kernel.params[source.index()].name));
            }
            OpKind::Copy { buffer, index, .. } if *index == v => {
                return Some(format!("{}_index", p.kernel.params[buffer.index()].name));
            }
            OpKind::Signal { flag, index, .. } | OpKind::Wait { flag, index, .. } if *index == v => {
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
