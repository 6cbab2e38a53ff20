//! The tree of what a role does: accesses, protocol and the control flow around them; arithmetic is left out.

use serde::Serialize;

use super::super::analysis::{Def, DefUse, Facts};
use super::super::*;
use super::expr::Exprs;
use super::fold;

/// What is done to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Deed {
    /// Reads it.
    Reads,
    /// Writes it.
    Writes,
    /// Updates it atomically.
    Updates,
    /// Writes it on other ranks.
    Puts,
    /// Sets a flag on other ranks.
    Signals,
    /// Waits for flags.
    Waits,
    /// Sends packets to other ranks.
    Sends,
    /// Waits for packets and takes them.
    Takes,
    /// Waits until puts have read it.
    Settles,
}

/// One access, or several like it in a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Action {
    /// What is done.
    pub deed: Deed,
    /// To which buffer or shared array.
    pub buffer: String,
    /// Whether that is a shared-memory array.
    pub shared: bool,
    /// From which element on: of the first piece, if there are several; empty if it differs between rounds described as one.
    pub index: String,
    /// In how many pieces.
    pub pieces: u32,
    /// Bytes of all pieces together; for a wait, of the flags.
    pub bytes: u64,
    /// On which ranks, or from which.
    pub ranks: Option<String>,
    /// How many flags are waited for, if it is not one.
    pub count: Option<String>,
    /// Only where this holds.
    pub mask: Option<String>,
    /// The author's line of the first.
    pub line: String,
}

/// A step of a role.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "step")]
#[allow(missing_docs)] // the variants document their fields
pub enum Step {
    /// An access.
    Do(Action),
    /// The steps for each value of a counter. With `spread`, the rounds are dealt out to that many groups in turn.
    ForEach { counter: String, start: String, end: String, by: String, spread: Option<u64>, steps: Vec<Step> },
    /// The steps over and over while a condition holds.
    While { cond: String, steps: Vec<Step> },
    /// The same steps several times, as comptime loops unroll.
    Times { times: u32, steps: Vec<Step> },
    /// One or the other.
    If { cond: String, then: Vec<Step>, otherwise: Vec<Step> },
    /// Each group of so many warps by itself.
    Split { warps: u32, groups: u32, steps: Vec<Step> },
    /// Leaves a loop (or goes to its next round), the `depth`-th outwards.
    Leave { round_only: bool, depth: u32 },
}

/// Tells what roles do.
pub(super) struct Teller<'k> {
    kernel: &'k Kernel,
    facts: &'k Facts,
    exprs: Exprs<'k>,
}

impl<'k> Teller<'k> {
    pub fn new(kernel: &'k Kernel, facts: &'k Facts, defs: &'k DefUse) -> Teller<'k> {
        Teller { kernel, facts, exprs: Exprs { kernel, defs, names: Names::of(kernel) } }
    }

    /// What a role does, whose body so many blocks run.
    pub fn steps(&self, role: &Role, blocks: u32) -> Vec<Step> {
        self.region(&role.body, u64::from(blocks))
    }

    /// `groups`: how many groups of the role run this region.
    fn region(&self, region: &Region, groups: u64) -> Vec<Step> {
        fold::fold(region.ops.iter().filter_map(|&id| self.step(id, groups)).collect())
    }

    fn step(&self, id: OpId, groups: u64) -> Option<Step> {
        let op = self.kernel.op(id);
        match &op.kind {
            OpKind::Control(control) => self.control(control, groups),
            kind @ (OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_)) => {
                self.action(kind, op.loc).map(Step::Do)
            }
            OpKind::Value(_) => None,
        }
    }

    fn control(&self, op: &ControlOp, groups: u64) -> Option<Step> {
        match op {
            ControlOp::If { cond, then, otherwise, .. } => {
                let (then, otherwise) = (self.region(then, groups), self.region(otherwise, groups));
                let cond = self.exprs.text(*cond);
                (!then.is_empty() || !otherwise.is_empty()).then_some(Step::If { cond, then, otherwise })
            }
            ControlOp::For { var, start, end, step, body } => {
                let steps = self.region(body, groups);
                let dealt = self.facts.int(*step) == Some(groups.into()) && self.is_group_index(*start);
                let spread = (dealt && groups > 1).then_some(groups);
                let [start, end, by] = [start, end, step].map(|&v| self.exprs.text(v));
                let counter = self.exprs.text(*var);
                let start = if dealt { "0".into() } else { start };
                let by = if dealt { "1".into() } else { by };
                matters(&steps).then_some(Step::ForEach { counter, start, end, by, spread, steps })
            }
            ControlOp::While { header, cond, body } => {
                let mut steps = self.region(header, groups);
                steps.extend(self.region(body, groups));
                let cond = self.exprs.text(*cond);
                matters(&steps).then_some(Step::While { cond, steps })
            }
            ControlOp::Split { warps, body } => {
                let each = self.kernel.block_warps / warps;
                let steps = self.region(body, groups * u64::from(each));
                (!steps.is_empty()).then_some(Step::Split { warps: *warps, groups: each, steps })
            }
            ControlOp::Break { depth } => Some(Step::Leave { round_only: false, depth: *depth }),
            ControlOp::Continue { depth } => Some(Step::Leave { round_only: true, depth: *depth }),
            ControlOp::VarDecl { .. } | ControlOp::VarGet { .. } | ControlOp::VarSet { .. } => None,
        }
    }

