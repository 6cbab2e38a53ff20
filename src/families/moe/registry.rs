//! Which variants run a problem: chosen at launch from those that are compiled.

use peerwarp_codegen::family::{Operation, Target};

use crate::build::pack::Pack;
use crate::families::moe::kernels::{Combine, Dispatch, Phase};
use crate::families::moe::{MoeError, MoeKey, MoeSuite, MoeTuning};
use crate::harness::choose::{self, Device};
use crate::harness::tune::{Choice, Tuned};
use crate::runtime::registry::{Covering, NoVariant, Selected, digest, of_pack};
use crate::runtime::{RuntimeError, World};

/// The compiled variants of dispatch and combine, in pairs that go together.
///
/// ```
/// use peerwarp::families::moe::{MoeShape, RowDtype};
/// use peerwarp::families::moe::run::MoeTuning;
/// use peerwarp::families::moe::{MoeKey, MoeRegistry};
/// use peerwarp::runtime::registry::Selected;
///
/// let shape = |tokens| MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 8, dtype: RowDtype::Bf16 };
/// let compiled = [MoeTuning::defaults(&shape(64))?, MoeTuning::defaults(&shape(128))?];
/// let registry = MoeRegistry::new(compiled, false);
/// let selected = registry.select(&MoeKey::new(shape(50)))?;
/// assert!(matches!(selected, Selected::Covering(t) if t.key.shape.tokens == 64));
/// assert!(registry.select(&MoeKey::new(shape(129))).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MoeRegistry {
    compiled: Covering<MoeKey, MoeTuning>,
    jit: bool,
    /// What chosen variants are for, where they are compiled when they are needed.
    device: Device,
}

impl MoeRegistry {
    /// With these pairs; of several for one key the first counts. `jit` says whether others can be compiled when they are
    /// needed.
    pub fn new(compiled: impl IntoIterator<Item = MoeTuning>, jit: bool) -> MoeRegistry {
        let mut all = Covering::default();
        compiled.into_iter().for_each(|tuning| all.add(tuning.key, tuning));
        MoeRegistry { compiled: all, jit, device: Device::default() }
    }

    /// With nothing compiled: everything is when it is needed, as it is chosen for the GPUs of a world.
    pub fn of_world(world: &World) -> MoeRegistry {
        MoeRegistry::new([], true).on(Device::of_gpu(world.members()[0].gpu.info()))
    }

    /// The same for a device.
    #[must_use]
    pub fn on(self, device: Device) -> MoeRegistry {
        MoeRegistry { device, ..self }
    }

    /// With a table of what was tuned, for what is compiled when it is needed.
    #[must_use]
    pub fn with_tuned(self, tuned: Tuned) -> MoeRegistry {
        let device = self.device.clone().with_tuned(Some(tuned));
        self.on(device)
    }

    /// The pairs that a pack has for a target.
    pub fn of_pack(pack: &Pack, target: Target, jit: bool) -> MoeRegistry {
        MoeRegistry::new(pairs(&of_pack(pack, target), &of_pack(pack, target)), jit)
    }

    /// The variants for a problem: those for just its key, else those for the fewest tokens that are enough, else none
    /// that is compiled. A pure function; it does not allocate unless it fails.
    ///
    /// # Errors
    /// There are none, and none can be compiled.
    pub fn select(&self, key: &MoeKey) -> Result<Selected<'_, MoeTuning>, NoVariant<MoeKey>> {
        match self.compiled.find(key) {
            Some(found) => Ok(found),
            None if self.jit => Ok(Selected::Jit),
            None => {
                let nearest = self.compiled.nearest(key, |tuning| names(tuning)[0].clone());
                Err(NoVariant { key: *key, nearest })
            }
        }
    }

    /// The variants for a problem, compiled or not: [`MoeRegistry::select`], and where that says `Jit` what is
    /// [chosen](super::choose).
    ///
    /// # Errors
    /// There are none, and none can be compiled; or none are legal for the shape.
    pub fn tuning(&self, key: &MoeKey) -> Result<MoeTuning, RuntimeError> {
        match self.select(key).map_err(|e| RuntimeError::invalid("shape", e, "that of a compiled variant"))? {
            Selected::Exact(tuning) | Selected::Covering(tuning) => Ok(tuning.clone()),
            Selected::Jit => {
                let chosen = choose(key, &self.device);
                let allowed = "one that kernels can be emitted for";
                Ok(chosen.map_err(|e| RuntimeError::invalid("shape", e, allowed))?.0)
            }
        }
    }

    /// A digest of the table, for [`crate::runtime::WorldOptions::facts`]: ranks that select from different tables may
    /// select different variants.
    pub fn digest(&self) -> String {
        let pairs = self.compiled.iter().map(|(_, tuning)| names(tuning));
        digest(pairs.map(|pair| pair.join(" ")), self.jit, self.device.tuned().map(Tuned::digest))
    }
}

/// What is [chosen](choose::operation) for a problem on a device, and why.
///
/// # Errors
/// Nothing is legal for the problem.
pub fn choose(key: &MoeKey, device: &Device) -> Result<(MoeTuning, Choice), MoeError> {
    let (tuning, by): (MoeTuning, Choice) = choose::operation(&MoeSuite, key, device)?;
    tuning.check(&key.shape).map(|()| (tuning, by))
}

fn names(tuning: &MoeTuning) -> Vec<String> {
    tuning.components().iter().map(|launch| launch.variant_name()).collect()
}

/// The operations whose launches are all there.
fn pairs(dispatch: &[Dispatch], combine: &[Combine]) -> Vec<MoeTuning> {
    let first = dispatch.iter().filter(|d| d.phase != Phase::Recv);
    let with = |d| combine.iter().filter_map(move |c| MoeTuning::of(d, c).ok());
    let there = |t: &MoeTuning| {
        t.dispatch_launches().iter().all(|l| dispatch.contains(l))
            && t.combine_launches().iter().all(|l| combine.contains(l))
    };
    first.flat_map(with).filter(there).collect()
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
