//! What runs on the GPUs.

use peerwarp::prelude::*;

use crate::config::AddAllGather;

/// Parameters of the kernel.
#[derive(KernelArgs)]
#[args(config = AddAllGather)]
pub struct AddArgs {
    /// One vector.
    #[input]
    #[len(|c| u64::from(c.elements))]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// The other vector.
    #[input]
    #[len(|c| u64::from(c.elements))]
    #[dtype(|c| c.dtype)]
    pub y: AnyPtr,
    /// All ranks' sums, `[ranks][elements]`.
    #[output]
    #[len(|c| u64::from(c.gathered()))]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// All ranks' sums, a chunk a message.
    #[channel(|c| c.channel())]
    #[len(|c| c.chunk)]
    #[dtype(|c| c.dtype)]
    pub sums: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Adds two vectors on every rank, and gives every rank all ranks' sums.
#[kernel]
pub fn add_all_gather(c: &AddAllGather, a: &AddArgs) {
    let sums = a.sums.open(a.epoch.begin());

    let tiles = tiles(c.elements, c.chunk);

    role("send", c.send_blocks, |block| {
        for t in block.tiles(c.elements, c.chunk) {
            let sum = a.x.load_f32(t.at(), t.len()) + a.y.load_f32(t.at(), t.len());
            let message = sums.to(Peers::others()).slot(t.number());
            message.put_f32(t.local(), sum);
            message.done();
            a.out.store_f32(rank() * c.elements + t.at(), sum);
        }
    });

    role("recv", c.recv_blocks, |block| {
        for i in block.strided(tiles.count() * (c.ranks - 1)) {
            // The next rank first, so that not all ranks wait for the same one.
            let src = (rank() + 1 + i / tiles.count()) % c.ranks;
            let t = tiles.tile(i % tiles.count());
            let message = sums.from(src).slot(t.number());
            a.out.store(src * c.elements + t.at(), message.load(t.local(), t.len()));
        }
    });

    sums.credits();
}
