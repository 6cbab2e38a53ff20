//! Which variants run a problem: chosen at launch from those that are compiled.

use peerwarp_codegen::family::{Family, Target};

use crate::build::pack::Pack;
use crate::families::moe::kernels::{Combine, CombineDtype, Dispatch, Hook, Layout, Phase, Quantise};
use crate::families::moe::run::MoeTuning;
use crate::families::moe::{MoeError, MoeShape};
use crate::harness::choose::Device;
use crate::harness::tune::Tuned;
use crate::runtime::registry::{CoverKey, Covering, NoVariant, Selected, digest, of_pack};
use crate::runtime::{RuntimeError, World};

/// What a problem asks of its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoeKey {
    /// The shape. Its `tokens` are the most that a rank has; variants for more do as well.
    pub shape: MoeShape,
    /// What happens to rows on their way into dispatch's output.
    pub hook: Hook,
    /// How rows stand at the rank that receives them.
    pub layout: Layout,
    /// Rows by expert that there are places for, as [`Dispatch::max_rows`].
    pub max_rows: u32,
    /// What rows are combined in.
    pub combined: CombineDtype,
    /// Whether combine applies the weights to rank-major rows.
    pub weighted: bool,
    /// What rows are quantised from before they are sent.
    pub quantise: Quantise,
    /// Whether sending and receiving are launches of their own.
    pub split: bool,
}

impl MoeKey {
    /// One launch an operation, and rows as they are, by expert.
    pub fn new(shape: MoeShape) -> MoeKey {
        let combined = shape.dtype.into();
        MoeKey {
            shape,
            hook: Hook::None,
            layout: Layout::RankMajor,
            max_rows: 0,
            combined,
            weighted: false,
            quantise: Quantise::None,
            split: false,
        }
    }

    /// The defaults for it.
    pub(super) fn defaults(&self) -> Result<MoeTuning, MoeError> {
        let tuning =
            MoeTuning::defaults_with(&self.shape, self.hook, self.layout)?.with_quantise(self.quantise)?;
        let tuning = tuning.with_max_rows(self.max_rows).with_combined(self.combined);
        Ok(tuning.with_weighted(self.weighted).with_split(self.split))
    }

    fn of(tuning: &MoeTuning) -> MoeKey {
        let Dispatch { hook, layout, max_rows, quantise, .. } = tuning.dispatch;
        let Combine { dtype: combined, weighted, .. } = tuning.combine;
        let (shape, split) = (tuning.dispatch.shape(), tuning.split);
        MoeKey { shape, hook, layout, max_rows, combined, weighted, quantise, split }
    }
}

impl CoverKey for MoeKey {
    fn class(&self) -> MoeKey {
        MoeKey { shape: MoeShape { tokens: 0, ..self.shape }, ..*self }
    }

    fn covers(&self, asked: &MoeKey) -> bool {
        self.shape.tokens >= asked.shape.tokens
    }

    fn volume(&self) -> u128 {
        self.shape.tokens.into()
    }

    fn distance(&self, asked: &MoeKey) -> (usize, u128) {
        let (s, t) = (&asked.shape, &self.shape);
        let differ = [
            s.hidden != t.hidden,
            s.experts != t.experts,
            s.topk != t.topk,
            s.ranks != t.ranks,
            s.dtype != t.dtype,
            asked.hook != self.hook,
            asked.layout != self.layout,
            asked.max_rows != self.max_rows,
            asked.combined != self.combined,
            asked.weighted != self.weighted,
            asked.quantise != self.quantise,
            asked.split != self.split,
            t.tokens < s.tokens,
        ];
        (differ.into_iter().filter(|&d| d).count(), s.tokens.abs_diff(t.tokens).into())
    }
}

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
/// assert!(matches!(selected, Selected::Covering(t) if t.dispatch.tokens == 64));
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
        compiled.into_iter().for_each(|tuning| all.add(MoeKey::of(&tuning), tuning));
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
                let nearest = self.compiled.nearest(key, |tuning| names(tuning).0);
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
                let chosen = super::choose(key, &self.device);
                let allowed = "one that kernels can be emitted for";
                Ok(chosen.map_err(|e| RuntimeError::invalid("shape", e, allowed))?.0)
            }
        }
    }

    /// A digest of the table, for [`crate::runtime::WorldOptions::facts`]: ranks that select from different tables may
    /// select different variants.
    pub fn digest(&self) -> String {
        let pairs = self.compiled.iter().map(|(_, tuning)| names(tuning));
        let pairs = pairs.map(|(dispatch, combine)| format!("{dispatch} {combine}"));
        digest(pairs, self.jit, self.device.tuned().map(Tuned::digest))
    }
}

fn names(tuning: &MoeTuning) -> (String, String) {
    let (dispatch, combine) = (tuning.dispatch_launches(), tuning.combine_launches());
    (dispatch[0].variant_name(), combine[0].variant_name())
}

/// Dispatch and combine variants that go together, all halves of split ones there.
fn pairs(dispatch: &[Dispatch], combine: &[Combine]) -> Vec<MoeTuning> {
    let mut found = vec![];
    for d in dispatch.iter().filter(|d| d.phase != Phase::Recv) {
        let split = d.phase == Phase::Send;
        let whole = Dispatch { phase: Phase::Both, ..d.clone() };
        for c in combine.iter().filter(|c| c.phase == d.phase) {
            let combined = Combine { phase: Phase::Both, ..c.clone() };
            let tuning = MoeTuning { dispatch: whole.clone(), combine: combined, split };
            let there = |t: &MoeTuning| {
                t.dispatch_launches().iter().all(|l| dispatch.contains(l))
                    && t.combine_launches().iter().all(|l| combine.contains(l))
            };
            if tuning.check(&whole.shape()).is_ok() && there(&tuning) {
                found.push(tuning);
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
