//! The kernels of the measuring itself: one lets all GPUs start together, one does next to nothing.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};

/// Configuration of [`align`](align()).
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "bench_align", kernel = align, args = AlignArgs, warps = warps)]
pub struct Align {
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Warps of its block.
    #[tune(short = "w", values = [1, 2], default = 1)]
    pub warps: u32,
}

impl Legal for Align {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`align`](align()).
#[derive(KernelArgs)]
#[args(config = Align)]
pub struct AlignArgs {
    /// How many dependent multiplications to keep busy with before.
    pub spins: Ptr<u32>,
    /// Where they start.
    pub start: Ptr<u32>,
    /// What they come to on every rank, so that no compiler leaves them out, `[parity][rank]`.
    #[len(|c| 2 * u64::from(c.ranks))]
    pub came_to: Sym<u32>,
    /// A rank is here, `[parity][rank]`.
    #[len(|c| 2 * u64::from(c.ranks))]
    pub come: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Keeps the GPU busy, then ends on all ranks at once, but for a flag's way.
///
/// A rank may be a launch ahead of one that still waits, and no more: flags exist twice, by the epoch's parity.
#[kernel]
pub fn align(c: &Align, a: &AlignArgs) {
    let epoch = a.epoch.begin();
    let bank = epoch.parity() * c.ranks;
    role("align", 1, |_| {
        let mut x = var(a.start.get(0));
        for _ in 0..a.spins.get(0) {
            x = &x * &x + 1;
        }
        let mut parcel = send_to(Peers::all());
        parcel.put_value(&a.came_to, bank + rank(), x.get());
        parcel.signal(&a.come, bank + rank(), epoch);
        let _ = a.come.wait_all(bank, c.ranks, 1, epoch);
    });
}

/// Configuration of [`idle`].
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "bench_idle", kernel = idle, args = IdleArgs, warps = warps)]
pub struct Idle {
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [1, 8, 16], default = 8)]
    pub warps: u32,
    /// Blocks.
    #[tune(short = "b", values = [1, 32, 132], default = 132)]
    pub blocks: u32,
}

impl Legal for Idle {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`idle`].
#[derive(KernelArgs)]
#[args(config = Idle)]
pub struct IdleArgs {
    /// A word for each block.
    #[len(|c| c.blocks.into())]
    pub word: Ptr<u32>,
}

/// Stores a word in every block, and nothing else: what timing it yields is the floor under all other times.
#[kernel]
pub fn idle(c: &Idle, a: &IdleArgs) {
    role("store", c.blocks, |b| {
        for i in b.strided(c.blocks) {
            a.word.set(i, i);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peerwarp_codegen::ir::verify;
    use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options, Strategy};

    use super::*;

    #[test]
    fn ranks_leave_together_under_every_schedule() {
        for ranks in [2, 5] {
            let config = Align::with_defaults(&AlignKey { ranks }).unwrap();
            let kernel = Arc::new(Compiled::new(verify(config.trace(32).unwrap()).unwrap()));
            let mut machine = Machine::new(ranks);
            machine.buffers_of(kernel.kernel()).unwrap();
            for rank in 0..ranks {
                for turn in 0..4u32 {
                    let spins = (rank + turn) % 3;
                    let fill = move |memory: &mut peerwarp_codegen::sim::HostMemory<'_, '_>| {
                        memory.write("spins", 0, &[spins]).map_err(|e| e.to_string())?;
                        memory.write("start", 0, &[turn]).map_err(|e| e.to_string())
                    };
                    machine.host(rank, "fill", fill).unwrap();
                    machine.launch(rank, &kernel, &Bindings::new()).unwrap();
                }
            }
            for seed in 0..20 {
                for strategy in [Strategy::Random, Strategy::Adversarial] {
                    let options = Options { seed, strategy, ..Options::default() };
                    let outcome = machine.run(&options).unwrap_or_else(|f| panic!("{f}"));
                    let last = outcome.memory.read::<u32>(0, "came_to").unwrap()[1];
                    // Rank 1's last turn is 3 with (1 + 3) % 3 = 1 multiplication, and an epoch of even parity.
                    assert_eq!(last, 3 * 3 + 1);
                }
            }
        }
    }
}
