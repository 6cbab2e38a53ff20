//! The key: what a problem asks of the operation. Each launch has its part of it.

use peerwarp_codegen::family::{Choice, Family, Operation};
use peerwarp_codegen::ir::Dtype;

use super::kernels::{
    CombineDtype, CombineKey, CombineNodesKey, DispatchKey, DispatchNodes, DispatchNodesKey, Hook, IdType,
    Layout, Phase, Quantise, ReturnDtype, RoundTripKey, ScaleLayout, ScaleRounding,
};
use super::{ExpertMap, MoeError, MoeShape, MoeTuning, RowDtype};
use crate::runtime::registry::CoverKey;

/// What a problem asks of its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoeKey {
    /// The shape. Its `tokens` are the most that a rank has; variants for more do as well.
    pub shape: MoeShape,
    /// What happens to rows on their way into dispatch's output.
    pub hook: Hook,
    /// How rows stand at the rank that receives them.
    pub layout: Layout,
    /// The most rows by expert that a rank holds, as [`Dispatch::max_rows`](super::kernels::Dispatch::max_rows).
    pub max_rows: u32,
    /// What rows are combined in.
    pub combined: CombineDtype,
    /// Whether combine applies the weights to rank-major rows.
    pub weighted: bool,
    /// What rows travel back as, within a node.
    pub combine_dtype: ReturnDtype,
    /// Whether combine counts each token's entries of ranks that are not active.
    pub missing: bool,
    /// Slots for experts that each rank has, where a table says which experts are in them; 0 if ranks own experts in order.
    pub expert_slots: u32,
    /// Slots that an expert may be in at once, where a table says so.
    pub replicas: u32,
    /// Whether dispatch counts the entries of each expert.
    pub expert_load: bool,
    /// What expert ids are given as.
    pub ids: IdType,
    /// What rows are quantised from before they are sent.
    pub quantise: Quantise,
    /// How scales that are powers of two are rounded where rows are quantised.
    pub scale_rounding: ScaleRounding,
    /// The order of the scales that dispatch yields.
    pub scale_layout: ScaleLayout,
    /// Whether sending and receiving are launches of their own.
    pub split: bool,
    /// Nodes that the ranks are on, as many on each.
    pub nodes: u32,
}

impl MoeKey {
    /// One launch an operation, and rows as they are, by source rank and token.
    pub fn new(shape: MoeShape) -> MoeKey {
        let combined = shape.dtype.into();
        MoeKey {
            shape,
            hook: Hook::None,
            layout: Layout::RankMajor,
            max_rows: 0,
            combined,
            weighted: false,
            combine_dtype: ReturnDtype::Combined,
            missing: false,
            expert_slots: 0,
            replicas: 1,
            expert_load: false,
            ids: IdType::I32,
            quantise: Quantise::None,
            scale_rounding: ScaleRounding::Floor,
            scale_layout: ScaleLayout::Row,
            split: false,
            nodes: 1,
        }
    }

    /// Whether dispatch quantises rows with one scale for all of them, beside those of blocks.
    pub fn has_tensor_scale(&self) -> bool {
        self.quantise != Quantise::None && self.shape.dtype == RowDtype::Nvfp4
    }

    /// Which rank owns which expert; where a table places experts, which has which slot.
    pub fn map(&self) -> ExpertMap {
        self.shape.map().with_slots(self.expert_slots)
    }

    /// The operation with the default plan.
    ///
    /// # Errors
    /// The shape is not allowed, or no plan is legal for it.
    pub fn defaults(&self) -> Result<MoeTuning, MoeError> {
        MoeTuning::with_default_plan(self)
    }

    /// Whether the shape is allowed on so many nodes.
    ///
    /// # Errors
    /// Names the field.
    pub(super) fn check(&self) -> Result<(), MoeError> {
        if self.nodes == 1 {
            return self.shape.check();
        }
        if self.missing {
            let allowed = "must be false on several nodes: their worlds do not go on without ranks";
            return Err(MoeError::invalid("missing", self.missing, allowed));
        }
        if self.expert_slots > 0 {
            let allowed = "must be 0 on several nodes: rows go to the node that owns their expert";
            return Err(MoeError::invalid("expert_slots", self.expert_slots, allowed));
        }
        if self.expert_load {
            let allowed = "must be false on several nodes: a node counts no other node's experts";
            return Err(MoeError::invalid("expert_load", self.expert_load, allowed));
        }
        if self.ids != IdType::I32 {
            let allowed = "must be i32 on several nodes: nodes pass ids on";
            return Err(MoeError::invalid("ids", self.ids.name(), allowed));
        }
        self.shape.check_but_ranks()?;
        Family::check(&DispatchNodes::of(self.dispatch_nodes(Phase::Both), self.nodes_plan()?.dispatch))?;
        Ok(())
    }

