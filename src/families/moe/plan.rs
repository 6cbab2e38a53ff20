//! The plan: every choice of the operation, each once. Launches are projections of the key and the plan.

use peerwarp_codegen::family::{Family, Operation, Variant};

use super::kernels::{
    Combine, CombineDtype, CombinePlan, Dispatch, DispatchPlan, Hook, IdType, Layout, Phase, Protocol,
    Quantise, ReturnDtype, ScaleLayout, ScaleRounding,
};
use super::nodes::NodesPlan;
use super::run::Semantics;
use super::{MoeError, MoeKey, MoeShape};
use crate::runtime::op::LaunchSpec;

/// How rows travel, out and back: as packets, or with flags, each way by stores or in bulk.
///
/// Rows come back as they went out. A return with a flag frees the slot of a row that went with a flag; the credits of dispatch and
/// combine free packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    out: Protocol,
    back: Protocol,
}

impl Way {
    /// With these protocols; none if rows do not come back as they went out.
    pub fn new(out: Protocol, back: Protocol) -> Option<Way> {
        (out.arrival() == back.arrival()).then_some(Way { out, back })
    }

    /// How dispatch sends rows.
    pub fn out(self) -> Protocol {
        self.out
    }

    /// How combine sends them back.
    pub fn back(self) -> Protocol {
        self.back
    }
}

impl From<Protocol> for Way {
    fn from(protocol: Protocol) -> Way {
        Way { out: protocol, back: protocol }
    }
}

/// Every choice of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoePlan {
    /// Whether a row goes once to every rank that owns one of its experts, and comes back once from each.
    pub dedup: bool,
    /// How rows travel.
    pub way: Way,
    /// What dispatch alone chooses.
    pub dispatch: DispatchPlan,
    /// What combine alone chooses.
    pub combine: CombinePlan,
    /// What is chosen for the way to other nodes, where there are some.
    pub nodes: Option<NodesPlan>,
}

/// An operation as it is planned for a key: a dispatch and a combine that fit each other.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeTuning {
    /// What the problem asks.
    pub key: MoeKey,
    /// What is chosen for it.
    pub plan: MoePlan,
}

