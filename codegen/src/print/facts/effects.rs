//! What memory an operation touches, with which lanes, and when two touches are surely apart.

use crate::ir::{
    BulkCopy, CommOp, ControlOp, MemoryOp, OpId, OpKind, PACKET_BYTES, Place, Put, PutMatrix, ValueId,
};
use crate::print::analysis::{
    Program, Reach,
    linear::{self, Linear},
};
use crate::print::layout::Layouts;

/// Which lanes touch what.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Lanes {
    /// The group's first lane, one element.
    First,
    /// Every lane, the same element.
    Every,
    /// Each of a group's `lanes` its share of a tile of `len` elements, `per_lane` consecutive ones a step.
    Spread { len: u32, per_lane: u32, lanes: u32 },
    /// No telling: gathers and scatters.
    Anywhere,
}

/// One touch of memory by a group.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// The operation.
    pub op: OpId,
    /// The buffer.
    pub place: Place,
    /// Whether it writes.
    pub write: bool,
    /// Whether it is a put, or additions: such are not ordered among each other.
    pub put: bool,
    /// Who.
    pub lanes: Lanes,
    /// First element, as a linear form; none where lanes pick for themselves.
    start: Option<Linear>,
    /// The same, as what it can be in any round of any loop.
    reach: Option<Reach>,
}

impl Lanes {
    /// Whether an element at the same distance from the start is the same lane's for both.
    fn agree(&self, other: &Lanes) -> bool {
        match (self, other) {
            (
                Lanes::Spread { per_lane, lanes, .. },
                Lanes::Spread { per_lane: other_per_lane, lanes: other_lanes, .. },
            ) => (per_lane, lanes) == (other_per_lane, other_lanes),
            (a, b) => *a == Lanes::First && *b == Lanes::First,
        }
    }
}

/// How far apart in time two touches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Age {
    /// The same round of every loop around them.
    Now,
    /// An earlier round of this loop, the same round of the loops around it.
    Round(OpId),
    /// Unknown.
    Far,
}

/// What an operation touches.
pub(crate) fn accesses(p: &Program, layouts: &Layouts, op: OpId) -> Vec<Access> {
    let k = p.kernel;
    let spread = |tile: ValueId| match k.ty(tile).len {
        Some(len) => {
            let layout = layouts.of(tile);
            Lanes::Spread { len, per_lane: layout.per_lane, lanes: layout.lanes }
        }
        None => Lanes::First,
    };
    let one = |place, write, put, lanes, index: Option<ValueId>| {
        let (start, reach) = (index.map(|i| linear::form(p, i)), index.map(|i| Reach::of(p, i)));
        vec![Access { op, place, write, put, lanes, start, reach }]
    };
    match k.op(op).kind {
        OpKind::Memory(MemoryOp::Load { out, place, index, .. }) => {
            let lanes = if k.ty(out).is_tile() { spread(out) } else { Lanes::Every };
            one(place, false, false, lanes, Some(index))
        }
        OpKind::Memory(MemoryOp::LoadMasked { out, place, index, .. }) => one(place, false, false, spread(out), Some(index)),
        OpKind::Memory(MemoryOp::Gather { place, .. }) => one(place, false, false, Lanes::Anywhere, None),
        OpKind::Memory(MemoryOp::Store { place, index, value, .. }) => one(place, true, false, spread(value), Some(index)),
        OpKind::Memory(MemoryOp::Scatter { place, adds: true, .. }) => {
            one(place, true, true, Lanes::Anywhere, None)
        }
        OpKind::Memory(MemoryOp::Scatter { place, .. } | MemoryOp::Tally { place, .. }) => {
            one(place, true, false, Lanes::Anywhere, None)
        }
        OpKind::Memory(MemoryOp::Atomic { place, index, .. }) => one(place, true, false, Lanes::First, Some(index)),
        OpKind::Comm(CommOp::Put(Put { buffer, index, value, .. })) => {
            // A scalar put to a mask is spread over lanes by destination, not by element.
            let lanes = if k.ty(value).is_tile() { spread(value) } else { Lanes::Anywhere };
            one(Place::Param(buffer), true, true, lanes, Some(index))
        }
        OpKind::Comm(CommOp::BulkCopy(BulkCopy { buffer, index, source, from, len, .. })) => {
            let element = k.params[source.index()].element_bytes();
            let (per_lane, lanes) = (PACKET_BYTES / element, p.lanes(op));
            let read = Lanes::Spread { len, per_lane, lanes };
            let mut both = one(Place::Param(source), false, false, read, Some(from));
            let written = Lanes::Spread { len, per_lane: len, lanes: 1 };
            both.extend(one(Place::Param(buffer), true, true, written, Some(index)));
            both
        }
        OpKind::Comm(CommOp::PutMatrix(PutMatrix { ref to, .. })) => {
            one(to.place, true, true, Lanes::Anywhere, None)
        }
        // Which lane has which element is the matrix instruction's business.
        OpKind::Matrix(_) => {
            let touches = k.op(op).kind.accesses().into_iter();
            touches.flat_map(|a| one(a.place, a.access.stores(), false, Lanes::Anywhere, None)).collect()
        }
        OpKind::Memory(MemoryOp::Ticket { counter, index, .. }) => {
            one(Place::Param(counter), true, false, Lanes::First, Some(index))
        }
        OpKind::Value(_)
        | OpKind::Comm(CommOp::Signal(_) | CommOp::Wait(_) | CommOp::WaitAll(_))
        | OpKind::Comm(CommOp::BlockSignal(_) | CommOp::BlockWait(_))
        // Nothing else touches messages.
        | OpKind::Comm(any!(messages, far))
| OpKind::Control(_) => vec![],
    }
}

