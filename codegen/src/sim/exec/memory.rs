//! Loads, stores, gathers, scatters and atomics.

use bytemuck::pod_read_unaligned;

use super::interpreter::{Flow, Stop};
use crate::ir::{BinaryOp, Dtype, ParamId, ParamKind, Place, ReceiptId, SignalOrder};
use crate::sim::findings::FindingKind;
use crate::sim::flatten::{
    code::{Access, AnyReg},
    insns::{Gather, MemoryInsn, Scatter},
};
use crate::sim::memory::{Block as Memory, DataEpoch, Receipt, Spot, Who};
use crate::sim::schedule::{Agent, World};
use crate::sim::values::{Tile, arith::scalar_binary, bulk::fold_op, value::runs};

/// An access that may not happen; the finding is recorded.
pub(crate) struct Fault;

impl From<Fault> for Flow {
    fn from(_: Fault) -> Flow {
        Flow::Stop(Stop::Fault)
    }
}

/// Reads one element as scalar bits.
pub(crate) fn read_bits(memory: &[u8], at: u64, size: usize) -> u64 {
    let element = &memory[at as usize * size..][..size];
    // By sizes that are known here, as a copy of any size is a call.
    match size {
        1 => element[0].into(),
        2 => pod_read_unaligned::<u16>(element).into(),
        4 => pod_read_unaligned::<u32>(element).into(),
        _ => pod_read_unaligned(element),
    }
}

