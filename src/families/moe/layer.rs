//! What whole layers are run on, and what must come out.

use peerwarp_codegen::family::{Family, FamilyEntry};
use peerwarp_codegen::ir::{Const, Dtype};

use super::kernels::MoeLayer;
use super::{Routing, SCALE_BLOCK};
use crate::families::matmul::reference::{Matrix, ScaledProduct, activated, looked_at, requantised, sum};
use crate::families::matmul::workload::{contents, product_work};
use crate::families::matmul::{Activation, Scales};
use crate::harness::elements::{encode, loops, mixed, round};
use crate::harness::suite;
use crate::harness::verdict::Expected;
use crate::harness::workload::{Contents, Suite, Turn, Work, Workload};

/// Layers, a suite of its own.
pub fn families() -> Vec<(FamilyEntry, &'static dyn Suite)> {
    vec![(MoeLayer::entry(), suite::of::<MoeLayer>())]
}

/// What the whole numbers of matrices are multiplied by. Gates are multiples of 32: an activation of those is the gate or nothing, to the last
/// bit, so that no target's own exponential decides how a row between products is rounded.
const GATES: f32 = 32.0;
const VALUES: f32 = 1.0 / 4096.0;
const SECOND: f32 = 1.0 / 512.0;

/// Numbers of fp8 are multiples of one over it.
const FP8_PARTS: f32 = 512.0;

/// An expert's matrices.
struct Expert {
    /// The rows of its first and of its second matrix, as whole numbers.
    w: [Vec<Vec<i32>>; 2],
    /// What is added to rows of its products.
    bias: [Vec<f32>; 2],
    /// Its number among those of its rank, and the scales of all their matrices if there are any.
    number: usize,
    scales: [Vec<f32>; 2],
}

impl MoeLayer {
    /// Where all ranks' tokens go in a round: any number of them, some of whose entries go nowhere. In some rounds there are none.
    fn routing(&self, turn: Turn) -> Routing {
        let seed = mixed(turn.seed ^ u64::from(turn.round) << 20);
        let drawn = |rank: u32| (mixed(seed ^ u64::from(rank) << 40) % u64::from(2 * self.tokens + 1)) as u32;
        let most = if (turn.seed + u64::from(turn.round)) % 8 == 3 { 0 } else { self.tokens };
        let tokens: Vec<u32> = (0..self.ranks).map(|rank| drawn(rank).min(most)).collect();
        let mut routing = Routing::uniform(&self.shape(), &tokens, seed);
        let masks = [-1, self.experts as i32];
        for (i, id) in (0u64..).zip(routing.ids.iter_mut().flatten()) {
            let drawn = mixed(seed ^ !i);
            if drawn.is_multiple_of(16) {
                *id = masks[(drawn >> 8) as usize % 2];
            }
        }
        routing
    }

    /// Where they go where times are taken: all tokens that there may be, anywhere.
    fn timed_routing(&self) -> Routing {
        Routing::uniform(&self.shape(), &vec![self.tokens; self.ranks as usize], 0)
    }

    /// What a rank passes of its tokens. Those that `n` leaves out have any experts.
    fn tokens(&self, routing: &Routing, rank: u32) -> [Contents; 3] {
        let (mut ids, mut weights) =
            (routing.ids[rank as usize].clone(), routing.weights[rank as usize].clone());
        let (n, entries) = (ids.len() as u32 / self.topk, (self.tokens * self.topk) as usize);
        ids.resize(entries, 0);
        weights.resize(entries, f32::NAN);
        [Contents::of("n", &[n]), Contents::of("ids", &ids), Contents::of("weights", &weights)]
    }

    fn x(&self, turn: Turn) -> Matrix {
        Matrix { turn, which: 1, columns: self.hidden }
    }

    /// The matrices of a rank's experts, below each other: `[rows of one, columns]` of each product.
    fn matrices(&self, turn: Turn) -> [(Matrix, u32); 2] {
        let of = |which, columns| Matrix { turn, which, columns };
        [(of(2, self.hidden), self.first_columns()), (of(3, self.inter), self.hidden)]
    }

