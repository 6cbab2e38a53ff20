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
    /// Everybody's sums, `[ranks][elements]`.
    #[output]
    #[len(|c| u64::from(c.gathered()))]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// Everybody's sums, a chunk a message.
    #[channel(|c| c.channel())]
    #[len(|c| c.chunk)]
    #[dtype(|c| c.dtype)]
    pub sums: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Adds two vectors on every rank, and gives every rank everybody's sums.
#[kernel]
pub fn add_all_gather(c: &AddAllGather, a: &AddArgs) {
    let sums = a.sums.open(a.epoch.begin());

    role("send", c.send_blocks, |block| {
        for piece in c.pieces() {
            for i in block.strided(piece.count) {
                let chunk = i + piece.first;
                let at = chunk * c.chunk;
                let sum = a.x.load_f32(at, piece.len) + a.y.load_f32(at, piece.len);
                let message = sums.to(Peers::others()).slot(chunk);
                message.put_f32(0, sum);
                message.done();
                a.out.store_f32(rank() * c.elements + at, sum);
            }
        }
    });

    role("recv", c.recv_blocks, |block| {
        for piece in c.pieces() {
            for i in block.strided(piece.count * (c.ranks - 1)) {
                // The next rank first, so that not all ranks wait for the same one.
                let src = (rank() + 1 + i / piece.count) % c.ranks;
                let chunk = i % piece.count + piece.first;
                let message = sums.from(src).slot(chunk);
                a.out.store(src * c.elements + chunk * c.chunk, message.load(0, piece.len));
            }
        }
    });

    sums.credits();
}
