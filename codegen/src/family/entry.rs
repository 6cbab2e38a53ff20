//! Families behind an object-safe trait, so that the command line can go over all of them, a stranger's too.

use std::{any::Any, fmt, marker::PhantomData, sync::Arc};

use super::{Family, FamilyError, FieldInfo, NameError, Value, suggest::nearest};
use crate::{dsl::ParamSpec, ir::Kernel};

/// A family, whatever its configuration type.
pub trait DynFamily: Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &'static str;
    /// What its kernel does.
    fn doc(&self) -> &'static str;
    /// Its [revision](Family::REVISION).
    fn revision(&self) -> u32 {
        1
    }
    /// Its fields, key fields first.
    fn fields(&self) -> &'static [FieldInfo];
    /// The form of its variant names.
    fn name_form(&self) -> String;
    /// The variant with this name.
    fn parse(&self, variant: &str) -> Result<Variant, NameError>;
    /// The variant with these `field = value` settings; see [`Family::from_settings`].
    fn build(&self, settings: &[(String, String)]) -> Result<Variant, FamilyError> {
        self.build_with(&[], settings)
    }
    /// The same where values of some fields are known, and need not be read.
    fn build_with(
        &self,
        known: &[(String, Value)],
        settings: &[(String, String)],
    ) -> Result<Variant, FamilyError>;
    /// The legal variants that differ from one of this family in a field alone, in which they have a smaller number: the largest first.
    fn smaller(&self, variant: &dyn DynConfig, field: usize) -> Vec<Variant>;
    /// The legal variants with the key of these settings (tuning fields in them are checked, then vary all the same).
    fn candidates(&self, settings: &[(String, String)]) -> Result<VariantIter, FamilyError>;
}

/// Variants, one after the other.
pub type VariantIter = Box<dyn Iterator<Item = Variant> + Send>;

/// A family in a registry.
pub type FamilyEntry = &'static dyn DynFamily;

impl fmt::Debug for dyn DynFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "family {}", self.name())
    }
}

/// A kernel that can be launched: of a configuration, or out of a pack.
pub trait DynKernel: fmt::Debug + Send + Sync + 'static {
    /// Name of its family.
    fn family_name(&self) -> &str;
    /// Its stable name.
    fn variant_name(&self) -> String;
    /// Names and values of its key fields, without those that its name leaves out.
    fn key(&self) -> Vec<(String, serde_json::Value)>;
    /// World size.
    fn ranks(&self) -> u32;
    /// Computers that the ranks are on.
    fn nodes(&self) -> u32;
    /// Its parameters.
    fn params(&self) -> Vec<ParamSpec>;
    /// The kernel for warps of `warp_size` lanes; see [`Family::trace`].
    fn trace(&self, warp_size: u32) -> Result<Kernel, FamilyError>;
}

/// A configuration of some family, whatever its type.
pub trait DynConfig: DynKernel {
    /// The family it belongs to.
    fn family(&self) -> FamilyEntry;
    /// The values of its fields, in the order of [`DynFamily::fields`].
    fn values(&self) -> Vec<Value>;
    /// Warps a block.
    fn block_warps(&self) -> u32;
    /// For a look at the configuration itself: `variant.as_any().downcast_ref::<Dispatch>()`.
    fn as_any(&self) -> &dyn Any;
}

/// A configuration of some family.
pub type Variant = Arc<dyn DynConfig>;

/// A configuration behind [`DynConfig`]. A type of its own: were `F` itself to implement the trait, calls of methods
/// that both traits have would be ambiguous.
#[derive(Debug)]
struct Holding<F>(F);

pub(super) fn hold<F: Family>(config: F) -> Variant {
    Arc::new(Holding(config))
}

impl<F: Family> DynKernel for Holding<F> {
    fn family_name(&self) -> &str {
        F::NAME
    }
    fn variant_name(&self) -> String {
        self.0.variant_name()
    }
    fn key(&self) -> Vec<(String, serde_json::Value)> {
        let fields = F::key_fields().iter().zip(self.0.values()).filter(|(f, v)| !f.is_left_out(*v));
        fields.map(|(field, value)| (field.name.to_owned(), serde_json::json!(value))).collect()
    }
    fn ranks(&self) -> u32 {
        self.0.ranks()
    }
    fn nodes(&self) -> u32 {
        self.0.nodes()
    }
    fn params(&self) -> Vec<ParamSpec> {
        self.0.params()
    }
    fn trace(&self, warp_size: u32) -> Result<Kernel, FamilyError> {
        self.0.trace(warp_size)
    }
}

