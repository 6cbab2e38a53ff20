//! Round trips in one launch: which variant is for a shape.

use peerwarp_codegen::family::Family;

use super::Semantics;
use crate::families::moe::kernels::{Hook, Layout, Quantise, RoundTrip, RoundTripKey};
use crate::families::moe::{MoeError, MoeShape};

impl RoundTrip {
    /// The defaults for a shape, with the stand-in expert.
    pub fn defaults(shape: &MoeShape) -> Result<RoundTrip, MoeError> {
        shape.check()?;
        Ok(RoundTrip::with_defaults(&key(shape, Hook::Expert))?)
    }

    /// How its rounds are computed.
    pub fn semantics(&self) -> Semantics {
        Semantics {
            hook: self.hook,
            layout: Layout::ExpertMajor,
            max_rows: 0,
            dedup: true,
            in_place: false,
            combined: self.dtype.into(),
            weighted: false,
            quantise: Quantise::None,
        }
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

fn key(shape: &MoeShape, hook: Hook) -> RoundTripKey {
    let MoeShape { hidden, experts, topk, tokens, ranks, .. } = *shape;
    RoundTripKey { hidden, experts, topk, tokens, ranks, dtype: shape.dtype.format(), hook }
}

/// Whether a variant is legal and for this shape.
pub(super) fn check(config: &RoundTrip, shape: &MoeShape) -> Result<(), MoeError> {
    if config.key() != key(shape, config.hook) {
        return Err(MoeError::invalid("round_trip", config.variant_name(), format!("must be for {shape}")));
    }
    Ok(config.check()?)
}
