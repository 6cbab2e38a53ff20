//! What to make kernels for, as users ask for it, and how that becomes variants of registered families.

use peerwarp_codegen::family::{
    Allowed, DynConfig, DynFamily, Family, FamilyEntry, FieldInfo, FieldRole, Fields, NameError, Registry,
    Value, Variant,
};

use crate::families::moe::RowDtype;
use crate::families::moe::kernels::{Combine, Dispatch, Hook, Phase, RoundTrip};
use crate::families::moe::run::MoeTuning;
use crate::families::moe::tuned;
use crate::harness::tune::{Choice, Tuned};
use crate::input::{InputError, from_family, from_illegal};

/// The key fields that an MoE problem has a value for. A family whose key has `experts`, and nothing beyond these but
/// menus, is an MoE family and takes part when a model or a shape is selected: a stranger's does so too. What is not
/// given of a menu is its first entry.
pub const MOE_KEYS: [&str; 6] = ["hidden", "experts", "topk", "tokens", "ranks", "dtype"];

/// The most tokens a rank has, unless the user says.
pub const DEFAULT_TOKENS: &str = "128";
/// World size, unless the user says.
pub const DEFAULT_RANKS: &str = "8";
/// Type of dispatched rows, unless the user says.
pub const DEFAULT_DTYPE: &str = "bf16";

/// Which families a [`Request`] is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every MoE family.
    Moe,
    /// The family with this name.
    Family(String),
    /// The family of the variant with this name; the settings change that variant.
    Variant(String),
}

/// A request for variants: values for key fields, and for those tuning fields that shall not have their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to call the result, for people and in file names.
    pub label: String,
    /// The file that asks for it, if one does: named in errors.
    pub origin: Option<String>,
    /// Which families.
    pub scope: Scope,
    /// Values that every family of the scope must take.
    pub key: Vec<(String, String)>,
    /// Values that those families take that have the field; `family.field` means one family only.
    pub tuning: Vec<(String, String)>,
}

/// Whether a family's problem is an MoE problem. Round trips have the experts in them: they are for those who name them.
pub fn is_moe(family: &dyn DynFamily) -> bool {
    if family.name() == RoundTrip::NAME {
        return false;
    }
    let mut keys = family.fields().iter().filter(|f| f.role == FieldRole::Key);
    keys.clone().any(|f| f.name == "experts") && keys.all(|f| MOE_KEYS.contains(&f.name) || menu(f).is_some())
}

/// The first entry of a menu.
fn menu(field: &FieldInfo) -> Option<Value> {
    match &field.allowed {
        Allowed::Values(values) => values.first().copied(),
        Allowed::Range { .. } => None,
    }
}

impl Request {
    /// One variant of each family of the scope, in the registry's order.
    pub fn resolve(&self, registry: &Registry) -> Result<Vec<Variant>, InputError> {
        self.variants(registry).map_err(|mut e| {
            if let Some(origin) = &self.origin {
                e.field = format!("{origin}: {}: {}", self.label, e.field);
            }
            e
        })
    }

    /// As [`Request::resolve`], with what was tuned in place of the defaults, and whether it was. Fields that the request
    /// sets have their values; the others have tuned ones only if all of them go together.
    pub fn resolve_tuned(
        &self,
        registry: &Registry,
        tuned: Option<&Tuned>,
    ) -> Result<(Vec<Variant>, Choice), InputError> {
        let plain = self.resolve(registry)?;
        let found = self.tuned_default(&plain).and_then(|default| tuned::find(tuned, &default));
        let variants = |(tuning, by): (MoeTuning, Choice)| Some((self.with_values_of(&tuning, &plain)?, by));
        match found.and_then(variants) {
            Some(tuned) => Ok(tuned),
            None => Ok((plain, Choice::Default)),
        }
    }

    /// The defaults for whole launches without a hook, unless a variant is named in full: what tables are about.
    fn tuned_default(&self, variants: &[Variant]) -> Option<MoeTuning> {
        let dispatch = variants.iter().find_map(|v| v.as_any().downcast_ref::<Dispatch>())?;
        let whole = dispatch.phase == Phase::Both && dispatch.hook == Hook::None;
        let tuned = whole && !matches!(self.scope, Scope::Variant(_));
        tuned.then(|| MoeTuning::defaults_with(&dispatch.shape(), Hook::None, dispatch.layout).ok()).flatten()
    }

    /// The variants with the tuning values of a pair where the request says nothing; none if that is not legal.
    fn with_values_of(&self, tuning: &MoeTuning, variants: &[Variant]) -> Option<Vec<Variant>> {
        let of = |variant: &Variant| {
            let family = variant.family();
            let values = match family.name() {
                Dispatch::NAME => tuning.dispatch.values(),
                Combine::NAME => tuning.combine.values(),
                _ => variant.values(),
            };
            let mut settings = self.settings(family);
            for (field, value) in family.fields().iter().zip(values) {
                let given = settings.iter().any(|(name, _)| field.answers_to(name));
                if field.role == FieldRole::Tune && !given {
                    settings.push((field.name.into(), value.to_string()));
                }
            }
            family.build(&settings).ok()
        };
        let tuned: Vec<Variant> = variants.iter().map(of).collect::<Option<_>>()?;
        let dispatch = tuned.iter().find_map(|v| v.as_any().downcast_ref::<Dispatch>());
        let combine = tuned.iter().find_map(|v| v.as_any().downcast_ref::<Combine>());
        let together = dispatch.zip(combine).is_none_or(|(dispatch, combine)| {
            let (dispatch, combine) = (dispatch.clone(), combine.clone());
            let shape = dispatch.shape();
            MoeTuning { dispatch, combine, split: false, round_trip: None }.check(&shape).is_ok()
        });
        together.then_some(tuned)
    }

