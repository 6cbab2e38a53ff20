//! Little's law: the bytes that a role keeps in flight, and the bandwidth that they allow on a device.
//!
//! All figures are upper bounds. Sends are in flight until a signal, which waits for all before it, or until an answer of a
//! peer that the block waits for. Loads are in flight until a wait, a signal, or the end of a loop's round, which uses them.

use std::fmt;

use serde::Serialize;

use super::steps::Teller;
use super::*;
use crate::device::{Device, Path};

/// A path that bytes take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From this rank's memory.
    Loaded,
    /// To other ranks.
    Sent,
    /// From other ranks' memory.
    Fetched,
}

/// What ends a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// A signal, which waits for everything before it.
    Signal,
    /// A wait for a flag, or for data of a peer.
    Wait,
    /// The end of a round, which uses what the round loads.
    Round,
    /// The stages of a product.
    Stages,
}

/// The most bytes of one way that a role keeps in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flight {
    /// The path.
    pub way: Way,
    /// The most of a block; none if nothing ends a flight before the role ends.
    pub block: Option<Held>,
    /// Bytes of all blocks of an SM.
    pub sm_bytes: u64,
    /// SMs that run the role, if it has the device for itself.
    pub sms: u32,
    /// SMs of the device.
    pub device_sms: u32,
    /// GB/s that the bytes in flight allow; none if the latency is not known.
    pub gbps: Option<f64>,
    /// GB/s of the path.
    pub path_gbps: Option<f64>,
}

/// Bytes between two ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Held {
    /// Tiles.
    pub tiles: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What ends the flight.
    pub ending: Ending,
    /// The author's line of that.
    pub line: String,
}

/// The flights of each role on a device.
pub(crate) fn flights(kernel: &Kernel, device: &Device) -> Vec<Vec<Flight>> {
    let tree = Tree::of(kernel);
    let facts = Facts::of(kernel, &tree);
    let defs = DefUse::of(kernel, &tree);
    let teller = Teller::new(kernel, &facts, &defs);
    let of_role = |(number, role): (usize, &Role)| {
        let blocks = kernel.role_blocks(number);
        let of = |way| {
            Scanner { kernel, facts: &facts, teller: &teller, device, way }
                .region(&role.body)
                .flight(way, blocks, device)
        };
        [Way::Loaded, Way::Sent, Way::Fetched].into_iter().filter_map(of).collect()
    };
    kernel.roles.iter().enumerate().map(of_role).collect()
}

/// Tiles and bytes in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    tiles: u64,
    /// `u64::MAX` if there is no bound.
    bytes: u64,
}

impl Amount {
    fn and(self, other: Amount) -> Amount {
        Amount {
            tiles: self.tiles.saturating_add(other.tiles),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn times(self, n: u64) -> Amount {
        Amount { tiles: self.tiles.saturating_mul(n), bytes: self.bytes.saturating_mul(n) }
    }

    fn most(self, other: Amount) -> Amount {
        if other.bytes > self.bytes { other } else { self }
    }
}

/// Where a flight ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    ending: Ending,
    loc: Loc,
    /// Whether it ends a flight of each round of a loop.
    repeats: bool,
}

/// What a stretch of a role moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Scan {
    /// Before the first end; all of it if there is none.
    head: Amount,
    /// The first end.
    first: Option<End>,
    /// After the last end.
    tail: Amount,
    /// The most between two ends, or before one.
    most: Option<(Amount, End)>,
    /// Whether some runs pass by without its ends.
    is_optional: bool,
}

impl Scan {
    fn moved(amount: Amount) -> Scan {
        Scan { head: amount, ..Scan::default() }
    }

    fn end(end: End) -> Scan {
        Scan { first: Some(end), ..Scan::default() }
    }

    /// With so much closed by an end.
    fn closed(mut self, amount: Amount, end: End) -> Scan {
        // Of as many bytes the end counts that most flights have.
        let larger = |(most, old): (Amount, End)| (amount.bytes, end.repeats) > (most.bytes, old.repeats);
        if self.most.is_none_or(larger) {
            self.most = Some((amount, end));
        }
        self
    }

    /// In a loop.
    fn repeated(self) -> Scan {
        let repeats = |end: End| End { repeats: true, ..end };
        Scan {
            first: self.first.map(repeats),
            most: self.most.map(|(most, end)| (most, repeats(end))),
            ..self
        }
    }

    /// As if it had no ends.
    fn whole(self) -> Scan {
        let most = self.most.map_or(Amount::default(), |(most, _)| most);
        if self.first.is_none() { self } else { Scan::moved(self.head.and(most).and(self.tail)) }
    }

