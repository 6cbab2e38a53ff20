//! What tracing and the verifier refuse.

use std::fmt::Debug;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::ir::{
    Builder, CommOp, Const, Dtype, FAR_CHANNELS, FAR_LONGEST, FAR_MEMORY, FarPart, FarPut, FarSettle, Kernel,
    Loc, MemoryOp, OpKind, ParamId, ParamKind, Place, Problem, Put, ReduceOp as Fold, SendMessages, Signal,
    SignalOrder, Target as To, Transport as Carrier, Type, ValueId, verify,
};

use super::world::RANKS;

/// A mistake that ends the trace, or a sound kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Banks,
    Batches,
    Parts,
    SharedSlots,
    NearBatch,
    NearToAll,
    ToAll,
    Mask,
    SlotWithoutWait,
    FromSome,
    FromEach,
    PublishEach,
    NeverPublished,
    NeverSettled,
    NoCreditsRole,
    OutsideARole,
    SettleNear,
    WaitNear,
    NoSuchSlot,
}

#[derive(KernelArgs)]
#[args(config = Wrong)]
struct WrongArgs {
    #[len(|_| 64)]
    x: Ptr<f32>,
    #[channel(|c| {
        let slots = if *c == Wrong::SharedSlots { Slots::Shared(6) } else { Slots::BySender(2) };
        let near = [Wrong::NearBatch, Wrong::NearToAll, Wrong::SettleNear, Wrong::WaitNear].contains(c);
        let transport = if near { Transport::Flags } else { Transport::Far };
        let shape = ChannelShape::new(transport, RANKS, slots).read_many();
        match c {
            Wrong::Banks => shape.banks(3),
            Wrong::Batches => shape.batches(2),
            Wrong::Parts => ChannelShape::new(transport, RANKS, slots).parts(2),
            Wrong::NearBatch | Wrong::NeverPublished => shape.publish(Publish::Batch),
            Wrong::NearToAll | Wrong::ToAll => shape.to_all(),
            _ => shape,
        }
    })]
    #[len(|_| 64)]
    rows: Channel<f32>,
    epoch: EpochWord,
}

#[kernel]
fn wrong(c: &Wrong, a: &WrongArgs) {
    let rows = a.rows.open(a.epoch.begin());
    if *c == Wrong::OutsideARole {
        rows.settle();
    }
    role("send", 1, |_| {
        let to = match c {
            Wrong::Mask => Peers::mask(3u64),
            Wrong::ToAll => Peers::rank(1),
            _ => Peers::all(),
        };
        let row = rows.to(to).slot(if *c == Wrong::NoSuchSlot { 2 } else { 0 });
        row.put(0, a.x.load(0, 64));
        row.done();
        if *c == Wrong::PublishEach {
            rows.publish(to, 1);
        }
        if ![Wrong::NeverSettled, Wrong::WaitNear].contains(c) {
            rows.settle();
        }
    });
    role("receive", 1, |_| {
        if *c == Wrong::SlotWithoutWait {
            a.x.store(0, rows.from(0).slot(0).load(0, 64));
        }
        if *c == Wrong::FromSome {
            let _rows = rows.from_some(7u64).slot(0);
        }
        if *c == Wrong::FromEach {
            let _rows = rows.from_each([], 0u64);
        }
        let _row = rows.from(0).wait(1).slot(0).load(0, 64);
    });
    if *c != Wrong::NoCreditsRole {
        rows.credits();
    }
}

fn trace(wrong_with: Wrong) -> Result<Kernel, TraceError> {
    trace_args::<WrongArgs>(TraceMeta::new("wrong", RANKS, 32, 2), &wrong_with, wrong)
}

#[test]
fn mistakes_end_the_trace_with_words() {
    verify(trace(Wrong::Nothing).unwrap()).unwrap();
    let said = [
        (Wrong::Banks, "far channel `rows` has 3 banks"),
        (Wrong::Batches, "far channel `rows` has flags for batches"),
        (Wrong::Parts, "far channel `rows` has messages in parts"),
        (Wrong::SharedSlots, "far channel `rows` has slots that senders share"),
        (Wrong::NearToAll, "messages of channel `rows` go to all ranks by their shape, and it is near"),
        (Wrong::ToAll, "a message to one rank of channel `rows`, whose messages go to all"),
        (Wrong::NearBatch, "channel `rows` publishes batches, and is near"),
        (Wrong::Mask, "a far message to some ranks, which are a mask, of channel `rows`"),
        (Wrong::SlotWithoutWait, "a message by itself of channel `rows`, which is far"),
        (Wrong::FromSome, "messages of several ranks at once of channel `rows`, which is far"),
        (Wrong::FromEach, "messages of any senders at once of channel `rows`, which is far"),
        (Wrong::PublishEach, "a publish of channel `rows`, whose puts count themselves"),
        (Wrong::NeverPublished, "the batches of far channel `rows` are never published"),
        (Wrong::NeverSettled, "far channel `rows` is never settled"),
        (Wrong::NoCreditsRole, "channel `rows` has credits, and no block gives them"),
        (Wrong::OutsideARole, "a settling outside"),
        (Wrong::SettleNear, "a settling of channel `rows`, which is near"),
        (Wrong::WaitNear, "a wait for a number of messages of channel `rows`, which is near"),
        (Wrong::NoSuchSlot, "slot 2 of channel `rows`, which has 2"),
    ];
    for (mistake, words) in said {
        let error = trace(mistake).unwrap_err();
        assert!(error.message.contains(words), "{mistake:?}: {error}");
        assert!(!error.help.is_empty() && error.loc.file.ends_with("refused.rs"), "{error}");
    }
}

