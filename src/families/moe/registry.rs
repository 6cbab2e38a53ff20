//! Which variants run a problem: chosen at launch from those that are compiled.

use std::collections::{BTreeMap, HashMap};

use peerwarp_codegen::family::{Family, Target};
use sha2::{Digest, Sha256};

use crate::build::pack::Pack;
use crate::families::moe::MoeShape;
use crate::families::moe::kernels::{Combine, Dispatch, Hook, Layout, Phase};
use crate::families::moe::run::MoeTuning;
use crate::harness::tune::Tuned;
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
    /// Whether sending and receiving are launches of their own.
    pub split: bool,
}

impl MoeKey {
    /// One launch an operation, and rows as they are, by expert.
    pub fn new(shape: MoeShape) -> MoeKey {
        MoeKey { shape, hook: Hook::None, layout: Layout::Experts, split: false }
    }

    fn of(tuning: &MoeTuning) -> MoeKey {
        let Dispatch { hook, layout, .. } = tuning.dispatch;
        MoeKey { shape: tuning.dispatch.shape(), hook, layout, split: tuning.split }
    }

    /// What has to be equal: all but the number of tokens.
    fn without_tokens(self) -> MoeKey {
        MoeKey { shape: MoeShape { tokens: 0, ..self.shape }, ..self }
    }
}

/// The outcome of a selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selected<'a> {
    /// Variants for just this key.
    Exact(&'a MoeTuning),
    /// Variants for more tokens than asked for, as few more as there are.
    Covering(&'a MoeTuning),
    /// Nothing that is compiled will do; it can be compiled now, from [`MoeTuning::defaults_with`].
    Jit,
}

/// There is nothing for a problem, and nothing can be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no compiled variant is for {key:?}; the nearest are {}", if .nearest.is_empty() { "none".to_owned() } else { .nearest.join(", ") })]
pub struct NoVariant {
    /// What was asked for.
    pub key: MoeKey,
    /// Dispatch variants that differ least, the best first.
    pub nearest: Vec<String>,
}

/// The compiled variants of dispatch and combine, in pairs that go together.
///
/// ```
/// use peerwarp::families::moe::{MoeShape, RowDtype};
/// use peerwarp::families::moe::run::MoeTuning;
/// use peerwarp::families::moe::{MoeKey, Registry, Selected};
///
/// let shape = |tokens| MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 8, dtype: RowDtype::Bf16 };
/// let compiled = [MoeTuning::defaults(&shape(64))?, MoeTuning::defaults(&shape(128))?];
/// let registry = Registry::new(compiled, false);
/// let selected = registry.select(&MoeKey::new(shape(50)))?;
/// assert!(matches!(selected, Selected::Covering(t) if t.dispatch.tokens == 64));
/// assert!(registry.select(&MoeKey::new(shape(129))).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    /// By ascending tokens.
    compiled: HashMap<MoeKey, Vec<MoeTuning>>,
    jit: bool,
    /// For what is compiled when it is needed.
    tuned: Option<Tuned>,
}

/// How many variants an error names.
const NEAREST: usize = 3;

impl Registry {
    /// With these pairs; of several for one key the first counts. `jit` says whether others can be compiled when they are
    /// needed.
    pub fn new(compiled: impl IntoIterator<Item = MoeTuning>, jit: bool) -> Registry {
        let mut registry = Registry { compiled: HashMap::new(), jit, tuned: None };
        for tuning in compiled {
            let all = registry.compiled.entry(MoeKey::of(&tuning).without_tokens()).or_default();
            let at = all.partition_point(|t| t.dispatch.tokens < tuning.dispatch.tokens);
            if all.get(at).is_none_or(|t| t.dispatch.tokens != tuning.dispatch.tokens) {
                all.insert(at, tuning);
            }
        }
        registry
    }

    /// With nothing compiled: everything is when it is needed, as it was tuned for the GPUs of a world if a table of them
    /// comes with this program.
    pub fn of_world(world: &World) -> Registry {
        let gpu = world.members()[0].gpu.info();
        Registry { tuned: Tuned::builtin(&gpu.name, gpu.target), ..Registry::new([], true) }
    }

    /// With a table of what was tuned, for what is compiled when it is needed.
    #[must_use]
    pub fn with_tuned(self, tuned: Tuned) -> Registry {
        Registry { tuned: Some(tuned), ..self }
    }