    /// Scales of a token's row of fp8: whole numbers, so that gates remain multiples of 32.
    fn x_scales(&self, turn: Turn, token: u32) -> Vec<f32> {
        let of = Matrix { turn, which: 6, columns: self.hidden / SCALE_BLOCK };
        of.row(token).into_iter().map(|x| (x + 9) as f32).collect()
    }

    /// Scales of the matrices of so many experts of fp8: what rows of other types are multiplied by, times sixteenths but for gates.
    fn w_scales(&self, turn: Turn, experts: u32) -> [Vec<f32>; 2] {
        if self.scales() == Scales::None {
            return [vec![], vec![]];
        }
        let counts = self.scale_counts().map(|all| all as u32 / self.local_experts() * experts);
        let of = |which: u64, columns| Matrix { turn, which, columns }.scales();
        let [mut first, second] = [of(7, counts[0]), of(8, counts[1])];
        let of_values = (counts[0] / experts.max(1)) as usize;
        for (i, scale) in first.iter_mut().enumerate() {
            let gates = self.activation.is_gated() && i % of_values < of_values / 2;
            *scale = if gates { GATES } else { *scale * VALUES };
        }
        [first, second.into_iter().map(|scale| scale * SECOND).collect()]
    }

    /// What a row of the first matrices is multiplied by, and one of the second ones.
    fn scale(&self, row: u32) -> f32 {
        if self.scales() == Scales::Block {
            1.0
        } else if self.activation.is_gated() && row % 32 < 16 {
            GATES
        } else {
            VALUES
        }
    }

    /// What is added to rows of a rank's products, of all its experts.
    fn biases(&self, turn: Turn, experts: u32) -> [Vec<f32>; 2] {
        let of = |which, columns| Matrix { turn, which, columns }.rows(1);
        let first = of(4, experts * self.first_columns());
        let scaled = (0..).zip(first).map(|(i, x)| x * self.scale(i % self.first_columns()));
        [scaled.collect(), of(5, experts * self.hidden)]
    }

    /// Experts of a rank, and those of all ranks before it.
    fn experts_of(&self, rank: u32) -> (u32, u32) {
        let owned = self.shape().map().owned(rank);
        (owned.end - owned.start, owned.start)
    }

    fn expert(&self, turn: Turn, id: u32) -> Expert {
        let owner = self.shape().map().owner(id as i32).expect("an expert");
        let turn = Turn { rank: owner, ..turn };
        let (experts, first) = self.experts_of(owner);
        let number = id - first;
        let w = self.matrices(turn).map(|(all, rows)| {
            (number * rows..(number + 1) * rows).map(|row| all.row(row)).collect::<Vec<_>>()
        });
        let biases = self.biases(turn, experts);
        let bias = [(0, self.first_columns()), (1, self.hidden)].map(|(i, columns)| {
            let all = if self.bias { &biases[i][(number * columns) as usize..] } else { &[] };
            all.iter().copied().take(columns as usize).collect()
        });
        Expert { w, bias, number: number as usize, scales: self.w_scales(turn, experts) }
    }

    /// What an expert makes of a row of fp8 with scales.
    fn scaled_row(&self, expert: &Expert, x: &[i32], x_scales: Vec<f32>) -> Vec<f32> {
        let [first, second] = expert.scales.clone();
        let product = |of: &[Vec<f32>; 3], [n, k]: [u32; 2], activation, x: &[i32], w| {
            let (shape, group) = ([1, n, k], expert.number);
            ScaledProduct { scales: Scales::Block, of, shape, group, activation }.row(0, x, w)
        };
        let (columns, all) = (self.first_columns(), [x_scales, first, vec![]]);
        let sums = product(&all, [columns, self.hidden], self.activation, x, &expert.w[0]);
        let added = |sums: Vec<f32>, bias: &Vec<f32>| if self.bias { sum(&sums, bias) } else { sums };
        let (row, scales) = requantised(&activated(self.activation, &added(sums, &expert.bias[0])));
        let parts = round(Dtype::Fp8, row).into_iter().map(|x| (x * FP8_PARTS) as i32).collect::<Vec<_>>();
        let all = [scales.into_iter().map(|scale| scale / FP8_PARTS).collect(), second, vec![]];
        let sums = product(&all, [self.hidden, self.inter], Activation::None, &parts, &expert.w[1]);
        round(self.wide(), added(sums, &expert.bias[1]))
    }

