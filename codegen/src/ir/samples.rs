//! Hand-built kernels for unit tests, and a thin layer over [`Builder`] that keeps them short.

use super::*;

/// A builder whose locations count lines of a file `sample.rs`.
pub(crate) struct Sample {
    pub b: Builder,
    line: u32,
}

impl Sample {
    /// A kernel for 4 ranks with 2 warps of 32 lanes a block.
    pub fn new(name: &str) -> Sample {
        Sample { b: Builder::new(name, 4, 32, 2, Loc { file: "src/sample.rs", line: 1, col: 1 }), line: 1 }
    }

    /// The next line of the imagined source.
    pub fn loc(&mut self) -> Loc {
        self.line += 1;
        Loc { file: "src/sample.rs", line: self.line, col: 5 }
    }

    pub fn op(&mut self, kind: impl Into<OpKind>) -> OpId {
        let loc = self.loc();
        self.b.push(kind, loc)
    }

    pub fn value<K: Into<OpKind>>(
        &mut self,
        name: &str,
        ty: Type,
        kind: impl FnOnce(ValueId) -> K,
    ) -> ValueId {
        let loc = self.loc();
        let v = self.b.emit(ty, loc, kind);
        self.b.kernel.values[v.index()].name = (!name.is_empty()).then(|| name.into());
        v
    }

    pub fn u32(&mut self, v: u32) -> ValueId {
        let loc = self.loc();
        self.b.constant(Const::U32(v), loc)
    }

    pub fn constant(&mut self, c: Const) -> ValueId {
        let loc = self.loc();
        self.b.constant(c, loc)
    }

    pub fn binary(&mut self, name: &str, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let ty = self.b.kernel.ty(a);
        self.value(name, ty, |out| ValueOp::Binary { out, op, a, b })
    }

    pub fn compare(&mut self, name: &str, op: CompareOp, a: ValueId, b: ValueId) -> ValueId {
        let ty = self.b.kernel.ty(a).with_dtype(Dtype::Bool);
        self.value(name, ty, |out| ValueOp::Compare { out, op, a, b })
    }

    pub fn region(&mut self, build: impl FnOnce(&mut Sample)) -> Region {
        self.b.begin();
        build(self);
        self.b.end()
    }

    pub fn role(&mut self, name: &str, blocks: u32, build: impl FnOnce(&mut Sample)) {
        let loc = self.loc();
        let body = self.region(build);
        self.b.role(name, blocks, body, loc);
    }

    pub fn for_each(
        &mut self,
        name: &str,
        (start, end, step): (ValueId, ValueId, ValueId),
        build: impl FnOnce(&mut Sample, ValueId),
    ) {
        let loc = self.loc();
        let ty = self.b.kernel.ty(start);
        let var = self.b.kernel.add_value(ty, (!name.is_empty()).then(|| name.into()));
        let body = self.region(|s| build(s, var));
        self.b.push(ControlOp::For { var, start, end, step, body }, loc);
    }

    pub fn parcel(&mut self, target: Target) -> ParcelId {
        let loc = self.loc();
        self.b.parcel(target, loc)
    }

    pub fn bare_parcel(&mut self, target: Target) -> ParcelId {
        let loc = self.loc();
        self.b.bare_parcel(target, loc)
    }

    pub fn receipt(&mut self, flag: ParamId) -> ReceiptId {
        let loc = self.loc();
        self.b.receipt(flag, loc)
    }

    pub fn var(&mut self, name: &str, init: ValueId) -> VarId {
        let loc = self.loc();
        let ty = self.b.kernel.ty(init);
        let var = self.b.var(ty, loc);
        self.b.kernel.vars[var.index()].name = (!name.is_empty()).then(|| name.into());
        self.b.push(ControlOp::VarDecl { var, init }, loc);
        var
    }

    pub fn finish(self) -> Kernel {
        self.b.finish()
    }
}

