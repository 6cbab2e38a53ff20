//! Which variants of dispatch and combine run together.

use peerwarp_codegen::family::{Choice, Family};
use serde::{Deserialize, Serialize};

use super::Semantics;
use crate::families::moe::kernels::{
    Combine, CombineDtype, CombineKey, Dispatch, DispatchKey, Hook, Layout, Phase, Protocol, Quantise,
};
use crate::families::moe::{MoeError, MoeShape};
use crate::runtime::op::LaunchSpec;

/// The configurations of a dispatch and a combine that fit each other, and how they are launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoeTuning {
    /// Of dispatch; its phase is that of the whole operation.
    pub dispatch: Dispatch,
    /// Of combine; its phase is that of the whole operation.
    pub combine: Combine,
    /// Whether sending and receiving are launches of their own.
    pub split: bool,
}

impl MoeTuning {
    /// The defaults for a shape: one launch an operation, deduplicated, no hook, rank-major rows.
    pub fn defaults(shape: &MoeShape) -> Result<MoeTuning, MoeError> {
        MoeTuning::defaults_with(shape, Hook::None, Layout::RankMajor)
    }

    /// The defaults for a shape with a hook and rows in an order: what is best depends on both.
    pub fn defaults_with(shape: &MoeShape, hook: Hook, layout: Layout) -> Result<MoeTuning, MoeError> {
        shape.check()?;
        let MoeShape { hidden, experts, topk, tokens, ranks, dtype } = *shape;
        let (max_rows, weighted, phase) = (0, false, Phase::Both);
        let dispatch = DispatchKey::of(shape, hook, layout, max_rows);
        let dtype = CombineDtype::from(dtype);
        let combine =
            CombineKey { hidden, experts, topk, tokens, ranks, dtype, layout, max_rows, weighted, phase };
        let dispatch = Dispatch::with_defaults(&dispatch)?;
        // Rows come back as they went out, and not all can go as packets.
        let combine = Combine::with_defaults(&combine)?.back_from(dispatch.protocol);
        Ok(MoeTuning { dispatch, combine, split: false })
    }

    /// The same with or without deduplication. Without it, rows are expert-major: one that goes once for every entry has no place by
    /// token.
    #[must_use]
    pub fn with_dedup(mut self, dedup: bool) -> MoeTuning {
        self.dispatch.dedup = dedup;
        self.combine.dedup = dedup;
        if dedup { self } else { self.with_layout(Layout::ExpertMajor) }
    }

