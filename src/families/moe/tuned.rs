//! What tables of tuned variants have for dispatch and combine.

use peerwarp_codegen::family::Family;

use super::kernels::{Combine, Dispatch};
use super::run::MoeTuning;
use super::workload::MoeSuite;
use crate::harness::tune::{Choice, Tuned};

/// What a table has for the shape and layout of a pair, which is what is taken without it; none if it has nothing.
pub(crate) fn find(tuned: Option<&Tuned>, default: &MoeTuning) -> Option<(MoeTuning, Choice)> {
    let variants = [default.dispatch.clone().into_variant(), default.combine.clone().into_variant()];
    let found = tuned?.find(&MoeSuite, &variants)?;
    let dispatch = found.variants.iter().find_map(|v| v.as_any().downcast_ref::<Dispatch>())?.clone();
    let combine = found.variants.iter().find_map(|v| v.as_any().downcast_ref::<Combine>())?.clone();
    Some((MoeTuning { dispatch, combine, split: false, round_trip: None }, found.by))
}