    /// This, then another one.
    fn then(self, next: Scan) -> Scan {
        let behind = if self.first.is_some() { self.tail } else { self.head };
        let a = if self.is_optional && next.head.bytes > 0 { self.whole() } else { self };
        let b = if next.is_optional && behind.bytes > 0 { next.whole() } else { next };
        let is_optional = a.is_optional || b.is_optional;
        match (a.first, b.first) {
            (None, None) => Scan { head: a.head.and(b.head), is_optional, ..Scan::default() },
            (Some(_), None) => Scan { tail: a.tail.and(b.head), is_optional, ..a },
            (None, Some(end)) => {
                let head = a.head.and(b.head);
                // An answer of a peer does not say that all sends before it have arrived: those of before a loop stay in flight.
                let ahead = |(most, end): (Amount, End)| {
                    (if end.ending == Ending::Wait { most.and(a.head) } else { most }, end)
                };
                Scan { head, most: b.most.map(ahead), is_optional, ..b }.closed(head, end)
            }
            (Some(first), Some(end)) => {
                let both = Scan { head: a.head, first: Some(first), tail: b.tail, most: a.most, is_optional };
                let both = b.most.map_or(both, |(most, end)| both.closed(most, end));
                both.closed(a.tail.and(b.head), end)
            }
        }
    }

    /// This or another one.
    fn or(self, other: Scan) -> Scan {
        let nothing = |scan: &Scan| *scan == Scan::default();
        let only_ends =
            |scan: &Scan| scan.head.and(scan.tail).bytes == 0 && scan.most.is_none_or(|(m, _)| m.bytes == 0);
        let most = |a: Option<(Amount, End)>, b: Option<(Amount, End)>| match (a, b) {
            (Some(a), Some(b)) => Some(if b.0.bytes > a.0.bytes { b } else { a }),
            (a, b) => a.or(b),
        };
        match (self.first, other.first) {
            (Some(_), Some(_)) => Scan {
                head: self.head.most(other.head),
                first: self.first,
                tail: self.tail.most(other.tail),
                most: most(self.most, other.most),
                is_optional: self.is_optional || other.is_optional,
            },
            (Some(_), None) if nothing(&other) && !only_ends(&self) => Scan { is_optional: true, ..self },
            (None, Some(_)) if nothing(&self) && !only_ends(&other) => Scan { is_optional: true, ..other },
            _ => Scan::moved(self.whole().head.most(other.whole().head)),
        }
    }

    fn flight(self, way: Way, blocks: u32, device: &Device) -> Option<Flight> {
        // What is before the first end counts, and so does what no end follows.
        let open = self.head.most(self.tail);
        let (amount, end) = match self.most {
            Some((most, end)) if most.bytes >= open.bytes => (most, Some(end)),
            _ => (open, self.first),
        };
        if amount.bytes == 0 {
            return None;
        }
        let bounded = end.filter(|_| amount.bytes < u64::MAX);
        let block = bounded.map(|end| Held {
            tiles: amount.tiles,
            bytes: amount.bytes,
            ending: end.ending,
            line: end.loc.to_string(),
        });
        let path = match way {
            Way::Loaded => device.memory,
            Way::Sent => device.link,
            Way::Fetched => device.link.map(|link| Path { latency_ns: 2.0 * link.latency_ns, ..link }),
        };
        let bytes = amount.bytes;
        let allows = |path: Path| (bytes.saturating_mul(blocks.into())) as f64 / path.latency_ns;
        Some(Flight {
            way,
            sm_bytes: bytes.saturating_mul(blocks.div_ceil(device.sms).into()),
            sms: blocks.min(device.sms),
            device_sms: device.sms,
            gbps: path.filter(|_| block.is_some()).map(allows),
            path_gbps: path.map(|path| path.gbps),
            block,
        })
    }
}

/// Scans regions for one way.
struct Scanner<'a, 'k> {
    kernel: &'k Kernel,
    facts: &'k Facts,
    teller: &'a Teller<'k>,
    device: &'a Device,
    way: Way,
}

impl Scanner<'_, '_> {
    fn region(&self, region: &Region) -> Scan {
        region.ops.iter().fold(Scan::default(), |scan, &id| {
            let op = self.kernel.op(id);
            scan.then(self.op(&op.kind, op.loc))
        })
    }

    fn op(&self, kind: &OpKind, loc: Loc) -> Scan {
        match kind {
            OpKind::Value(_) => Scan::default(),
            OpKind::Memory(op) => self.memory(op),
            OpKind::Matrix(op) => self.matrix(op, loc),
            OpKind::Comm(op) => self.comm(op, loc),
            OpKind::Control(op) => self.control(op, loc),
        }
    }

