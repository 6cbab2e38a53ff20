//! What runs on the GPUs.

use peerwarp::prelude::*;

use crate::config::{AddAllGather, Protocol};

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
    #[len(|c| c.only(Protocol::Flags, 2 * c.gathered()))]
    #[dtype(|c| c.dtype)]
    pub inbox: Option<AnySym>,
    /// Says that a chunk of a peer has arrived, `[2][ranks][chunks]`.
    #[len(|c| c.only(Protocol::Flags, 2 * c.flags()))]
    pub arrived: Option<Flags>,
    /// Peers' sums as packets, `[2][ranks][elements]`.
    #[len(|c| c.only(Protocol::Packets, 2 * c.gathered()))]
    #[dtype(|c| c.dtype)]
    pub packets: Option<AnyPackets>,
    /// With packets, says that a peer has started this launch, so that it has taken all packets of earlier ones, `[2][ranks]`.
    #[len(|c| c.only(Protocol::Packets, 2 * c.ranks))]
    pub ready: Option<Flags>,
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
                let mine = rank() * c.elements + at;
                let sum = a.x.load_f32(at, piece.len) + a.y.load_f32(at, piece.len);
                if let Some(packets) = a.packets {
                    packets.send_f32(Peers::others(), half + mine, sum);
                } else if let (Some(inbox), Some(arrived)) = (a.inbox, a.arrived) {
                    let mut parcel = send_to(Peers::others());
                    parcel.put_f32(&inbox, half + mine, sum);
                    parcel.signal(&arrived, flags + rank() * c.chunks() + chunk, epoch);
                }
                a.out.store_f32(mine, sum);
            }
        }
    });

    role("recv", c.recv_blocks, |block| {
        for piece in c.pieces() {
            for i in block.strided(piece.count * (c.ranks - 1)) {
                // The next rank first, so that not all ranks wait for the same one.
                let src = (rank() + 1 + i / piece.count) % c.ranks;
                let chunk = i % piece.count + piece.first;
                let at = src * c.elements + chunk * c.chunk;
                if let Some(packets) = a.packets {
                    a.out.store(at, packets.take(half + at, piece.len, src));
                } else if let (Some(inbox), Some(arrived)) = (a.inbox, a.arrived) {
                    let got = arrived.from(src).wait(flags + src * c.chunks() + chunk, epoch);
                    a.out.store(at, inbox.load(&got, half + at, piece.len));
                }
            }
        }
    });

    // Packets order nothing: a flag says that the packets of earlier launches were taken. Sends of the next launch come after it.
    if let Some(ready) = a.ready {
        role("ready", 1, |_| {
            let _everybody = ready.meet(epoch);
        });
    }
}