/// Whether a barrier must stand between an earlier touch and a later one.
pub(crate) fn conflict(p: &Program, earlier: &Access, age: Age, later: &Access) -> bool {
    if !may_meet(earlier.place, later.place) || !(earlier.write || later.write) {
        return false;
    }
    if (earlier.put && later.put) || (earlier.lanes == Lanes::First && later.lanes == Lanes::First) {
        return false;
    }
    if let (Some(a), Some(b)) = (&earlier.reach, &later.reach)
        && a.never_crosses(b, length(&earlier.lanes), length(&later.lanes), earlier.lanes.agree(&later.lanes))
    {
        return false;
    }
    let (Some(a), Some(b)) = (&earlier.start, &later.start) else { return true };
    let distance = b.clone().plus(a.clone().scaled(-1));
    if !distance.terms.is_empty() || !comparable(p, a, age) {
        return true;
    }
    let (len_a, len_b) = (length(&earlier.lanes), length(&later.lanes));
    let all: i128 = 1 << distance.bits;
    // The elements between the two starts, in either direction around.
    let clear = |least: i128, most: i128| least >= len_a && all - most >= len_b;
    let same_lanes = distance.least() == 0 && earlier.lanes == later.lanes;
    match age {
        Age::Now => !same_lanes && !clear(distance.least(), distance.least()),
        Age::Round(l) => {
            let Some((counter, step)) = counter_of(p, l) else { return true };
            let stride = a.terms.get(&counter).copied().unwrap_or(0) * step;
            // `later` runs m >= 1 rounds after `earlier`, m * stride elements on: the first round is the nearest.
            let nearest = stride + distance.constant;
            let apart = (stride > 0 && nearest >= len_a) || (stride < 0 && nearest <= -len_b);
            // An index that wraps is reported, but not one that a cast cuts: its last round must not come around.
            let farthest = (p.most(counter) as i128)
                .saturating_mul((stride / step.max(1)).abs())
                .saturating_add(nearest.abs());
            let comes_around = distance.is_cut && farthest.saturating_add(len_a.max(len_b)) > all;
            let never_meets = apart && !comes_around;
            let is_ordered = stride == 0 && same_lanes;
            !never_meets && !is_ordered
        }
        Age::Far => true,
    }
}

/// Whether two places may be the same memory: a peer's window is this rank's own if the peer is this rank.
pub(crate) fn may_meet(a: Place, b: Place) -> bool {
    a == b || (a.param().is_some() && a.param() == b.param())
}

/// Whether the values in `form` mean the same for both touches (but for the counter of the loop between them).
fn comparable(p: &Program, form: &Linear, age: Age) -> bool {
    match age {
        Age::Now => true,
        Age::Round(l) => {
            let counter = counter_of(p, l).map(|c| c.0);
            form.terms.keys().all(|v| Some(*v) == counter || p.def_id(*v).is_none_or(|d| !p.inside(d, l)))
        }
        Age::Far => false,
    }
}

/// Counter and constant step of a `For`.
fn counter_of(p: &Program, l: OpId) -> Option<(ValueId, i128)> {
    let OpKind::Control(ControlOp::For { var, step, .. }) = p.kernel.op(l).kind else { return None };
    Some((var, p.int(step)?))
}

fn length(lanes: &Lanes) -> i128 {
    match lanes {
        Lanes::Spread { len, .. } => i128::from(*len),
        Lanes::First | Lanes::Every | Lanes::Anywhere => 1,
    }
}