    /// What an expert makes of a row.
    fn expert_row(&self, expert: &Expert, x: &[i32]) -> Vec<f32> {
        let dtype = self.dtype;
        let added = |bias: &[f32], i: usize| bias.get(i).copied().unwrap_or_default();
        let sums = expert.w[0]
            .iter()
            .enumerate()
            .map(|(i, w)| loops::dot(x, w) as f32 * self.scale(i as u32) + added(&expert.bias[0], i));
        let between = round(dtype, activated(self.activation, &sums.collect::<Vec<_>>()));
        let product =
            |w: &[i32]| between.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
        let sums = expert.w[1].iter().enumerate();
        let sums = sums.map(|(i, w)| product(w) as f32 * SECOND + added(&expert.bias[1], i));
        round(dtype, sums.collect())
    }

    /// A token's row: each active rank sums what its experts make of it, in order, rounds that, and the token's rank sums what ranks have,
    /// in order.
    fn layer_row(&self, turn: Turn, inactive: u64, token: u32, ids: &[i32], weights: &[f32]) -> Expected {
        let (x, dtype, map) = (self.x(turn).row(token), self.wide(), self.shape().map());
        let mut sum = vec![0f32; self.hidden as usize];
        // A row that an expert makes may be rounded either way, and so may sums of such rows.
        let mut off = 0f64;
        let largest = |row: &[f32]| row.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
        for rank in (0..self.ranks).filter(|rank| inactive >> rank & 1 == 0) {
            let mut part = vec![0f32; self.hidden as usize];
            for (id, weight) in ids.iter().zip(weights).filter(|(id, _)| map.owner(**id) == Some(rank)) {
                let expert = self.expert(turn, *id as u32);
                let row = match self.scales() {
                    Scales::Block => self.scaled_row(&expert, &x, self.x_scales(turn, token)),
                    _ => self.expert_row(&expert, &x),
                };
                off += largest(&row) * f64::from(*weight) * self.row_step();
                part.iter_mut().zip(&row).for_each(|(sum, y)| *sum = y.mul_add(*weight, *sum));
            }
            off += largest(&part) * dtype_step(self);
            loops::add(&mut sum, &round(dtype, part));
        }
        let bytes = encode(dtype, &round(dtype, sum));
        let at = u64::from(token) * bytes.len() as u64;
        let expected = Expected { at, ..Expected::exactly("out", dtype, bytes) };
        expected.called(&format!("token {token}")).within(off + 1e-6, dtype_step(self))
    }
}

impl MoeLayer {
    /// How much of the largest element of an expert's row may be rounded either way. Of a number between the products next to a tie an
    /// exponential's last bit decides, and neighbours of fp8 are an eighth apart.
    fn row_step(&self) -> f64 {
        let exact = matches!(self.activation, Activation::None | Activation::Relu | Activation::Swiglu);
        if self.scales() == Scales::Block && !exact { 1.0 / 16.0 } else { dtype_step(self) }
    }
}

/// The distance of neighbours of the layer's type, relative to the larger one at most.
fn dtype_step(c: &MoeLayer) -> f64 {
    if c.wide() == Dtype::Bf16 { 1.0 / 128.0 } else { 1.0 / 1024.0 }
}

/// Elements of operands that are timed, which are repeated.
const PATTERN: u32 = 1 << 20;

