//! A token exchange with records, and ways to get it wrong.
//!
//! Every rank sends its `n` tokens to all ranks, row by row, each with a flag; a record with the count goes to all ranks
//! too, zero counts included. All slots are double-buffered by the parity of the epoch.

use std::sync::Arc;

use crate::ir::samples::Sample;
use crate::ir::*;
use crate::sim::{Bindings, Compiled, Machine};

pub(super) const RANKS: u32 = 4;
pub(super) const TOKENS: u32 = 6;
const ROW: u32 = 64;
/// Tokens of each rank.
const COUNTS: [u32; RANKS as usize] = [5, 0, 6, 3];

/// A mistake in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    /// Row flags are relaxed.
    MissingRelease,
    /// The receiver waits for the rows of the epoch before.
    WaitsForOldEpoch,
    /// The receiver waits for the rows of the epoch to come.
    WaitsForNewEpoch,
    /// The row's flag is signalled before the row is put.
    FlagBeforeData,
    /// The row's flag goes to the next slot.
    FlagToWrongSlot,
    /// The receiver reads rows without waiting.
    MissingWait,
    /// Rows are not double-buffered, flags are.
    RowsReusedEarly,
    /// Row flags are not double-buffered.
    FlagsReusedEarly,
    /// The receiver takes one row too many from each rank.
    CountOffByOne,
    /// The sender's slots are shifted out of the inbox.
    SlotOutOfRange,
    /// All tokens go to slot 0 of their rank.
    TwoWritersOfOneSlot,
    /// A rank without tokens sends no record.
    NoEmptyRecord,
    /// The receiver waits for the records of all ranks but the last.
    RecordWaitTooShort,
    /// The receiver names the wrong rank as sender of the rows.
    WrongSender,
    /// The receiver does not wait for the last row of each rank.
    LastRowUnwaited,
    /// Records are put without an order after the old ones were read.
    RecordsReusedEarly,
}

struct Params {
    x: ParamId,
    n: ParamId,
    inbox: ParamId,
    row_flag: ParamId,
    records: ParamId,
    record_flag: ParamId,
    out: ParamId,
}

/// Lines of the imagined source that findings are expected at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lines {
    pub put_row: u32,
    pub signal_row: u32,
    pub wait_row: u32,
    pub load_row: u32,
    pub wait_records: u32,
}

pub(super) fn kernel(bug: Bug, receive_first: bool) -> (Kernel, Lines) {
    let mut s = Sample::new("tokens");
    let u = Type::scalar(Dtype::U32);
    let (slots, words) = (u64::from(2 * RANKS * TOKENS), u64::from(ROW));
    let p = Params {
        x: s.b.param("x", ParamKind::Local, Dtype::U32, u64::from(TOKENS) * words),
        n: s.b.param("n", ParamKind::Local, Dtype::U32, 1),
        inbox: s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, slots * words),
        row_flag: s.b.param("row_flag", ParamKind::Flags, Dtype::U32, slots),
        records: s.b.param("records", ParamKind::Symmetric, Dtype::U32, u64::from(2 * RANKS)),
        record_flag: s.b.param("record_flag", ParamKind::Flags, Dtype::U32, u64::from(2 * RANKS)),
        out: s.b.param("out", ParamKind::Local, Dtype::U32, slots / 2 * words),
    };
    let word = s.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let epoch = s.value("epoch", u, |out| ValueOp::Epoch { out, word, advance: true });
    let one = s.u32(1);
    let parity = s.binary("parity", BinaryOp::And, epoch, one);
    let mut lines = Lines::default();
    let common = Common { bug, epoch, parity };
    if receive_first {
        s.role("recv", 2, |s| receive(s, &p, &common, &mut lines));
    }
    s.role("send", 2, |s| send(s, &p, &common, &mut lines));
    s.role("close", 1, |s| close(s, &p, &common));
    if !receive_first {
        s.role("recv", 2, |s| receive(s, &p, &common, &mut lines));
    }
    (s.finish(), lines)
}

struct Common {
    bug: Bug,
    epoch: ValueId,
    parity: ValueId,
}

impl Common {
    /// `(parity * ranks + rank) * per_rank + i`.
    fn slot(&self, s: &mut Sample, single: bool, rank: ValueId, per_rank: u32, i: ValueId) -> ValueId {
        let (ranks, per, zero) = (s.u32(RANKS), s.u32(per_rank), s.u32(0));
        let parity = if single { zero } else { self.parity };
        let half = s.binary("", BinaryOp::Mul, parity, ranks);
        let row = s.binary("", BinaryOp::Add, half, rank);
        let row = s.binary("", BinaryOp::Mul, row, per);
        s.binary("slot", BinaryOp::Add, row, i)
    }
}

fn rank(s: &mut Sample) -> ValueId {
    s.value("me", Type::scalar(Dtype::U32), |out| ValueOp::Rank { out })
}

