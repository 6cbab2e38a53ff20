//! The one place that chooses which variants run.

use peerwarp_codegen::family::{
    Family, FamilyError, FieldInfo, FieldRole, Operation, Registry, Target, Value, Variant,
};
use peerwarp_codegen::print::{self, Excess};

use crate::build::emit;
use crate::harness::request::{Request, Scope};
use crate::harness::suite;
use crate::harness::tune::{Candidate, Choice, Found, Tuned, space};
use crate::harness::workload::Suite;
use crate::input::InputError;
use crate::runtime::gpu::GpuInfo;
use crate::runtime::registry::Lookup;

/// What variants are chosen for: a device, and a table of what was tuned for its class.
#[derive(Clone, Debug, Default)]
pub struct Device {
    target: Option<Target>,
    tuned: Option<Tuned>,
    driver: Option<String>,
}

/// Variants, one for each component, and why these.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The variants.
    pub variants: Vec<Variant>,
    /// Why these.
    pub by: Choice,
}

impl Device {
    /// A GPU, with the table of its class that comes with this program, if there is one.
    pub fn of_gpu(gpu: &GpuInfo) -> Device {
        let tuned = Tuned::builtin(&gpu.name, gpu.target);
        Device { target: Some(gpu.target), driver: Some(gpu.driver.clone()), ..Device::default() }
            .with_tuned(tuned)
    }

    /// The device that stands for a target where there is no GPU: H200 for `cuda:sm_90a`. Others have no table.
    pub fn of_target(target: Target) -> Device {
        Device { target: Some(target), tuned: Tuned::builtin_for(target), driver: None }
    }

    /// The same with another table, or none. A table of another target counts for nothing.
    #[must_use]
    pub fn with_tuned(self, tuned: Option<Tuned>) -> Device {
        let own = tuned.filter(|tuned| self.target.is_none_or(|target| tuned.table().target == target));
        let tuned = match &self.driver {
            Some(driver) => own.map(|tuned| tuned.on_driver(driver)),
            None => own,
        };
        Device { tuned, ..self }
    }

    /// The table.
    pub fn tuned(&self) -> Option<&Tuned> {
        self.tuned.as_ref()
    }

    /// What variants are emitted for, if it is known.
    pub fn target(&self) -> Option<Target> {
        self.target
    }
}

/// The variants for the key of these defaults: what the device's table has for it ([`Tuned::find`]), else the defaults where they go
/// together, else the legal ones nearest to them, the fastest by the suite's cost model. They fit the device.
///
/// # Errors
/// Why the defaults do not go together, where nothing near them does.
pub fn choose(suite: &dyn Suite, defaults: &[Variant], device: &Device) -> Result<Chosen, String> {
    let found = device.tuned.as_ref().and_then(|tuned| tuned.find(suite, defaults));
    let Chosen { variants, by } = match found {
        Some(Found { variants, by }) => Chosen { variants, by },
        None => legal(suite, defaults)?,
    };
    let variants = variants.into_iter().map(|variant| fitting(variant, device, |_| true)).collect();
    Ok(Chosen { variants, by })
}

/// An operation for a key as [`choose`] plans it, and why so: its defaults where nothing near them goes together.
///
/// # Errors
/// No plan is legal for the key.
pub fn operation<O: Operation>(
    suite: &dyn Suite,
    key: &O::Key,
    device: &Device,
) -> Result<(O, Choice), O::Error> {
    let default = O::with_default_plan(key)?;
    let chosen = choose(suite, &default.components(), device).ok();
    let found = chosen.and_then(|chosen| Some((O::of_components(&chosen.variants)?, chosen.by)));
    Ok(found.unwrap_or((default, Choice::Default)))
}

/// The configuration of a family for a key, of those that [`choose`] says.
///
/// # Errors
/// None is legal for the key.
pub fn config<F: Family>(key: &F::Key, device: &Device) -> Result<F, FamilyError> {
    Ok(operation(suite::plain::<F>(), key, device)?.0)
}

/// The same, as a [`Registry`](crate::runtime::registry::Registry) asks for what it compiles when it is needed.
pub fn lookup<F: Family>(device: Device) -> Lookup<F::Key, F> {
    let digest = device.tuned.as_ref().map_or("", Tuned::digest).to_owned();
    Lookup::new(digest, move |key| config(key, &device).ok())
}