    /// What the launches of dispatch do within a node, and those of combine, in order. On several nodes halves are of what goes between
    /// them.
    pub(super) fn phases(&self) -> &'static [Phase] {
        if self.split && self.nodes == 1 { &[Phase::Send, Phase::Recv] } else { &[Phase::Both] }
    }

    /// What the launches between nodes do, each way, in order; none on one node.
    pub(super) fn phases_between(&self) -> &'static [Phase] {
        match (self.nodes, self.split) {
            (1, _) => &[],
            (_, true) => &[Phase::Send, Phase::Recv],
            (_, false) => &[Phase::Both],
        }
    }

    /// The shape that a node's launches have: of its ranks and experts, with the tokens of all nodes' ranks of a number.
    pub(super) fn near(&self) -> MoeShape {
        let (nodes, shape) = (self.nodes, self.shape);
        let MoeShape { experts, tokens, ranks, .. } = shape;
        MoeShape { experts: experts / nodes, tokens: tokens * nodes, ranks: ranks / nodes, ..shape }
    }

    /// The part of what goes to other nodes.
    pub(super) fn dispatch_nodes(&self, phase: Phase) -> DispatchNodesKey {
        let MoeShape { hidden, experts, topk, tokens, ranks, .. } = self.shape;
        // What is quantised, is so within the node.
        let dtype = match self.quantise.from() {
            None => self.shape.dtype,
            Some(Dtype::Fp16) => RowDtype::Fp16,
            Some(_) => RowDtype::Bf16,
        };
        let (nodes, dtype, (row_bytes, scale_bytes)) = (self.nodes, dtype.format(), dtype.sizes());
        DispatchNodesKey { hidden, experts, topk, tokens, ranks, nodes, dtype, row_bytes, scale_bytes, phase }
    }

    /// The part of what comes back from other nodes.
    pub(super) fn combine_nodes(&self, phase: Phase) -> CombineNodesKey {
        let MoeShape { hidden, experts, topk, tokens, ranks, .. } = self.shape;
        CombineNodesKey {
            hidden,
            experts,
            topk,
            tokens,
            ranks,
            nodes: self.nodes,
            dtype: self.combined,
            phase,
        }
    }

    /// Dispatch's part, within a node.
    pub(super) fn dispatch(&self, phase: Phase) -> DispatchKey {
        let MoeKey { hook, layout, max_rows, quantise, scale_rounding, scale_layout, .. } = *self;
        let MoeKey { expert_slots, replicas, expert_load, ids, .. } = *self;
        let MoeShape { hidden, experts, topk, tokens, ranks, dtype } = self.near();
        let (dtype, (row_bytes, scale_bytes)) = (dtype.format(), dtype.sizes());
        DispatchKey {
            hidden,
            experts,
            topk,
            tokens,
            ranks,
            dtype,
            row_bytes,
            scale_bytes,
            quantise,
            scale_rounding,
            scale_layout,
            hook,
            layout,
            max_rows,
            of_node: self.nodes > 1,
            expert_slots,
            replicas,
            expert_load,
            ids,
            phase,
        }
    }

    /// Combine's part, within a node.
    pub(super) fn combine(&self, phase: Phase) -> CombineKey {
        let MoeKey { layout, max_rows, combined: dtype, weighted, combine_dtype, missing, .. } = *self;
        let MoeKey { expert_slots, ids, .. } = *self;
        let MoeShape { hidden, experts, topk, tokens, ranks, .. } = self.near();
        CombineKey {
            hidden,
            experts,
            topk,
            tokens,
            ranks,
            dtype,
            layout,
            max_rows,
            weighted,
            combine_dtype,
            missing,
            expert_slots,
            ids,
            phase,
        }
    }

    /// The part of a round trip in one launch.
    pub(super) fn round_trip(&self) -> RoundTripKey {
        let MoeShape { hidden, experts, topk, tokens, ranks, dtype } = self.shape;
        let MoeKey { hook, combine_dtype, missing, expert_slots, replicas, expert_load, ids, .. } = *self;
        RoundTripKey {
            hidden,
            experts,
            topk,
            tokens,
            ranks,
            dtype: dtype.format(),
            hook,
            combine_dtype,
            missing,
            expert_slots,
            replicas,
            expert_load,
            ids,
        }
    }
}

impl CoverKey for MoeKey {
    fn class(&self) -> MoeKey {
        MoeKey { shape: MoeShape { tokens: 0, ..self.shape }, ..*self }
    }

    fn covers(&self, asked: &MoeKey) -> bool {
        self.shape.tokens >= asked.shape.tokens
    }

    fn volume(&self) -> u128 {
        self.shape.tokens.into()
    }

    fn distance(&self, asked: &MoeKey) -> (usize, u128) {
        let (differ, off) = self.dispatch(Phase::Both).distance(&asked.dispatch(Phase::Both));
        let (d, a) = (self, asked);
        let more = [
            d.combined != a.combined,
            d.weighted != a.weighted,
            d.combine_dtype != a.combine_dtype,
            d.missing != a.missing,
            d.split != a.split,
        ];
        (differ + more.into_iter().filter(|&differs| differs).count(), off)
    }
}
