//! Which instructions a target takes, where targets differ.

use serde::Serialize;

use crate::device::Device;
use crate::family::{MatrixUnit, Target};

/// The instructions that kernels are made of on a target, where targets differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Paths {
    /// What multiplies matrices.
    pub products: &'static str,
    /// What fp8 is multiplied as.
    pub fp8_products: &'static str,
    /// What brings pieces of operands to shared memory.
    pub pieces: &'static str,
    /// What copies rows in bulk.
    pub copies: &'static str,
    /// What reads or writes all ranks' memory at once; none where kernels that do are refused.
    pub all_ranks: Option<&'static str>,
    /// What orders a launch behind the one before.
    pub launches: &'static str,
    /// Bytes that a packet brings at once.
    pub packet_bytes: u32,
}

impl Paths {
    /// Those of a target.
    ///
    /// ```
    /// use peerwarp_codegen::print::Paths;
    ///
    /// let of = |target: &str| Paths::of(target.parse().unwrap());
    /// assert_eq!((of("cuda:sm_90a").products, of("cuda:sm_100a").products), ("wgmma", "tcgen05"));
    /// assert_eq!(of("cuda:sm_121a").products, "mma.sync");
    /// assert_eq!((of("hip:gfx942").products, of("hip:gfx942").all_ranks), ("mfma", None));
    /// assert_eq!(of("hip:gfx1250").products, "wmma");
    /// ```
    pub fn of(target: Target) -> Paths {
        let device = Device::of(target);
        let products = match (target.matrix_unit(), target) {
            (MatrixUnit::Warpgroup, _) => "wgmma",
            (MatrixUnit::TensorMemory, _) => "tcgen05",
            (MatrixUnit::Warp, Target::Cuda(_)) => "mma.sync",
            (MatrixUnit::Warp, Target::Hip(_)) if target.is_gfx12() => "wmma",
            (MatrixUnit::Warp, Target::Hip(_)) => "mfma",
        };
        let pieces = match (target.matrix_unit().reads_shared(), device.stages_products) {
            (true, _) => "cp.async.bulk.tensor",
            (false, true) => "cp.async",
            (false, false) => "loads",
        };
        Paths {
            products,
            fp8_products: if target.has_fp8_products() { "fp8" } else { "bf16" },
            pieces,
            copies: if target.copies_in_bulk() { "cp.async.bulk" } else { "lanes" },
            all_ranks: target.has_multimem().then_some("multimem"),
            launches: if target.overlaps_launches() { "griddepcontrol" } else { "stream" },
            packet_bytes: device.packet_bytes,
        }
    }
}