    /// Whether a value is the number of the group that runs.
    pub(super) fn is_group_index(&self, v: ValueId) -> bool {
        match self.exprs.defs.def(v) {
            Def::Op(id) => matches!(self.kernel.op(id).kind, OpKind::Value(ValueOp::GroupIndex { .. })),
            Def::Counter(_) | Def::Nothing => false,
        }
    }

    fn action(&self, kind: &OpKind, loc: Loc) -> Option<Action> {
        let text = |v: &ValueId| self.exprs.text(*v);
        let at = |deed, place: Place, index: &ValueId, moved: &ValueId| Action {
            deed,
            buffer: self.exprs.place(place),
            shared: matches!(place, Place::Shared(_)),
            index: text(index),
            pieces: 1,
            bytes: self.bytes(*moved),
            ranks: match place {
                Place::All(..) => Some("all ranks at once".into()),
                Place::Param(_) | Place::Peer(..) | Place::Shared(_) => {
                    place.rank().map(|rank| format!("rank `{}`", text(&rank)))
                }
            },
            count: None,
            mask: None,
            line: loc.to_string(),
        };
        let masked = |action: Action, mask: Option<&ValueId>| Action {
            mask: mask.map(text).filter(|m| m != "true"),
            ..action
        };
        Some(match kind {
            OpKind::Memory(MemoryOp::Load { out, place, index, .. }) => at(Deed::Reads, *place, index, out),
            OpKind::Memory(
                MemoryOp::LoadMasked { out, place, index, mask, .. }
                | MemoryOp::Gather { out, place, index, mask, .. },
            ) => masked(at(Deed::Reads, *place, index, out), Some(mask)),
            OpKind::Memory(MemoryOp::Scatter { place, index, value, mask, adds: true }) => {
                masked(at(Deed::Updates, *place, index, value), mask.as_ref())
            }
            OpKind::Memory(
                MemoryOp::Store { place, index, value, mask }
                | MemoryOp::Scatter { place, index, value, mask, .. },
            ) => masked(at(Deed::Writes, *place, index, value), mask.as_ref()),
            OpKind::Memory(MemoryOp::Atomic { place, index, value, .. }) => {
                at(Deed::Updates, *place, index, value)
            }
            OpKind::Memory(MemoryOp::Tally { out, place, index, mask }) => {
                masked(at(Deed::Updates, *place, index, out), Some(mask))
            }
            OpKind::Memory(MemoryOp::Ticket { counter, index, count, .. }) => {
                at(Deed::Updates, Place::Param(*counter), index, count)
            }
            // The boxes of each of two matrices are described as one reading.
            OpKind::Matrix(MatrixOp::Dot(Dot { out, a, b, count, .. })) => {
                let read = at(Deed::Reads, a.place, &a.row, out);
                let by = a.list.map(|list| format!(" by {}", self.exprs.place(Place::Param(list))));
                let by = by.unwrap_or_default();
                let buffer = format!("{}{by} x {}", read.buffer, self.exprs.place(b.place));
                let index = format!("{}, {}", read.index, text(&b.row));
                Action { buffer, index, bytes: self.multiplied(*out, a, *count), ..read }
            }
            OpKind::Matrix(MatrixOp::LoadMatrix(LoadMatrix { out, at: rows, column })) => {
                let read = at(Deed::Reads, rows.place, &rows.row, out);
                let bytes = self.moved(rows, *column, *out);
                Action { index: format!("{}, {}", read.index, text(column)), bytes, ..read }
            }
            OpKind::Matrix(MatrixOp::LoadRow(LoadRow { out, lines, place, index, .. })) => {
                let read = at(Deed::Reads, *place, index, out);
                Action { bytes: read.bytes / lines.count(self.kernel.ty(*out)), ..read }
            }
            OpKind::Matrix(MatrixOp::StoreMatrix(StoreMatrix { to, column, value })) => {
                let write = at(Deed::Writes, to.place, &to.row, value);
                let bytes = self.moved(to, *column, *value);
                Action { index: format!("{}, {}", write.index, text(column)), bytes, ..write }
            }
            OpKind::Comm(CommOp::Put(Put { parcel, buffer, index, value, mask })) => {
                let put = at(Deed::Puts, Place::Param(*buffer), index, value);
                Action { ranks: Some(self.parcel_target(*parcel)), ..masked(put, mask.as_ref()) }
            }
            OpKind::Comm(CommOp::PutMatrix(PutMatrix { parcel, to, column, value })) => {
                let put = at(Deed::Puts, to.place, &to.row, value);
                let index = format!("{}, {}", put.index, text(column));
                let bytes = self.moved(to, *column, *value);
                Action { ranks: Some(self.parcel_target(*parcel)), index, bytes, ..put }
            }
            OpKind::Comm(CommOp::BulkCopy(BulkCopy { parcel, buffer, index, source, len, .. })) => {
                let copy = at(Deed::Puts, Place::Param(*buffer), index, index);
                let bytes = u64::from(*len) * u64::from(self.kernel.params[source.index()].element_bytes());
                Action { ranks: Some(self.parcel_target(*parcel)), bytes, ..copy }
            }
            OpKind::Comm(CommOp::Signal(Signal { parcel, flag, index, value, .. })) => {
                let signal = at(Deed::Signals, Place::Param(*flag), index, value);
                let by = if self.kernel.counts(*flag) {
                    format!(", adding `{}`", text(value))
                } else {
                    String::new()
                };
                Action { ranks: Some(self.parcel_target(*parcel) + &by), ..signal }
            }
            OpKind::Comm(CommOp::Wait(Wait { flag, index, from, value, .. })) => {
                let wait = at(Deed::Waits, Place::Param(*flag), index, value);
                let counts = self.kernel.counts(*flag);
                let all = if counts { format!(", takes `{}`", text(value)) } else { String::new() };
                Action { ranks: Some(format!("rank `{}`{all}", text(from))), ..wait }
            }
            OpKind::Comm(CommOp::WaitAll(WaitAll { flag, index, count, only, value, .. })) => {
                let wait = at(Deed::Waits, Place::Param(*flag), index, value);
                let flags = self.facts.int(*count).and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
                let wait = masked(wait, only.as_ref());
                Action { count: Some(text(count)), bytes: wait.bytes * flags, ..wait }
            }
            OpKind::Comm(CommOp::BlockSignal(BlockSignal { flag, index, value, .. })) => {
                let signal = at(Deed::Signals, Place::Param(*flag), index, value);
                Action { ranks: Some("this rank".into()), ..signal }
            }
            OpKind::Comm(CommOp::BlockWait(BlockWait { flag, index, count, from, value, .. })) => {
                let wait = at(Deed::Waits, Place::Param(*flag), index, value);
                let flags = self.facts.int(*count).and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
                let any = self.facts.int(*from) == Some(ANY_BLOCK.into());
                let ranks =
                    Some(if any { "any block".to_owned() } else { format!("block `{}`", text(from)) });
                let count = (self.facts.int(*count) != Some(1)).then(|| text(count));
                Action { count, ranks, bytes: wait.bytes * flags, ..wait }
            }
            OpKind::Comm(CommOp::SendMessages(SendMessages {
                buffer, target, index, value, count, ..
            })) => {
                let send = at(Deed::Sends, Place::Param(*buffer), index, value);
                let mask = count.as_ref().map(|n| format!("lanes < {}", text(n)));
                Action { ranks: Some(self.target(*target)), mask, ..send }
            }
            OpKind::Comm(CommOp::ReceiveMessages(op)) => {
                let ReceiveMessages { transport, buffer, tiles, mask, count, .. } = op;
                let first = tiles.first()?;
                let deed = if transport.traits().takes { Deed::Takes } else { Deed::Waits };
                let receive = at(deed, Place::Param(*buffer), &first.index, &first.out);
                let pieces = tiles.len() as u32;
                let ranks = match pieces {
                    1 => format!("rank `{}`", text(&first.from)),
                    _ => "their ranks".into(),
                };
                let receive = Action {
                    pieces,
                    bytes: receive.bytes * u64::from(pieces),
                    ranks: Some(ranks),
                    ..receive
                };
                if self.kernel.ty(*mask).is_tile() {
                    return Some(masked(receive, Some(mask)));
                }
                let every = text::all_ranks(pieces).into();
                let mask = Some(text(mask)).filter(|_| self.facts.int(*mask) != Some(every));
                let first = count.as_ref().map(|n| format!("lanes < {}", text(n)));
                Action { mask: mask.or(first), ..receive }
            }
            OpKind::Comm(CommOp::FarPut(FarPut { peer, inbox, index, len, reach, .. })) => {
                let put = at(Deed::Puts, Place::Param(*inbox), index, index);
                let bytes = u64::from(*len) * u64::from(self.kernel.params[inbox.index()].element_bytes());
                Action { ranks: Some(self.far_peer(*peer, *reach)), bytes, ..put }
            }
            OpKind::Comm(CommOp::FarPublish(FarPublish { peer, counts, counter, adds, reach })) => {
                let publish = at(Deed::Signals, Place::Param(*counts), counter, adds);
                Action {
                    ranks: Some(format!("{}, adding `{}`", self.far_peer(*peer, *reach), text(adds))),
                    ..publish
                }
            }
            OpKind::Comm(CommOp::FarWait(FarWait { counts, counter, count, from, value, reach, .. })) => {
                let wait = at(Deed::Waits, Place::Param(*counts), counter, value);
                let counters = self.facts.int(*count).and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
                let ranks = match (counters, *reach == FarReach::default()) {
                    (1, true) => format!("rank `{}`, takes `{}`", text(from), text(value)),
                    _ => format!("{}, takes `{}` from each", reach.words(), text(value)),
                };
                Action { ranks: Some(ranks), bytes: wait.bytes * counters, ..wait }
            }
            OpKind::Comm(CommOp::FarSettle(FarSettle { outbox })) => Action {
                deed: Deed::Settles,
                buffer: self.kernel.params[outbox.index()].name.clone(),
                shared: false,
                index: String::new(),
                pieces: 1,
                bytes: 0,
                ranks: None,
                count: None,
                mask: None,
                line: loc.to_string(),
            },
            OpKind::Value(_)
            | OpKind::Matrix(MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_))
            | OpKind::Control(_) => return None,
        })
    }

    /// Bytes of the rows that are multiplied: of a number of columns that is not known none.
    fn multiplied(&self, out: ValueId, a: &Rows, count: ValueId) -> u64 {
        let (rows, columns) = self.kernel.ty(out).shape().unwrap_or_default();
        let element = a.place.param().map_or(0, |p| self.kernel.params[p.index()].element_bytes());
        let count = self.facts.int(count).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        u64::from(rows + columns) * u64::from(element) * count
    }

    /// Bytes of a matrix that there is memory for: what lies beyond the last row or column of the one in memory is not moved.
    pub fn moved(&self, rows: &Rows, column: ValueId, matrix: ValueId) -> u64 {
        let ty = self.kernel.ty(matrix);
        let (Some((m, n)), Some(param)) = (ty.shape(), rows.place.param()) else { return self.bytes(matrix) };
        let Some((all_rows, all_columns)) = self.kernel.params[param.index()].shape() else {
            return self.bytes(matrix);
        };
        let first = |v: ValueId| self.facts.int(v).and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
        let there = |part: u32, all: u64, from: u64| u64::from(part).min(all.saturating_sub(from));
        let (m, n) = (there(m, all_rows, first(rows.row)), there(n, all_columns, first(column)));
        m * n * u64::from(ty.dtype.bytes())
    }

    pub fn bytes(&self, v: ValueId) -> u64 {
        let ty = self.kernel.ty(v);
        u64::from(ty.len.unwrap_or(1)) * u64::from(ty.dtype.bytes())
    }

    fn parcel_target(&self, parcel: ParcelId) -> String {
        self.target(self.kernel.parcels[parcel.index()].target)
    }

    fn far_peer(&self, peer: Option<ValueId>, reach: FarReach) -> String {
        peer.map_or(format!("{}, by the card", reach.words()), |rank| {
            format!("rank `{}`, by the card", self.exprs.text(rank))
        })
    }

    fn target(&self, target: Target) -> String {
        match target {
            Target::Rank(v) => format!("rank `{}`", self.exprs.text(v)),
            Target::Mask(v) => match self.facts.int(v) {
                Some(mask) if mask == text::all_ranks(self.kernel.ranks).into() => "all ranks".into(),
                _ => format!("the ranks in `{}`", self.exprs.text(v)),
            },
        }
    }
}

/// Whether steps do anything besides leaving the loop they are in.
fn matters(steps: &[Step]) -> bool {
    steps.iter().any(|s| match s {
        Step::Do(_) => true,
        Step::Leave { depth, .. } => *depth > 0,
        Step::If { then, otherwise, .. } => matters(then) || matters(otherwise),
        Step::ForEach { steps, .. }
        | Step::While { steps, .. }
        | Step::Times { steps, .. }
        | Step::Split { steps, .. } => matters(steps),
    })
}