    /// Bytes that go this way; a scalar is no stream.
    fn moves(&self, way: Way, value: ValueId, bytes: u64) -> Scan {
        let ty = self.kernel.ty(value);
        let is_tile = ty.len.is_some() || ty.shape().is_some();
        if way == self.way && is_tile { Scan::moved(Amount { tiles: 1, bytes }) } else { Scan::default() }
    }

    fn loaded(&self, place: Place, value: ValueId, bytes: u64) -> Scan {
        match place {
            Place::Param(_) => self.moves(Way::Loaded, value, bytes),
            Place::Peer(..) | Place::All(..) => self.moves(Way::Fetched, value, bytes),
            Place::Shared(_) => Scan::default(),
        }
    }

    fn memory(&self, op: &MemoryOp) -> Scan {
        match op {
            MemoryOp::Load { out, place, .. }
            | MemoryOp::LoadMasked { out, place, .. }
            | MemoryOp::Gather { out, place, .. } => self.loaded(*place, *out, self.teller.bytes(*out)),
            any!(stores, counts) => Scan::default(),
        }
    }

    fn matrix(&self, op: &MatrixOp, loc: Loc) -> Scan {
        match op {
            MatrixOp::Dot(Dot { out, a, b, stages, .. }) => {
                let shape = self.kernel.ty(*out).shape().unwrap_or_default();
                let stages = if self.device.stages_products { u64::from(*stages) } else { 1 };
                [(a, shape.0), (b, shape.1)]
                    .into_iter()
                    .fold(Scan::default(), |scan, (rows, count)| {
                        let piece = u64::from(count) * u64::from(DOT_ROW_BYTES);
                        let piece = self.loaded(rows.place, *out, piece);
                        scan.then(Scan::moved(piece.head.times(stages)))
                    })
                    .ended(|| self.ends(Ending::Stages, loc))
            }
            MatrixOp::LoadMatrix(LoadMatrix { out, at, column }) => {
                self.loaded(at.place, *out, self.teller.moved(at, *column, *out))
            }
            MatrixOp::LoadRow(LoadRow { out, lines, place, .. }) => {
                self.loaded(*place, *out, self.teller.bytes(*out) / lines.count(self.kernel.ty(*out)))
            }
            MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) | MatrixOp::StoreMatrix(_) => {
                Scan::default()
            }
        }
    }

    fn comm(&self, op: &CommOp, loc: Loc) -> Scan {
        let parcel = |id: &ParcelId| self.targets(self.kernel.parcels[id.index()].target);
        let sent = |value: &ValueId, bytes: u64, targets: u64| self.moves(Way::Sent, *value, bytes * targets);
        let bytes = |value: &ValueId| self.teller.bytes(*value);
        let signal = |order: &SignalOrder| match order {
            SignalOrder::Release => self.ends(Ending::Signal, loc),
            SignalOrder::Relaxed => Scan::default(),
        };
        match op {
            CommOp::Put(Put { parcel: id, value, .. }) => sent(value, bytes(value), parcel(id)),
            CommOp::PutMatrix(PutMatrix { parcel: id, to, column, value }) => {
                sent(value, self.teller.moved(to, *column, *value), parcel(id))
            }
            CommOp::BulkCopy(BulkCopy { parcel: id, source, len, .. }) => {
                let bytes = u64::from(*len) * u64::from(self.kernel.params[source.index()].element_bytes());
                let amount = |targets| Scan::moved(Amount { tiles: 1, bytes: bytes * targets });
                match self.way {
                    Way::Loaded => amount(1),
                    Way::Sent => amount(parcel(id)),
                    Way::Fetched => Scan::default(),
                }
            }
            CommOp::SendMessages(SendMessages { target, value, .. }) => {
                sent(value, bytes(value), self.targets(*target))
            }
            CommOp::Signal(Signal { order, .. }) => signal(order),
            CommOp::BlockSignal(BlockSignal { order, .. }) => match self.way {
                // Blocks of this rank hear of it, whatever peers have.
                Way::Sent => Scan::default(),
                Way::Loaded | Way::Fetched => signal(order),
            },
            // The card moves them: no lane holds what is on its way.
            CommOp::FarPut(_) | CommOp::FarPublish(_) | CommOp::FarSettle(_) => Scan::default(),
            CommOp::ReceiveMessages(_) => self.ends(Ending::Wait, loc),
            any!(waits) | CommOp::FarWait(_) => match self.way {
                // A flag of a peer says nothing of what this rank has sent.
                Way::Sent => Scan::default(),
                Way::Loaded | Way::Fetched => self.ends(Ending::Wait, loc),
            },
        }
    }

    fn ends(&self, ending: Ending, loc: Loc) -> Scan {
        Scan::end(End { ending, loc, repeats: false })
    }

    fn control(&self, op: &ControlOp, loc: Loc) -> Scan {
        match op {
            ControlOp::If { then, otherwise, .. } => self.region(then).or(self.region(otherwise)),
            ControlOp::For { start, end, step, body, .. } => {
                let int = |v: &ValueId| self.facts.int(*v).and_then(|n| u64::try_from(n).ok());
                let rounds = match (int(start), int(end), int(step)) {
                    (Some(start), Some(end), Some(step)) if step > 0 => {
                        Some(end.saturating_sub(start).div_ceil(step))
                    }
                    _ => None,
                };
                self.rounds(self.region(body), rounds, loc)
            }
            ControlOp::While { header, body, .. } => {
                self.rounds(self.region(header).then(self.region(body)), None, loc)
            }
            ControlOp::Split { warps, body } => {
                let groups = u64::from(self.kernel.block_warps / warps);
                let scan = self.region(body);
                let most = scan.most.map(|(most, end)| (most.times(groups), end));
                Scan { head: scan.head.times(groups), tail: scan.tail.times(groups), most, ..scan }
            }
            any!(exits, variables) => Scan::default(),
        }
    }

    /// The rounds of a loop: as many as that, or any number.
    fn rounds(&self, round: Scan, rounds: Option<u64>, loc: Loc) -> Scan {
        let moves = round.head.bytes > 0 || round.first.is_some();
        let round = round.repeated();
        match (self.way, round.first) {
            _ if !moves => round,
            (Way::Loaded | Way::Fetched, _) => {
                let round = round.then(self.ends(Ending::Round, loc).repeated());
                round.then(round)
            }
            (Way::Sent, None) => Scan::moved(round.head.times(rounds.unwrap_or(u64::MAX))),
            // A round that passes by its ends sends nothing, either.
            (Way::Sent, Some(_)) => {
                let taken = Scan { is_optional: false, ..round };
                Scan { is_optional: round.is_optional, ..taken.then(taken) }
            }
        }
    }

    /// Other ranks that a target has, at most.
    fn targets(&self, target: Target) -> u64 {
        let others = u64::from(self.kernel.ranks.saturating_sub(1));
        match target {
            Target::Rank(_) => 1,
            Target::Mask(mask) => match self.facts.int(mask) {
                Some(mask) => others.min(mask.count_ones().into()),
                None => others,
            },
        }
    }
}

