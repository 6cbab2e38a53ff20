//! Which variant of a family runs a problem: chosen at launch from those that are compiled.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use peerwarp_codegen::family::{Family, FamilyKey, Target};
use sha2::{Digest, Sha256};

use super::RuntimeError;
use crate::build::pack::Pack;

/// What a problem asks of what is compiled. The keys of families have it; see [`FamilyKey`].
pub trait CoverKey: Clone + Debug + Eq + Hash {
    /// The same without what more may be had of: all keys that have it in common may serve each other.
    fn class(&self) -> Self;
    /// Whether what is compiled for this key does for another one of its class.
    fn covers(&self, asked: &Self) -> bool;
    /// How much it has of what more may be had of: of several that do, the one with the least is taken.
    fn volume(&self) -> u128;
    /// How far it is from doing for another key: fields that are in the way first.
    fn distance(&self, asked: &Self) -> (usize, u128);
}

impl<K: FamilyKey> CoverKey for K {
    fn class(&self) -> K {
        FamilyKey::class(self)
    }

    fn covers(&self, asked: &K) -> bool {
        self.covered().zip(asked.covered()).all(|(has, asked)| has >= asked)
    }

    fn volume(&self) -> u128 {
        self.covered().fold(1, |all, n| u128::saturating_mul(all, n.into()))
    }

    fn distance(&self, asked: &K) -> (usize, u128) {
        let (own, other) = (FamilyKey::class(self).values(), FamilyKey::class(asked).values());
        let differ = own.iter().zip(&other).filter(|(a, b)| a != b).count();
        let short = self.covered().zip(asked.covered()).filter(|(has, asked)| has < asked).count();
        let off = self.covered().zip(asked.covered()).map(|(a, b)| u128::from(a.abs_diff(b))).sum();
        (differ + short, off)
    }
}

/// The outcome of a selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selected<'a, V> {
    /// A variant for just this key.
    Exact(&'a V),
    /// A variant for more than is asked for, as little more as there is.
    Covering(&'a V),
    /// Nothing that is compiled will do; it can be compiled now.
    Jit,
}

/// There is nothing for a problem, and nothing can be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no compiled variant is for {key:?}; the nearest are {}", if .nearest.is_empty() { "none".to_owned() } else { .nearest.join(", ") })]
pub struct NoVariant<K: Debug> {
    /// What was asked for.
    pub key: K,
    /// Names of the variants that differ least, the best first.
    pub nearest: Vec<String>,
}

/// How many variants an error names.
const NEAREST: usize = 3;

/// What is compiled, by what it is for.
#[derive(Clone, Debug)]
pub struct Covering<K, V> {
    /// By class, in the order of their volumes.
    classes: HashMap<K, Vec<(K, V)>>,
}

impl<K, V> Default for Covering<K, V> {
    fn default() -> Self {
        Covering { classes: HashMap::new() }
    }
}

impl<K: CoverKey, V> Covering<K, V> {
    /// Adds something. Of several for one key the first counts.
    pub fn add(&mut self, key: K, value: V) {
        let all = self.classes.entry(key.class()).or_default();
        if all.iter().all(|(known, _)| *known != key) {
            let at = all.partition_point(|(known, _)| known.volume() <= key.volume());
            all.insert(at, (key, value));
        }
    }

    /// What is for just this key, else what has as little more as there is; none if nothing does. It does not allocate.
    pub fn find(&self, key: &K) -> Option<Selected<'_, V>> {
        let all = self.classes.get(&key.class()).map_or(&[][..], Vec::as_slice);
        let exact = all.iter().find(|(known, _)| known == key).map(|(_, value)| Selected::Exact(value));
        exact.or_else(|| {
            all.iter().find(|(known, _)| known.covers(key)).map(|(_, value)| Selected::Covering(value))
        })
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.classes.values().flatten().map(|(key, value)| (key, value))
    }

    /// The names of those that are nearest to a key, the best first.
    pub fn nearest(&self, key: &K, name: impl Fn(&V) -> String) -> Vec<String> {
        let mut all: Vec<_> = self.iter().map(|(own, value)| (own.distance(key), name(value))).collect();
        all.sort();
        all.into_iter().take(NEAREST).map(|(_, name)| name).collect()
    }
}

/// Finds what was chosen for a key.
type Find<K, V> = dyn Fn(&K) -> Option<V> + Send + Sync;

/// What tuning chose, looked up by key. Ranks compare the digest of what it looks in.
pub struct Lookup<K, V> {
    find: Arc<Find<K, V>>,
    digest: String,
}

