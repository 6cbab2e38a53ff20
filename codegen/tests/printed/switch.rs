//! All ranks' memory at once, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Ranks of [`switched`].
pub const RANKS: u32 = 4;
/// Elements that each rank reduces.
pub const SHARE: u32 = 520;
/// Elements of a rank's vector.
pub const ROW: u32 = RANKS * SHARE;

/// Which deviation from the protocol a kernel has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// None.
    None,
    /// The owner signals before it has stored.
    EarlySignal,
    /// The last rank's signal is not waited for.
    MissingRank,
}

/// Each rank publishes a vector. The switch reduces each rank's share of all of them, and stores it to all.
pub fn switched(dtype: Dtype, op: ReduceOp) -> Kernel {
    switched_with(dtype, op, Bug::None)
}

/// [`switched`] with a mistake.
pub fn switched_with(dtype: Dtype, op: ReduceOp, bug: Bug) -> Kernel {
    let mut meta = TraceMeta::new("switched", RANKS, 32, 4);
    meta.doc = "Reduces what every rank publishes, by the switch.".into();
    let kernel = trace(meta, |p: &mut Binder| {
        let (x, out): (AnyPtr, AnyPtr) =
            (p.erased("x", ROW.into(), dtype), p.erased("out", ROW.into(), dtype));
        let vector: AnyWindow = p.erased("vector", ROW.into(), dtype);
        let ready: Flags = p.arg("ready", RANKS.into());
        let sums: AnySym = p.erased("sums", ROW.into(), dtype);
        let arrived: Flags = p.arg("arrived", RANKS.into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("all", 1, |_| {
            // After two waits all ranks have read: nothing needs a second bank.
            let publish = || vector.store(0, x.load(0, ROW));
            if bug != Bug::EarlySignal {
                publish();
            }
            vector.signal(Peers::all(), &ready, rank(), epoch);
            if bug == Bug::EarlySignal {
                publish();
            }
            let awaited = if bug == Bug::MissingRank { RANKS - 1 } else { RANKS };
            let got = ready.wait_all(0, awaited, 1, epoch);
            let share = rank() * SHARE;
            let mut parcel = multicast();
            parcel.put_any(&sums, share, vector.load_reduce(op, &got, share, SHARE));
            parcel.signal(&arrived, rank(), epoch);
            let got = arrived.wait_all(0, RANKS, 1, epoch);
            out.store(0, sums.load(&got, 0, ROW));
        });
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}
