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
    /// Where peers' sums arrive, `[2][ranks][elements]`: the halves take turns.
    #[len(|c| 2 * u64::from(c.gathered()))]
    #[dtype(|c| c.dtype)]
    pub inbox: AnySym,
    /// Says that a chunk of a peer has arrived, `[2][ranks][chunks]`.
    #[len(|c| 2 * u64::from(c.flags()))]
    pub arrived: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Adds two vectors on every rank, and gives every rank everybody's sums.
#[kernel]
pub fn add_all_gather(c: &AddAllGather, a: &AddArgs) {
    let epoch = a.epoch.begin();
    // A rank may be a launch ahead of one that is still receiving: it must not touch what that one reads or waits for.
    // It cannot be two ahead, because it waits for everybody's chunks. So two halves, in turn, are enough.
    let half = epoch.parity() * c.gathered();
    let flags = epoch.parity() * c.flags();

    role("send", c.send_blocks, |block| {
        for piece in c.pieces() {
            for i in block.strided(piece.count) {
                let chunk = i + piece.first;
                let at = chunk * c.chunk;
                let sum = a.x.load_f32(at, piece.len) + a.y.load_f32(at, piece.len);
                let mut parcel = send_to(Peers::all());
                parcel.put_f32(&a.inbox, half + rank() * c.elements + at, sum);
                parcel.signal(&a.arrived, flags + rank() * c.chunks() + chunk, epoch);
            }
        }
    });

    role("recv", c.recv_blocks, |block| {
        for piece in c.pieces() {
            for i in block.strided(piece.count * c.ranks) {
                let src = i / piece.count;
                let chunk = i % piece.count + piece.first;
                let at = src * c.elements + chunk * c.chunk;
                let got = a.arrived.from(src).wait(flags + src * c.chunks() + chunk, epoch);
                a.out.store(at, a.inbox.load(&got, half + at, piece.len));
            }
        }
    });
}
