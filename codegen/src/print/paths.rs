//! Which instructions a target takes, where targets differ.

use serde::Serialize;

use super::analysis::multimem::has_multimem;
use super::layout::fragments::{has_fp8_products, has_wgmma};
use super::layout::shared::in_bulk;
use crate::device::Device;
use crate::family::Target;

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
    /// assert_eq!((of("cuda:sm_90a").products, of("cuda:sm_121a").products), ("wgmma", "mma.sync"));
    /// assert_eq!((of("hip:gfx942").products, of("hip:gfx942").all_ranks), ("mfma", None));
    /// ```
    pub fn of(target: Target) -> Paths {
        let device = Device::of(target);
        let products = match target {
            Target::Cuda(_) if has_wgmma(target) => "wgmma",
            Target::Cuda(_) => "mma.sync",
            Target::Hip(_) => "mfma",
        };
        let pieces = match target {
            Target::Cuda(_) if has_wgmma(target) => "cp.async.bulk.tensor",
            _ if device.stages_products => "cp.async",
            _ => "loads",
        };
        Paths {
            products,
            fp8_products: if has_fp8_products(target) { "fp8" } else { "bf16" },
            pieces,
            copies: if in_bulk(target) { "cp.async.bulk" } else { "lanes" },
            all_ranks: has_multimem(target).then_some("multimem"),
            launches: if target.overlaps_launches() { "griddepcontrol" } else { "stream" },
            packet_bytes: device.packet_bytes,
        }
    }
}