    fn variants(&self, registry: &Registry) -> Result<Vec<Variant>, InputError> {
        let families = self.families(registry)?;
        self.check_tuning(&families)?;
        let base = match &self.scope {
            Scope::Variant(name) => Some(registry.parse(name).map_err(from_name)?),
            Scope::Moe | Scope::Family(_) => None,
        };
        families.iter().map(|f| self.variant_of(*f, base.as_deref())).collect()
    }

    /// The settings that a family of the scope gets.
    pub fn settings(&self, family: &dyn DynFamily) -> Vec<(String, String)> {
        let own = |(field, value): &(String, String)| match field.split_once('.') {
            Some((name, field)) if name == family.name() => Some((field.to_owned(), value.clone())),
            Some(_) => None,
            None if has(family, field) => Some((field.clone(), value.clone())),
            None => None,
        };
        let mut all: Vec<(String, String)> =
            self.key.iter().cloned().chain(self.tuning.iter().filter_map(own)).collect();
        if self.scope == Scope::Moe {
            complete(family, &mut all);
        }
        all
    }

    fn families(&self, registry: &Registry) -> Result<Vec<FamilyEntry>, InputError> {
        match &self.scope {
            Scope::Moe => {
                let moe: Vec<_> = registry.families().iter().copied().filter(|f| is_moe(*f)).collect();
                if moe.is_empty() {
                    let allowed = format!("--family with one of {}", names(registry).join(", "));
                    return Err(InputError::not_allowed("--model or --hidden", &self.label, allowed));
                }
                Ok(moe)
            }
            Scope::Family(name) => match registry.family(name) {
                Ok(family) => Ok(vec![family]),
                Err(_) => Err(InputError::unknown("--family", name, names(registry))),
            },
            Scope::Variant(name) => Ok(vec![registry.parse(name).map_err(from_name)?.family()]),
        }
    }

    fn variant_of(&self, family: FamilyEntry, base: Option<&dyn DynConfig>) -> Result<Variant, InputError> {
        let mut settings = self.settings(family);
        if let Some(base) = base {
            for (field, value) in family.fields().iter().zip(base.values()) {
                if !settings.iter().any(|(name, _)| field.answers_to(name)) {
                    settings.push((field.name.into(), value.to_string()));
                }
            }
        }
        family.build(&settings).map_err(from_family)
    }

    /// A tuning value must be of use to someone.
    fn check_tuning(&self, families: &[FamilyEntry]) -> Result<(), InputError> {
        for (field, _) in &self.tuning {
            let used = |f: &FamilyEntry| match field.split_once('.') {
                Some((name, field)) => name == f.name() && has(*f, field),
                None => has(*f, field),
            };
            if !families.iter().any(used) {
                let mut known: Vec<&str> = families.iter().flat_map(|f| f.fields()).map(|f| f.name).collect();
                known.sort_unstable();
                known.dedup();
                return Err(InputError::unknown("--set", field, known));
            }
        }
        Ok(())
    }
}

/// Adds what an MoE problem leaves open, and says what goes with fp8 rows where there are no fp8 ones: what experts
/// put out is combined in bf16.
fn complete(family: &dyn DynFamily, settings: &mut Vec<(String, String)>) {
    for field in family.fields().iter().filter(|f| f.role == FieldRole::Key) {
        let given = settings.iter_mut().find(|(name, _)| field.answers_to(name));
        match (given, menu(field)) {
            (None, Some(first)) if !MOE_KEYS.contains(&field.name) => {
                settings.push((field.name.into(), first.to_string()));
            }
            (Some((_, dtype)), Some(_)) if field.name == "dtype" && field.parse(dtype).is_err() => {
                if let Ok(row) = dtype.parse::<RowDtype>() {
                    *dtype = row.combined().to_string();
                }
            }
            _ => {}
        }
    }
}

fn has(family: &dyn DynFamily, field: &str) -> bool {
    family.fields().iter().any(|f| f.answers_to(field))
}

fn names(registry: &Registry) -> Vec<&'static str> {
    registry.families().iter().map(|f| f.name()).collect()
}

fn from_name(error: NameError) -> InputError {
    match error {
        NameError::UnknownFamily { given, known, nearest } => {
            let mut e = InputError::unknown("variant", &given, known.iter().copied());
            e.allowed = format!("a name that starts with one of {}", known.join(", "));
            e.nearest = nearest.into_iter().collect();
            e
        }
        NameError::Form { given, problem, form, .. } => {
            InputError::malformed("variant", given, problem, format!("names of the form {form}"))
        }
        NameError::Part { given, part, field, expected } => {
            let why = format!("{part} is not a value of {field}");
            InputError::malformed("variant", given, why, expected)
        }
        NameError::Illegal { source, .. } => from_illegal(source),
    }
}