/// Every rank puts a row to all ranks and adds up what it gets: one role, parity double buffer.
pub(crate) fn exchange() -> Kernel {
    let mut s = Sample::new("exchange");
    s.b.kernel.doc = "Sums one row of every rank.".into();
    s.b.kernel.config = vec![("row".into(), "96".into())];
    let x = s.b.param("x", ParamKind::Local, Dtype::F32, 96);
    let y = s.b.param("y", ParamKind::Local, Dtype::F32, 96);
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::F32, 2 * 4 * 96);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 8);
    let word = s.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let u = Type::scalar(Dtype::U32);
    let row = Type::tile(Dtype::F32, 96);
    let epoch = s.value("epoch", u, |out| ValueOp::Epoch { out, word, advance: true });
    let rank = s.value("me", u, |out| ValueOp::Rank { out });
    let one = s.u32(1);
    let parity = s.binary("parity", BinaryOp::And, epoch, one);
    s.role("exchange", 1, |s| {
        let (zero, four, len) = (s.u32(0), s.u32(4), s.u32(96));
        let half = s.binary("half", BinaryOp::Mul, parity, four);
        let slot = s.binary("slot", BinaryOp::Add, half, rank);
        let at = s.binary("", BinaryOp::Mul, slot, len);
        let mine = s.value("mine", row, |out| MemoryOp::Load {
            out,
            place: Place::Param(x),
            index: zero,
            receipt: None,
        });
        let all = s.constant(Const::U64(0b1111));
        let parcel = s.parcel(Target::Mask(all));
        s.op(CommOp::Put(Put { parcel, buffer: inbox, index: at, value: mine, mask: None }));
        s.op(CommOp::Signal(Signal { parcel, flag, index: slot, value: epoch, order: SignalOrder::Release }));
        let none = s.constant(Const::F32(0));
        let empty = s.value("", row, |out| ValueOp::Splat { out, a: none });
        let total = s.var("total", empty);
        s.for_each("from", (zero, four, one), |s, from| {
            let slot = s.binary("slot", BinaryOp::Add, half, from);
            let receipt = s.receipt(flag);
            s.op(CommOp::Wait(Wait { receipt, flag, index: slot, from, value: epoch }));
            let at = s.binary("at", BinaryOp::Mul, slot, len);
            let place = Place::Param(inbox);
            let got =
                s.value("got", row, |out| MemoryOp::Load { out, place, index: at, receipt: Some(receipt) });
            let so_far = s.value("", row, |out| ControlOp::VarGet { out, var: total });
            let value = s.binary("", BinaryOp::Add, so_far, got);
            s.op(ControlOp::VarSet { var: total, value });
        });
        let sum = s.value("sum", row, |out| ControlOp::VarGet { out, var: total });
        s.op(MemoryOp::Store { place: Place::Param(y), index: zero, value: sum, mask: None });
    });
    s.finish()
}

/// A small scatter of tokens to the ranks that own them: a send role of groups that split blocks, and a receive role
/// that counts in shared memory. Uses every kind of operation at least once.
pub(crate) fn scatter() -> Kernel {
    let mut s = Sample::new("scatter");
    s.b.kernel.variant = "scatter_t8_r4".into();
    let u = Type::scalar(Dtype::U32);
    let ids = s.b.param("ids", ParamKind::Local, Dtype::I32, 8);
    let x = s.b.param("x", ParamKind::Local, Dtype::Bf16, 8 * 64);
    let out_rows = s.b.param("rows", ParamKind::Local, Dtype::F32, 32 * 64);
    let counts = s.b.param("counts", ParamKind::Local, Dtype::U32, 8);
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::Bf16, 32 * 64);
    let row_flag = s.b.param("row_flag", ParamKind::Flags, Dtype::U32, 32);
    let end_flag = s.b.param("end_flag", ParamKind::Flags, Dtype::U32, 4);
    let sent = s.b.param("sent", ParamKind::Symmetric, Dtype::U32, 32);
    let word = s.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let n_param = s.b.param("n", ParamKind::Scalar, Dtype::U32, 1);
    let epoch = s.value("epoch", u, |out| ValueOp::Epoch { out, word, advance: true });
    let me = s.value("me", u, |out| ValueOp::Rank { out });
    let n = s.value("n", u, |out| ValueOp::ScalarParam { out, param: n_param });
    let p = Params { ids, x, out_rows, counts, inbox, row_flag, end_flag, sent };
    s.role("send", 2, |s| {
        let loc = s.loc();
        let body = s.region(|s| send_rows(s, p, epoch, me, n));
        s.b.push(ControlOp::Split { warps: 1, body }, loc);
    });
    s.role("close", 1, |s| {
        let (zero, one, four) = (s.u32(0), s.u32(1), s.u32(4));
        s.for_each("to", (zero, four, one), |s, to| {
            let parcel = s.parcel(Target::Rank(to));
            let eight = s.u32(8);
            let at = s.binary("", BinaryOp::Mul, me, eight);
            s.op(CommOp::Put(Put { parcel, buffer: p.sent, index: at, value: n, mask: None }));
            let order = SignalOrder::Release;
            s.op(CommOp::Signal(Signal { parcel, flag: p.end_flag, index: me, value: epoch, order }));
        });
    });
    s.role("recv", 1, |s| receive_rows(s, p, epoch));
    s.finish()
}

