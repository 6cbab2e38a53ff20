//! Ranks by node and by rail.

use std::ops::Range;

/// Most ranks of a world.
pub const RANKS: u32 = 1024;

/// Most ranks of a node.
pub const LOCAL_RANKS: u32 = 64;

/// The ranks of a world, by node and by rail.
///
/// All nodes of a world have equally many ranks. The local rank is a rank's number among those of its node, in the order of
/// ranks. A rail is the ranks of one local rank, one on each node.
///
/// ```
/// use peerwarp::runtime::{Place, Teams};
///
/// let teams = Teams::of(8, 2)?;
/// assert_eq!(teams.place(6), Some(Place { node: 1, local_rank: 2 }));
/// assert_eq!(teams.node(1), Some(&[4, 5, 6, 7][..]));
/// assert_eq!(teams.rail(2), Some(vec![2, 6]));
/// # Ok::<(), peerwarp::runtime::TeamsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Teams {
    /// Ranks node by node, each node's in ascending order.
    by_node: Vec<u32>,
    /// By rank.
    places: Vec<Place>,
    local_ranks: u32,
}

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of its node. Nodes are numbered in the order of their lowest ranks.
    pub node: u32,
    /// Its number among the ranks of its node.
    pub local_rank: u32,
}

/// Why ranks on nodes make no world.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TeamsError {
    /// A number is out of range.
    #[error("{field} = {value}: a number from 1 to {most}")]
    Range {
        /// What the number is.
        field: &'static str,
        /// Its value.
        value: u32,
        /// The largest value.
        most: u32,
    },
    /// The number of nodes does not divide the number of ranks.
    #[error("ranks = {ranks} on nodes = {nodes}: ranks count all nodes, which need equally many ranks each")]
    Indivisible {
        /// Ranks of the world.
        ranks: u32,
        /// Nodes of the world.
        nodes: u32,
    },
    /// A node's ranks do not follow one another.
    #[error(
        "rank {rank} is not on the node of the ranks before it: number ranks node by node, {local_ranks} on each (`srun \
         --distribution=block`)"
    )]
    Scattered {
        /// The first rank that is elsewhere.
        rank: u32,
        /// Ranks of a node.
        local_ranks: u32,
    },
    /// Nodes have different numbers of ranks.
    #[error(
        "the node of rank {rank} has {count} ranks, and the node of rank {other} has {other_count}: all nodes of a world need \
         equally many"
    )]
    Unequal {
        /// The lowest rank of a node.
        rank: u32,
        /// Ranks of that node.
        count: u32,
        /// The lowest rank of another node.
        other: u32,
        /// Ranks of the other node.
        other_count: u32,
    },
}

fn within(field: &'static str, value: u32, most: u32) -> Result<(), TeamsError> {
    match (1..=most).contains(&value) {
        true => Ok(()),
        false => Err(TeamsError::Range { field, value, most }),
    }
}

impl Teams {
    /// So many ranks on so many nodes, the first ranks on the first node.
    ///
    /// # Errors
    /// The nodes do not divide the ranks, or a number is out of range.
    pub fn of(ranks: u32, nodes: u32) -> Result<Teams, TeamsError> {
        within("ranks", ranks, RANKS)?;
        within("nodes", nodes, ranks)?;
        if !ranks.is_multiple_of(nodes) {
            return Err(TeamsError::Indivisible { ranks, nodes });
        }
        let local_ranks = ranks / nodes;
        Teams::by_node(&(0..ranks).map(|rank| rank / local_ranks).collect::<Vec<_>>())
    }

    /// Ranks of which each says its node: equal names are one node.
    ///
    /// # Errors
    /// Nodes have different numbers of ranks, or a number is out of range.
    pub fn by_node<N: PartialEq>(names: &[N]) -> Result<Teams, TeamsError> {
        within("ranks", u32::try_from(names.len()).unwrap_or(u32::MAX), RANKS)?;
        let mut nodes: Vec<Vec<u32>> = vec![];
        let mut places = vec![];
        for (rank, name) in (0..).zip(names) {
            let same = |node: &Vec<u32>| node.first().is_some_and(|first| names[*first as usize] == *name);
            let node = nodes.iter().position(same).unwrap_or_else(|| {
                nodes.push(vec![]);
                nodes.len() - 1
            });
            places.push(Place { node: node as u32, local_rank: nodes[node].len() as u32 });
            nodes[node].push(rank);
        }
        let count = |node: &[u32]| node.len() as u32;
        let local_ranks = count(&nodes[0]);
        if let Some(other) = nodes.iter().find(|node| count(node) != local_ranks) {
            let (rank, count, other_count) = (nodes[0][0], local_ranks, count(other));
            return Err(TeamsError::Unequal { rank, count, other: other[0], other_count });
        }
        within("ranks of a node", local_ranks, LOCAL_RANKS)?;
        Ok(Teams { by_node: nodes.concat(), places, local_ranks })
    }