impl Workload for MoeLayer {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let routing = self.routing(turn);
        let (dtype, experts) = (self.dtype, self.experts_of(turn.rank).0);
        let n = routing.ids[turn.rank as usize].len() as u32 / self.topk;
        // Tokens that `n` leaves out are no numbers.
        let mut x = self.x(turn).rows(n);
        x.resize(self.tokens as usize * self.hidden as usize, f32::NAN);
        let [(first, rows), (second, columns)] = self.matrices(turn);
        let scaled = |i: u32| first.row(i).into_iter().map(move |w| w as f32 * self.scale(i % rows));
        let w1: Vec<f32> = (0..experts * rows).flat_map(scaled).collect();
        let by = if self.scales() == Scales::Block { 1.0 } else { SECOND };
        let w2: Vec<f32> = second.rows(experts * columns).into_iter().map(|w| w * by).collect();
        // Those of an expert that other ranks have more are no numbers.
        let resized = |mut values: Vec<f32>, all: u64| {
            values.resize(all as usize, f32::NAN);
            values
        };
        let most = u64::from(self.local_experts());
        let filled = |dtype: Dtype, values: Vec<f32>, each: u32| {
            contents("", dtype, &resized(values, most * u64::from(each))).bytes
        };
        let mut all: Vec<Contents> = self.tokens(&routing, turn.rank).into();
        all.push(contents("x", dtype, &x));
        all.push(Contents::new("w1", filled(dtype, w1, rows * self.hidden)));
        all.push(Contents::new("w2", filled(dtype, w2, columns * self.inter)));
        if self.scales() == Scales::Block {
            let of_x = (0..n).flat_map(|token| self.x_scales(turn, token)).collect();
            let of_x = resized(of_x, u64::from(self.tokens * (self.hidden / SCALE_BLOCK)));
            let [first, second] = self.w_scales(turn, experts);
            let counts = self.scale_counts();
            all.push(contents("x_scale", Dtype::F32, &of_x));
            all.push(contents("w1_scales", Dtype::F32, &resized(first, counts[0])));
            all.push(contents("w2_scales", Dtype::F32, &resized(second, counts[1])));
        }
        if self.bias {
            let [b1, b2] = self.biases(turn, experts);
            all.push(Contents::new("b1", filled(self.wide(), b1, rows)));
            all.push(Contents::new("b2", filled(self.wide(), b2, columns)));
        }
        all
    }

    fn numbers(&self, _: Turn) -> Vec<(String, Const)> {
        vec![("rows_there".to_owned(), Const::U32(self.tokens))]
    }

    fn timing_inputs(&self, turn: Turn) -> Vec<Contents> {
        let pattern = |buffer: &str, which: u64, scale: f32| {
            let of = Matrix { turn, which, columns: PATTERN }.rows(1);
            let scaled: Vec<f32> = of.into_iter().map(|x| x * scale).collect();
            Contents { buffer: buffer.to_owned(), ..Contents::repeated("", encode(self.dtype, &scaled)) }
        };
        let [of_first, of_second] = if self.scales() == Scales::Block { [1.0; 2] } else { [VALUES, SECOND] };
        let operands = [pattern("x", 1, 1.0), pattern("w1", 2, of_first), pattern("w2", 3, of_second)];
        self.tokens(&self.timed_routing(), turn.rank).into_iter().chain(operands).collect()
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        self.expected_without(turn, 0).unwrap_or_default()
    }

    fn expected_without(&self, turn: Turn, inactive: u64) -> Option<Vec<Expected>> {
        let routing = self.routing(turn);
        let (ids, weights) = (&routing.ids[turn.rank as usize], &routing.weights[turn.rank as usize]);
        let topk = self.topk as usize;
        let each = 3 * u64::from(self.topk) * u64::from(self.hidden) * u64::from(self.inter);
        let of = |token: u32| {
            let entries = token as usize * topk..(token as usize + 1) * topk;
            self.layer_row(turn, inactive, token, &ids[entries.clone()], &weights[entries])
        };
        let n = (ids.len() / topk) as u32;
        Some(looked_at(turn.seed, n, each).into_iter().map(of).collect())
    }

    fn work(&self) -> Work {
        let (routing, map) = (self.timed_routing(), self.shape().map());
        let mut rows = vec![0u32; self.experts as usize];
        routing.ids.iter().flatten().for_each(|id| rows[*id as usize] += 1);
        let of_rank = |rank: u32| {
            let owned = &rows[map.owned(rank).start as usize..map.owned(rank).end as usize];
            (owned.iter().sum::<u32>(), owned.iter().filter(|rows| **rows > 0).count() as u64)
        };
        let all = (0..self.ranks).map(of_rank);
        let (rows, experts) = all.fold((0, 0), |most, rank| (most.0.max(rank.0), most.1.max(rank.1)));
        let weights = u64::from(self.hidden) * u64::from(self.first_columns() + self.inter);
        let flops = 2 * u64::from(rows) * weights;
        let bytes = experts * weights * u64::from(self.dtype.bytes());
        product_work(self.ranks, self.dtype, flops, bytes)
    }
}
