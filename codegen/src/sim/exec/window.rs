//! Windows: stores that peers see late, and reads of what peers have stored.

use super::memory::{Fault, contiguous, read_bits};
use crate::ir::{Dtype, ParamId, Place, ReceiptId};
use crate::sim::findings::FindingKind;
use crate::sim::flatten::{
    Reg,
    insns::{AllLoad, PeerForm, PeerLoad},
};
use crate::sim::memory::{Cargo, Pending, Receipt, Spot, Who, wire::Payload};
use crate::sim::schedule::{Agent, World};
use crate::sim::values::{
    Tile,
    bulk::{binary, fold_op},
    convert::cast_tile,
    value::runs,
};

/// A rank's instance of a window that is read.
#[derive(Clone, Copy)]
pub(crate) struct Instance {
    rank: usize,
    window: ParamId,
    receipt: Option<ReceiptId>,
}

impl World<'_> {
    /// Stores to this rank's own instance. It is on its way like a store to a peer: agents that it is ordered before see it, others
    /// some time.
    pub(crate) fn write_window(&mut self, agent: &Agent, window: ParamId, at: u64, bytes: &[u8]) {
        let buffer = agent.buffer(window);
        let mut data = Tile::default();
        data.fresh::<u8>(bytes.len()).copy_from_slice(bytes);
        let by = agent.event(&self.sites);
        let spot = Spot::Bytes { buffer, from: at, to: at + bytes.len() as u64 };
        let cargo = Cargo::Data { buffer, at, payload: Payload::Tile(data) };
        self.send(agent, agent.rank as usize, Pending { by, spot, cargo });
    }

    /// Reads elements of a rank's window.
    pub(crate) fn peer_load(&mut self, agent: &mut Agent, load: &PeerLoad) -> Result<(), Fault> {
        let from = self.instance(agent, load.window, load.rank, load.receipt)?;
        let size = load.dtype.bytes() as usize;
        match load.form {
            PeerForm::One { out, index } => {
                let at = agent.get(index);
                let bits = read_bits(self.window_elements(agent, from, at, at.saturating_add(1))?, 0, size);
                agent.set(out, bits);
                Ok(())
            }
            PeerForm::Tile { out, index, len } => self.fill_tile(agent, out, |world, agent, out| {
                let at = agent.get(index);
                let bytes = world.window_elements(agent, from, at, at.saturating_add(len.into()))?;
                out.fresh::<u8>(bytes.len()).copy_from_slice(bytes);
                Ok(())
            }),
            PeerForm::Masked { out, index, mask, other } => {
                self.fill_tile(agent, out, |world, agent, out| {
                    let base = agent.get(index);
                    let out = out.fresh_copy::<u8>(agent.tile(other));
                    for (a, b) in runs(agent.tile(mask)) {
                        let (at, to) = (base.saturating_add(a as u64), base.saturating_add(b as u64));
                        out[a * size..b * size].copy_from_slice(world.window_elements(agent, from, at, to)?);
                    }
                    Ok(())
                })
            }
            PeerForm::Gather { out, index, mask, other } => {
                let place = Place::Param(load.window);
                self.check_indices(agent, place, agent.tile(index), Some(agent.tile(mask)))?;
                self.fill_tile(agent, out, |world, agent, out| {
                    let out = out.fresh_copy::<u8>(agent.tile(other));
                    let index = agent.tile(index).view::<u32>();
                    for (a, b) in contiguous(index, Some(agent.tile(mask))) {
                        let (at, to) = (u64::from(index[a]), u64::from(index[a]) + (b - a) as u64);
                        out[a * size..b * size].copy_from_slice(world.window_elements(agent, from, at, to)?);
                    }
                    Ok(())
                })
            }
        }
    }

    /// Reads elements of all ranks' windows as one, in the order of ranks: a switch has none of its own to rely on.
    pub(crate) fn all_load(&mut self, agent: &mut Agent, load: &AllLoad) -> Result<(), Fault> {
        let AllLoad { window, op, dtype, index, len, receipt, .. } = *load;
        self.fill_tile(agent, load.out, |world, agent, out| {
            let at = agent.get(index);
            let (mut sum, mut raw, mut wide) = (Tile::default(), Tile::default(), Tile::default());
            for number in 0..u64::from(agent.compiled.kernel().ranks) {
                let rank = agent.rank_near(number) as usize;
                world.heard_of(agent, rank, window, receipt);
                let from = Instance { rank, window, receipt };
                let bytes = world.window_elements(agent, from, at, at.saturating_add(len.into()))?;
                raw.fresh::<u8>(bytes.len()).copy_from_slice(bytes);
                cast_tile(dtype, Dtype::F32, &raw, &mut wide);
                if number > 0 {
                    let before = std::mem::take(&mut sum);
                    // None of the operations that reductions fold with can trap.
                    let _ = binary(fold_op(op), Dtype::F32, &before, &wide, &mut sum);
                } else {
                    std::mem::swap(&mut sum, &mut wide);
                }
            }
            cast_tile(Dtype::F32, dtype, &sum, out);
            Ok(())
        })
    }

    /// The rank whose window it is, which must be one that the receipt's wait was for.
    pub(crate) fn instance(
        &mut self,
        agent: &Agent,
        window: ParamId,
        rank: Reg,
        receipt: Option<ReceiptId>,
    ) -> Result<Instance, Fault> {
        let rank = self.near(agent, agent.get(rank))?;
        self.heard_of(agent, rank as usize, window, receipt);
        Ok(Instance { rank: rank as usize, window, receipt })
    }

    /// A receipt has to be of a wait for the rank whose window is read. (A wait that was left out leaves a receipt of no rank: what that
    /// does to the read is found as a race.)
    fn heard_of(&mut self, agent: &Agent, rank: usize, window: ParamId, receipt: Option<ReceiptId>) {
        let Some(receipt) = receipt.map(|r| &agent.receipts[r.index()]) else { return };
        if receipt.heard != 0 && !receipt.heard_of(rank) {
            let name = &agent.compiled.kernel().params[window.index()].name;
            let ranks = (0..64).filter(|number| receipt.heard >> number & 1 != 0);
            let whom: Vec<String> = ranks.map(|number| (receipt.first + number).to_string()).collect();
            let message = format!(
                "{name} of rank {rank} is read with the receipt of a wait for rank {}: that rank's own signal says when",
                whom.join(", ")
            );
            let at = agent.event(&self.sites);
            self.find(FindingKind::WrongSender, message, at, None);
        }
    }

    /// The elements `from..to` of an instance, as they are now.
    pub(crate) fn window_elements(
        &mut self,
        agent: &Agent,
        of: Instance,
        from: u64,
        to: u64,
    ) -> Result<&[u8], Fault> {
        let Instance { rank, window, receipt } = of;
        let dtype = agent.compiled.kernel().params[window.index()].dtype;
        let (buffer, place) = (agent.buffer(window), Place::Param(window));
        self.bounds(agent, place, from, to)?;
        let size = u64::from(dtype.bytes());
        let (start, end) = (from * size, to * size);
        let event = agent.event(&self.sites);
        let who = Who { clock: &agent.clock, event };
        self.settle(rank, Spot::Bytes { buffer, from: start, to: end }, who);
        let receipt = receipt.map_or(Receipt::default(), |r| agent.receipts[r.index()]);
        let mut clashes = std::mem::take(&mut self.clashes);
        if let Some(shadow) = &mut self.memory[rank][buffer].shadow {
            shadow.read(start, end, who, receipt, &mut clashes);
        }
        self.report_clashes(agent, place, size, receipt, &mut clashes);
        self.clashes = clashes;
        self.counts[agent.kernel].bytes[rank][agent.rank as usize] += end - start;
        Ok(&self.memory[rank][buffer].bytes()[start as usize..end as usize])
    }
}