/// How many tokens this rank has.
fn tokens(s: &mut Sample, p: &Params) -> ValueId {
    let (place, index) = (Place::Param(p.n), s.u32(0));
    s.value("n", Type::scalar(Dtype::U32), |out| MemoryOp::Load { out, place, index, receipt: None })
}

fn all(s: &mut Sample) -> Target {
    Target::Mask(s.constant(Const::U64((1 << RANKS) - 1)))
}

fn send(s: &mut Sample, p: &Params, c: &Common, lines: &mut Lines) {
    let loc = s.loc();
    let body = s.region(|s| {
        // Two blocks of two warps: four groups stride over the tokens.
        let first = s.value("first", Type::scalar(Dtype::U32), |out| ValueOp::GroupIndex { out });
        let (n, four) = (tokens(s, p), s.u32(4));
        s.for_each("t", (first, n, four), |s, t| send_row(s, p, c, t, lines));
    });
    s.b.push(ControlOp::Split { warps: 1, body }, loc);
}

fn send_row(s: &mut Sample, p: &Params, c: &Common, t: ValueId, lines: &mut Lines) {
    let (words, zero, me) = (s.u32(ROW), s.u32(0), rank(s));
    let at = s.binary("", BinaryOp::Mul, t, words);
    let row = s.value("row", Type::tile(Dtype::U32, ROW), |out| MemoryOp::Load {
        out,
        place: Place::Param(p.x),
        index: at,
        receipt: None,
    });
    let t = if c.bug == Bug::TwoWritersOfOneSlot { zero } else { t };
    let slot = c.slot(s, c.bug == Bug::RowsReusedEarly, me, TOKENS, t);
    let slot = if c.bug == Bug::SlotOutOfRange {
        let far = s.u32(2 * RANKS * TOKENS - 2);
        s.binary("", BinaryOp::Add, slot, far)
    } else {
        slot
    };
    let at = s.binary("at", BinaryOp::Mul, slot, words);
    let flag = c.slot(s, c.bug == Bug::FlagsReusedEarly, me, TOKENS, t);
    let flag = if c.bug == Bug::FlagToWrongSlot {
        let one = s.u32(1);
        let limit = s.u32(2 * RANKS * TOKENS);
        let next = s.binary("", BinaryOp::Add, flag, one);
        s.binary("", BinaryOp::Rem, next, limit)
    } else {
        flag
    };
    let target = all(s);
    let parcel = s.parcel(target);
    let order = if c.bug == Bug::MissingRelease { SignalOrder::Relaxed } else { SignalOrder::Release };
    let put = OpKind::Comm(CommOp::Put(Put { parcel, buffer: p.inbox, index: at, value: row, mask: None }));
    let signal =
        OpKind::Comm(CommOp::Signal(Signal { parcel, flag: p.row_flag, index: flag, value: c.epoch, order }));
    let put_first = c.bug != Bug::FlagBeforeData;
    for kind in if put_first { [put, signal] } else { [signal, put] } {
        let is_put = matches!(kind, OpKind::Comm(CommOp::Put(_)));
        let op = s.op(kind);
        let line = s.b.kernel.op(op).loc.line;
        *(if is_put { &mut lines.put_row } else { &mut lines.signal_row }) = line;
    }
}