    /// The same with rows that travel in a certain way, there and back.
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol) -> MoeTuning {
        self.dispatch.protocol = protocol;
        self.combine = self.combine.with_protocol(protocol);
        self
    }

    /// The same with a hook on the dispatched rows.
    #[must_use]
    pub fn with_hook(mut self, hook: Hook) -> MoeTuning {
        self.dispatch.hook = hook;
        self
    }

    /// The same with rows in another order.
    #[must_use]
    pub fn with_layout(mut self, layout: Layout) -> MoeTuning {
        self.dispatch.layout = layout;
        self.combine.layout = layout;
        self
    }

    /// The same with places for so many rows by expert: of all of a rank's experts, or of each at a fixed stride. 0 lets there be as
    /// many as there can be rows.
    #[must_use]
    pub fn with_max_rows(mut self, max_rows: u32) -> MoeTuning {
        self.dispatch.max_rows = max_rows;
        self.combine.max_rows = max_rows;
        self
    }

    /// The same with a combine that applies the weights to rank-major rows, or one that leaves them to the experts.
    #[must_use]
    pub fn with_weighted(mut self, weighted: bool) -> MoeTuning {
        self.combine.weighted = weighted;
        self
    }

    /// The same with rows that are combined in another type: those of less than 16 bits an element, without a hook, in bf16 or fp16.
    #[must_use]
    pub fn with_combined(mut self, combined: CombineDtype) -> MoeTuning {
        self.combine.dtype = combined;
        self
    }

    /// The same with rows that dispatch quantises, of fp8 or mxfp8, and the defaults for a dispatch that does.
    ///
    /// # Errors
    /// There are no defaults of that kind: `dtype` is another one.
    pub fn with_quantise(mut self, quantise: Quantise) -> Result<MoeTuning, MoeError> {
        if quantise != self.dispatch.quantise {
            let dedup = self.dispatch.dedup;
            self.dispatch = Dispatch::with_defaults(&DispatchKey { quantise, ..self.dispatch.key() })?;
            self.dispatch.dedup = dedup;
        }
        Ok(self)
    }

    /// The same with one launch an operation, or one for sending and one for receiving.
    #[must_use]
    pub fn with_split(mut self, split: bool) -> MoeTuning {
        self.split = split;
        self
    }

    /// The same with at most so many blocks a launch, or as few as it can have.
    #[must_use]
    pub fn within(mut self, blocks: u32) -> MoeTuning {
        (self.dispatch, self.combine) = (self.dispatch.within(blocks), self.combine.within(blocks));
        self
    }

    /// The same with as few blocks and warps as show all of the protocol.
    #[must_use]
    pub fn small(mut self) -> MoeTuning {
        let d = &mut self.dispatch;
        (d.warps, d.send_blocks, d.recv_blocks, d.group_warps) = (2, 2, 2, 1);
        let c = &mut self.combine;
        (c.warps, c.send_blocks, c.recv_blocks, c.group_warps) = (2, 2, 2, 1);
        self
    }

    /// What the results depend on.
    pub fn semantics(&self) -> Semantics {
        let Dispatch { hook, layout, max_rows, dedup, .. } = self.dispatch;
        let (in_place, combined) = (self.dispatch.in_place(), self.combine.dtype);
        let (weighted, quantise) = (self.combine.weighted, self.dispatch.quantise);
        Semantics { hook, layout, max_rows, dedup, in_place, combined, weighted, quantise }
    }

    /// The launches of a dispatch, in order.
    pub fn dispatch_launches(&self) -> Vec<Dispatch> {
        self.phases().iter().map(|&phase| Dispatch { phase, ..self.dispatch.clone() }).collect()
    }

    /// The launches of a combine, in order.
    pub fn combine_launches(&self) -> Vec<Combine> {
        self.phases().iter().map(|&phase| Combine { phase, ..self.combine.clone() }).collect()
    }

    /// The launches of a round, dispatch's and then combine's, which share buffers by name. Each of the two counts epochs of its
    /// own. Where dispatch's hook makes the experts' outputs, combine's `y` is dispatch's `rows`.
    pub fn launch_specs(&self) -> Vec<LaunchSpec> {
        self.specs(self.semantics().y_is_rows())
    }

    /// The same, in which `y` is or is not `rows`.
    pub(in crate::families::moe) fn specs(&self, y_is_rows: bool) -> Vec<LaunchSpec> {
        let label =
            |name: &str, half: &str| if self.split { format!("{name} {half}") } else { name.to_owned() };
        let halves = || ["send", "recv"].into_iter();
        let dispatch = self.dispatch_launches().into_iter().zip(halves());
        let dispatch =
            dispatch.map(|(config, half)| LaunchSpec::new(label("dispatch", half), config.into_variant()));
        let combine = self.combine_launches().into_iter().zip(halves()).map(|(config, half)| {
            let spec = LaunchSpec::new(label("combine", half), config.into_variant());
            let spec = spec.with_buffer("epoch", "combine_epoch");
            if y_is_rows { spec.with_buffer("y", "rows") } else { spec }
        });
        dispatch.chain(combine).collect()
    }

    fn phases(&self) -> &'static [Phase] {
        if self.split { &[Phase::Send, Phase::Recv] } else { &[Phase::Both] }
    }

    /// Whether all kernels are legal, are for this shape and fit each other.
    pub fn check(&self, shape: &MoeShape) -> Result<(), MoeError> {
        let Dispatch { layout, max_rows, .. } = self.dispatch;
        let mut fitting = MoeTuning::defaults(shape)?.with_layout(layout).with_max_rows(max_rows);
        (fitting.dispatch.hook, fitting.dispatch.quantise) = (self.dispatch.hook, self.dispatch.quantise);
        if self.dispatch.key() != fitting.dispatch.key() {
            let name = self.dispatch.variant_name();
            return Err(MoeError::invalid("dispatch", name, format!("must be for {shape}, in one phase")));
        }
        let (combined, own) = (self.combine.dtype, fitting.combine.dtype);
        let goes_out = shape.dtype.dispatched() == Some(own.dtype());
        if combined != own && (goes_out || self.dispatch.hook != Hook::None) {
            let how = if goes_out { "go out" } else { "come out of the hook" };
            let allowed = format!("must be {}, as rows of {} {how}", own.name(), shape.dtype);
            return Err(MoeError::invalid("combined", combined.name(), allowed));
        }
        (fitting.combine.dtype, fitting.combine.weighted) = (self.combine.dtype, self.combine.weighted);
        if self.combine.key() != fitting.combine.key() || self.combine.dedup != self.dispatch.dedup {
            let name = self.combine.variant_name();
            let allowed = format!(
                "must be for {shape}, in one phase, with layout, max_rows and dedup as dispatch has them"
            );
            return Err(MoeError::invalid("combine", name, allowed));
        }
        if self.combine.protocol.arrival() != self.dispatch.protocol.arrival() {
            let name = self.combine.variant_name();
            // A return that came with a flag is what says that the slot of a row that went with one is free again; of packets,
            // combine hears what dispatch has said.
            let allowed = format!(
                "must be for rows that come back as they went out, {}",
                self.dispatch.protocol.name()
            );
            return Err(MoeError::invalid("combine", name, allowed));
        }
        self.dispatch_launches().iter().try_for_each(Family::check)?;
        self.combine_launches().iter().try_for_each(Family::check)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::RowDtype;
    use crate::families::moe::kernels::RoundTrip;

    #[test]
    fn launches_stay_within_so_many_blocks_and_are_legal() {
        for (tokens, dtype) in
            [(1, RowDtype::Bf16), (128, RowDtype::Bf16), (2048, RowDtype::Fp8), (4096, RowDtype::Bf16)]
        {
            let shape = MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 2, dtype };
            for layout in [Layout::RankMajor, Layout::ExpertMajor] {
                let whole = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap();
                assert_eq!(whole.clone().within(132), whole, "what fits stays");
                for most in [16, 33, 66] {
                    let tuning = whole.clone().within(most);
                    tuning.check(&shape).unwrap();
                    let blocks = [tuning.dispatch.blocks(), tuning.combine.blocks()];
                    assert!(blocks.iter().all(|blocks| *blocks <= most), "{blocks:?} of {most}");
                }
                if tokens == 4096 && layout == Layout::RankMajor {
                    let few = whole.clone().within(24);
                    let sending = few.dispatch.send_blocks + few.dispatch.route_blocks();
                    assert_eq!([sending, few.dispatch.recv_blocks], [20, 2], "nearly all send");
                    assert_eq!([few.combine.send_blocks, few.combine.recv_blocks], [12, 12]);
                    assert_eq!([few.dispatch.group_warps, few.combine.group_warps], [1, 1]);
                }
                // As few as there can be, and no fewer.
                let least = whole.within(0);
                assert_eq!((least.dispatch.send_blocks, least.dispatch.recv_blocks), (1, 1));
                assert_eq!((least.combine.send_blocks, least.combine.recv_blocks), (1, 1));
            }
            if dtype == RowDtype::Bf16 {
                let round_trip = RoundTrip::defaults(&shape).unwrap().within(66);
                round_trip.check().unwrap();
                assert!(round_trip.blocks() <= 66);
            }
        }
    }
}
