//! What to make kernels for, as users ask for it, and how that becomes variants of registered families.

use std::slice;

use peerwarp_codegen::family::{
    DynConfig, DynFamily, FamilyEntry, FieldInfo, FieldRole, NameError, Registry, Value, Variant,
};

use crate::input::{InputError, from_family, from_illegal};

/// Which family a [`Request`] is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The family with this name.
    Family(String),
    /// The family of the variant with this name; the settings change that variant.
    Variant(String),
}

/// A request for a variant: values for key fields, and for those tuning fields that shall not have their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to call the result, for people and in file names.
    pub label: String,
    /// The file that asks for it, if one does: named in errors.
    pub origin: Option<String>,
    /// Which family.
    pub scope: Scope,
    /// Values that the family must take, where they are known as such.
    pub known: Vec<(String, Value)>,
    /// Values that the family must take, as users write them.
    pub key: Vec<(String, String)>,
    /// Values that it takes if it has the field; `family.field` means that family only.
    pub tuning: Vec<(String, String)>,
    /// Values of fields for which nothing else has one.
    pub defaults: Vec<(String, String)>,
}

impl Request {
    /// A request for a variant of the family with this name.
    pub fn family(label: impl Into<String>, family: impl Into<String>) -> Request {
        Request::new(label, Scope::Family(family.into()))
    }

    /// A request for the variant with this name.
    pub fn variant(name: impl Into<String>) -> Request {
        let name = name.into();
        Request::new(name.clone(), Scope::Variant(name))
    }

    fn new(label: impl Into<String>, scope: Scope) -> Request {
        let (known, key, tuning, defaults) = (vec![], vec![], vec![], vec![]);
        Request { label: label.into(), origin: None, scope, known, key, tuning, defaults }
    }

    /// The variant.
    ///
    /// # Errors
    /// There is no such family, a value is not allowed, or a tuning value is for no field of the family.
    pub fn resolve(&self, registry: &Registry) -> Result<Variant, InputError> {
        let mut variants = resolve(slice::from_ref(self), registry)?;
        Ok(variants.remove(0))
    }

    /// The variant, whether or not its tuning values are of use to it.
    pub(crate) fn resolve_own(&self, registry: &Registry) -> Result<Variant, InputError> {
        self.with_origin(self.variant_of(registry, None))
    }

    /// The variant with the tuning values of another one of its family where the request says nothing; none if that is not
    /// legal.
    pub(crate) fn with_values_of(&self, tuned: &dyn DynConfig, registry: &Registry) -> Option<Variant> {
        self.variant_of(registry, Some(tuned)).ok()
    }

    /// Whether it has a value for a key field.
    pub(crate) fn has_key(&self, field: &str) -> bool {
        let known = self.known.iter().map(|(name, _)| name);
        known.chain(self.key.iter().map(|(name, _)| name)).any(|name| same_name(name, field))
    }

    /// The family.
    pub(crate) fn family_in(&self, registry: &Registry) -> Result<FamilyEntry, InputError> {
        match &self.scope {
            Scope::Family(name) => registry.family(name).map_err(|_| {
                let known = registry.families().iter().map(|f| f.name());
                InputError::unknown("--family", name, known)
            }),
            Scope::Variant(name) => Ok(registry.parse(name).map_err(from_name)?.family()),
        }
    }

    /// Whether it has a value for a field of a family, or names a variant, which has one for each.
    pub(crate) fn sets(&self, family: &dyn DynFamily, field: &FieldInfo) -> bool {
        let named = matches!(self.scope, Scope::Variant(_));
        named || self.given(family).iter().any(|(name, _)| field.answers_to(name))
    }

    /// The settings that it asks for, without what there is for fields that have none.
    fn given(&self, family: &dyn DynFamily) -> Vec<(String, String)> {
        let own = |(field, value): &(String, String)| match field.split_once('.') {
            Some((name, field)) if name == family.name() => Some((field.to_owned(), value.clone())),
            Some(_) => None,
            None if has(family, field) => Some((field.clone(), value.clone())),
            None => None,
        };
        self.key.iter().cloned().chain(self.tuning.iter().filter_map(own)).collect()
    }

    fn variant_of(&self, registry: &Registry, tuned: Option<&dyn DynConfig>) -> Result<Variant, InputError> {
        let family = self.family_in(registry)?;
        let mut settings = self.given(family);
        if let Some(tuned) = tuned {
            add_absent(family, &mut settings, &values(tuned, |f| f.role == FieldRole::Tune));
        }
        add_absent(family, &mut settings, &self.defaults);
        if let Scope::Variant(name) = &self.scope {
            let base = registry.parse(name).map_err(from_name)?;
            add_absent(family, &mut settings, &values(&*base, |_| true));
        }
        family.build_with(&self.known, &settings).map_err(from_family)
    }

    /// With the file that asks for it in front of errors.
    fn with_origin<T>(&self, result: Result<T, InputError>) -> Result<T, InputError> {
        result.map_err(|mut e| {
            if let Some(origin) = &self.origin {
                e.field = format!("{origin}: {}: {}", self.label, e.field);
            }
            e
        })
    }
}

/// The variants of requests that go together, one for each. A tuning value must be of use to one of them.
///
/// # Errors
/// As of [`Request::resolve`].
pub fn resolve(requests: &[Request], registry: &Registry) -> Result<Vec<Variant>, InputError> {
    check_tuning(requests, registry)?;
    requests.iter().map(|request| request.resolve_own(registry)).collect()
}

/// Whether every tuning value is of use to one of these requests.
pub(crate) fn check_tuning(requests: &[Request], registry: &Registry) -> Result<(), InputError> {
    let families = requests.iter().map(|r| r.with_origin(r.family_in(registry)));
    let families: Vec<FamilyEntry> = families.collect::<Result<_, _>>()?;
    for request in requests {
        for (field, _) in &request.tuning {
            let used = |f: &FamilyEntry| match field.split_once('.') {
                Some((name, field)) => name == f.name() && has(*f, field),
                None => has(*f, field),
            };
            if !families.iter().any(used) {
                let mut known: Vec<&str> = families.iter().flat_map(|f| f.fields()).map(|f| f.name).collect();
                known.sort_unstable();
                known.dedup();
                return request.with_origin(Err(InputError::unknown("--set", field, known)));
            }
        }
    }
    Ok(())
}

/// Whether a family has a field that answers to a name.
pub(crate) fn has(family: &dyn DynFamily, field: &str) -> bool {
    family.fields().iter().any(|f| f.answers_to(field))
}

/// Names and values of some of a variant's fields.
fn values(variant: &dyn DynConfig, of: impl Fn(&FieldInfo) -> bool) -> Vec<(String, String)> {
    let fields = variant.family().fields().iter().zip(variant.values()).filter(|(f, _)| of(f));
    fields.map(|(field, value)| (field.name.to_owned(), value.to_string())).collect()
}

/// Adds the values of those fields that have none.
fn add_absent(family: &dyn DynFamily, settings: &mut Vec<(String, String)>, values: &[(String, String)]) {
    for (name, value) in values {
        let field = family.fields().iter().find(|f| f.answers_to(name));
        let given = settings.iter().any(|(n, _)| field.map_or(n == name, |f| f.answers_to(n)));
        if !given {
            settings.push((name.clone(), value.clone()));
        }
    }
}

fn same_name(a: &str, b: &str) -> bool {
    a.replace('_', "-") == b.replace('_', "-")
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
