//! The points around a candidate.

use peerwarp_codegen::family::{Allowed, FamilyError, FieldInfo, FieldRole, Value, Variant};

use super::components::{Candidate, Components, CostModel};

/// How far along the list of a field's values a step goes.
const REACH: u128 = 2;

/// A candidate in which a field of one component has another value; of several, where one would not go with the others. With the
/// field changes a choice that its value rules out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// Where it leads.
    pub to: Candidate,
    /// The components that are others.
    pub changed: Vec<usize>,
}

/// Every legal candidate that is one step away, with the same key, and how many of the steps lead nowhere legal.
pub(crate) fn steps(components: &Components, from: &Candidate) -> (Vec<Step>, u32) {
    let mut all: Vec<Step> = vec![];
    let mut illegal = 0;
    for (at, variant) in from.variants().iter().enumerate() {
        for (field, value) in changes(variant) {
            match step(components, from, at, (field, value)) {
                Some(step) if !all.contains(&step) => all.push(step),
                Some(_) => {}
                None => illegal += 1,
            }
        }
    }
    (all, illegal)
}

/// The step to one changed component or, where that does not go with the others, with the same change of all that have the
/// field.
fn step(components: &Components, from: &Candidate, at: usize, change: (&str, Value)) -> Option<Step> {
    let legal = |to: Candidate| {
        components.check(to.variants()).ok()?;
        Some(Step { changed: to.changed(from), to })
    };
    let (field, value) = change;
    let one = from.with(at, with(&from.variants()[at], field, value)?);
    legal(one.clone()).or_else(|| {
        let mut all = one;
        for (other, variant) in from.variants().iter().enumerate() {
            if other != at && tune_fields(variant).any(|(f, _)| f.name == field) {
                all = all.with(other, with(variant, field, value)?);
            }
        }
        legal(all)
    })
}

fn tune_fields(variant: &Variant) -> impl Iterator<Item = (&'static FieldInfo, Value)> {
    let fields = variant.family().fields().iter().zip(variant.values());
    fields.filter(|(field, _)| field.role == FieldRole::Tune)
}

/// The values near its own that each tuning field of a variant may have; of those without an order, all.
fn changes(variant: &Variant) -> Vec<(&'static str, Value)> {
    let mut all = vec![];
    for (field, own) in tune_fields(variant) {
        let at = field.allowed.position(own);
        let reach = match own {
            Value::Int(_) => REACH,
            Value::Bool(_) | Value::Name(_) => field.allowed.count(),
        };
        let near =
            (at.saturating_sub(reach)..=at.saturating_add(reach)).filter_map(|n| nth(&field.allowed, n));
        all.extend(near.filter(|value| *value != own).map(|value| (field.name, value)));
    }
    all
}

fn nth(allowed: &Allowed, n: u128) -> Option<Value> {
    if n < allowed.count() { allowed.nth(n) } else { None }
}

/// A variant with another value of a field; none if that is not legal. A choice that this value rules out is made anew. A number that
/// it rules out is not: that is at its limit.
fn with(variant: &Variant, field: &str, value: Value) -> Option<Variant> {
    let (family, mut values) = (variant.family(), variant.values());
    let at = |name: &str| family.fields().iter().position(|f| f.name == name);
    values[at(field)?] = value;
    let mut settings = settings(variant, &values);
    let refused = match family.build_with(&settings, &[]) {
        Ok(changed) => return Some(changed),
        Err(FamilyError::Illegal { source, .. }) => at(&source.field)?,
        Err(_) => return None,
    };
    let (ruled_out, number) = (&family.fields()[refused], matches!(values[refused], Value::Int(_)));
    if ruled_out.name == field || ruled_out.role == FieldRole::Key || number {
        return None;
    }
    settings.remove(refused);
    family.build_with(&settings, &[]).ok()
}

/// The variant of the same family with these values.
fn of_values(variant: &Variant, values: &[Value]) -> Result<Variant, FamilyError> {
    variant.family().build_with(&settings(variant, values), &[])
}

/// Values of all fields of a variant's family.
fn settings(variant: &Variant, values: &[Value]) -> Vec<(String, Value)> {
    let fields = variant.family().fields().iter().zip(values);
    fields.map(|(field, value)| (field.name.to_owned(), *value)).collect()
}

/// The tuning values of a candidate with the key of another one, `defaults`. Those that are not legal there are its defaults.
/// None if they do not go together, or the two are not of the same families.
pub(super) fn onto(components: &Components, tuned: &Candidate, defaults: &Candidate) -> Option<Candidate> {
    let pairs = tuned.variants().iter().zip(defaults.variants());
    let moved = pairs.map(|(tuned, default)| onto_one(tuned, default)).collect::<Option<Vec<_>>>()?;
    let same = tuned.len() == defaults.len() && components.check(&moved).is_ok();
    same.then(|| Candidate::new(moved))
}

fn onto_one(tuned: &Variant, default: &Variant) -> Option<Variant> {
    let fields = default.family().fields();
    if tuned.family().name() != default.family().name() {
        return None;
    }
    let (own, defaults) = (tuned.values(), default.values());
    let of = |(field, (own, default)): (&FieldInfo, (&Value, &Value))| match field.role {
        FieldRole::Key => *default,
        FieldRole::Tune => *own,
    };
    let mut values: Vec<Value> = fields.iter().zip(own.iter().zip(&defaults)).map(of).collect();
    for _ in fields {
        let source = match of_values(default, &values) {
            Ok(moved) => return Some(moved),
            Err(FamilyError::Illegal { source, .. }) => source,
            Err(_) => return None,
        };
        let at = fields.iter().position(|f| f.name == source.field)?;
        values[at] = defaults[at];
    }
    None
}

/// The best candidate by a model that single steps lead to from this one.
pub(crate) fn best(model: &dyn CostModel, components: &Components, from: &Candidate) -> Candidate {
    let cost = |c: &Candidate| model.times(c.variants()).iter().sum::<f64>();
    let (mut best, mut least) = (from.clone(), cost(from));
    loop {
        let (steps, _) = steps(components, &best);
        let fitting =
            steps.into_iter().map(|s| s.to).filter(|c| model.fits(c.variants()).iter().all(|fits| *fits));
        let costs = fitting.map(|c| (cost(&c), c));
        match costs.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((us, candidate)) if us < least => (best, least) = (candidate, us),
            _ => return best,
        }
    }
}

#[cfg(test)]
#[path = "space_tests.rs"]
mod tests;
