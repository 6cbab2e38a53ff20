//! Round trips in one launch: which variant is for a shape.

use peerwarp_codegen::family::Family;

use super::Semantics;
use crate::families::moe::kernels::{Hook, Layout, ReturnDtype, RoundTrip};
use crate::families::moe::{MoeError, MoeKey, MoeShape};

impl RoundTrip {
    /// The defaults for a shape, with the stand-in expert.
    pub fn defaults(shape: &MoeShape) -> Result<RoundTrip, MoeError> {
        RoundTrip::defaults_with(shape, ReturnDtype::Combined)
    }

    /// The same with rows that travel back so.
    ///
    /// # Errors
    /// The shape is not allowed, or rows cannot travel so.
    pub fn defaults_with(shape: &MoeShape, combine_dtype: ReturnDtype) -> Result<RoundTrip, MoeError> {
        shape.check()?;
        Ok(RoundTrip::with_defaults(&key(shape, Hook::Expert, combine_dtype).round_trip())?)
    }

    /// How its rounds are computed.
    pub fn semantics(&self) -> Semantics {
        // Each expert's rows are weighted by themselves, and a rank's own come back as the others' do.
        let of_operation = self.operation().with_layout(Layout::ExpertMajor).semantics();
        Semantics { keeps_own: false, ..of_operation }
    }

    /// The same with as few blocks and warps as show all of the protocol.
    #[must_use]
    pub fn small(mut self) -> RoundTrip {
        (self.warps, self.send_blocks, self.expert_blocks, self.recv_blocks) = (2, 2, 2, 2);
        self.group_warps = 1;
        self.join = true;
        self
    }
}

fn key(shape: &MoeShape, hook: Hook, combine_dtype: ReturnDtype) -> MoeKey {
    MoeKey { hook, combine_dtype, ..MoeKey::new(*shape) }
}

/// Whether a variant is legal and for this shape.
pub(super) fn check(config: &RoundTrip, shape: &MoeShape) -> Result<(), MoeError> {
    let RoundTrip { hook, combine_dtype, missing, expert_slots, replicas, expert_load, ids, .. } = *config;
    let key = MoeKey { missing, expert_slots, replicas, expert_load, ids, ..key(shape, hook, combine_dtype) };
    if config.key() != key.round_trip() {
        return Err(MoeError::invalid("round_trip", config.variant_name(), format!("must be for {shape}")));
    }
    Ok(config.check()?)
}