/// The same for requests that go together: fields that they set have their values, and the others chosen ones only if all of them go
/// together. Variants that are named in full are those. Where a request sets a tuning field, variants need not go together.
///
/// # Errors
/// A request cannot be resolved.
pub fn for_requests(
    suite: Option<&dyn Suite>,
    requests: &[Request],
    registry: &Registry,
    device: &Device,
) -> Result<Chosen, InputError> {
    let defaults = requests.iter().map(|request| request.resolve_own(registry));
    let defaults: Vec<Variant> = defaults.collect::<Result<_, _>>()?;
    let is_named = requests.iter().any(|r| matches!(r.scope, Scope::Variant(_)));
    let suite = suite.filter(|_| !is_named);
    let with_settings = |suite: &dyn Suite| {
        let Found { variants, by } = device.tuned.as_ref()?.find(suite, &defaults)?;
        let own = requests.iter().zip(&variants).map(|(r, v)| r.with_values_of(&**v, registry));
        let variants: Vec<Variant> = own.collect::<Option<_>>()?;
        suite.components().check(&variants).ok().map(|()| Chosen { variants, by })
    };
    let is_set = |(request, variant): (&Request, &Variant)| {
        let family = variant.family();
        family.fields().iter().any(|f| f.role == FieldRole::Tune && request.sets(family, f))
    };
    let nothing_set = !requests.iter().zip(&defaults).any(is_set);
    let chosen = suite.and_then(with_settings);
    let chosen = chosen.or_else(|| legal(suite.filter(|_| nothing_set)?, &defaults).ok());
    let Chosen { variants, by } = chosen.unwrap_or(Chosen { variants: defaults, by: Choice::Default });
    let fit = |(request, variant): (&Request, Variant)| {
        let family = variant.family();
        fitting(variant, device, |field| !request.sets(family, field))
    };
    Ok(Chosen { variants: requests.iter().zip(variants).map(fit).collect(), by })
}

/// The defaults where they go together, else the legal variants a step away from them: the fastest by the suite's cost model, if it has
/// one, else the first.
fn legal(suite: &dyn Suite, defaults: &[Variant]) -> Result<Chosen, String> {
    let components = suite.components();
    let Err(why) = components.check(defaults) else {
        return Ok(Chosen { variants: defaults.to_vec(), by: Choice::Default });
    };
    let (steps, _) = space::steps(&components, &Candidate::new(defaults));
    let mut candidates = steps.into_iter().map(|step| step.to);
    let best = match suite.cost_model(defaults) {
        Some(model) => {
            let cost = |c: &Candidate| model.times(c.variants()).iter().sum::<f64>();
            let fits = |c: &Candidate| model.fits(c.variants()).iter().all(|fits| *fits);
            candidates.filter(fits).min_by(|a, b| cost(a).total_cmp(&cost(b)))
        }
        None => candidates.next(),
    };
    let best = best.ok_or(why)?;
    Ok(Chosen { variants: best.variants().to_vec(), by: Choice::Legal })
}

/// A variant that fits a device: the chosen one if a block of it does, and else one with smaller numbers in free fields that shrink.
/// Where none fits it is the chosen one, of which the printer says what it lacks.
///
/// A later field shrinks before an earlier one, and only if less is missing then.
fn fitting(chosen: Variant, device: &Device, is_free: impl Fn(&FieldInfo) -> bool) -> Variant {
    let Some(target) = device.target else { return chosen };
    let fields = chosen.family().fields().iter().enumerate();
    let fields: Vec<usize> = fields.filter(|(_, f)| f.shrinks && is_free(f)).map(|(at, _)| at).collect();
    if fields.is_empty() {
        return chosen;
    }
    let excess = |variant: &Variant| {
        let kernel = emit::trace(&**variant, target.warp_size()).ok()?;
        print::excess(&kernel, target).ok()
    };
    let (mut found, Some(mut missing)) = (chosen.clone(), excess(&chosen)) else { return chosen };
    while missing != Excess::default() {
        let step = |field: &usize| {
            let smaller = chosen.family().smaller(&*found, *field);
            // Where the least number does not help, none does: there may be many.
            if excess(smaller.last()?).is_some_and(|least| least >= missing) {
                return None;
            }
            let all = smaller.into_iter().map(|variant| (excess(&variant), variant));
            all.into_iter().find(|(less, _)| less.is_some_and(|less| less < missing))
        };
        match fields.iter().rev().find_map(step) {
            Some((Some(less), variant)) => (found, missing) = (variant, less),
            _ => return chosen,
        }
    }
    found
}

/// The variant with fewer `blocks` and `senders`, if those of two roles, and two blocks more, are more than a launch may have.
///
/// # Errors
/// The variant with so few is not legal.
pub fn with_fewer_blocks(variant: &Variant, most: u32) -> Result<Variant, FamilyError> {
    let fewer = |(field, mut value): (&FieldInfo, Value)| {
        if let ("blocks" | "senders", Value::Int(blocks)) = (field.name, &mut value) {
            while *blocks > 1 && 2 * *blocks + 2 > i128::from(most) {
                *blocks = 1 << (*blocks - 1).ilog2();
            }
        }
        (field.name.to_owned(), value)
    };
    let family = variant.family();
    let values: Vec<_> = family.fields().iter().zip(variant.values()).map(fewer).collect();
    family.build_with(&values, &[])
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