/// Writes one element from scalar bits.
fn write_bits(memory: &mut [u8], at: u64, size: usize, bits: u64) {
    let at = at as usize * size;
    memory[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
}

impl World<'_> {
    pub fn access_memory(&mut self, agent: &mut Agent, insn: &MemoryInsn) -> Flow {
        let done = match *insn {
            MemoryInsn::Load { from, out, receipt } => {
                self.load(agent, from, receipt).map(|v| agent.set(out, v))
            }
            MemoryInsn::LoadTile { from, len, out, receipt } => {
                self.fill_tile(agent, out, |w, a, out| w.load_tile(a, from, len, out, receipt))
            }
            MemoryInsn::LoadMasked { from, out, mask, other, receipt } => {
                self.fill_tile(agent, out, |w, a, out| {
                    w.load_masked(a, from, a.tile(mask), a.tile(other), out, receipt)
                })
            }
            MemoryInsn::Gather(ref gather) => self.gather(agent, gather),
            MemoryInsn::Peer(ref load) => self.peer_load(agent, load),
            MemoryInsn::All(ref load) => self.all_load(agent, load),
            MemoryInsn::Store { to, value, mask } => self.store(agent, to, value, mask),
            MemoryInsn::Scatter(ref scatter) => self.scatter(agent, scatter),
            MemoryInsn::Atomic { op, on, out, value } => {
                let op = fold_op(op);
                self.atomic(agent, (on.place, agent.get(on.index), on.dtype), |old| {
                    scalar_binary(op, on.dtype, old, agent.get(value)).unwrap_or(old)
                })
                .map(|old| agent.set(out, old))
            }
            MemoryInsn::Ticket { counter, out, index, count, order } => {
                let on = Access { place: Place::Param(counter), index, dtype: Dtype::U32 };
                self.ticket(agent, counter, on, (agent.get(count) as u32, order))
                    .map(|last| agent.set(out, last.into()))
            }
            MemoryInsn::Tally { place, out, index, mask } => {
                self.fill_tile(agent, out, |w, a, out| w.tally(a, place, a.tile(index), a.tile(mask), out))
            }
        };
        match done {
            Ok(()) => Flow::Next,
            Err(fault) => fault.into(),
        }
    }

    /// Lends out a tile register while the agent is read.
    pub(crate) fn fill_tile<R>(
        &mut self,
        agent: &mut Agent,
        out: u32,
        f: impl FnOnce(&mut Self, &Agent, &mut Tile) -> R,
    ) -> R {
        let mut tile = std::mem::take(&mut agent.tiles[out as usize]);
        let r = f(self, agent, &mut tile);
        agent.tiles[out as usize] = tile;
        r
    }

    /// The memory behind a place.
    fn at_place(&mut self, agent: &Agent, place: Place) -> &mut Memory {
        match place {
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => {
                &mut self.memory[agent.rank as usize][agent.buffer(p)]
            }
            Place::Shared(s) => self.shared(agent, s.index()),
        }
    }

    /// Number of elements behind a place, of which a caller may have passed less than there could be.
    pub(crate) fn place_len(&self, agent: &Agent, place: Place) -> u64 {
        let kernel = agent.compiled.kernel();
        match place {
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => {
                let param = &kernel.params[p.index()];
                let end = self.memory[agent.rank as usize][agent.buffer(p)].end;
                param.len.min(end / u64::from(param.element_bytes()))
            }
            Place::Shared(s) => u64::from(kernel.shared[s.index()].len),
        }
    }

    /// Elements `from..to` of a place must exist.
    pub(crate) fn bounds(&mut self, agent: &Agent, place: Place, from: u64, to: u64) -> Result<(), Fault> {
        let kernel = agent.compiled.kernel();
        let there = match place {
            // As `place_len` has it, without a division.
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => {
                let param = &kernel.params[p.index()];
                let end = self.memory[agent.rank as usize][agent.buffer(p)].end;
                to <= param.len && to * u64::from(param.element_bytes()) <= end
            }
            Place::Shared(s) => to <= u64::from(kernel.shared[s.index()].len),
        };
        if there && from <= to {
            return Ok(());
        }
        Err(self.out_of_bounds(agent, place, (from, to), self.place_len(agent, place)))
    }

    /// Records a read of elements `from..to` in the shadow.
    pub(crate) fn note_read(
        &mut self,
        agent: &Agent,
        place: Place,
        from: u64,
        to: u64,
        size: u64,
        receipt: Option<ReceiptId>,
    ) {
        self.settle_place(agent, place, from * size, to * size);
        let event = agent.event(&self.sites);
        let receipt = receipt.map_or(Receipt::default(), |r| agent.receipts[r.index()]);
        let mut clashes = std::mem::take(&mut self.clashes);
        if let Some(shadow) = &mut self.at_place(agent, place).shadow {
            let who = Who { clock: &agent.clock, event };
            shadow.read(from * size, to * size, who, receipt, &mut clashes);
        }
        if self.far_read(agent, place, (from * size, to * size), size, receipt) {
            clashes.clear();
        }
        self.report_clashes(agent, place, size, receipt, &mut clashes);
        self.clashes = clashes;
    }

    /// Makes puts to bytes of symmetric memory visible that are ordered before this access of them; a parameter of
    /// plain memory may stand for such memory, too.
    fn settle_place(&mut self, agent: &Agent, place: Place, from: u64, to: u64) {
        let Place::Param(p) = place else { return };
        let buffer = agent.buffer(p);
        if matches!(self.machine.buffers[buffer].kind, ParamKind::Symmetric | ParamKind::Window) {
            self.settle_own(agent, Spot::Bytes { buffer, from, to });
        }
    }

    pub(crate) fn note_write(&mut self, agent: &Agent, place: Place, from: u64, to: u64, size: u64) {
        self.progress();
        self.settle_place(agent, place, from * size, to * size);
        self.far_write(agent, place, (from * size, to * size), size);
        let event = agent.event(&self.sites);
        let mut clashes = std::mem::take(&mut self.clashes);
        if let Some(shadow) = &mut self.at_place(agent, place).shadow {
            let who = Who { clock: &agent.clock, event };
            shadow.write(from * size, to * size, who, DataEpoch::default(), &mut clashes);
        }
        self.report_clashes(agent, place, size, Receipt::default(), &mut clashes);
        self.clashes = clashes;
    }

    fn load(&mut self, agent: &Agent, from: Access, receipt: Option<ReceiptId>) -> Result<u64, Fault> {
        let at = agent.get(from.index);
        let size = from.dtype.bytes();
        self.bounds(agent, from.place, at, at.saturating_add(1))?;
        self.note_read(agent, from.place, at, at + 1, u64::from(size), receipt);
        Ok(read_bits(self.at_place(agent, from.place).bytes(), at, size as usize))
    }

    /// Elements `first..end` of a place, which exist, as they are now.
    pub(crate) fn read_elements(
        &mut self,
        agent: &Agent,
        place: Place,
        (first, end): (u64, u64),
        size: usize,
        receipt: Option<ReceiptId>,
    ) -> Result<&[u8], Fault> {
        self.bounds(agent, place, first, end)?;
        self.note_read(agent, place, first, end, size as u64, receipt);
        Ok(&self.at_place(agent, place).bytes()[first as usize * size..end as usize * size])
    }

    fn load_tile(
        &mut self,
        agent: &Agent,
        from: Access,
        len: u32,
        out: &mut Tile,
        receipt: Option<ReceiptId>,
    ) -> Result<(), Fault> {
        let at = agent.get(from.index);
        let to = at.saturating_add(u64::from(len));
        let there = self.read_elements(agent, from.place, (at, to), from.dtype.bytes() as usize, receipt)?;
        out.fresh::<u8>(there.len()).copy_from_slice(there);
        Ok(())
    }

    fn load_masked(
        &mut self,
        agent: &Agent,
        from: Access,
        mask: &Tile,
        other: &Tile,
        out: &mut Tile,
        receipt: Option<ReceiptId>,
    ) -> Result<(), Fault> {
        let base = agent.get(from.index);
        let size = from.dtype.bytes() as usize;
        if mask.uniform().is_some_and(|set| set != 0) {
            return self.load_tile(agent, from, mask.bytes() as u32, out, receipt);
        }
        let out = out.fresh_copy::<u8>(other);
        for (a, b) in runs(mask) {
            let (at, to) = (base.saturating_add(a as u64), base.saturating_add(b as u64));
            self.bounds(agent, from.place, at, to)?;
            self.note_read(agent, from.place, at, to, size as u64, receipt);
            let memory = self.at_place(agent, from.place).bytes();
            out[a * size..b * size].copy_from_slice(&memory[at as usize * size..to as usize * size]);
        }
        Ok(())
    }

    fn gather(&mut self, agent: &mut Agent, insn: &Gather) -> Result<(), Fault> {
        let Gather { place, dtype, out, index, mask, other, receipt } = *insn;
        self.check_indices(agent, place, agent.tile(index), Some(agent.tile(mask)))?;
        self.fill_tile(agent, out, |world, agent, out| {
            let size = dtype.bytes() as usize;
            let out = out.fresh_copy::<u8>(agent.tile(other));
            let index = agent.tile(index).view::<u32>();
            for (a, b) in contiguous(index, Some(agent.tile(mask))) {
                let (at, to) = (u64::from(index[a]), u64::from(index[a]) + (b - a) as u64);
                world.bounds(agent, place, at, to)?;
                world.note_read(agent, place, at, to, size as u64, receipt);
                let memory = world.at_place(agent, place).bytes();
                out[a * size..b * size].copy_from_slice(&memory[at as usize * size..to as usize * size]);
            }
            Ok(())
        })
    }

    fn store(&mut self, agent: &Agent, to: Access, value: AnyReg, mask: Option<AnyReg>) -> Result<(), Fault> {
        let base = agent.get(to.index);
        let size = to.dtype.bytes() as usize;
        match value {
            AnyReg::Scalar(v) => {
                if let Some(AnyReg::Scalar(m)) = mask
                    && agent.get(m) == 0
                {
                    return Ok(());
                }
                self.bounds(agent, to.place, base, base.saturating_add(1))?;
                self.note_write(agent, to.place, base, base + 1, size as u64);
                self.write(agent, to.place, base * size as u64, &agent.get(v).to_le_bytes()[..size]);
            }
            AnyReg::Tile(v) => {
                let tile = agent.tile(v);
                let whole = (0, tile.bytes() / size);
                let masked = match mask {
                    Some(AnyReg::Tile(m)) => runs(agent.tile(m)).collect(),
                    _ => vec![],
                };
                let parts = if mask.is_some() { &masked[..] } else { std::slice::from_ref(&whole) };
                for &(a, b) in parts {
                    self.store_run(agent, to, base, (a, b), tile)?;
                }
            }
        }
        Ok(())
    }

    /// Stores the elements `run` of a tile that goes to `base`.
    fn store_run(
        &mut self,
        agent: &Agent,
        to: Access,
        base: u64,
        run: (usize, usize),
        tile: &Tile,
    ) -> Result<(), Fault> {
        let size = to.dtype.bytes() as usize;
        let (at, end) = (base.saturating_add(run.0 as u64), base.saturating_add(run.1 as u64));
        self.bounds(agent, to.place, at, end)?;
        self.note_write(agent, to.place, at, end, size as u64);
        self.write(agent, to.place, at * size as u64, &tile.view()[run.0 * size..run.1 * size]);
        Ok(())
    }

    fn scatter(&mut self, agent: &Agent, insn: &Scatter) -> Result<(), Fault> {
        let Scatter { place, dtype, index, value, mask, adds } = *insn;
        let size = dtype.bytes() as usize;
        let mask = mask.map(|m| agent.tile(m));
        self.check_indices(agent, place, agent.tile(index), mask)?;
        let index = agent.tile(index).view::<u32>();
        if adds {
            let set = |&i: &usize| mask.is_none_or(|m| m.view::<u8>()[i] != 0);
            let mut lanes: Vec<usize> = (0..index.len()).filter(set).collect();
            // No lane is the first to add: a float's sum shows that.
            let first = self.sched.below(lanes.len().max(1));
            lanes.rotate_left(first);
            for i in lanes {
                let by = read_bits(agent.tile(value).view(), i as u64, size);
                self.atomic(agent, (place, index[i].into(), dtype), |old| {
                    scalar_binary(BinaryOp::Add, dtype, old, by).unwrap_or(old)
                })?;
            }
            return Ok(());
        }
        self.distinct(agent, place, index, mask);
        for (a, b) in contiguous(index, mask) {
            let (at, to) = (u64::from(index[a]), u64::from(index[a]) + (b - a) as u64);
            self.bounds(agent, place, at, to)?;
            self.note_write(agent, place, at, to, size as u64);
            self.write(agent, place, at * size as u64, &agent.tile(value).view()[a * size..b * size]);
        }
        Ok(())
    }

    /// Writes bytes of this rank's own memory: at once, but for peers late if they may read it.
    pub(crate) fn write(&mut self, agent: &Agent, place: Place, at: u64, bytes: &[u8]) {
        if let Place::Param(p) = place
            && self.machine.buffers[agent.buffer(p)].kind == ParamKind::Window
        {
            return self.write_window(agent, p, at, bytes);
        }
        let at = at as usize;
        self.at_place(agent, place).bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The indices of a scatter must be distinct where the mask holds.
    fn distinct(&mut self, agent: &Agent, place: Place, index: &[u32], mask: Option<&Tile>) {
        let mut used: Vec<u32> = match mask {
            None => index.to_vec(),
            Some(mask) => {
                index.iter().zip(mask.view::<u8>()).filter(|(_, m)| **m != 0).map(|x| *x.0).collect()
            }
        };
        used.sort_unstable();
        if let Some(twice) = used.windows(2).find(|w| w[0] == w[1]) {
            let name = place_name(agent, place);
            let message = format!("two lanes of one scatter write element {} of `{name}`", twice[0]);
            let at = agent.event(&self.sites);
            let range = (u64::from(twice[0]), u64::from(twice[0]) + 1);
            self.find_at(FindingKind::ScatterConflict, message, at, None, &name, range);
        }
    }

    fn tally(
        &mut self,
        agent: &Agent,
        place: Place,
        index: &Tile,
        mask: &Tile,
        out: &mut Tile,
    ) -> Result<(), Fault> {
        self.check_indices(agent, place, index, Some(mask))?;
        let (index, mask) = (index.view::<u32>(), mask.view::<u8>());
        let out = out.fresh::<u32>(index.len());
        out.fill(0);
        for i in (0..index.len()).filter(|&i| mask[i] != 0) {
            let at = u64::from(index[i]);
            self.bounds(agent, place, at, at + 1)?;
            self.note_read(agent, place, at, at + 1, 4, None);
            self.note_write(agent, place, at, at + 1, 4);
            let memory = self.at_place(agent, place);
            out[i] = read_bits(memory.bytes(), at, 4) as u32;
            write_bits(memory.bytes_mut(), at, 4, out[i].wrapping_add(1).into());
        }
        Ok(())
    }

    /// Whether this is the last of `count` to come, which then knows what the others had done before they came.
    fn ticket(
        &mut self,
        agent: &mut Agent,
        counter: ParamId,
        on: Access,
        (count, order): (u32, SignalOrder),
    ) -> Result<bool, Fault> {
        self.progress();
        let is_last = |old: u64| old as u32 == count.wrapping_sub(1);
        let at = (on.place, agent.get(on.index), on.dtype);
        let old = self.atomic(agent, at, |old| if is_last(old) { 0 } else { old + 1 })?;
        if order == SignalOrder::Release {
            let place = (agent.rank, agent.buffer(counter), agent.get(on.index));
            if let Some(released) = self.tickets.get(&place) {
                agent.clock.join(released);
            }
            self.tickets.insert(place, agent.publish());
        }
        Ok(is_last(old))
    }

    fn atomic(
        &mut self,
        agent: &Agent,
        (place, at, dtype): (Place, u64, Dtype),
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        let size = dtype.bytes() as usize;
        self.bounds(agent, place, at, at.saturating_add(1))?;
        let event = agent.event(&self.sites);
        self.settle_place(agent, place, at * size as u64, (at + 1) * size as u64);
        if let Place::Param(p) = place
            && agent.compiled.kernel().params[p.index()].kind == ParamKind::Counters
        {
            self.draws.insert((agent.rank, agent.buffer(p), at), event);
        }
        let mut clashes = std::mem::take(&mut self.clashes);
        let memory = self.at_place(agent, place);
        if let Some(shadow) = &mut memory.shadow {
            let from = at * size as u64;
            shadow.atomic(from, from + size as u64, Who { clock: &agent.clock, event }, &mut clashes);
        }
        let old = read_bits(memory.bytes(), at, size);
        write_bits(memory.bytes_mut(), at, size, f(old));
        self.report_clashes(agent, place, size as u64, Receipt::default(), &mut clashes);
        self.clashes = clashes;
        Ok(old)
    }
}

/// The author's name of a place.
pub(crate) fn place_name(agent: &Agent, place: Place) -> String {
    let kernel = agent.compiled.kernel();
    match place {
        Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => kernel.params[p.index()].name.clone(),
        Place::Shared(s) => kernel.shared[s.index()].name.clone(),
    }
}

/// Runs of elements that are selected by the mask and go to consecutive places.
pub(crate) fn contiguous<'a>(
    index: &'a [u32],
    mask: Option<&'a Tile>,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mask = mask.map(|m| m.view::<u8>());
    let set = move |i: usize| mask.is_none_or(|m| m[i] != 0);
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..index.len()).find(|&i| set(i))?;
        at = start + 1;
        while at < index.len() && set(at) && index[at - 1].checked_add(1) == Some(index[at]) {
            at += 1;
        }
        Some((start, at))
    })
}