/// A kernel by hand: its parts, and values to use.
struct Hand {
    b: Builder,
    loc: Loc,
    outbox: ParamId,
    inbox: ParamId,
    counts: ParamId,
    flags: ParamId,
    zero: ValueId,
    one: ValueId,
}

impl Hand {
    #[track_caller]
    fn new() -> Hand {
        let loc = Loc::caller();
        let mut b = Builder::new("hand", 2, 32, 1, loc);
        let mut far = |name, part, dtype| b.param(name, ParamKind::Far(part), dtype, 64);
        let outbox = far("outbox", FarPart::Outbox, Dtype::F32);
        let inbox = far("inbox", FarPart::Inbox, Dtype::F32);
        let counts = far("counts", FarPart::Counts, Dtype::U32);
        let flags = b.param("flags", ParamKind::Flags, Dtype::U32, 2);
        let zero = b.constant(Const::U32(0), loc);
        let one = b.constant(Const::F32(0), loc);
        b.begin();
        Hand { b, loc, outbox, inbox, counts, flags, zero, one }
    }

    fn put(&self) -> FarPut {
        let Hand { outbox, inbox, counts, zero, .. } = *self;
        FarPut {
            peer: None,
            outbox,
            from: zero,
            inbox,
            index: zero,
            len: 4,
            counts,
            counter: zero,
            counted: true,
            reach: Default::default(),
        }
    }

    /// The problems of a kernel with these operations.
    fn problems(mut self, ops: impl IntoIterator<Item = OpKind>) -> Vec<Problem> {
        for op in ops {
            self.b.push(op, self.loc);
        }
        let body = self.b.end();
        self.b.role("all", 1, body, self.loc);
        let errors = verify(self.b.finish()).err().map(|errors| errors.0).unwrap_or_default();
        errors.into_iter().map(|e| e.problem).collect()
    }
}

#[track_caller]
fn near_on_far(problems: &[Problem], part: FarPart) {
    let is_it = |p: &Problem| matches!(p, Problem::NearOnFar { part: of, .. } if *of == part);
    assert!(problems.iter().any(is_it), "{problems:?}");
}

