//! Dispatch and combine as tables of tuned variants know them.

use peerwarp_codegen::family::{Family, FamilyEntry, Variant};

use super::cost;
use super::kernels::{Combine, Dispatch};
use super::run::MoeTuning;
use crate::harness::tune::{Choice, Components, CostModel, Tuned};
use crate::harness::workload::{Inputs, Problem, Suite, WorkloadError};

/// Dispatch and combine.
#[derive(Debug)]
pub(crate) struct MoePair;

impl Suite for MoePair {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn families(&self) -> Vec<FamilyEntry> {
        vec![Dispatch::entry(), Combine::entry()]
    }

    fn problem(&self, _: &[Variant], _: &Inputs) -> Result<Box<dyn Problem>, WorkloadError> {
        Err(WorkloadError::Kernel("MoE has no problem for GPUs yet".into()))
    }

    fn components(&self) -> Components {
        Components { together: Some(together) }
    }

    fn cost_model(&self, variants: &[Variant]) -> Option<Box<dyn CostModel>> {
        cost::model(variants)
    }
}

/// Whether a dispatch and a combine go together.
fn together(variants: &[Variant]) -> Result<(), String> {
    let Some(tuning) = pair(variants) else { return Ok(()) };
    tuning.check(&tuning.dispatch.shape()).map_err(|e| e.to_string())
}

/// The dispatch and the combine among variants.
fn pair(variants: &[Variant]) -> Option<MoeTuning> {
    let dispatch = variants.iter().find_map(|v| v.as_any().downcast_ref::<Dispatch>())?.clone();
    let combine = variants.iter().find_map(|v| v.as_any().downcast_ref::<Combine>())?.clone();
    Some(MoeTuning { dispatch, combine, split: false, round_trip: None })
}

/// What a table has for the shape and layout of a pair, which is what is taken without it; none if it has nothing.
pub(crate) fn find(tuned: Option<&Tuned>, default: &MoeTuning) -> Option<(MoeTuning, Choice)> {
    let variants = [default.dispatch.clone().into_variant(), default.combine.clone().into_variant()];
    let found = tuned?.find(&MoePair, &variants)?;
    Some((pair(&found.variants)?, found.by))
}
