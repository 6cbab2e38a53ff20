//! Dispatch and combine as tuning, its tables and choices know them.

use peerwarp_codegen::family::{Family, Variant};

use super::kernels::{Combine, Dispatch, Phase};
use super::run::MoeTuning;
use super::workload::MoeSuite;
use super::{MoeError, MoeKey};
use crate::harness::choose::{self, Device};
use crate::harness::tune::Choice;

/// Whether a dispatch and a combine go together. Of split ones either half stands for the whole.
pub(super) fn together(variants: &[Variant]) -> Result<(), String> {
    let Some(tuning) = pair(variants) else { return Ok(()) };
    tuning.check(&tuning.dispatch.shape()).map_err(|e| e.to_string())
}

/// The dispatch and the combine among variants.
fn pair(variants: &[Variant]) -> Option<MoeTuning> {
    let mut dispatch = variants.iter().find_map(|v| v.as_any().downcast_ref::<Dispatch>())?.clone();
    let mut combine = variants.iter().find_map(|v| v.as_any().downcast_ref::<Combine>())?.clone();
    (dispatch.phase, combine.phase) = (Phase::Both, Phase::Both);
    Some(MoeTuning { dispatch, combine, split: false })
}

/// What is [chosen](choose::choose) for a problem on a device, and why. Of a problem that is split, the halves that send stand for it.
///
/// # Errors
/// Nothing is legal for the problem.
pub fn choose(key: &MoeKey, device: &Device) -> Result<(MoeTuning, Choice), MoeError> {
    let default = key.defaults()?;
    let (dispatch, combine) = (default.dispatch_launches().remove(0), default.combine_launches().remove(0));
    let chosen = choose::choose(&MoeSuite, &[dispatch.into_variant(), combine.into_variant()], device);
    let chosen = chosen.map_err(|why| MoeError::invalid("variants", key.shape, why))?;
    let tuning = pair(&chosen.variants).unwrap_or(default);
    Ok((tuning.with_split(key.split), chosen.by))
}