impl<K, V> Clone for Lookup<K, V> {
    fn clone(&self) -> Self {
        Lookup { find: Arc::clone(&self.find), digest: self.digest.clone() }
    }
}

impl<K, V> Debug for Lookup<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl<K, V> Lookup<K, V> {
    /// With a table whose contents have this digest.
    pub fn new(
        digest: impl Into<String>,
        find: impl Fn(&K) -> Option<V> + Send + Sync + 'static,
    ) -> Lookup<K, V> {
        Lookup { find: Arc::new(find), digest: digest.into() }
    }

    /// What was chosen for a key.
    pub fn find(&self, key: &K) -> Option<V> {
        (self.find)(key)
    }

    /// The digest of the table.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The variants of a family that are compiled, and whether others can be.
#[derive(Clone, Debug)]
pub struct Registry<F: Family> {
    compiled: Covering<F::Key, F>,
    jit: bool,
    tuned: Option<Lookup<F::Key, F>>,
}

impl<F: Family> Registry<F> {
    /// With these variants; of several for one key the first counts. `jit` says whether others can be compiled when they are
    /// needed.
    pub fn new(compiled: impl IntoIterator<Item = F>, jit: bool) -> Registry<F> {
        let mut all = Covering::default();
        compiled.into_iter().for_each(|config| all.add(config.key(), config));
        Registry { compiled: all, jit, tuned: None }
    }

    /// The family's variants that a pack has for a target.
    pub fn of_pack(pack: &Pack, target: Target, jit: bool) -> Registry<F> {
        Registry::new(of_pack(pack, target), jit)
    }

    /// With what tuning chose, for what is compiled when it is needed.
    #[must_use]
    pub fn with_tuned(self, tuned: Lookup<F::Key, F>) -> Registry<F> {
        Registry { tuned: Some(tuned), ..self }
    }

    /// The variant for a problem: the one for just its key, else the one with as little more as there is, else none that is
    /// compiled. A pure function; it does not allocate unless it fails.
    ///
    /// # Errors
    /// There is none, and none can be compiled.
    pub fn select(&self, key: &F::Key) -> Result<Selected<'_, F>, NoVariant<F::Key>> {
        match self.compiled.find(key) {
            Some(found) => Ok(found),
            None if self.jit => Ok(Selected::Jit),
            None => {
                let nearest = self.compiled.nearest(key, F::variant_name);
                Err(NoVariant { key: key.clone(), nearest })
            }
        }
    }

    /// The variant for a problem, compiled or not: [`Registry::select`], and where that says `Jit` what tuning chose, or else the
    /// defaults.
    ///
    /// # Errors
    /// There is none, and none can be compiled; or none is legal for the key.
    pub fn config(&self, key: &F::Key) -> Result<F, RuntimeError> {
        let allowed = "one that a variant is compiled for";
        match self.select(key).map_err(|e| RuntimeError::invalid("key", e, allowed))? {
            Selected::Exact(config) | Selected::Covering(config) => Ok(config.clone()),
            Selected::Jit => match self.tuned.as_ref().and_then(|tuned| tuned.find(key)) {
                Some(config) => Ok(config),
                None => {
                    let allowed = "one that kernels can be emitted for";
                    F::with_defaults(key).map_err(|e| RuntimeError::invalid("key", e, allowed))
                }
            },
        }
    }

    /// A digest of all that decides, for [`WorldOptions::facts`](super::WorldOptions::facts): ranks that select from different
    /// tables may select different variants.
    pub fn digest(&self) -> String {
        let names = self.compiled.iter().map(|(_, config)| config.variant_name());
        digest(names, self.jit, self.tuned.as_ref().map(Lookup::digest))
    }
}

/// A family's variants among what a pack has for a target.
pub(crate) fn of_pack<F: Family>(pack: &Pack, target: Target) -> Vec<F> {
    let there = pack.kernels().filter(|k| k.entry.target == target);
    there.filter_map(|k| F::parse_variant(&k.entry.variant).ok()).collect()
}

/// A digest of what a registry has, whatever the order.
pub(crate) fn digest(names: impl Iterator<Item = String>, jit: bool, tuned: Option<&str>) -> String {
    let mut hash = Sha256::new();
    for name in names.collect::<BTreeSet<String>>() {
        hash.update(format!("{name}\n"));
    }
    hash.update([u8::from(jit)]);
    hash.update(tuned.unwrap_or_default());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