/// The same operation with another value of a field of its key.
macro_rules! with_fields {
    ($($(#[$doc:meta])* $with:ident $field:ident: $type:ty;)+) => {
        impl MoeTuning {
            $($(#[$doc])*
            #[must_use]
            pub fn $with(mut self, $field: $type) -> MoeTuning {
                self.key.$field = $field;
                self
            })+
        }
    };
}
with_fields! {
    /// The same with a hook on the dispatched rows.
    with_hook hook: Hook;
    /// The same with rows in another order.
    with_layout layout: Layout;
    /// The same with places for so many rows by expert: of all of a rank's experts, or of each at a fixed stride. 0 lets there be as
    /// many as there can be rows.
    with_max_rows max_rows: u32;
    /// The same with a combine that applies the weights to rank-major rows, or one that leaves them to the experts.
    with_weighted weighted: bool;
    /// The same with a combine that counts each token's entries of ranks that are not active, or one that does not.
    with_missing missing: bool;
    /// The same with a dispatch that counts the entries of each expert, or one that does not.
    with_expert_load expert_load: bool;
    /// The same with expert ids that are given as this type.
    with_ids ids: IdType;
    /// The same with rows that are combined in another type: those of less than 16 bits an element, without a hook, in bf16 or fp16.
    with_combined combined: CombineDtype;
    /// The same with scales that are powers of two, of rows that dispatch quantises, rounded so.
    with_scale_rounding scale_rounding: ScaleRounding;
    /// The same with the scales that come out in another order.
    with_scale_layout scale_layout: ScaleLayout;
    /// The same with one launch an operation, or one for sending and one for receiving.
    with_split split: bool;
}

impl MoeTuning {
    /// The defaults for a shape: one launch an operation, deduplicated, no hook, rank-major rows.
    ///
    /// # Errors
    /// As of [`MoeKey::defaults`].
    pub fn defaults(shape: &MoeShape) -> Result<MoeTuning, MoeError> {
        MoeKey::new(*shape).defaults()
    }

    /// The defaults for a shape with a hook and rows in an order: what is best depends on both.
    ///
    /// # Errors
    /// As of [`MoeKey::defaults`].
    pub fn defaults_with(shape: &MoeShape, hook: Hook, layout: Layout) -> Result<MoeTuning, MoeError> {
        MoeKey { hook, layout, ..MoeKey::new(*shape) }.defaults()
    }

    /// The same with or without deduplication. Without it, rows are expert-major: one that goes once for every entry has no place by
    /// token.
    #[must_use]
    pub fn with_dedup(mut self, dedup: bool) -> MoeTuning {
        self.plan.dedup = dedup;
        if dedup { self } else { self.with_layout(Layout::ExpertMajor) }
    }

    /// The same with rows that travel in a certain way, there and back. Packets have no flags to share.
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol) -> MoeTuning {
        self.plan.way = protocol.into();
        if protocol == Protocol::Packets {
            self.plan.combine.batch = 1;
        }
        self
    }

    /// The same with rows that travel back in another type, and the defaults for a combine of such rows.
    ///
    /// # Errors
    /// There are no defaults of that kind.
    pub fn with_combine_dtype(mut self, combine_dtype: ReturnDtype) -> Result<MoeTuning, MoeError> {
        if combine_dtype != self.key.combine_dtype {
            self.key.combine_dtype = combine_dtype;
            self.plan.combine = self.key.defaults()?.plan.combine;
        }
        Ok(self)
    }

    /// The same with a table that places experts in so many slots of each rank, with room for so many replicas of each; 0 slots leave
    /// experts in order. Records are as long as by default where there are other numbers of slots than of experts.
    ///
    /// # Errors
    /// There are no defaults of that kind.
    pub fn with_placement(mut self, expert_slots: u32, replicas: u32) -> Result<MoeTuning, MoeError> {
        let before = self.key.map();
        (self.key.expert_slots, self.key.replicas) = (expert_slots, replicas);
        if self.key.map() != before {
            self.plan.dispatch.chunk = self.key.defaults()?.plan.dispatch.chunk;
        }
        Ok(self)
    }

    /// The same with rows that dispatch quantises, and the defaults for a dispatch that does.
    ///
    /// # Errors
    /// There are no defaults of that kind: `dtype` is another one.
    pub fn with_quantise(mut self, quantise: Quantise) -> Result<MoeTuning, MoeError> {
        if quantise != self.key.quantise {
            self.key.quantise = quantise;
            self.plan.dispatch = self.key.defaults()?.plan.dispatch;
        }
        Ok(self)
    }

    /// The same with at most so many blocks a launch, or as few as it can have.
    #[must_use]
    pub fn within(mut self, blocks: u32) -> MoeTuning {
        self.plan.dispatch = self.dispatch().within(blocks).plan();
        self.plan.combine = self.combine().within(blocks).plan();
        self
    }

    /// The same with as few blocks and warps as show all of the protocol.
    #[must_use]
    pub fn small(mut self) -> MoeTuning {
        let d = &mut self.plan.dispatch;
        (d.warps, d.send_blocks, d.recv_blocks, d.group_warps) = (2, 2, 2, 1);
        let c = &mut self.plan.combine;
        (c.warps, c.send_blocks, c.recv_blocks, c.group_warps) = (2, 2, 2, 1);
        if let Some(NodesPlan { dispatch: d, combine: c }) = &mut self.plan.nodes {
            (d.warps, d.group_warps, d.lanes) = (2, 1, d.lanes.min(2));
            (c.warps, c.group_warps, c.lanes) = (2, 1, c.lanes.min(2));
        }
        self
    }

    /// What the results depend on.
    pub fn semantics(&self) -> Semantics {
        let key = MoeKey { split: false, ..self.key };
        let keeps_own = self.combine_launches().iter().all(Combine::keeps_own);
        let (dispatch, dedup) = (self.dispatch(), self.plan.dedup);
        let (in_place, scales_in_place) = (dispatch.in_place(), dispatch.scales_in_place());
        Semantics { key, dedup, in_place, scales_in_place, keeps_own }
    }

    /// Dispatch, as if it were one launch.
    pub fn dispatch(&self) -> Dispatch {
        self.dispatch_in(Phase::Both)
    }

    /// Combine, as if it were one launch.
    pub fn combine(&self) -> Combine {
        self.combine_in(Phase::Both)
    }

    /// The launches of a dispatch, in order.
    pub fn dispatch_launches(&self) -> Vec<Dispatch> {
        self.key.phases().iter().map(|phase| self.dispatch_in(*phase)).collect()
    }

    /// The launches of a combine, in order.
    pub fn combine_launches(&self) -> Vec<Combine> {
        self.key.phases().iter().map(|phase| self.combine_in(*phase)).collect()
    }

    pub(super) fn dispatch_in(&self, phase: Phase) -> Dispatch {
        Dispatch::of(self.key.dispatch(phase), self.plan.dispatch, self.plan.dedup, self.plan.way.out())
    }

    pub(super) fn combine_in(&self, phase: Phase) -> Combine {
        Combine::of(self.key.combine(phase), self.plan.combine, self.plan.dedup, self.plan.way.back())
    }

    /// The launches of a round, dispatch's and then combine's, which share buffers by name. Each counts epochs of its
    /// own, two halves together. Where dispatch's hook makes the experts' outputs, combine's `y` is dispatch's `rows`.
    pub fn launch_specs(&self) -> Vec<LaunchSpec> {
        self.specs(self.semantics().y_is_rows())
    }

    /// The same, in which `y` is or is not `rows`.
    pub(super) fn specs(&self, y_is_rows: bool) -> Vec<LaunchSpec> {
        let label = |name: &str, phase: &Phase| match phase {
            Phase::Both => name.to_owned(),
            Phase::Send => format!("{name} send"),
            Phase::Recv => format!("{name} recv"),
        };
        let phases = self.key.phases().iter();
        let dispatch = phases.clone().map(|phase| {
            let variant = self.dispatch_in(*phase).into_variant();
            self.within_node(LaunchSpec::new(label("dispatch", phase), variant))
        });
        let combine = phases.map(|phase| {
            let spec = LaunchSpec::new(label("combine", phase), self.combine_in(*phase).into_variant());
            let spec = self.within_node(spec).with_buffer("epoch", "combine_epoch");
            if y_is_rows { spec.with_buffer("y", "rows") } else { spec }
        });
        let between = self.key.phases_between().iter().zip(self.between_nodes());
        let between = between.map(|(phase, (there, back))| {
            let there = LaunchSpec::new(label("dispatch to nodes", phase), there.into_variant());
            let back = LaunchSpec::new(label("combine from nodes", phase), back.into_variant());
            (there.with_buffer("epoch", "to_nodes_epoch"), back.with_buffer("epoch", "from_nodes_epoch"))
        });
        let (there, back): (Vec<_>, Vec<_>) = between.unzip();
        there.into_iter().chain(dispatch).chain(combine).chain(back).collect()
    }

    /// How many launches a round has up to the end of dispatch's sending half, of dispatch, of combine's sending half, and of combine.
    pub(super) fn ends(&self) -> [usize; 4] {
        let dispatch = self.key.phases().len() + self.key.phases_between().len();
        match self.key.split {
            true => [1, dispatch, 2 * dispatch - 1, 2 * dispatch],
            false => [dispatch, dispatch, 2 * dispatch, 2 * dispatch],
        }
    }
}

impl Operation for MoeTuning {
    type Key = MoeKey;
    type Error = MoeError;

    /// Choices depend on the rows alone: a key that is split or drops rows has the same plan.
    fn with_default_plan(key: &MoeKey) -> Result<MoeTuning, MoeError> {
        key.check()?;
        let MoeKey { hook, layout, quantise, combine_dtype, expert_slots, nodes, .. } = *key;
        let rows =
            MoeKey { hook, layout, quantise, combine_dtype, expert_slots, nodes, ..MoeKey::new(key.shape) };
        let dispatch = Dispatch::with_defaults(&rows.dispatch(Phase::Both))?;
        let combine = Combine::with_defaults(&rows.combine(Phase::Both))?;
        let out = dispatch.protocol.arrival();
        let own = Way::new(dispatch.protocol, combine.protocol);
        let way = own.unwrap_or(out.into());
        let nodes = (nodes > 1).then(|| key.nodes_plan()).transpose()?;
        let plan = MoePlan { dedup: true, way, dispatch: dispatch.plan(), combine: combine.plan(), nodes };
        let mut tuning = MoeTuning { key: *key, plan };
        if own.is_none() {
            // Rows that cannot go out as packets come back with flags, a row by as many warps as if there were more of them.
            tuning.plan.combine.group_warps = combine.group_warps_with(out);
            tuning = tuning.with_protocol(out);
        }
        Ok(tuning)
    }

    fn launches(&self) -> Vec<Variant> {
        let (there, back): (Vec<_>, Vec<_>) = self.between_nodes().into_iter().unzip();
        let dispatch = self.dispatch_launches().into_iter().map(Family::into_variant);
        let within = dispatch.chain(self.combine_launches().into_iter().map(Family::into_variant));
        let there = there.into_iter().map(Family::into_variant);
        there.chain(within).chain(back.into_iter().map(Family::into_variant)).collect()
    }

    /// Of an operation in halves, those that send.
    fn components(&self) -> Vec<Variant> {
        let first = self.key.phases()[0];
        let own = [self.dispatch_in(first).into_variant(), self.combine_in(first).into_variant()];
        let between = self.between_nodes().into_iter().next();
        let between = between.map(|(there, back)| [there.into_variant(), back.into_variant()]);
        own.into_iter().chain(between.into_iter().flatten()).collect()
    }

    fn of_components(variants: &[Variant]) -> Option<MoeTuning> {
        let (dispatch, combine) = MoeTuning::components_of(variants)?;
        MoeTuning::of(dispatch, combine).and_then(|tuning| tuning.over_nodes_of(variants)).ok()
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
