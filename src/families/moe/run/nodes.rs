//! What a round over several nodes has to yield: rounds within each, and the sums of what these bring home.

use super::data::{Round, Semantics};
use crate::families::moe::reference::Tokens;
use crate::families::moe::{MoeKey, MoeShape, Routing};
use crate::harness::elements::{decode, encode};

impl Round {
    /// The same over nodes: a rank has the tokens of its number's ranks on all nodes, those of a number together, of which it keeps the
    /// experts on its node. The nodes' sums come home rounded, and are added from the own node's on.
    pub(super) fn over_nodes(mut self) -> Round {
        let nodes = self.semantics.key.nodes;
        self.nodes = (0..nodes).map(|node| self.on_node(node)).collect();
        self.out = (0..self.shape.ranks).map(|rank| self.sums_of_nodes(rank)).collect();
        self
    }

    /// The round within a node.
    fn on_node(&self, node: u32) -> Round {
        let MoeKey { nodes, .. } = self.semantics.key;
        let near = self.semantics.key.near();
        let (first, topk) = (node * near.experts, near.topk as usize);
        let (mut routing, mut tokens) = (Routing::default(), vec![]);
        for local in 0..near.ranks {
            let sources: Vec<usize> = (0..nodes).map(|node| (node * near.ranks + local) as usize).collect();
            let n = |source: usize| self.routing.ids[source].len() / topk;
            let most = sources.iter().map(|&source| n(source)).max().unwrap_or(0);
            let (mut ids, mut weights, mut all) = (vec![], vec![], Tokens::default());
            for (token, &source) in (0..most).flat_map(|token| sources.iter().map(move |s| (token, s))) {
                let there = token < n(source);
                for entry in token * topk..(token + 1) * topk {
                    let id = if there { self.routing.ids[source][entry] } else { -1 };
                    let here = (first..first + near.experts).contains(&(id as u32));
                    ids.push(if here { id - first as i32 } else { -1 });
                    weights.push(if here { self.routing.weights[source][entry] } else { 0.0 });
                }
                self.append(&mut all, &near, there.then_some((source, token as u32)));
            }
            routing.ids.push(ids);
            routing.weights.push(weights);
            tokens.push(all);
        }
        let semantics =
            Semantics { key: MoeKey { shape: near, nodes: 1, ..self.semantics.key }, ..self.semantics };
        let round = Round::of((self.number, near), semantics, routing, tokens);
        Round { first_expert: first, no_expert: self.no_expert, ..round }
    }

    /// Appends a rank's token, or one that is not there.
    fn append(&self, to: &mut Tokens, shape: &MoeShape, token: Option<(usize, u32)>) {
        match token {
            Some((source, token)) => {
                to.rows.extend(self.tokens[source].row(shape, token));
                to.scales.extend(self.tokens[source].row_scales(shape, token));
            }
            None => {
                to.rows.resize(to.rows.len() + shape.row_bytes() as usize, 0);
                to.scales.resize(to.scales.len() + shape.scale_bytes() as usize, 0);
            }
        }
    }

    /// The bytes of a rank's combined rows.
    fn sums_of_nodes(&self, rank: u32) -> Vec<u8> {
        let (nodes, near) = (self.semantics.key.nodes, self.semantics.key.near());
        let combined = self.semantics.key.combined.dtype();
        let (own, local) = (rank / near.ranks, (rank % near.ranks) as usize);
        let row = near.hidden as usize * combined.bytes() as usize;
        let of_token = |(token, ids): (usize, &[i32])| {
            let mut sum = vec![0f32; near.hidden as usize];
            for node in (0..nodes).map(|i| (own + i) % nodes) {
                let owned = node * near.experts..(node + 1) * near.experts;
                if ids.iter().any(|&id| owned.contains(&(id as u32))) {
                    let at = (token * nodes as usize + own as usize) * row;
                    let of_node = decode(combined, &self.nodes[node as usize].out[local][at..at + row]);
                    sum.iter_mut().zip(of_node).for_each(|(sum, x)| *sum += x);
                }
            }
            encode(combined, &sum)
        };
        self.routing.ids[rank as usize].chunks(near.topk as usize).enumerate().flat_map(of_token).collect()
    }
}