    /// As [`Teams::by_node`], of ranks that count through: those of the first node, then those of the next one, as kernels count them.
    ///
    /// # Errors
    /// As of [`Teams::by_node`], and where a node's ranks do not follow one another.
    pub fn in_order<N: PartialEq>(names: &[N]) -> Result<Teams, TeamsError> {
        let teams = Teams::by_node(names)?;
        let expected =
            |rank: u32| Place { node: rank / teams.local_ranks, local_rank: rank % teams.local_ranks };
        match (0..teams.ranks()).find(|rank| teams.place(*rank) != Some(expected(*rank))) {
            None => Ok(teams),
            Some(rank) => Err(TeamsError::Scattered { rank, local_ranks: teams.local_ranks }),
        }
    }

    /// All ranks.
    pub fn world(&self) -> Range<u32> {
        0..self.ranks()
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.places.len() as u32
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.ranks() / self.local_ranks
    }

    /// Number of ranks of each node, which is the number of rails.
    pub fn local_ranks(&self) -> u32 {
        self.local_ranks
    }

    /// Node and local rank of a rank; none outside the world.
    pub fn place(&self, rank: u32) -> Option<Place> {
        self.places.get(rank as usize).copied()
    }

    /// The rank at a place; none outside the world.
    pub fn rank(&self, place: Place) -> Option<u32> {
        self.node(place.node)?.get(place.local_rank as usize).copied()
    }

    /// The ranks of a node, in ascending order; none if the world has no such node.
    pub fn node(&self, node: u32) -> Option<&[u32]> {
        self.by_node.chunks(self.local_ranks as usize).nth(node as usize)
    }

    /// The ranks of a rail, by node; none if the world has no such rail.
    pub fn rail(&self, local_rank: u32) -> Option<Vec<u32>> {
        (0..self.nodes()).map(|node| self.rank(Place { node, local_rank })).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranks_stand_by_node_and_by_rail() {
        let teams = Teams::of(12, 3).unwrap();
        assert_eq!((teams.ranks(), teams.nodes(), teams.local_ranks()), (12, 3, 4));
        assert_eq!(teams.place(7), Some(Place { node: 1, local_rank: 3 }));
        assert_eq!(teams.node(2), Some(&[8, 9, 10, 11][..]));
        assert_eq!(teams.rail(1), Some(vec![1, 5, 9]));
        assert_eq!((teams.place(12), teams.node(3), teams.rail(4)), (None, None, None));
        assert_eq!(teams.rank(Place { node: 0, local_rank: 4 }), None);
        assert_eq!(Teams::of(1024, 16).unwrap().local_ranks(), 64);
    }

    #[test]
    fn nodes_are_numbered_by_their_lowest_ranks() {
        // As `srun --distribution=cyclic` places ranks.
        let teams = Teams::by_node(&["b", "a", "b", "a"]).unwrap();
        assert_eq!(teams.node(0), Some(&[0, 2][..]));
        assert_eq!(teams.place(3), Some(Place { node: 1, local_rank: 1 }));
        assert_eq!(teams.rail(1), Some(vec![2, 3]));
    }

    #[test]
    fn numbers_that_make_no_world_are_named() {
        let said = |ranks, nodes| Teams::of(ranks, nodes).unwrap_err().to_string();
        assert_eq!(
            said(7, 2),
            "ranks = 7 on nodes = 2: ranks count all nodes, which need equally many ranks each"
        );
        assert_eq!(said(0, 1), "ranks = 0: a number from 1 to 1024");
        assert_eq!(said(1025, 5), "ranks = 1025: a number from 1 to 1024");
        assert_eq!(said(4, 0), "nodes = 0: a number from 1 to 4");
        assert_eq!(said(4, 8), "nodes = 8: a number from 1 to 4");
        assert_eq!(said(130, 2), "ranks of a node = 65: a number from 1 to 64");
        assert_eq!(
            Teams::by_node(&["a", "a", "b", "a"]).unwrap_err().to_string(),
            "the node of rank 0 has 3 ranks, and the node of rank 2 has 1: all nodes of a world need equally many"
        );
        assert!(Teams::by_node::<u32>(&[]).is_err());
    }

    proptest! {
        #[test]
        fn each_rank_is_on_one_node_and_one_rail(nodes in 1u32..17, local in 1u32..65, seed: u64) {
            // Any order of equally many names.
            let mut names: Vec<u32> = (0..nodes * local).map(|rank| rank % nodes).collect();
            let mut state = seed;
            for at in (1..names.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                names.swap(at, (state >> 33) as usize % (at + 1));
            }
            let teams = Teams::by_node(&names).unwrap();
            prop_assert_eq!((teams.nodes(), teams.local_ranks()), (nodes, local));
            for rank in teams.world() {
                let place = teams.place(rank).unwrap();
                prop_assert_eq!(teams.rank(place), Some(rank));
                prop_assert!(teams.node(place.node).unwrap().contains(&rank));
                prop_assert!(teams.rail(place.local_rank).unwrap().contains(&rank));
                let first = teams.node(place.node).unwrap()[0];
                prop_assert_eq!(names[rank as usize], names[first as usize]);
            }
        }
    }
}