    /// The pairs that a pack has for a target.
    pub fn of_pack(pack: &Pack, target: Target, jit: bool) -> Registry {
        let names = pack.kernels().filter(|k| k.entry.target == target).map(|k| k.entry.variant.as_str());
        let names: Vec<&str> = names.collect();
        let dispatch: Vec<Dispatch> = names.iter().filter_map(|n| Dispatch::parse_variant(n).ok()).collect();
        let combine: Vec<Combine> = names.iter().filter_map(|n| Combine::parse_variant(n).ok()).collect();
        Registry::new(pairs(&dispatch, &combine), jit)
    }

    /// The variants for a problem: those for just its key, else those for the fewest tokens that are enough, else none
    /// that is compiled. A pure function; it does not allocate unless it fails.
    pub fn select(&self, key: &MoeKey) -> Result<Selected<'_>, NoVariant> {
        let tokens = key.shape.tokens;
        let all = self.compiled.get(&key.without_tokens()).map_or(&[][..], Vec::as_slice);
        match all.get(all.partition_point(|t| t.dispatch.tokens < tokens)) {
            Some(tuning) if tuning.dispatch.tokens == tokens => Ok(Selected::Exact(tuning)),
            Some(tuning) => Ok(Selected::Covering(tuning)),
            None if self.jit => Ok(Selected::Jit),
            None => Err(NoVariant { key: *key, nearest: self.nearest(key) }),
        }
    }

    /// The variants for a problem, compiled or not: [`Registry::select`], and where that says `Jit` what was tuned, or else the
    /// defaults. Tables are of whole launches without a hook.
    pub fn tuning(&self, key: &MoeKey) -> Result<MoeTuning, RuntimeError> {
        match self.select(key).map_err(|e| RuntimeError::invalid("shape", e, "that of a compiled variant"))? {
            Selected::Exact(tuning) | Selected::Covering(tuning) => Ok(tuning.clone()),
            Selected::Jit => {
                let whole = key.hook == Hook::None && !key.split;
                let allowed = "one that kernels can be emitted for";
                let default = MoeTuning::defaults_with(&key.shape, key.hook, key.layout);
                let default = default.map_err(|e| RuntimeError::invalid("shape", e, allowed))?;
                let tuned = whole.then(|| super::tuned::find(self.tuned.as_ref(), &default)).flatten();
                Ok(tuned.map_or(default, |(tuning, _)| tuning).with_split(key.split))
            }
        }
    }

    /// A digest of the table, for [`crate::runtime::WorldOptions::facts`]: ranks that select from different tables may
    /// select different variants.
    pub fn digest(&self) -> String {
        let all: BTreeMap<String, String> = self.all().map(names).collect();
        let mut hash = Sha256::new();
        for (dispatch, combine) in &all {
            hash.update(format!("{dispatch} {combine}\n"));
        }
        hash.update([u8::from(self.jit)]);
        hash.update(self.tuned.as_ref().map(|tuned| tuned.table().text()).unwrap_or_default());
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn all(&self) -> impl Iterator<Item = &MoeTuning> {
        self.compiled.values().flatten()
    }

    fn nearest(&self, key: &MoeKey) -> Vec<String> {
        let mut all: Vec<_> = self.all().map(|t| (distance(key, &MoeKey::of(t)), names(t).0)).collect();
        all.sort();
        all.into_iter().take(NEAREST).map(|(_, name)| name).collect()
    }
}

fn names(tuning: &MoeTuning) -> (String, String) {
    let (dispatch, combine) = (tuning.dispatch_launches(), tuning.combine_launches());
    (dispatch[0].variant_name(), combine[0].variant_name())
}

/// How many fields differ, then how far the tokens are off.
fn distance(a: &MoeKey, b: &MoeKey) -> (usize, u32) {
    let (s, t) = (&a.shape, &b.shape);
    let differ = [
        s.hidden != t.hidden,
        s.experts != t.experts,
        s.topk != t.topk,
        s.ranks != t.ranks,
        s.dtype != t.dtype,
        a.hook != b.hook,
        a.layout != b.layout,
        a.split != b.split,
        t.tokens < s.tokens,
    ];
    (differ.into_iter().filter(|&d| d).count(), s.tokens.abs_diff(t.tokens))
}

/// Dispatch and combine variants that go together, all halves of split ones there.
fn pairs(dispatch: &[Dispatch], combine: &[Combine]) -> Vec<MoeTuning> {
    let mut found = vec![];
    for d in dispatch.iter().filter(|d| d.phase != Phase::Recv) {
        let split = d.phase == Phase::Send;
        let whole = Dispatch { phase: Phase::Both, ..d.clone() };
        for c in combine.iter().filter(|c| c.phase == d.phase) {
            let combined = Combine { phase: Phase::Both, ..c.clone() };
            let tuning = MoeTuning { dispatch: whole.clone(), combine: combined, split, round_trip: None };
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
