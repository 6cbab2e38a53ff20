//! What constants show: accesses out of bounds, shifts, divisions, steps and ranks that cannot be.

use super::*;

pub(super) fn check(report: &mut Report<'_>, tree: &Tree, facts: &Facts) {
    for &id in tree.in_order() {
        let op = report.kernel.op(id);
        Check { name: op.kind.name(), loc: op.loc, report, facts }.op(&op.kind);
    }
}

struct Check<'r, 'k, 'f> {
    report: &'r mut Report<'k>,
    facts: &'f Facts,
    name: &'static str,
    loc: Loc,
}

impl Check<'_, '_, '_> {
    fn op(&mut self, kind: &OpKind) {
        match kind {
            OpKind::Value(ValueOp::Binary { op, a, b, .. }) => {
                self.binary(*op, self.report.kernel.ty(*a).dtype, *b)
            }
            OpKind::Memory(
                MemoryOp::Load { out: v, place, index, .. }
                | MemoryOp::Store { place, index, value: v, mask: None },
            ) => {
                self.elements(*place, *index, self.count(*v));
                if let Place::All(window, _) = place {
                    self.whole_sixteens(*window, *index);
                }
            }
            OpKind::Memory(MemoryOp::Atomic { place, index, .. }) => self.elements(*place, *index, 1),
            OpKind::Memory(MemoryOp::Ticket { counter, index, .. }) => {
                self.elements(Place::Param(*counter), *index, 1);
            }
            // Where a mask decides which elements are touched, only the index's width can be judged.
            OpKind::Memory(
                MemoryOp::LoadMasked { place, index, .. }
                | MemoryOp::Store { place, index, mask: Some(_), .. },
            ) => {
                self.wide_enough(*place, *index);
            }
            OpKind::Memory(
                MemoryOp::Gather { place, index, .. }
                | MemoryOp::Scatter { place, index, .. }
                | MemoryOp::Tally { place, index, .. },
            ) => {
                self.wide_enough(*place, *index);
            }
            OpKind::Matrix(op) => self.matrix(op),
            OpKind::Comm(CommOp::Put(Put { parcel, buffer, index, value, mask })) => {
                self.target(self.report.kernel.parcels[parcel.index()].target);
                if self.report.kernel.parcels[parcel.index()].multicast {
                    self.whole_sixteens(*buffer, *index);
                    self.all_ranks(self.report.kernel.parcels[parcel.index()].target, *buffer);
                }
                match mask {
                    None => self.elements(Place::Param(*buffer), *index, self.count(*value)),
                    Some(_) => self.wide_enough(Place::Param(*buffer), *index),
                }
            }
            OpKind::Comm(CommOp::PutMatrix(PutMatrix { parcel, to, .. })) => {
                self.target(self.report.kernel.parcels[parcel.index()].target);
                if self.report.kernel.parcels[parcel.index()].multicast {
                    let buffer = self.report.place_name(to.place);
                    self.report.add(self.loc, Problem::MultimemPut { buffer });
                }
                self.row(to.place, to.row);
            }
            OpKind::Comm(CommOp::BulkCopy(BulkCopy { parcel, buffer, index, source, from, len, .. })) => {
                self.target(self.report.kernel.parcels[parcel.index()].target);
                if self.report.kernel.parcels[parcel.index()].multicast {
                    let buffer = self.report.param(*buffer).name.clone();
                    self.report.add(self.loc, Problem::MultimemPut { buffer });
                }
                self.elements(Place::Param(*buffer), *index, (*len).into());
                self.elements(Place::Param(*source), *from, (*len).into());
            }
            OpKind::Comm(CommOp::Signal(Signal { parcel, flag, index, .. })) => {
                self.target(self.report.kernel.parcels[parcel.index()].target);
                self.elements(Place::Param(*flag), *index, 1);
            }
            OpKind::Comm(CommOp::Wait(Wait { flag, index, from, .. })) => {
                self.rank(*from);
                self.elements(Place::Param(*flag), *index, 1);
            }
            OpKind::Comm(CommOp::WaitAll(WaitAll { flag, index, count, only, .. })) => {
                let count = self.facts.int(*count).unwrap_or(0);
                if only.is_some() && count > 64 {
                    self.report.add(self.loc, Problem::MaskedFlags { count });
                }
                self.elements(Place::Param(*flag), *index, count);
            }
            OpKind::Comm(CommOp::BlockSignal(BlockSignal { flag, index, .. })) => {
                self.elements(Place::Param(*flag), *index, 1);
            }
            OpKind::Comm(CommOp::BlockWait(BlockWait { flag, index, count, .. })) => {
                let count = self.facts.int(*count).unwrap_or(0);
                self.elements(Place::Param(*flag), *index, count);
            }
            OpKind::Comm(CommOp::SendMessages(SendMessages {
                transport,
                buffer,
                target,
                index,
                value,
                count,
                ..
            })) => {
                self.target(*target);
                self.elements(Place::Param(*buffer), *index, self.first(*value, *count));
                self.whole_messages(*transport, *buffer, *index);
            }
            OpKind::Comm(CommOp::ReceiveMessages(op)) => {
                let ReceiveMessages { transport, buffer, tiles, count, .. } = op;
                for t in tiles {
                    if self.report.kernel.ty(t.index).is_tile() {
                        self.wide_enough(Place::Param(*buffer), t.index);
                        continue;
                    }
                    self.rank(t.from);
                    self.elements(Place::Param(*buffer), t.index, self.first(t.out, *count));
                    self.whole_messages(*transport, *buffer, t.index);
                }
            }
            OpKind::Comm(CommOp::FarPut(FarPut {
                peer,
                outbox,
                from,
                inbox,
                index,
                len,
                counts,
                counter,
                ..
            })) => {
                peer.iter().for_each(|rank| self.far_rank(*rank));
                self.elements(Place::Param(*outbox), *from, (*len).into());
                self.elements(Place::Param(*inbox), *index, (*len).into());
                self.far_unit(*outbox, *from);
                self.far_unit(*inbox, *index);
                self.elements(Place::Param(*counts), *counter, 1);
            }
            OpKind::Comm(CommOp::FarPublish(FarPublish { peer, counts, counter, .. })) => {
                peer.iter().for_each(|rank| self.far_rank(*rank));
                self.elements(Place::Param(*counts), *counter, 1);
            }
            OpKind::Comm(CommOp::FarWait(FarWait { counts, counter, count, from, reach, .. })) => {
                self.far_rank(*from);
                let (step, _) = reach.of(self.report.kernel);
                let count = self.facts.int(*count).unwrap_or(0);
                self.elements(
                    Place::Param(*counts),
                    *counter,
                    (count - 1).max(0) * i128::from(step) + count.min(1),
                );
            }
            OpKind::Comm(CommOp::FarSettle(_)) => {}
            OpKind::Control(ControlOp::For { step, .. }) => {
                if let Some(step) = self.facts.int(*step).filter(|&s| s <= 0) {
                    self.report.add(self.loc, Problem::BadStep { step });
                }
            }
            OpKind::Value(any!(given, casts, pointwise, spreads, reductions) | ValueOp::Select { .. })
            | OpKind::Control(
                any!(exits, variables)
                | ControlOp::If { .. }
                | ControlOp::While { .. }
                | ControlOp::Split { .. },
            ) => {}
        }
    }

    /// What lies beyond a matrix in memory is zero, but somebody who begins there has made a mistake.
    fn matrix(&mut self, op: &MatrixOp) {
        match op {
            MatrixOp::Dot(Dot { a, b, from, count, .. }) => {
                if a.list.is_none() {
                    self.row(a.place, a.row);
                }
                self.row(b.place, b.row);
                let dtype = a.place.param().map_or(Dtype::Bf16, |p| self.report.param(p).dtype);
                let unit = PACKET_BYTES / dtype.bytes();
                for (what, v) in [("first column", *from), ("number of columns", *count)] {
                    if self.facts.multiple_of(v) < unit.into() {
                        let value = self.report.names.value(v);
                        self.report.add(self.loc, Problem::DotColumns { what, value, unit });
                    }
                }
                if a.scales.is_some() {
                    let piece = dot_columns(dtype);
                    let whole = [
                        ("row", a.row, SCALES_TILE),
                        ("row", b.row, SCALES_TILE),
                        ("first column", *from, piece),
                        ("number of columns", *count, piece),
                    ];
                    for (what, v, unit) in whole {
                        if self.facts.multiple_of(v) < unit.into() {
                            let value = self.report.names.value(v);
                            self.report.add(self.loc, Problem::ScaledTile { what, value, unit });
                        }
                    }
                }
                let columns = a.place.param().and_then(|p| self.report.param(p).columns);
                let first = self.facts.int(*from).unwrap_or(0);
                let end = first + self.facts.int(*count).unwrap_or(0);
                if let Some(len) = columns.filter(|&n| end > n.into()) {
                    let (op, buffer) = (self.name, self.report.place_name(a.place));
                    self.report.add(self.loc, Problem::OutOfBounds { op, buffer, first, end, len });
                }
            }
            MatrixOp::LoadMatrix(LoadMatrix { at, .. }) => self.row(at.place, at.row),
            MatrixOp::LoadRow(LoadRow { place, index, .. }) => self.wide_enough(*place, *index),
            MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => {}
            MatrixOp::StoreMatrix(StoreMatrix { to, .. }) => self.row(to.place, to.row),
        }
    }

    fn row(&mut self, place: Place, row: ValueId) {
        if let Some(rank) = place.rank() {
            self.rank(rank);
        }
        let shape = place.param().and_then(|p| self.report.param(p).shape());
        if let (Some(row), Some((rows, _))) = (self.facts.int(row), shape)
            && row >= rows.into()
        {
            let (op, param) = (self.name, self.report.place_name(place));
            self.report.add(self.loc, Problem::NoSuchRow { op, param, row, rows });
        }
    }

    fn count(&self, v: ValueId) -> i128 {
        self.report.kernel.ty(v).len.unwrap_or(1).into()
    }

    /// Elements of a tile that is sent or taken, of which `count` may say how many move: none for certain, unless that is known.
    fn first(&self, v: ValueId, count: Option<ValueId>) -> i128 {
        let known = |n: ValueId| self.facts.int(n).unwrap_or(0).min(self.count(v));
        count.map_or_else(|| self.count(v), known)
    }

    fn binary(&mut self, op: BinaryOp, dtype: Dtype, b: ValueId) {
        let Some(by) = self.facts.int(b) else { return };
        let problem = match op {
            BinaryOp::Div | BinaryOp::Rem if by == 0 => Problem::DivisionByZero { op: self.name },
            BinaryOp::Shl | BinaryOp::Shr if by < 0 || by >= i128::from(dtype.bytes()) * 8 => {
                Problem::ShiftTooFar { dtype, by }
            }
            any!(sums, quotients, extremes, bits, shifts) => return,
        };
        self.report.add(self.loc, problem);
    }

    /// `count` elements from `index` on lie in the buffer; with an unknown index, they fit at all.
    fn elements(&mut self, place: Place, index: ValueId, count: i128) {
        self.wide_enough(place, index);
        let first = self.facts.int(index).unwrap_or(0);
        let len = self.len(place);
        if first + count > len.into() {
            let (op, buffer) = (self.name, self.report.place_name(place));
            self.report.add(self.loc, Problem::OutOfBounds { op, buffer, first, end: first + count, len });
        }
    }

    /// An index of what is read of all ranks at once, or put to all of them.
    fn whole_sixteens(&mut self, buffer: ParamId, index: ValueId) {
        let param = self.report.param(buffer);
        let unit = PACKET_BYTES / param.dtype.bytes();
        if self.facts.multiple_of(index) < unit.into() {
            let (op, buffer) = (self.name, param.name.clone());
            let value = self.report.names.value(index);
            self.report.add(self.loc, Problem::MultimemIndex { op, buffer, value, unit });
        }
    }

    /// The switch stores to all ranks, and leaves none out.
    fn all_ranks(&mut self, target: Target, buffer: ParamId) {
        let all = i128::from(u64::MAX >> (64 - self.report.kernel.ranks.clamp(1, 64)));
        let Target::Mask(mask) = target else { return self.not_all_ranks(buffer) };
        if self.facts.int(mask) != Some(all) {
            self.not_all_ranks(buffer);
        }
    }

    fn not_all_ranks(&mut self, buffer: ParamId) {
        let buffer = self.report.param(buffer).name.clone();
        self.report.add(self.loc, Problem::MultimemPut { buffer });
    }

    fn whole_messages(&mut self, transport: Transport, buffer: ParamId, index: ValueId) {
        let param = self.report.param(buffer);
        let unit = transport.unit(param.dtype);
        if self.facts.multiple_of(index) < unit.into() {
            let (op, buffer) = (self.name, param.name.clone());
            let value = self.report.names.value(index);
            self.report.add(self.loc, Problem::InsideMessage { op, transport, buffer, value, unit });
        }
    }

    /// A message of a far channel begins where an engine can begin.
    fn far_unit(&mut self, buffer: ParamId, index: ValueId) {
        let param = self.report.param(buffer);
        let unit = (FAR_UNIT / param.dtype.bytes()).max(1);
        if self.facts.multiple_of(index) < unit.into() {
            let (buffer, value) = (param.name.clone(), self.report.names.value(index));
            self.report.add(self.loc, Problem::FarInsideUnit { buffer, value, unit });
        }
    }

    /// Whether the index can reach every element, on a rank that exists.
    fn wide_enough(&mut self, place: Place, index: ValueId) {
        if let Some(rank) = place.rank() {
            self.rank(rank);
        }
        let len = self.len(place);
        let narrow = self.report.kernel.ty(index).dtype == Dtype::U32 && self.facts.constant(index).is_none();
        if len > 1 << 32 && narrow {
            let (op, buffer) = (self.name, self.report.place_name(place));
            let value = self.report.names.value(index);
            self.report.add(self.loc, Problem::NarrowIndex { op, buffer, len, value });
        }
    }

    fn len(&self, place: Place) -> u64 {
        match place {
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => self.report.param(p).len,
            Place::Shared(s) => self.report.kernel.shared[s.index()].len.into(),
        }
    }

    fn rank(&mut self, v: ValueId) {
        self.rank_of(v, self.report.kernel.ranks);
    }

    /// A rank of any machine.
    fn far_rank(&mut self, v: ValueId) {
        self.rank_of(v, self.report.kernel.all_ranks());
    }

    fn rank_of(&mut self, v: ValueId, ranks: u32) {
        if let Some(rank) = self.facts.int(v).filter(|&r| r >= ranks.into()) {
            self.report.add(self.loc, Problem::NoSuchRank { rank, ranks });
        }
    }

    fn target(&mut self, target: Target) {
        match target {
            Target::Rank(v) => self.rank(v),
            Target::Mask(v) => {
                let ranks = self.report.kernel.ranks;
                if let Some(mask) = self.facts.int(v).filter(|&m| m >> ranks != 0) {
                    let rank = i128::from(127 - mask.leading_zeros());
                    self.report.add(self.loc, Problem::NoSuchRank { rank, ranks });
                }
            }
        }
    }
}
