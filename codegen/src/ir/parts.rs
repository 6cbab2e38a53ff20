//! The parts of an operation: what it defines, what it reads, what it holds.

use super::{OpKind, Region, ValueId};

impl OpKind {
    /// The values this operation defines for the region it stands in (for a `For`, the counter is defined in its body
    /// and not listed).
    pub fn outs(&self) -> Vec<ValueId> {
        use OpKind::*;
        match self {
            Const { out, .. }
            | Rank { out }
            | ScalarParam { out, .. }
            | Epoch { out, .. }
            | GroupIndex { out }
            | Binary { out, .. }
            | Unary { out, .. }
            | Compare { out, .. }
            | Select { out, .. }
            | Cast { out, .. }
            | Fma { out, .. }
            | Bitcast { out, .. }
            | Splat { out, .. }
            | Arange { out }
            | Reduce { out, .. }
            | Scan { out, .. }
            | Load { out, .. }
            | LoadMasked { out, .. }
            | Gather { out, .. }
            | Atomic { out, .. }
            | Tally { out, .. }
            | VarGet { out, .. } => vec![*out],
            If { results, .. } => results.iter().map(|r| r.0).collect(),
            TakePackets { tiles, .. } => tiles.iter().map(|t| t.out).collect(),
            ReadLl { out, .. } => vec![*out],
            Store { .. }
            | Scatter { .. }
            | Put { .. }
            | Copy { .. }
            | Signal { .. }
            | Wait { .. }
            | WaitAll { .. }
            | SendPackets { .. }
            | SendLl { .. }
            | For { .. }
            | While { .. }
            | Break { .. }
            | Continue { .. }
            | VarDecl { .. }
            | VarSet { .. }
            | Split { .. } => vec![],
        }
    }

    /// The values this operation reads, in the order of its fields (those of nested regions are not listed; the
    /// results that an `If`'s arms yield are, and so is a `While`'s condition).
    pub fn operands(&self) -> Vec<ValueId> {
        use OpKind::*;
        match self {
            Const { .. }
            | Rank { .. }
            | ScalarParam { .. }
            | Epoch { .. }
            | GroupIndex { .. }
            | Arange { .. }
            | Break { .. }
            | Continue { .. }
            | VarGet { .. }
            | Split { .. } => vec![],
            Binary { a, b, .. } | Compare { a, b, .. } => vec![*a, *b],
            Unary { a, .. } | Cast { a, .. } | Bitcast { a, .. } | Splat { a, .. } => vec![*a],
            Reduce { a, .. } | Scan { a, .. } => vec![*a],
            Select { cond, a, b, .. } => vec![*cond, *a, *b],
            Fma { a, b, c, .. } => vec![*a, *b, *c],
            Load { index, .. } => vec![*index],
            LoadMasked { index, mask, other, .. } | Gather { index, mask, other, .. } => {
                vec![*index, *mask, *other]
            }
            Store { index, value, mask, .. }
            | Scatter { index, value, mask, .. }
            | Put { index, value, mask, .. } => {
                let mut v = vec![*index, *value];
                v.extend(mask);
                v
            }
            Atomic { index, value, .. } | Signal { index, value, .. } => vec![*index, *value],
            Tally { index, mask, .. } => vec![*index, *mask],
            Copy { index, from, .. } => vec![*index, *from],
            Wait { index, from, value, .. } => vec![*index, *from, *value],
            WaitAll { index, count, only, value, .. } => {
                let mut v = vec![*index, *count, *value];
                v.extend(only);
                v
            }
            SendPackets { index, value, .. } => vec![*index, *value],
            SendLl { index, value, epoch, .. } => vec![*index, *value, *epoch],
            ReadLl { index, from, mask, epoch, .. } => vec![*index, *from, *mask, *epoch],
            TakePackets { tiles, mask, .. } => {
                let mut v = vec![*mask];
                v.extend(tiles.iter().flat_map(|t| [t.index, t.from]));
                v
            }
            If { cond, results, .. } => {
                let mut v = vec![*cond];
                v.extend(results.iter().flat_map(|r| [r.1, r.2]));
                v
            }
            For { start, end, step, .. } => vec![*start, *end, *step],
            While { cond, .. } => vec![*cond],
            VarDecl { init, .. } => vec![*init],
            VarSet { value, .. } => vec![*value],
        }
    }

