//! One MoE problem: a shape, and who sends what where.

use rand::seq::index;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{MoeError, MoeShape};

/// Which experts every token of every rank goes to, and with which weights. Rank `r` has `ids[r].len() / topk` tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// `[rank][token * topk + k]`: an expert, or an id that masks the entry (-1, or no expert's).
    pub ids: Vec<Vec<i32>>,
    /// `[rank][token * topk + k]`: its weight.
    pub weights: Vec<Vec<f32>>,
}

impl Routing {
    /// Every token goes to `topk` distinct experts, all equally likely, with weights that sum to one.
    pub fn uniform(shape: &MoeShape, tokens_per_rank: &[u32], seed: u64) -> Routing {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut ids = vec![];
        for &n in tokens_per_rank {
            let pick = |_| index::sample(&mut rng, shape.experts as usize, shape.topk as usize).into_vec();
            ids.push((0..n).flat_map(pick).map(|id| id as i32).collect());
        }
        Routing::with_weights(shape, ids, seed)
    }

    /// The given ids, with random weights, those of a token summing to one.
    pub fn with_weights(shape: &MoeShape, ids: Vec<Vec<i32>>, seed: u64) -> Routing {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x77656967);
        let topk = shape.topk as usize;
        let mut token = || {
            let raw: Vec<f32> = (0..topk).map(|_| rng.random_range(0.05..1.0)).collect();
            let sum: f32 = raw.iter().sum();
            raw.into_iter().map(move |w| w / sum)
        };
        let weights = ids.iter().map(|ids| (0..ids.len() / topk).flat_map(|_| token()).collect()).collect();
        Routing { ids, weights }
    }

    /// Tokens of every rank.
    pub fn tokens_per_rank(&self, topk: u32) -> Vec<u32> {
        self.ids.iter().map(|ids| ids.len() as u32 / topk).collect()
    }
}

/// An MoE problem to run: rounds of dispatch, expert and combine, back to back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoeProblem {
    /// Shape of the layer.
    pub shape: MoeShape,
    /// Routing of each round; the last one is used again when there are more rounds.
    pub rounds: Vec<Routing>,
    /// Seed of the tokens' values.
    pub seed: u64,
}

impl MoeProblem {
    /// A problem with the same routing in every round.
    pub fn new(shape: MoeShape, routing: Routing, seed: u64) -> Result<MoeProblem, MoeError> {
        MoeProblem::with_rounds(shape, vec![routing], seed)
    }

    /// A problem whose rounds have routings of their own.
    pub fn with_rounds(shape: MoeShape, rounds: Vec<Routing>, seed: u64) -> Result<MoeProblem, MoeError> {
        let problem = MoeProblem { shape, rounds, seed };
        problem.check().map(|()| problem)
    }

    /// Checks the shape and every routing.
    pub fn check(&self) -> Result<(), MoeError> {
        self.shape.check_but_ranks()?;
        if self.rounds.is_empty() {
            return Err(MoeError::invalid("rounds", 0, "must be 1 or more"));
        }
        self.rounds.iter().try_for_each(|routing| check_routing(&self.shape, routing))
    }

    /// A problem with uniform routing.
    pub fn uniform(shape: MoeShape, tokens_per_rank: &[u32], seed: u64) -> Result<MoeProblem, MoeError> {
        shape.check_but_ranks()?;
        check_tokens(&shape, tokens_per_rank)?;
        MoeProblem::new(shape, Routing::uniform(&shape, tokens_per_rank, seed), seed)
    }

    /// Routing of a round.
    pub fn routing(&self, round: u32) -> &Routing {
        &self.rounds[(round as usize).min(self.rounds.len() - 1)]
    }
}

