//! The family traits. `#[derive(Family)]` implements them.

use std::{collections::BTreeMap, fmt::Debug, hash::Hash};

use crate::{
    KernelInfo,
    dsl::{KernelArgs, ParamSpec, TraceMeta, trace_args},
    ir::Kernel,
};

use super::{
    Candidates, FamilyEntry, FamilyError, FieldInfo, FieldRole, Illegal, Legal, NameError, Value, Variant,
    entry, name, search, suggest::nearest,
};

/// A struct whose fields are described by [`FieldInfo`] and can be read and made as a list of [`Value`]s.
pub trait Fields: Clone + Debug + PartialEq + Send + Sync + Sized + 'static {
    /// The fields: key fields in the order of the struct, then tuning fields.
    fn fields() -> &'static [FieldInfo];
    /// Their values, in that order.
    fn values(&self) -> Vec<Value>;
    /// From values, in that order. Fails when there are too few or one does not fit its field's Rust type; ranges are
    /// not looked at.
    fn from_values(values: &[Value]) -> Result<Self, Illegal>;

    /// The same with what rules choose in the place of `auto`.
    fn chosen(&self) -> Vec<Value> {
        self.values()
    }

    /// The value of one field, by name.
    fn value(&self, field: &str) -> Option<Value> {
        Self::fields().iter().position(|f| f.name == field).map(|at| self.values()[at])
    }
}

/// The part of a configuration that comes from the problem.
///
/// Of fields that are marked `covers`, a variant with more does as well: one for 128 tokens serves 100.
pub trait FamilyKey: Fields + Eq + Hash {
    /// The same with all fields that are marked `covers` at 0. Variants serve keys of their own class only.
    fn class(&self) -> Self;
    /// The values of those fields.
    fn covered(&self) -> impl Iterator<Item = u64>;
}

/// A family of kernels: one kernel function, and a space of configurations that it is specialised for.
///
/// A family's configuration has *key* fields, which come from the problem and have ranges, and *tuning* fields, which
/// have a few values each and defaults. Every legal configuration is a *variant* and has a name that can be parsed back.
pub trait Family: Fields + Legal {
    /// The part of the configuration that comes from the problem.
    type Key: FamilyKey;
    /// The parameters of the kernel.
    type Args: KernelArgs<Config = Self>;

    /// Name of the family; variant names start with it.
    const NAME: &'static str;
    /// Name, documentation and place of the kernel function.
    const KERNEL: KernelInfo;
    /// The number of a version of the kernel's time: its author counts it up when a change makes the kernel faster or slower. Tuned
    /// records carry it.
    const REVISION: u32 = 1;

    /// The key of this configuration.
    fn key(&self) -> Self::Key;
    /// The default of each tuning field for a key, in order. They need not go together: see [`Family::with_defaults`].
    fn tuning_defaults(key: &Self::Key) -> Vec<Value>;
    /// World size.
    fn ranks(&self) -> u32;
    /// Computers that the ranks are on.
    fn nodes(&self) -> u32 {
        1
    }
    /// Warps a block, where warps have 32 lanes; see [`Family::trace`].
    fn block_warps(&self) -> u32;
    /// Runs the kernel function: inside a trace only.
    #[doc(hidden)]
    fn run(&self, args: &Self::Args);