impl<F: Family> DynConfig for Holding<F> {
    fn family(&self) -> FamilyEntry {
        of::<F>()
    }
    fn values(&self) -> Vec<Value> {
        self.0.values()
    }
    fn block_warps(&self) -> u32 {
        self.0.block_warps()
    }
    fn as_any(&self) -> &dyn Any {
        &self.0
    }
}

/// The registry's view of a family type.
struct Of<F>(PhantomData<fn() -> F>);

pub(super) fn of<F: Family>() -> FamilyEntry {
    &const { Of::<F>(PhantomData) }
}

impl<F: Family> DynFamily for Of<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }
    fn doc(&self) -> &'static str {
        F::KERNEL.doc
    }
    fn revision(&self) -> u32 {
        F::REVISION
    }
    fn fields(&self) -> &'static [FieldInfo] {
        F::fields()
    }
    fn name_form(&self) -> String {
        F::name_form()
    }
    fn parse(&self, variant: &str) -> Result<Variant, NameError> {
        F::parse_variant(variant).map(hold)
    }
    fn build_with(
        &self,
        known: &[(String, Value)],
        settings: &[(String, String)],
    ) -> Result<Variant, FamilyError> {
        F::from_values_and_settings(known, settings).map(hold)
    }
    fn smaller(&self, variant: &dyn DynConfig, field: usize) -> Vec<Variant> {
        let values = variant.values();
        let with = |value: Value| {
            let mut values = values.clone();
            values[field] = value;
            F::from_values(&values).ok().filter(|config| config.check().is_ok()).map(hold)
        };
        let Ok(config) = F::from_values(&values) else { return vec![] };
        F::fields()[field].smaller(config.chosen()[field]).into_iter().filter_map(with).collect()
    }
    fn candidates(&self, settings: &[(String, String)]) -> Result<VariantIter, FamilyError> {
        let key = F::from_settings(settings)?.key();
        Ok(Box::new(F::candidates(&key).map(hold)))
    }
}

/// The families that a program knows.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    families: Vec<FamilyEntry>,
}

impl Registry {
    /// With these families. One that has the name of an earlier one replaces it.
    pub fn new(families: impl IntoIterator<Item = FamilyEntry>) -> Registry {
        let mut registry = Registry::default();
        for family in families {
            registry.families.retain(|f| f.name() != family.name());
            registry.families.push(family);
        }
        registry
    }

    /// All of them.
    pub fn families(&self) -> &[FamilyEntry] {
        &self.families
    }

    /// The family with this name.
    pub fn family(&self, name: &str) -> Result<FamilyEntry, NameError> {
        let found = self.families.iter().copied().find(|f| f.name() == name);
        found.ok_or_else(|| self.unknown(name, name))
    }

    /// The variant with this name.
    pub fn parse(&self, variant: &str) -> Result<Variant, NameError> {
        let starts = |f: &FamilyEntry| {
            variant.strip_prefix(f.name()).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        let mut likely: Vec<FamilyEntry> = self.families.iter().copied().filter(starts).collect();
        // `moe` and `moe_dispatch` may both be families; the longer name is the better guess for the error.
        likely.sort_by_key(|f| std::cmp::Reverse(f.name().len()));
        let mut first = None;
        for family in likely {
            match family.parse(variant) {
                Ok(found) => return Ok(found),
                Err(why) => first = first.or(Some(why)),
            }
        }
        Err(first.unwrap_or_else(|| {
            // The family's name ends before the first part with a digit, in a well-formed name.
            let parts = variant.split('_').take_while(|p| !p.contains(|c: char| c.is_ascii_digit()));
            self.unknown(variant, &parts.collect::<Vec<_>>().join("_"))
        }))
    }

    fn unknown(&self, given: &str, like: &str) -> NameError {
        let known: Vec<&'static str> = self.families.iter().map(|f| f.name()).collect();
        let nearest = nearest(like, known.iter().copied()).map(str::to_owned);
        NameError::UnknownFamily { given: given.to_owned(), nearest, known }
    }
}
