//! One line of text for each operation.

use super::super::*;
use super::{all_ranks, count, shared_name};

/// The operation's line; for one with regions, what stands before the opening brace.
pub(super) fn line(kernel: &Kernel, names: &Names, kind: &OpKind) -> String {
    let l = Line { kernel, names };
    let outs: Vec<String> = kind.outs().into_iter().map(|out| l.def(out)).collect();
    match outs.is_empty() {
        true => l.right_side(kind),
        false => format!("{} = {}", outs.join(", "), l.right_side(kind)),
    }
}

struct Line<'a> {
    kernel: &'a Kernel,
    names: &'a Names,
}

impl Line<'_> {
    fn v(&self, id: ValueId) -> String {
        self.names.value(id)
    }

    fn def(&self, id: ValueId) -> String {
        match self.kernel.values.get(id.index()) {
            Some(v) => format!("{}: {}", self.names.defined(id), v.ty),
            None => self.names.defined(id),
        }
    }

    fn param(&self, id: ParamId) -> String {
        match self.kernel.params.get(id.index()) {
            Some(p) => format!("@{}", p.name),
            None => format!("@?{}", id.0),
        }
    }

    fn place(&self, place: Place) -> String {
        match place {
            Place::Param(p) => self.param(p),
            Place::Shared(s) => format!("shared {}", shared_name(self.kernel, s)),
            Place::Peer(p, rank) => format!("{} of rank {}", self.param(p), self.v(rank)),
            Place::All(p, op) => format!("{} of all ranks, {}", self.param(p), op.name()),
        }
    }

    fn peer(&self, peer: OptIn, reach: FarReach) -> String {
        peer.map_or(reach.words().into(), |rank| format!("rank {}", self.v(rank)))
    }

    fn element(&self, place: Place, index: ValueId) -> String {
        match place {
            Place::Param(_) | Place::Shared(_) => format!("{}[{}]", self.place(place), self.v(index)),
            Place::Peer(p, rank) => {
                format!("{}[{}] of rank {}", self.param(p), self.v(index), self.v(rank))
            }
            Place::All(p, op) => {
                format!("{}[{}] of all ranks, {}", self.param(p), self.v(index), op.name())
            }
        }
    }

    fn rows(&self, rows: &Rows) -> String {
        let below = if rows.loose { "known below" } else { "below" };
        let end = rows.end.map_or(String::new(), |end| format!(" {below} {}", self.v(end)));
        let (place, row) = (self.place(rows.place), self.v(rows.row));
        let from = match rows.list {
            Some(list) => format!("{place} at {}[{row}] on", self.param(list)),
            None => format!("{place} from row {row} on"),
        };
        let scaled = rows.scales.map_or(String::new(), |of| format!(" scaled by {}", self.param(of)));
        format!("{from}{end}{scaled}{}", self.after(rows.receipt))
    }

    /// The windows that a parcel's signal publishes.
    fn published(&self, parcel: ParcelId) -> String {
        let windows = self.kernel.parcels.get(parcel.index()).map_or(&[][..], |p| &p.windows);
        let names: Vec<String> = windows.iter().map(|w| self.param(*w)).collect();
        if names.is_empty() { String::new() } else { format!(", publishes {}", names.join(" and ")) }
    }

    fn masked(
        &self,
        place: Place,
        index: ValueId,
        mask: ValueId,
        other: ValueId,
        receipt: Option<ReceiptId>,
    ) -> String {
        let (at, after) = (self.element(place, index), self.after(receipt));
        format!("{at} where {} else {}{after}", self.v(mask), self.v(other))
    }

    fn declared(&self, var: VarId) -> String {
        match self.kernel.vars.get(var.index()) {
            Some(v) => format!("{}: {}", self.names.var(var), v.ty),
            None => self.names.var(var),
        }
    }

    fn after(&self, receipt: Option<ReceiptId>) -> String {
        receipt.map(|r| format!(" after ^{}", r.0)).unwrap_or_default()
    }

    fn mask(&self, mask: Option<ValueId>) -> String {
        mask.map(|m| format!(" where {}", self.v(m))).unwrap_or_default()
    }

    fn to(&self, parcel: ParcelId) -> String {
        let parcels = &self.kernel.parcels;
        let target = parcels.get(parcel.index()).map_or("no rank".into(), |p| self.target(p.target));
        format!(" to {target}, parcel {}", parcel.0)
    }

    fn target(&self, target: Target) -> String {
        match target {
            Target::Rank(v) => format!("rank {}", self.v(v)),
            Target::Mask(v) => match self.names.constant(v) {
                Some(Const::U64(mask)) if mask == all_ranks(self.kernel.ranks) => "all ranks".into(),
                Some(Const::U64(mask)) => format!("ranks in {mask:#b}"),
                _ => format!("ranks in {}", self.v(v)),
            },
        }
    }

    fn binary(&self, op: BinaryOp, a: ValueId, b: ValueId) -> String {
        let (a, b) = (self.v(a), self.v(b));
        match op {
            BinaryOp::Min | BinaryOp::Max => format!("{}({a}, {b})", op.symbol()),
            any!(sums, quotients, bits, shifts) => format!("{a} {} {b}", op.symbol()),
        }
    }

    fn right_side(&self, kind: &OpKind) -> String {
        let v = |id: &ValueId| self.v(*id);
        match kind {
            OpKind::Value(ValueOp::Const { value, .. }) => value.to_string(),
            OpKind::Value(ValueOp::Rank { .. }) => "rank".into(),
            OpKind::Value(ValueOp::Node { .. }) => "node".into(),
            OpKind::Value(ValueOp::Active { .. }) => "active_ranks".into(),
            OpKind::Value(ValueOp::ScalarParam { param, .. }) => self.param(*param),
            OpKind::Value(ValueOp::Epoch { word, advance: true, .. }) => {
                format!("epoch {}, advance", self.param(*word))
            }
            OpKind::Value(ValueOp::Epoch { word, advance: false, .. }) => {
                format!("epoch {}", self.param(*word))
            }
            OpKind::Value(ValueOp::GroupIndex { .. }) => "group_index".into(),
            OpKind::Value(ValueOp::Binary { op, a, b, .. }) => self.binary(*op, *a, *b),
            OpKind::Value(ValueOp::Unary { op, a, .. }) => format!("{}({})", op.name(), v(a)),
            OpKind::Value(ValueOp::Compare { op, a, b, .. }) => format!("{} {} {}", v(a), op.symbol(), v(b)),
            OpKind::Value(ValueOp::Select { cond, a, b, .. }) => {
                format!("select({}, {}, {})", v(cond), v(a), v(b))
            }
            OpKind::Value(ValueOp::Cast { a, .. }) => format!("cast({})", v(a)),
            OpKind::Value(ValueOp::Fma { a, b, c, .. }) => format!("fma({}, {}, {})", v(a), v(b), v(c)),
            OpKind::Value(ValueOp::Bitcast { a, .. }) => format!("bitcast({})", v(a)),
            OpKind::Value(ValueOp::Splat { a, .. }) => format!("splat({})", v(a)),
            OpKind::Value(ValueOp::Arange { .. }) => "arange".into(),
            OpKind::Value(ValueOp::Reduce { a, .. }) => format!("{}({})", kind.name(), v(a)),
            OpKind::Value(ValueOp::Scan { a, exclusive: false, .. }) => format!("{}({})", kind.name(), v(a)),
            OpKind::Value(ValueOp::Scan { a, exclusive: true, .. }) => {
                format!("{}({}, exclusive)", kind.name(), v(a))
            }
            OpKind::Memory(MemoryOp::Load { place, index, receipt, .. }) => {
                format!("load {}{}", self.element(*place, *index), self.after(*receipt))
            }
            OpKind::Memory(MemoryOp::LoadMasked { place, index, mask, other, receipt, .. }) => {
                format!("load {}", self.masked(*place, *index, *mask, *other, *receipt))
            }
            OpKind::Memory(MemoryOp::Gather { place, index, mask, other, receipt, .. }) => {
                format!("gather {}", self.masked(*place, *index, *mask, *other, *receipt))
            }
            OpKind::Memory(MemoryOp::Store { place, index, value, mask }) => {
                format!("store {} <- {}{}", self.element(*place, *index), v(value), self.mask(*mask))
            }
            OpKind::Memory(MemoryOp::Scatter { place, index, value, mask, .. }) => {
                format!(
                    "{} {} <- {}{}",
                    kind.name(),
                    self.element(*place, *index),
                    v(value),
                    self.mask(*mask)
                )
            }
            OpKind::Memory(MemoryOp::Atomic { place, index, value, .. }) => {
                format!("{} {} <- {}", kind.name(), self.element(*place, *index), v(value))
            }
            OpKind::Memory(MemoryOp::Tally { place, index, mask, .. }) => {
                format!("tally {}{}", self.element(*place, *index), self.mask(Some(*mask)))
            }
            OpKind::Memory(MemoryOp::Ticket { counter, index, count, order, .. }) => {
                let at = self.element(Place::Param(*counter), *index);
                format!("ticket {at} of {}{}", v(count), relaxed(*order))
            }
            OpKind::Matrix(MatrixOp::Dot(Dot { acc, a, b, from, count, stages, room, paired, .. })) => {
                let acc = acc.as_ref().map_or(String::new(), |acc| format!("{} + ", v(acc)));
                let (a, b) = (self.rows(a), self.rows(b));
                let room = self.place(Place::Shared(*room));
                let columns = format!("columns [{}; {}]", v(from), v(count));
                let pairs = if *paired { ", in pairs" } else { "" };
                format!("dot {acc}{a} . {b}, {columns}, {stages} stages by {room}{pairs}")
            }
            OpKind::Matrix(MatrixOp::LoadMatrix(LoadMatrix { at, column, .. })) => {
                format!("load_matrix {}, column {}", self.rows(at), v(column))
            }
            OpKind::Matrix(MatrixOp::LoadRow(LoadRow { place, index, receipt, list, .. })) => {
                let list = list.map_or(String::new(), |list| {
                    format!(" and {}[{}] on", self.param(list.param), self.v(list.first))
                });
                format!("{} {}{list}{}", kind.name(), self.element(*place, *index), self.after(*receipt))
            }
            OpKind::Matrix(MatrixOp::ReduceLines(ReduceLines { a, .. })) => {
                format!("{}({})", kind.name(), v(a))
            }
            OpKind::Matrix(MatrixOp::Deinterleave(Deinterleave { a, odd, .. })) => {
                format!("{}({}), {} blocks", kind.name(), v(a), if *odd { "odd" } else { "even" })
            }
            OpKind::Matrix(MatrixOp::StoreMatrix(StoreMatrix { to, column, value })) => {
                format!("store_matrix {}, column {} <- {}", self.rows(to), v(column), v(value))
            }
            OpKind::Comm(CommOp::Put(Put { parcel, buffer, index, value, mask })) => {
                let (at, mask) = (self.element(Place::Param(*buffer), *index), self.mask(*mask));
                format!("put {at} <- {}{mask}{}", v(value), self.to(*parcel))
            }
            OpKind::Comm(CommOp::PutMatrix(PutMatrix { parcel, to, column, value })) => {
                let (to, parcel) = (self.rows(to), self.to(*parcel));
                format!("put_matrix {to}, column {} <- {}{parcel}", v(column), v(value))
            }
            OpKind::Comm(CommOp::BulkCopy(BulkCopy { parcel, buffer, index, source, from, len, room })) => {
                let at = self.element(Place::Param(*buffer), *index);
                let (source, from) = (self.param(*source), v(from));
                let room = self.place(Place::Shared(*room));
                format!("copy {at} <- {source}[{from}; {len}] by {room}{}", self.to(*parcel))
            }
            OpKind::Comm(CommOp::Signal(Signal { parcel, flag, index, value, order })) => {
                let at = self.element(Place::Param(*flag), *index);
                let relaxed = relaxed(*order);
                let published = self.published(*parcel);
                let bare = self.kernel.parcels.get(parcel.index()).is_some_and(|p| p.bare);
                let bare = if bare { ", without data" } else { "" };
                let how = if self.kernel.counts(*flag) { "+=" } else { "<-" };
                format!("signal {at} {how} {}{}{published}{bare}{relaxed}", v(value), self.to(*parcel))
            }
            OpKind::Comm(CommOp::Wait(Wait { receipt, flag, index, from, value })) => {
                let at = self.element(Place::Param(*flag), *index);
                let taken = if self.kernel.counts(*flag) { ", taken" } else { "" };
                format!("^{} = wait {at} == {} from rank {}{taken}", receipt.0, v(value), v(from))
            }
            OpKind::Comm(CommOp::WaitAll(WaitAll {
                receipt,
                flag,
                index,
                count,
                only,
                per_rank,
                value,
                or_later,
            })) => {
                let flag = self.param(*flag);
                let (index, count) = (v(index), v(count));
                let only = only.as_ref().map_or(String::new(), |m| format!(" of {}", v(m)));
                format!(
                    "^{} = wait_all {flag}[{index}; {count}]{only} {} {}, {per_rank} a rank",
                    receipt.0,
                    if *or_later { ">=" } else { "==" },
                    v(value)
                )
            }
            OpKind::Comm(CommOp::BlockSignal(BlockSignal { flag, index, value, order })) => {
                let at = self.element(Place::Param(*flag), *index);
                format!("block_signal {at} <- {}{}", v(value), relaxed(*order))
            }
            OpKind::Comm(CommOp::BlockWait(BlockWait { flag, index, count, from, value, per_block })) => {
                let (flag, index, count) = (self.param(*flag), v(index), v(count));
                let (value, from) = (v(value), v(from));
                format!(
                    "block_wait {flag}[{index}; {count}] == {value} from block {from} on, {per_block} a block"
                )
            }
            OpKind::Comm(CommOp::SendMessages(op)) => {
                let SendMessages { buffer, target, index, value, epoch, count, .. } = op;
                let at = self.element(Place::Param(*buffer), *index);
                let epoch = epoch.as_ref().map_or(String::new(), |e| format!(", {}", v(e)));
                let first = count.as_ref().map_or(String::new(), |n| format!(", first {}", v(n)));
                format!("{} {at} <- {}{first}{epoch} to {}", kind.name(), v(value), self.target(*target))
            }
            OpKind::Comm(CommOp::ReceiveMessages(op)) => {
                let ReceiveMessages { buffer, tiles, mask, epoch, count, .. } = op;
                let epoch = epoch.as_ref().map_or(String::new(), |e| format!(" == {}", v(e)));
                let tile = |t: &Taken| {
                    format!(
                        "{}{epoch} from rank {}",
                        self.element(Place::Param(*buffer), t.index),
                        v(&t.from)
                    )
                };
                let texts: Vec<String> = tiles.iter().map(tile).collect();
                let (of, at) = match self.names.constant(*mask) {
                    _ if self.kernel.ty(*mask).is_tile() => (String::new(), self.mask(Some(*mask))),
                    Some(Const::U64(m)) if m == all_ranks(tiles.len() as u32) => Default::default(),
                    Some(Const::U64(m)) => (format!(" of {m:#b}"), String::new()),
                    _ => (format!(" of {}", v(mask)), String::new()),
                };
                let first = count.as_ref().map_or(String::new(), |n| format!(", first {}", v(n)));
                format!("{}{of} {}{at}{first}", kind.name(), texts.join(", "))
            }
            OpKind::Comm(CommOp::FarPut(op)) => {
                let FarPut { peer, outbox, from, inbox, index, len, counts, counter, counted, reach } = op;
                let (to, source) = (self.element(Place::Param(*inbox), *index), self.param(*outbox));
                let at = self.element(Place::Param(*counts), *counter);
                let how = if *counted { "counted in" } else { "published in" };
                format!(
                    "far_put {to} <- {source}[{}; {len}], {how} {at} to {}",
                    v(from),
                    self.peer(*peer, *reach)
                )
            }
            OpKind::Comm(CommOp::FarPublish(FarPublish { peer, counts, counter, adds, reach })) => {
                let at = self.element(Place::Param(*counts), *counter);
                format!("far_publish {at} += {} to {}", v(adds), self.peer(*peer, *reach))
            }
            OpKind::Comm(CommOp::FarWait(FarWait {
                receipt,
                counts,
                counter,
                count,
                from,
                value,
                reach,
            })) => {
                let (counts, first, count) = (self.param(*counts), v(counter), v(count));
                let (from, value) = (v(from), v(value));
                let of = if *reach == FarReach::default() { "" } else { reach.words() };
                let of = if of.is_empty() { String::new() } else { format!(" of {of}") };
                format!(
                    "^{} = far_wait {counts}[{first}; {count}] -= {value} from rank {from} on{of}",
                    receipt.0
                )
            }
            OpKind::Comm(CommOp::FarSettle(FarSettle { outbox })) => {
                format!("far_settle {}", self.param(*outbox))
            }
            OpKind::Control(ControlOp::If { cond, .. }) => format!("if {}", v(cond)),
            OpKind::Control(ControlOp::For { var, start, end, step, .. }) => {
                let by = match v(step).as_str() {
                    "1" | "1i32" | "1u64" => String::new(),
                    step => format!(" step {step}"),
                };
                format!("for {} in {}..{}{by}", self.def(*var), v(start), v(end))
            }
            OpKind::Control(ControlOp::While { .. }) => "while".into(),
            OpKind::Control(ControlOp::Break { depth: 0 }) => "break".into(),
            OpKind::Control(ControlOp::Break { depth }) => format!("break {depth} out"),
            OpKind::Control(ControlOp::Continue { depth: 0 }) => "continue".into(),
            OpKind::Control(ControlOp::Continue { depth }) => format!("continue {depth} out"),
            OpKind::Control(ControlOp::VarDecl { var, init }) => {
                format!("var {} = {}", self.declared(*var), v(init))
            }
            OpKind::Control(ControlOp::VarGet { var, .. }) => self.names.var(*var),
            OpKind::Control(ControlOp::VarSet { var, value }) => {
                format!("{} = {}", self.names.var(*var), v(value))
            }
            OpKind::Control(ControlOp::Split { warps, .. }) => {
                format!("split {}", count((*warps).into(), "warp"))
            }
        }
    }
}

fn relaxed(order: SignalOrder) -> &'static str {
    match order {
        SignalOrder::Release => "",
        SignalOrder::Relaxed => ", relaxed",
    }
}