fn close(s: &mut Sample, p: &Params, c: &Common) {
    let (zero, me, n) = (s.u32(0), rank(s), tokens(s, p));
    let loc = s.loc();
    let then = s.region(|s| {
        let record = c.slot(s, c.bug == Bug::RecordsReusedEarly, me, 1, zero);
        let flag = c.slot(s, false, me, 1, zero);
        let target = all(s);
        let parcel = s.parcel(target);
        s.op(CommOp::Put(Put { parcel, buffer: p.records, index: record, value: n, mask: None }));
        let order = SignalOrder::Release;
        s.op(CommOp::Signal(Signal { parcel, flag: p.record_flag, index: flag, value: c.epoch, order }));
    });
    if c.bug == Bug::NoEmptyRecord {
        let cond = s.compare("", CompareOp::Gt, n, zero);
        s.b.push(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
    } else {
        let yes = s.constant(Const::Bool(true));
        s.b.push(ControlOp::If { cond: yes, then, otherwise: Region::default(), results: vec![] }, loc);
    }
}

fn receive(s: &mut Sample, p: &Params, c: &Common, lines: &mut Lines) {
    let u = Type::scalar(Dtype::U32);
    let (zero, one, two, ranks) = (s.u32(0), s.u32(1), s.u32(2), s.u32(RANKS));
    let first = c.slot(s, false, zero, 1, zero);
    let few = s.u32(RANKS - u32::from(c.bug == Bug::RecordWaitTooShort));
    let receipt = s.receipt(p.record_flag);
    let op = s.op(CommOp::WaitAll(WaitAll {
        receipt,
        flag: p.record_flag,
        index: first,
        count: few,
        only: None,
        per_rank: 1,
        value: c.epoch,
        or_later: false,
    }));
    lines.wait_records = s.b.kernel.op(op).loc.line;
    let block = s.value("block", u, |out| ValueOp::GroupIndex { out });
    s.for_each("src", (zero, ranks, one), |s, src| {
        let at = c.slot(s, c.bug == Bug::RecordsReusedEarly, src, 1, zero);
        let place = Place::Param(p.records);
        let mut count =
            s.value("count", u, |out| MemoryOp::Load { out, place, index: at, receipt: Some(receipt) });
        if c.bug == Bug::CountOffByOne {
            count = s.binary("", BinaryOp::Add, count, one);
        }
        s.for_each("t", (block, count, two), |s, t| receive_row(s, p, c, (src, t, count), lines));
    });
}

fn receive_row(
    s: &mut Sample,
    p: &Params,
    c: &Common,
    (src, t, count): (ValueId, ValueId, ValueId),
    lines: &mut Lines,
) {
    let (words, one, ranks) = (s.u32(ROW), s.u32(1), s.u32(RANKS));
    let slot = c.slot(s, c.bug == Bug::RowsReusedEarly, src, TOKENS, t);
    let flag = c.slot(s, c.bug == Bug::FlagsReusedEarly, src, TOKENS, t);
    let value = match c.bug {
        Bug::WaitsForOldEpoch => s.binary("", BinaryOp::Sub, c.epoch, one),
        Bug::WaitsForNewEpoch => s.binary("", BinaryOp::Add, c.epoch, one),
        _ => c.epoch,
    };
    let from = if c.bug == Bug::WrongSender {
        let next = s.binary("", BinaryOp::Add, src, one);
        s.binary("", BinaryOp::Rem, next, ranks)
    } else {
        src
    };
    let receipt = s.receipt(p.row_flag);
    let wait = OpKind::Comm(CommOp::Wait(Wait { receipt, flag: p.row_flag, index: flag, from, value }));
    match c.bug {
        Bug::MissingWait => {}
        Bug::LastRowUnwaited => {
            let last = s.binary("", BinaryOp::Sub, count, one);
            let cond = s.compare("", CompareOp::Lt, t, last);
            let loc = s.loc();
            let then = s.region(|s| {
                s.op(wait);
            });
            s.b.push(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
        }
        _ => {
            let op = s.op(wait);
            lines.wait_row = s.b.kernel.op(op).loc.line;
        }
    }
    let at = s.binary("at", BinaryOp::Mul, slot, words);
    let place = Place::Param(p.inbox);
    let receipt = (c.bug != Bug::MissingWait).then_some(receipt);
    let row =
        s.value("row", Type::tile(Dtype::U32, ROW), |out| MemoryOp::Load { out, place, index: at, receipt });
    lines.load_row = s.b.kernel.ops.last().unwrap().loc.line;
    let tokens = s.u32(TOKENS);
    let base = s.binary("", BinaryOp::Mul, src, tokens);
    let to = s.binary("", BinaryOp::Add, base, t);
    let to = s.binary("", BinaryOp::Mul, to, words);
    s.op(MemoryOp::Store { place: Place::Param(p.out), index: to, value: row, mask: None });
}

fn input(epoch: u32, rank: u32, token: u32, word: u32) -> u32 {
    ((epoch * 10 + rank) * 10 + token) * 1000 + word
}

/// Ranks that exchange their tokens `times` times, each with other content, and compare what arrived.
pub(super) fn machine(kernel: Kernel, times: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..RANKS {
        machine.write(rank, "n", 0, &[COUNTS[rank as usize]]).unwrap();
        for epoch in 1..=times {
            let fill = move |m: &mut crate::sim::HostMemory<'_, '_>| {
                let words = (0..TOKENS * ROW).map(|i| input(epoch, m.rank(), i / ROW, i % ROW));
                Ok(m.write("x", 0, &words.collect::<Vec<_>>())?)
            };
            machine.host(rank, "fill x", fill).unwrap();
            machine.launch(rank, &kernel, &Bindings::new()).unwrap();
            machine.host(rank, "compare out", move |m| compare(m, epoch)).unwrap();
        }
    }
    machine
}

fn compare(m: &mut crate::sim::HostMemory<'_, '_>, epoch: u32) -> Result<(), String> {
    for src in 0..RANKS {
        for t in 0..COUNTS[src as usize] {
            let from = u64::from((src * TOKENS + t) * ROW);
            let got = m.read::<u32>("out", from..from + u64::from(ROW))?;
            if let Some(i) = (0..ROW).find(|&i| got[i as usize] != input(epoch, src, t, i)) {
                return Err(format!("word {i} of token {t} of rank {src} is {}", got[i as usize]));
            }
        }
    }
    Ok(())
}
