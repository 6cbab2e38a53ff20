//! An operation over several nodes: launches between them, and those of one node on each.

use peerwarp_codegen::family::{Family, Variant};

use super::kernels::{
    CombineNodes, CombineNodesPlan, DispatchNodes, DispatchNodesKey, DispatchNodesPlan, Phase,
};
use super::{MoeError, MoeKey, MoePlan, MoeShape, MoeTuning};
use crate::runtime::op::LaunchSpec;

/// Every choice of what goes along rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesPlan {
    /// Of the tokens on their way to the nodes of their experts.
    pub dispatch: DispatchNodesPlan,
    /// Of the sums on their way home.
    pub combine: CombineNodesPlan,
}

/// The buffers of launches of one node where there are several, by parameter: the tokens of all nodes.
const OF_NODES: [(&str, &str); 7] = [
    ("x", "node_x"),
    ("x_scale", "node_scale"),
    ("n", "node_n"),
    ("rows_there", NODE_ROWS),
    ("ids", "node_ids"),
    ("weights", "node_weights"),
    ("out", "node_out"),
];

/// The number of tokens that come from all nodes at most, as launches within a node are told.
pub(super) const NODE_ROWS: &str = "node_rows";

impl MoeKey {
    /// The default plan of what goes along rails.
    ///
    /// # Errors
    /// The shape is not allowed on so many nodes.
    pub(super) fn nodes_plan(&self) -> Result<NodesPlan, MoeError> {
        let dispatch = DispatchNodes::with_defaults(&self.dispatch_nodes(Phase::Both))?.plan();
        let combine = CombineNodes::with_defaults(&self.combine_nodes(Phase::Both))?.plan();
        Ok(NodesPlan { dispatch, combine })
    }
}

impl MoeTuning {
    /// The launches that take tokens to other nodes before dispatch, and bring their sums home after combine: of halves both, on one node
    /// none.
    pub fn between_nodes(&self) -> Vec<(DispatchNodes, CombineNodes)> {
        let phases = self.key.phases_between().iter();
        let of = |(phase, plan): (&Phase, NodesPlan)| {
            let there = DispatchNodes::of(self.key.dispatch_nodes(*phase), plan.dispatch);
            (there, CombineNodes::of(self.key.combine_nodes(*phase), plan.combine))
        };
        phases.filter_map(|phase| Some((phase, self.plan.nodes?))).map(of).collect()
    }

    /// A launch of one node, with the tokens of all nodes where there are several.
    pub(super) fn within_node(&self, spec: LaunchSpec) -> LaunchSpec {
        match self.key.nodes {
            1 => spec,
            _ => OF_NODES.iter().fold(spec, |spec, (param, buffer)| spec.with_buffer(param, buffer)),
        }
    }

    /// The same over nodes, if there is among these variants what goes between them.
    ///
    /// # Errors
    /// Only one of the two launches between nodes is there, or they and it do not go together.
    pub(super) fn over_nodes_of(self, variants: &[Variant]) -> Result<MoeTuning, MoeError> {
        let found = variants.iter().find_map(|v| v.as_any().downcast_ref::<DispatchNodes>());
        let back = variants.iter().find_map(|v| v.as_any().downcast_ref::<CombineNodes>());
        let (dispatch, combine) = match (found, back) {
            (Some(dispatch), Some(combine)) => (dispatch, combine),
            (None, None) => return Ok(self),
            (Some(_), None) | (None, Some(_)) => {
                let allowed = "must be both, the launch to other nodes and the one back from them";
                return Err(MoeError::invalid("variants", self.dispatch().variant_name(), allowed));
            }
        };
        let MoeTuning { key, plan } = self;
        let DispatchNodesKey { nodes, phase, .. } = dispatch.key();
        let MoeShape { experts, tokens, ranks, .. } = key.shape;
        let shape =
            MoeShape { experts: experts * nodes, tokens: tokens / nodes, ranks: ranks * nodes, ..key.shape };
        let key = MoeKey { shape, nodes, split: phase != Phase::Both, ..key };
        let nodes_plan = NodesPlan { dispatch: dispatch.plan(), combine: combine.plan() };
        let all = MoeTuning { key, plan: MoePlan { nodes: Some(nodes_plan), ..plan } };
        let own = all.between_nodes();
        let name = match (own.iter().all(|(d, _)| d != dispatch), own.iter().all(|(_, c)| c != combine)) {
            (true, _) => dispatch.variant_name(),
            (false, true) => combine.variant_name(),
            (false, false) => return all.check(&shape).map(|()| all),
        };
        let allowed = format!("must be for {shape} on {nodes} nodes, as dispatch and combine within one are");
        Err(MoeError::invalid("variants", name, allowed))
    }
}