    /// The operands, in the order of [`OpKind::operands`].
    pub fn operands_mut(&mut self) -> Vec<&mut ValueId> {
        use OpKind::*;
        match self {
            Const { .. }
            | Rank { .. }
            | ScalarParam { .. }
            | Epoch { .. }
            | GroupIndex { .. }
            | Arange { .. }
            | Break { .. }
            | Continue { .. }
            | VarGet { .. }
            | Split { .. } => vec![],
            Binary { a, b, .. } | Compare { a, b, .. } => vec![a, b],
            Unary { a, .. } | Cast { a, .. } | Bitcast { a, .. } | Splat { a, .. } => vec![a],
            Reduce { a, .. } | Scan { a, .. } => vec![a],
            Select { cond, a, b, .. } => vec![cond, a, b],
            Fma { a, b, c, .. } => vec![a, b, c],
            Load { index, .. } => vec![index],
            LoadMasked { index, mask, other, .. } | Gather { index, mask, other, .. } => {
                vec![index, mask, other]
            }
            Store { index, value, mask, .. }
            | Scatter { index, value, mask, .. }
            | Put { index, value, mask, .. } => {
                let mut v = vec![index, value];
                v.extend(mask);
                v
            }
            Atomic { index, value, .. } | Signal { index, value, .. } => vec![index, value],
            Tally { index, mask, .. } => vec![index, mask],
            Copy { index, from, .. } => vec![index, from],
            Wait { index, from, value, .. } => vec![index, from, value],
            WaitAll { index, count, only, value, .. } => {
                let mut v = vec![index, count, value];
                v.extend(only);
                v
            }
            SendPackets { index, value, .. } => vec![index, value],
            SendLl { index, value, epoch, .. } => vec![index, value, epoch],
            ReadLl { index, from, mask, epoch, .. } => vec![index, from, mask, epoch],
            TakePackets { tiles, mask, .. } => {
                let mut v = vec![mask];
                v.extend(tiles.iter_mut().flat_map(|t| [&mut t.index, &mut t.from]));
                v
            }
            If { cond, results, .. } => {
                let mut v = vec![cond];
                v.extend(results.iter_mut().flat_map(|r| [&mut r.1, &mut r.2]));
                v
            }
            For { start, end, step, .. } => vec![start, end, step],
            While { cond, .. } => vec![cond],
            VarDecl { init, .. } => vec![init],
            VarSet { value, .. } => vec![value],
        }
    }

    /// The nested regions, in order.
    pub fn regions(&self) -> Vec<&Region> {
        use OpKind::*;
        match self {
            If { then, otherwise, .. } => vec![then, otherwise],
            For { body, .. } | Split { body, .. } => vec![body],
            While { header, body, .. } => vec![header, body],
            Const { .. }
            | Rank { .. }
            | ScalarParam { .. }
            | Epoch { .. }
            | GroupIndex { .. }
            | Binary { .. }
            | Unary { .. }
            | Compare { .. }
            | Select { .. }
            | Cast { .. }
            | Fma { .. }
            | Bitcast { .. }
            | Splat { .. }
            | Arange { .. }
            | Reduce { .. }
            | Scan { .. }
            | Load { .. }
            | LoadMasked { .. }
            | Gather { .. }
            | Store { .. }
            | Scatter { .. }
            | Atomic { .. }
            | Tally { .. }
            | Put { .. }
            | Copy { .. }
            | Signal { .. }
            | Wait { .. }
            | WaitAll { .. }
            | SendPackets { .. }
            | TakePackets { .. }
            | SendLl { .. }
            | ReadLl { .. }
            | Break { .. }
            | Continue { .. }
            | VarDecl { .. }
            | VarGet { .. }
            | VarSet { .. } => vec![],
        }
    }

    /// The nested regions, in the order of [`OpKind::regions`].
    pub fn regions_mut(&mut self) -> Vec<&mut Region> {
        use OpKind::*;
        match self {
            If { then, otherwise, .. } => vec![then, otherwise],
            For { body, .. } | Split { body, .. } => vec![body],
            While { header, body, .. } => vec![header, body],
            Const { .. }
            | Rank { .. }
            | ScalarParam { .. }
            | Epoch { .. }
            | GroupIndex { .. }
            | Binary { .. }
            | Unary { .. }
            | Compare { .. }
            | Select { .. }
            | Cast { .. }
            | Fma { .. }
            | Bitcast { .. }
            | Splat { .. }
            | Arange { .. }
            | Reduce { .. }
            | Scan { .. }
            | Load { .. }
            | LoadMasked { .. }
            | Gather { .. }
            | Store { .. }
            | Scatter { .. }
            | Atomic { .. }
            | Tally { .. }
            | Put { .. }
            | Copy { .. }
            | Signal { .. }
            | Wait { .. }
            | WaitAll { .. }
            | SendPackets { .. }
            | TakePackets { .. }
            | SendLl { .. }
            | ReadLl { .. }
            | Break { .. }
            | Continue { .. }
            | VarDecl { .. }
            | VarGet { .. }
            | VarSet { .. } => vec![],
        }
    }
}