fn said(list: &[impl Debug + ToString]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn near_operations_on_parts_of_far_channels_are_refused() {
    let store = |h: &Hand, param| -> OpKind {
        MemoryOp::Store { place: Place::Param(param), index: h.zero, value: h.one, mask: None }.into()
    };
    let load = |h: &mut Hand, place| -> OpKind {
        let out = h.b.kernel.add_value(Type::scalar(Dtype::F32), None);
        MemoryOp::Load { out, place, index: h.zero, receipt: None }.into()
    };
    // Stores where puts arrive, and loads of what they read.
    let h = Hand::new();
    let op = store(&h, h.inbox);
    near_on_far(&h.problems([op]), FarPart::Inbox);
    let mut h = Hand::new();
    let op = load(&mut h, Place::Param(ParamId(0)));
    near_on_far(&h.problems([op]), FarPart::Outbox);
    // Loads from a rank, and from all of them by a switch.
    for place in [Place::Peer(ParamId(1), ValueId(0)), Place::All(ParamId(1), Fold::Sum)] {
        let mut h = Hand::new();
        let op = load(&mut h, place);
        near_on_far(&h.problems([op]), FarPart::Inbox);
    }
    // Near puts and signals.
    let mut h = Hand::new();
    let parcel = h.b.parcel(To::Rank(h.zero), h.loc);
    let put = Put { parcel, buffer: h.inbox, index: h.zero, value: h.one, mask: None };
    let order = SignalOrder::Release;
    let signal = Signal { parcel, flag: h.counts, index: h.zero, value: h.zero, order };
    let problems = h.problems([CommOp::Put(put).into(), CommOp::Signal(signal).into()]);
    near_on_far(&problems, FarPart::Inbox);
    near_on_far(&problems, FarPart::Counts);
    assert!(said(&problems).contains("reach the ranks of one machine only"), "{}", said(&problems));
    // Packets and LL words.
    for transport in Carrier::ALL {
        let mut h = Hand::new();
        let tile = Type::tile(Dtype::F32, 32);
        let value = h.b.emit(tile, h.loc, |out| peerwarp_codegen::ir::ValueOp::Splat { out, a: h.one });
        let epoch = transport.traits().has_epoch.then_some(h.zero);
        let send = SendMessages {
            transport,
            buffer: h.inbox,
            target: To::Rank(h.zero),
            index: h.zero,
            value,
            epoch,
            count: None,
        };
        near_on_far(&h.problems([CommOp::SendMessages(send).into()]), FarPart::Inbox);
    }
    // Atomic updates of an outbox.
    let mut h = Hand::new();
    let out = h.b.kernel.add_value(Type::scalar(Dtype::F32), None);
    let place = Place::Param(h.outbox);
    let (index, value) = (h.zero, h.one);
    near_on_far(
        &h.problems([MemoryOp::Atomic { out, op: Fold::Sum, place, index, value }.into()]),
        FarPart::Outbox,
    );
}

#[test]
fn far_operations_that_do_not_fit_are_refused() {
    let h = Hand::new();
    let sound = h.put();
    assert_eq!(h.problems([CommOp::FarPut(sound).into()]), []);
    let h = Hand::new();
    let empty = FarPut { len: 0, ..h.put() };
    assert!(matches!(h.problems([CommOp::FarPut(empty).into()])[..], [Problem::FarEmpty { .. }]));
    let h = Hand::new();
    let long = FarPut { len: 65, ..h.put() };
    let problems = h.problems([CommOp::FarPut(long).into()]);
    assert_eq!(problems.iter().filter(|p| matches!(p, Problem::OutOfBounds { len: 64, .. })).count(), 2);
    let mut h = Hand::new();
    let none = h.b.constant(Const::U32(2), h.loc);
    let strange = FarPut { peer: Some(none), ..h.put() };
    let problems = h.problems([CommOp::FarPut(strange).into()]);
    assert!(problems.contains(&Problem::NoSuchRank { rank: 2, ranks: 2 }), "{problems:?}");
    let mut h = Hand::new();
    h.b.kernel.params[h.outbox.index()].dtype = Dtype::U32;
    let put = h.put();
    assert!(matches!(h.problems([CommOp::FarPut(put).into()])[..], [Problem::FarDtype { .. }]));
    let h = Hand::new();
    let batch = FarPut { counted: false, ..h.put() };
    assert!(matches!(h.problems([CommOp::FarPut(batch).into()])[..], [Problem::FarUnpublished { .. }]));
    // Far operations on what is near.
    let h = Hand::new();
    let settle = FarSettle { outbox: h.flags };
    assert!(matches!(h.problems([CommOp::FarSettle(settle).into()])[..], [Problem::WrongParamKind { .. }]));
}

#[test]
fn more_channels_than_an_engine_has_are_refused() {
    let mut h = Hand::new();
    for name in ["more", "most"] {
        h.b.param(name, ParamKind::Far(FarPart::Counts), Dtype::U32, 34);
    }
    // 32 of the kernel's own, and 17 of each of the others.
    let problems = h.problems([]);
    let [Problem::FarChannels { channels, limit, .. }] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!((*channels, *limit), (66, FAR_CHANNELS));
    assert!(said(&problems).contains("`counts` has 32, `more` has 17, `most` has 17"), "{}", said(&problems));
}

/// Places and lengths have few bits in a command: a greater one would name another place.
#[test]
fn messages_that_commands_cannot_name_are_refused() {
    let mut h = Hand::new();
    h.b.param("much", ParamKind::Far(FarPart::Inbox), Dtype::F32, FAR_MEMORY / 4);
    let problems = h.problems([]);
    let [Problem::FarMemory { bytes, limit }] = problems[..] else { panic!("{problems:?}") };
    assert!(bytes > limit && limit == FAR_MEMORY, "{bytes} of {limit}");
    let h = Hand::new();
    let len = (FAR_LONGEST / 4) as u32 + 1;
    let put = FarPut { len, ..h.put() };
    let problems = h.problems([CommOp::FarPut(put).into()]);
    let long = |p: &Problem| matches!(p, Problem::FarLong { bytes, .. } if *bytes == FAR_LONGEST + 4);
    assert!(problems.iter().any(long), "{problems:?}");
}

#[test]
fn counters_that_ranks_do_not_divide_are_refused() {
    let mut h = Hand::new();
    h.b.param("odd", ParamKind::Far(FarPart::Counts), Dtype::U32, 3);
    let problems = h.problems([]);
    assert!(said(&problems).contains("`odd` are 3, which 2 ranks do not divide"), "{}", said(&problems));
}

#[test]
fn messages_begin_where_an_engine_can_begin() {
    for (buffer, number) in [("outbox", 0), ("inbox", 1)] {
        let mut h = Hand::new();
        let two = h.b.constant(Const::U32(2), h.loc);
        let mut put = h.put();
        if number == 0 {
            put.from = two
        } else {
            put.index = two
        };
        let problems = h.problems([CommOp::FarPut(put).into()]);
        let said = said(&problems);
        assert!(
            said.contains(&format!("at element 2 of `{buffer}`, which may be no multiple of 4")),
            "{said}"
        );
    }
}
