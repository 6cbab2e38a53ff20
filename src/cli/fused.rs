//! `--fused`: round trips in one launch beside dispatch and combine.

use peerwarp_codegen::family::{Family, FieldRole, Fields};

use crate::input::InputError;
use crate::kernels::moe::RoundTrip;
use crate::moe::MoeShape;
use crate::scenario::ScenarioError;

use super::args::Selection;
use super::output::Failure;
use super::select::pair;

/// Takes the settings of round trips in one launch out of all, which are for dispatch and combine.
pub(super) fn settings(selection: &mut Selection) -> Vec<String> {
    let settings = &mut selection.settings;
    let of = |setting: &String| setting.strip_prefix(RoundTrip::NAME)?.strip_prefix('.').map(str::to_owned);
    let own = settings.iter().filter_map(of).collect();
    settings.retain(|setting| of(setting).is_none());
    own
}

/// The round trip for a shape: the defaults, but for what is set.
pub(super) fn round_trip(shape: &MoeShape, settings: &[String]) -> Result<RoundTrip, Failure> {
    let defaults = RoundTrip::defaults(shape).map_err(ScenarioError::from)?;
    let family = RoundTrip::entry();
    let mut values: Vec<(String, String)> =
        family.fields().iter().zip(defaults.values()).map(|(f, v)| (f.name.into(), v.to_string())).collect();
    for setting in settings {
        let (name, value) = pair(setting, "--set")?;
        let tuned = || family.fields().iter().filter(|f| f.role == FieldRole::Tune);
        let field = tuned().find(|f| f.answers_to(&name));
        let field = field.ok_or_else(|| InputError::unknown("--set", &name, tuned().map(|f| f.name)))?;
        let at = values.iter_mut().find(|(name, _)| name == field.name);
        at.expect("every field has a value").1 = value;
    }
    let built = family.build(&values).map_err(ScenarioError::from)?;
    Ok(built.as_any().downcast_ref::<RoundTrip>().expect("of this family").clone())
}