#[derive(Clone, Copy)]
struct Params {
    ids: ParamId,
    x: ParamId,
    out_rows: ParamId,
    counts: ParamId,
    inbox: ParamId,
    row_flag: ParamId,
    end_flag: ParamId,
    sent: ParamId,
}

fn send_rows(s: &mut Sample, p: Params, epoch: ValueId, me: ValueId, n: ValueId) {
    let u = Type::scalar(Dtype::U32);
    let (four, eight, len) = (s.u32(4), s.u32(8), s.u32(64));
    let first = s.value("", u, |out| ValueOp::GroupIndex { out });
    s.for_each("t", (first, n, four), |s, t| {
        let id = s.value("id", Type::scalar(Dtype::I32), |out| MemoryOp::Load {
            out,
            place: Place::Param(p.ids),
            index: t,
            receipt: None,
        });
        let none = s.constant(Const::I32(0));
        let masked = s.compare("masked", CompareOp::Lt, id, none);
        let loc = s.loc();
        let then = s.region(|s| {
            s.op(ControlOp::Continue { depth: 0 });
        });
        s.b.push(ControlOp::If { cond: masked, then, otherwise: Region::default(), results: vec![] }, loc);
        let id = s.value("id", u, |out| ValueOp::Cast { out, a: id });
        let owner = s.binary("owner", BinaryOp::Rem, id, four);
        let wide = s.value("", Type::scalar(Dtype::U64), |out| ValueOp::Cast { out, a: owner });
        let one = s.constant(Const::U64(1));
        let mask = s.binary("mask", BinaryOp::Shl, one, wide);
        let at = s.binary("", BinaryOp::Mul, t, len);
        let row = s.value("row", Type::tile(Dtype::Bf16, 64), |out| MemoryOp::Load {
            out,
            place: Place::Param(p.x),
            index: at,
            receipt: None,
        });
        let from = s.binary("", BinaryOp::Mul, me, eight);
        let slot = s.binary("slot", BinaryOp::Add, from, t);
        let at = s.binary("", BinaryOp::Mul, slot, len);
        let parcel = s.parcel(Target::Mask(mask));
        s.op(CommOp::Put(Put { parcel, buffer: p.inbox, index: at, value: row, mask: None }));
        let order = SignalOrder::Release;
        s.op(CommOp::Signal(Signal { parcel, flag: p.row_flag, index: slot, value: epoch, order }));
    });
}

