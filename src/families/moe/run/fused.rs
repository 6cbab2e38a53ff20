//! Round trips in one launch: which variant is for a shape.

use peerwarp_codegen::family::Family;

use super::Semantics;
use crate::families::moe::kernels::{Hook, Layout, RoundTrip};
use crate::families::moe::{MoeError, MoeKey, MoeShape};

impl RoundTrip {
    /// The defaults for a shape, with the stand-in expert.
    pub fn defaults(shape: &MoeShape) -> Result<RoundTrip, MoeError> {
        shape.check()?;
        Ok(RoundTrip::with_defaults(&key(shape, Hook::Expert).round_trip())?)
    }

    /// How its rounds are computed.
    pub fn semantics(&self) -> Semantics {
        // Each expert's rows are weighted by themselves.
        self.operation().with_layout(Layout::ExpertMajor).semantics()
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

fn key(shape: &MoeShape, hook: Hook) -> MoeKey {
    MoeKey { hook, ..MoeKey::new(*shape) }
}

/// Whether a variant is legal and for this shape.
pub(super) fn check(config: &RoundTrip, shape: &MoeShape) -> Result<(), MoeError> {
    if config.key() != key(shape, config.hook).round_trip() {
        return Err(MoeError::invalid("round_trip", config.variant_name(), format!("must be for {shape}")));
    }
    Ok(config.check()?)
}