    /// The fields that come from the problem.
    fn key_fields() -> &'static [FieldInfo] {
        let fields = Self::fields();
        &fields[..fields.iter().take_while(|f| f.role == FieldRole::Key).count()]
    }

    /// The fields that tuning chooses.
    fn tune_fields() -> &'static [FieldInfo] {
        &Self::fields()[Self::key_fields().len()..]
    }

    /// The variant's stable name, a C identifier.
    fn variant_name(&self) -> String {
        name::variant_name(Self::NAME, Self::fields(), &self.values())
    }

    /// This configuration, without its type.
    fn into_variant(self) -> Variant {
        entry::hold(self)
    }

    /// The configuration with this name; the inverse of [`Family::variant_name`].
    fn parse_variant(given: &str) -> Result<Self, NameError> {
        let values = name::parse_variant(Self::NAME, Self::fields(), given)?;
        let found = Self::from_values(&values).and_then(|config| config.legal().map(|()| config));
        found.map_err(|source| NameError::Illegal { given: given.to_owned(), source })
    }

    /// The form of this family's variant names: `moe_h<hidden>_<dtype>__w<warps>`.
    fn name_form() -> String {
        name::form(Self::NAME, Self::fields())
    }

    /// Whether every field has an allowed value and [`Legal`] agrees.
    fn check(&self) -> Result<(), FamilyError> {
        let fields = Self::fields().iter().zip(self.values());
        let fields = fields.into_iter().try_for_each(|(field, value)| field.check(value).map(|_| ()));
        fields
            .and_then(|()| self.legal())
            .map_err(|source| FamilyError::Illegal { family: Self::NAME, source })
    }

    /// The kernel's parameters. Of a legal configuration: lengths of others may overflow.
    fn params(&self) -> Vec<ParamSpec> {
        Self::Args::params(self)
    }

    /// Checks the configuration, and traces the kernel function for warps of `warp_size` lanes. Blocks have at most 1024
    /// threads: where warps have 64 lanes, 16 of them stand for 32.
    fn trace(&self, warp_size: u32) -> Result<Kernel, FamilyError> {
        self.check()?;
        let meta = TraceMeta {
            name: Self::KERNEL.name.to_owned(),
            doc: Self::KERNEL.doc.to_owned(),
            usage: Self::KERNEL.usage.to_owned(),
            variant: self.variant_name(),
            config: self.describe(),
            ranks: self.ranks(),
            nodes: self.nodes(),
            warp_size,
            block_warps: self.block_warps().min(MAX_THREADS / warp_size.max(1)),
            loc: Self::KERNEL.loc,
        };
        Ok(trace_args::<Self::Args>(meta, self, |config, args| config.run(args))?)
    }

    /// The legal points of the tuning space for a key; none when the key itself is not allowed.
    fn candidates(key: &Self::Key) -> Candidates<Self> {
        let tunes = Self::tune_fields().iter().map(|_| None);
        Candidates::new(&key.values().into_iter().map(Some).chain(tunes).collect::<Vec<_>>())
    }

    /// The default configuration for a key: the default of every tuning field or, when those do not go together for
    /// this key, a legal point that differs from them in as few fields as possible, the refused one first.
    fn with_defaults(key: &Self::Key) -> Result<Self, FamilyError> {
        search::nearest_legal(key, &vec![None; Self::tune_fields().len()])
    }

    /// From settings as on the command line: `m=320 n=264 k=136 ranks=2 dtype=bf16`. Else as [`Family::from_settings`].
    fn from_text(text: &str) -> Result<Self, FamilyError> {
        let no_setting = |word: &str| FamilyError::NoSetting { family: Self::NAME, word: word.to_owned() };
        let settings =
            text.split_whitespace().map(|word| word.split_once('=').ok_or_else(|| no_setting(word)));
        Self::from_settings(&settings.collect::<Result<Vec<_>, _>>()?)
    }

    /// From `field = value` pairs as users write them. Every key field without a default must be there; tuning fields that are
    /// not are chosen as [`Family::with_defaults`] does.
    fn from_settings<N: AsRef<str>, V: AsRef<str>>(settings: &[(N, V)]) -> Result<Self, FamilyError> {
        Self::from_values_and_settings(&[], settings)
    }

    /// The same where values of some fields are known, `known`, and need not be read.
    fn from_values_and_settings<N: AsRef<str>, V: AsRef<str>>(
        known: &[(N, Value)],
        settings: &[(N, V)],
    ) -> Result<Self, FamilyError> {
        let values = read_settings(Self::NAME, Self::fields(), known, settings)?;
        let (keys, tunes) = values.split_at(Self::key_fields().len());
        let keys: Vec<Option<Value>> =
            Self::key_fields().iter().zip(keys).map(|(field, value)| value.or(field.constant())).collect();
        let missing = Self::key_fields().iter().zip(&keys).filter(|(_, value)| value.is_none());
        let missing: Vec<_> = missing.map(|(f, _)| (f.name, f.allowed.to_string())).collect();
        if !missing.is_empty() {
            return Err(FamilyError::Missing { family: Self::NAME, missing });
        }
        let keys: Vec<Value> = keys.into_iter().flatten().collect();
        let key = Self::Key::from_values(&keys)
            .map_err(|source| FamilyError::Illegal { family: Self::NAME, source })?;
        search::nearest_legal(&key, tunes)
    }

    /// The configuration in words, `name = value`, key fields first, with what rules choose; without those that its name leaves out
    /// for another reason.
    fn describe(&self) -> Vec<(String, String)> {
        let fields = Self::fields().iter().zip(self.chosen()).filter(|(f, v)| !f.is_left_out(*v));
        fields.map(|(f, v)| (f.name.to_owned(), v.to_string())).collect()
    }

    /// The family as the registry and the command line see it.
    fn entry() -> FamilyEntry {
        entry::of::<Self>()
    }
}

/// Most threads that a block may have, on all targets.
const MAX_THREADS: u32 = 1024;

/// One value or none for each field.
fn read_settings<N: AsRef<str>, V: AsRef<str>>(
    family: &'static str,
    fields: &'static [FieldInfo],
    known: &[(N, Value)],
    settings: &[(N, V)],
) -> Result<Vec<Option<Value>>, FamilyError> {
    let mut seen: BTreeMap<usize, String> = BTreeMap::new();
    let mut values = vec![None; fields.len()];
    let mut set = |name: &str, text: String, read: &dyn Fn(&FieldInfo) -> Result<Value, Illegal>| {
        let at = find(fields, name).ok_or_else(|| FamilyError::UnknownField {
            family,
            field: name.to_owned(),
            nearest: nearest(name, fields.iter().map(|f| f.name)).map(str::to_owned),
            known: fields.iter().map(|f| f.name).collect(),
        })?;
        if let Some(first) = seen.insert(at, text.clone()) {
            return Err(FamilyError::Twice { family, field: fields[at].name, first, second: text });
        }
        values[at] = Some(read(&fields[at]).map_err(|source| FamilyError::Illegal { family, source })?);
        Ok(())
    };
    for (name, value) in known {
        set(name.as_ref(), value.to_string(), &|field| field.check(*value))?;
    }
    for (name, text) in settings {
        set(name.as_ref(), text.as_ref().to_owned(), &|field| field.parse(text.as_ref()))?;
    }
    Ok(values)
}

/// The field that a user means. A key field and a tuning field may have one short name; it means the key then.
fn find(fields: &[FieldInfo], name: &str) -> Option<usize> {
    let in_full = fields.iter().position(|f| f.long() == name.replace('_', "-"));
    in_full.or_else(|| fields.iter().position(|f| f.answers_to(name)))
}
