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
    /// With packets, what comes with `ready`: nobody reads it.
    #[len(|c| c.only(Protocol::Packets, 2 * c.ranks))]
    pub note: Option<Sym<u32>>,
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

    let tiles = tiles(c.elements, c.chunk);

    role("send", c.send_blocks, |block| {
        for t in block.tiles(c.elements, c.chunk) {
            let mine = rank() * c.elements + t.at();
            let sum = a.x.load_f32(t.at(), t.len()) + a.y.load_f32(t.at(), t.len());
            if let Some(packets) = a.packets {
                packets.send_f32(Peers::others(), half + mine, sum);
            } else if let (Some(inbox), Some(arrived)) = (a.inbox, a.arrived) {
                let mut parcel = send_to(Peers::others());
                parcel.put_f32(&inbox, half + mine, sum);
                parcel.signal(&arrived, flags + rank() * c.chunks() + t.number(), epoch);
            }
            a.out.store_f32(mine, sum);
        }
    });

    role("recv", c.recv_blocks, |block| {
        for i in block.strided(tiles.count() * (c.ranks - 1)) {
            // The next rank first, so that not all ranks wait for the same one.
            let src = (rank() + 1 + i / tiles.count()) % c.ranks;
            let t = tiles.tile(i % tiles.count());
            let theirs = src * c.elements + t.at();
            if let Some(packets) = a.packets {
                a.out.store(theirs, packets.take(half + theirs, t.len(), src));
            } else if let (Some(inbox), Some(arrived)) = (a.inbox, a.arrived) {
                let got = arrived.from(src).wait(flags + src * c.chunks() + t.number(), epoch);
                a.out.store(theirs, inbox.load(&got, half + theirs, t.len()));
            }
        }
    });

    // Packets order nothing: a flag says that the packets of earlier launches were taken. Sends of the next launch come after it.
    if let (Some(note), Some(ready)) = (a.note, a.ready) {
        role("ready", 1, |_| {
            let first = epoch.parity() * c.ranks;
            let mut parcel = send_to(Peers::all());
            parcel.put_value(&note, first + rank(), 1);
            parcel.signal(&ready, first + rank(), epoch);
            let _everybody = ready.wait_all(first, c.ranks, 1, epoch);
        });
    }
}
