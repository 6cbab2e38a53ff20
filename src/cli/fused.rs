//! `--fused`: round trips in one launch beside dispatch and combine.

use peerwarp_codegen::family::{Family, Registry};

use crate::families::moe::MoeShape;
use crate::families::moe::kernels::RoundTrip;
use crate::harness::request::{Request, Scope};
use crate::harness::scenario::ScenarioError;
use crate::input::InputError;

use super::args::Selection;
use super::output::Failure;
use super::select::pair;

/// Takes the settings of round trips in one launch out of all, which are for dispatch and combine.
pub(super) fn settings(selection: &mut Selection) -> Vec<String> {
    let own = |setting: &mut String| setting.split_once('.').is_some_and(|(of, _)| of == RoundTrip::NAME);
    selection.settings.extract_if(.., own).collect()
}

/// The round trip for a shape: the defaults, but for what is set.
pub(super) fn round_trip(shape: &MoeShape, settings: &[String]) -> Result<RoundTrip, Failure> {
    let defaults = RoundTrip::defaults(shape).map_err(ScenarioError::from)?.variant_name();
    let tuning: Result<_, InputError> = settings.iter().map(|s| pair(s, "--set")).collect();
    let scope = Scope::Variant(defaults.clone());
    let request = Request { label: defaults, origin: None, scope, key: vec![], tuning: tuning? };
    let variants = request.resolve(&Registry::new([RoundTrip::entry()]))?;
    let config = variants.first().and_then(|v| v.as_any().downcast_ref::<RoundTrip>());
    Ok(config.expect("a variant of the family that its name says").clone())
}