fn check_routing(shape: &MoeShape, routing: &Routing) -> Result<(), MoeError> {
    let topk = shape.topk as usize;
    for (rank, ids) in routing.ids.iter().enumerate() {
        if !ids.len().is_multiple_of(topk) {
            let allowed =
                format!("must be a multiple of topk ({topk}) on every rank; it is not on rank {rank}");
            return Err(MoeError::invalid("number of ids", ids.len(), allowed));
        }
        let weights = routing.weights.get(rank).map_or(0, Vec::len);
        if weights != ids.len() {
            let allowed = format!("must be as many as ids ({}) on rank {rank}", ids.len());
            return Err(MoeError::invalid("number of weights", weights, allowed));
        }
        let mut entries = ids.iter().zip(&routing.weights[rank]);
        let wrong = entries.position(|(id, weight)| weight.is_nan() && shape.map().owner(*id).is_some());
        if let Some(at) = wrong {
            let (token, k) = (at / topk, at % topk);
            let allowed =
                format!("must be a number; it is not for entry {k} of token {token} on rank {rank}");
            return Err(MoeError::invalid("weights", f32::NAN, allowed));
        }
    }
    check_tokens(shape, &routing.tokens_per_rank(shape.topk))
}

fn check_tokens(shape: &MoeShape, tokens_per_rank: &[u32]) -> Result<(), MoeError> {
    if tokens_per_rank.len() != shape.ranks as usize {
        let allowed = format!("must have one number for each of the {} ranks", shape.ranks);
        return Err(MoeError::invalid("tokens_per_rank", format!("{tokens_per_rank:?}"), allowed));
    }
    match tokens_per_rank.iter().position(|&n| n > shape.tokens) {
        None => Ok(()),
        Some(rank) => {
            let allowed = format!("must be 0 to {} (tokens); rank {rank} has more", shape.tokens);
            Err(MoeError::invalid("tokens_per_rank", tokens_per_rank[rank], allowed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::RowDtype;

    const SHAPE: MoeShape =
        MoeShape { hidden: 16, experts: 6, topk: 3, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };

    #[test]
    fn uniform_routing_is_distinct_weighted_and_seeded() {
        let routing = Routing::uniform(&SHAPE, &[4, 1], 7);
        assert_eq!(routing, Routing::uniform(&SHAPE, &[4, 1], 7));
        assert_ne!(routing, Routing::uniform(&SHAPE, &[4, 1], 8));
        assert_eq!(routing.tokens_per_rank(3), [4, 1]);
        for (ids, weights) in routing.ids.concat().chunks(3).zip(routing.weights.concat().chunks(3)) {
            assert!(ids.iter().all(|id| (0..6).contains(id)));
            assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn impossible_problems_are_named() {
        let message = |p: Result<MoeProblem, MoeError>| p.unwrap_err().to_string();
        assert_eq!(
            message(MoeProblem::uniform(SHAPE, &[5, 1], 0)),
            "tokens_per_rank = 5: must be 0 to 4 (tokens); rank 0 has more"
        );
        assert_eq!(
            message(MoeProblem::uniform(SHAPE, &[1], 0)),
            "tokens_per_rank = [1]: must have one number for each of the 2 ranks"
        );
        let ragged = Routing { ids: vec![vec![0], vec![]], weights: vec![vec![1.0], vec![]] };
        assert_eq!(
            message(MoeProblem::new(SHAPE, ragged, 0)),
            "number of ids = 1: must be a multiple of topk (3) on every rank; it is not on rank 0"
        );
        let unweighted = Routing { ids: vec![vec![0, 1, 2], vec![]], weights: vec![] };
        assert_eq!(
            message(MoeProblem::new(SHAPE, unweighted, 0)),
            "number of weights = 0: must be as many as ids (3) on rank 0"
        );
        assert_eq!(message(MoeProblem::with_rounds(SHAPE, vec![], 0)), "rounds = 0: must be 1 or more");
    }

    #[test]
    fn the_last_round_repeats() {
        let (a, b) = (Routing::uniform(&SHAPE, &[1, 1], 1), Routing::uniform(&SHAPE, &[2, 0], 2));
        let problem = MoeProblem::with_rounds(SHAPE, vec![a.clone(), b.clone()], 0).unwrap();
        assert_eq!((problem.routing(0), problem.routing(1), problem.routing(5)), (&a, &b, &b));
    }
}
