//! Dispatch and combine as tuning and its tables know them.

use peerwarp_codegen::family::{Family, Variant};

use super::kernels::{Combine, Dispatch, Phase};
use super::run::MoeTuning;
use super::workload::MoeSuite;
use crate::harness::tune::{Choice, Tuned};

/// Whether a dispatch and a combine go together. Of split ones either half stands for the whole.
pub(super) fn together(variants: &[Variant]) -> Result<(), String> {
    let Some(mut tuning) = pair(variants) else { return Ok(()) };
    (tuning.dispatch.phase, tuning.combine.phase) = (Phase::Both, Phase::Both);
    tuning.check(&tuning.dispatch.shape()).map_err(|e| e.to_string())
}

/// The dispatch and the combine among variants.
fn pair(variants: &[Variant]) -> Option<MoeTuning> {
    let dispatch = variants.iter().find_map(|v| v.as_any().downcast_ref::<Dispatch>())?.clone();
    let combine = variants.iter().find_map(|v| v.as_any().downcast_ref::<Combine>())?.clone();
    Some(MoeTuning { dispatch, combine, split: false })
}

/// What a table has for the shape and layout of a pair, which is what is taken without it; none if it has nothing.
pub(crate) fn find(tuned: Option<&Tuned>, default: &MoeTuning) -> Option<(MoeTuning, Choice)> {
    let variants = [default.dispatch.clone().into_variant(), default.combine.clone().into_variant()];
    let found = tuned?.find(&MoeSuite, &variants)?;
    Some((pair(&found.variants)?, found.by))
}
