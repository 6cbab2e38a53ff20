//! Which keys and plans go together, and which launches are projections of one key and one plan.

use peerwarp_codegen::family::{Choice, Family, Variant};

use super::kernels::{Combine, CombineDtype, Dispatch, Hook, Phase};
use super::plan::Way;
use super::{MoeError, MoeKey, MoePlan, MoeShape, MoeTuning};

impl MoeTuning {
    /// Whether it is for this shape, and all its launches are legal.
    ///
    /// # Errors
    /// It is for another shape, or why a launch is not legal.
    pub fn check(&self, shape: &MoeShape) -> Result<(), MoeError> {
        self.key.check()?;
        if self.key.shape != *shape {
            let name = self.dispatch().variant_name();
            return Err(MoeError::invalid("dispatch", name, format!("must be for {shape}")));
        }
        let (combined, own) = (self.key.combined, CombineDtype::from(shape.dtype));
        let goes_out = shape.dtype.dispatched() == Some(own.dtype());
        if combined != own && (goes_out || self.key.hook != Hook::None) {
            let how = if goes_out { "go out" } else { "come out of the hook" };
            let allowed = format!("must be {}, as rows of {} {how}", own.name(), shape.dtype);
            return Err(MoeError::invalid("combined", combined.name(), allowed));
        }
        for (dispatch, combine) in self.between_nodes() {
            dispatch.check()?;
            combine.check()?;
        }
        self.dispatch_launches().iter().try_for_each(Family::check)?;
        Ok(self.combine_launches().iter().try_for_each(Family::check)?)
    }

    /// The operation that has this dispatch and this combine, or their sending halves.
    ///
    /// # Errors
    /// No key and no plan have both as projections, or they are not legal.
    pub fn of(dispatch: &Dispatch, combine: &Combine) -> Result<MoeTuning, MoeError> {
        let (d, c) = (dispatch, combine);
        let Combine { dtype: combined, weighted, combine_dtype, missing, .. } = *combine;
        let key = MoeKey { combined, weighted, combine_dtype, missing, ..key_of(d) };
        let refused = |allowed| Err(MoeError::invalid("combine", c.variant_name(), allowed));
        let Some(way) = Way::new(d.protocol, c.protocol) else {
            let way = d.protocol.name();
            return refused(format!("must be of the protocol that goes with dispatch's, {way}"));
        };
        let plan = MoePlan { dedup: d.dedup, way, dispatch: d.plan(), combine: c.plan(), nodes: None };
        let tuning = MoeTuning { key, plan };
        if tuning.combine_in(d.phase) != *c {
            return refused(format!(
                "must be for {}, in one phase, with layout, max_rows, expert_slots, ids and dedup as dispatch has them",
                key.shape
            ));
        }
        tuning.check(&key.shape).map(|()| tuning)
    }

    /// The operation of a dispatch, with the default combine for it.
    ///
    /// # Errors
    /// There are no defaults for its shape.
    pub(super) fn of_dispatch(d: &Dispatch) -> Result<MoeTuning, MoeError> {
        let tuning = key_of(d).defaults()?.with_protocol(d.protocol.arrival());
        let way = Way::new(d.protocol, tuning.plan.way.back()).unwrap_or(tuning.plan.way);
        Ok(MoeTuning { plan: MoePlan { dedup: d.dedup, way, dispatch: d.plan(), ..tuning.plan }, ..tuning })
    }

    /// The operation of a combine, with the default dispatch for it.
    ///
    /// # Errors
    /// There are no defaults for its shape.
    pub(super) fn of_combine(c: &Combine) -> Result<MoeTuning, MoeError> {
        let Combine { layout, max_rows, weighted, combine_dtype, missing, expert_slots, ids, .. } = *c;
        let split = c.phase != Phase::Both;
        let placed = MoeKey { expert_slots, ids, ..MoeKey::new(c.shape()) };
        let key = MoeKey { layout, max_rows, weighted, combine_dtype, missing, split, ..placed };
        let tuning = key.defaults()?.with_protocol(c.protocol.arrival());
        let way = Way::new(tuning.plan.way.out(), c.protocol).unwrap_or(tuning.plan.way);
        Ok(MoeTuning { plan: MoePlan { dedup: c.dedup, way, combine: c.plan(), ..tuning.plan }, ..tuning })
    }

    /// The dispatch and the combine among variants.
    pub(super) fn components_of(variants: &[Variant]) -> Option<(&Dispatch, &Combine)> {
        let dispatch = variants.iter().find_map(|v| v.as_any().downcast_ref())?;
        Some((dispatch, variants.iter().find_map(|v| v.as_any().downcast_ref())?))
    }
}

/// Whether a dispatch and a combine among variants go together.
pub(super) fn together(variants: &[Variant]) -> Result<(), String> {
    let Some((dispatch, combine)) = MoeTuning::components_of(variants) else { return Ok(()) };
    let tuning = MoeTuning::of(dispatch, combine).and_then(|tuning| tuning.over_nodes_of(variants));
    tuning.map(drop).map_err(|e| e.to_string())
}

/// What a dispatch says of the key.
fn key_of(d: &Dispatch) -> MoeKey {
    let Dispatch { hook, layout, max_rows, quantise, scale_rounding, scale_layout, phase, .. } = *d;
    let Dispatch { expert_slots, replicas, expert_load, ids, .. } = *d;
    let split = phase != Phase::Both;
    let placed = MoeKey { expert_slots, replicas, expert_load, ids, ..MoeKey::new(d.shape()) };
    MoeKey { hook, layout, max_rows, quantise, scale_rounding, scale_layout, split, ..placed }
}