impl Scan {
    /// Followed by an end, if it moves anything.
    fn ended(self, end: impl FnOnce() -> Scan) -> Scan {
        if self.head.bytes > 0 { self.then(end()) } else { self }
    }
}

impl fmt::Display for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, path) = match self.way {
            Way::Loaded => ("loads", "memory"),
            Way::Sent => ("sends", "the links"),
            Way::Fetched => ("loads from peers", "the links"),
        };
        let Some(Held { tiles, bytes, ending, line }) = &self.block else {
            return write!(
                f,
                "In flight, {what}: as many as {path} take: nothing waits for them before the role ends."
            );
        };
        write!(
            f,
            "In flight, {what}: at most {} ({}) a block, {} an SM on {} of {} SMs.",
            words::bytes(*bytes),
            text::count(*tiles, "tile"),
            words::bytes(self.sm_bytes),
            self.sms,
            self.device_sms,
        )?;
        let is_enough = match (self.gbps, self.path_gbps) {
            (Some(gbps), Some(all)) if gbps >= all => {
                write!(f, " That is enough for the {all:.0} GB/s of {path}.")?;
                true
            }
            (Some(gbps), Some(all)) => {
                write!(f, " That allows {gbps:.0} of the {all:.0} GB/s of {path}.")?;
                false
            }
            _ => false,
        };
        if is_enough {
            return Ok(());
        }
        let limit = match ending {
            Ending::Signal => format!("waits for all {what} before it"),
            Ending::Wait => "stops the block until it is answered".into(),
            Ending::Round => "uses the loads of one iteration before the next begins".into(),
            Ending::Stages => "has no more stages".into(),
        };
        let thing = match ending {
            Ending::Signal => "signal",
            Ending::Wait => "wait",
            Ending::Round => "loop",
            Ending::Stages => "product",
        };
        write!(f, " The {thing} at {line} limits them: it {limit}.")
    }
}