fn receive_rows(s: &mut Sample, p: Params, epoch: ValueId) {
    let u = Type::scalar(Dtype::U32);
    let row = Type::tile(Dtype::F32, 64);
    let (zero, one, four, eight, len) = (s.u32(0), s.u32(1), s.u32(4), s.u32(8), s.u32(64));
    let closed = s.receipt(p.end_flag);
    let wait = OpKind::Comm(CommOp::WaitAll(WaitAll {
        receipt: closed,
        flag: p.end_flag,
        index: zero,
        count: four,
        only: None,
        per_rank: 1,
        value: epoch,
        or_later: false,
    }));
    s.op(wait);
    let loc = s.loc();
    let seen = s.b.shared("seen", Dtype::U32, 64, 1, loc);
    let place = Place::Shared(seen);
    let lanes = s.value("lanes", Type::tile(Dtype::U32, 64), |out| ValueOp::Arange { out });
    let limit = s.value("", Type::tile(Dtype::U32, 64), |out| ValueOp::Splat { out, a: eight });
    let few = s.compare("few", CompareOp::Lt, lanes, limit);
    s.op(MemoryOp::Scatter { place, index: lanes, value: lanes, mask: Some(few), adds: false });
    let old =
        s.value("old", u, |out| MemoryOp::Atomic { out, op: ReduceOp::Sum, place, index: zero, value: one });
    let back = s.value("back", Type::tile(Dtype::U32, 64), |out| MemoryOp::Gather {
        out,
        place,
        index: lanes,
        mask: few,
        other: limit,
        receipt: None,
    });
    let before = s.value("before", Type::tile(Dtype::U32, 64), |out| ValueOp::Scan {
        out,
        op: ReduceOp::Sum,
        a: back,
        exclusive: true,
    });
    let most = s.value("most", u, |out| ValueOp::Reduce { out, op: ReduceOp::Max, a: before });
    let bits = s.value("bits", u, |out| ValueOp::Unary { out, op: UnaryOp::PopCount, a: most });
    let busy = s.compare("busy", CompareOp::Gt, bits, old);
    let loc = s.loc();
    let ty = s.b.kernel.ty(bits);
    let chosen = s.b.kernel.add_value(ty, Some("chosen".into()));
    let (mut yes, mut no) = (bits, bits);
    let then = s.region(|s| yes = s.binary("", BinaryOp::Min, bits, eight));
    let otherwise =
        s.region(|s| no = s.value("", u, |out| ValueOp::Select { out, cond: busy, a: old, b: bits }));
    s.b.push(ControlOp::If { cond: busy, then, otherwise, results: vec![(chosen, yes, no)] }, loc);
    s.op(MemoryOp::Store { place: Place::Param(p.counts), index: zero, value: chosen, mask: None });
    let left = s.var("left", chosen);
    let loc = s.loc();
    let mut cond = busy;
    let header = s.region(|s| {
        let now = s.value("now", u, |out| ControlOp::VarGet { out, var: left });
        cond = s.compare("", CompareOp::Ne, now, zero);
    });
    let body = s.region(|s| {
        let now = s.value("now", u, |out| ControlOp::VarGet { out, var: left });
        let value = s.binary("", BinaryOp::Sub, now, one);
        s.op(ControlOp::VarSet { var: left, value });
        s.op(ControlOp::Break { depth: 0 });
    });
    s.b.push(ControlOp::While { header, cond, body }, loc);
    s.for_each("src", (zero, four, one), |s, src| {
        let at = s.binary("", BinaryOp::Mul, src, eight);
        let place = Place::Param(p.sent);
        let n = s.value("n", u, |out| MemoryOp::Load { out, place, index: at, receipt: Some(closed) });
        s.for_each("t", (zero, n, one), |s, t| {
            let slot = s.binary("slot", BinaryOp::Add, at, t);
            let got = s.receipt(p.row_flag);
            s.op(CommOp::Wait(Wait { receipt: got, flag: p.row_flag, index: slot, from: src, value: epoch }));
            let at = s.binary("", BinaryOp::Mul, slot, len);
            let half = s.value("half", Type::tile(Dtype::Bool, 64), |out| ValueOp::Compare {
                out,
                op: CompareOp::Ge,
                a: lanes,
                b: limit,
            });
            let none = s.constant(Const::F32(1.5f32.to_bits()));
            let other = s.value("", row, |out| ValueOp::Splat { out, a: none });
            let other16 = s.value("", row.with_dtype(Dtype::Bf16), |out| ValueOp::Cast { out, a: other });
            let raw = s.value("raw", row.with_dtype(Dtype::Bf16), |out| MemoryOp::LoadMasked {
                out,
                place: Place::Param(p.inbox),
                index: at,
                mask: half,
                other: other16,
                receipt: Some(got),
            });
            let wide = s.value("wide", row, |out| ValueOp::Cast { out, a: raw });
            let twice = s.value("twice", row, |out| ValueOp::Fma { out, a: wide, b: other, c: wide });
            let bits = s.value("bits", row.with_dtype(Dtype::U32), |out| ValueOp::Bitcast { out, a: twice });
            let kept = s.value("kept", row, |out| ValueOp::Bitcast { out, a: bits });
            s.op(MemoryOp::Store {
                place: Place::Param(p.out_rows),
                index: at,
                value: kept,
                mask: Some(half),
            });
        });
    });
}
