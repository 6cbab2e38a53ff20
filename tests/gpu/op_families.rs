//! Families of operations of the language: functions of the simulator's bits, and rows that several blocks complete.

use std::sync::Arc;

use peerwarp::codegen::ir::verify;
use peerwarp::codegen::sim::{Bindings, Compiled, Machine, Options};
use peerwarp::harness::elements::mixed;
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Workload};
use peerwarp::prelude::*;

/// Functions of numbers.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "functions", kernel = functions, args = FunctionArgs, warps = warps)]
pub struct Functions {
    /// Numbers that each function is computed of, in whole pieces.
    #[key(short = "n", range = 1..=1048576)]
    pub pieces: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], default = 4)]
    pub warps: u32,
}

impl Legal for Functions {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

const PIECE: u32 = 1024;
const FUNCTIONS: u32 = 5;

#[derive(KernelArgs)]
#[args(config = Functions)]
pub struct FunctionArgs {
    /// Numbers.
    #[input]
    #[len(|c| u64::from(c.pieces * PIECE))]
    x: Ptr<f32>,
    /// Each function of each of them.
    #[output]
    #[len(|c| u64::from(FUNCTIONS * c.pieces * PIECE))]
    out: Ptr<f32>,
}

/// Computes each function of each number.
#[kernel]
pub fn functions(c: &Functions, a: &FunctionArgs) {
    let all = c.pieces * PIECE;
    role("compute", 16, |b| {
        for piece in b.strided(c.pieces) {
            let at = piece * PIECE;
            let x = a.x.load(at, PIECE);
            a.out.store(at, x.rsqrt());
            a.out.store(at + all, x.log());
            a.out.store(at + 2 * all, x.erf());
            a.out.store(at + 3 * all, x.sin());
            a.out.store(at + 4 * all, x.cos());
        }
    });
}

impl Functions {
    /// Half of them of any bits, half of those that sines are computed of.
    fn numbers(&self, turn: Turn) -> Vec<f32> {
        let number = |i: u32| {
            let bits =
                mixed(turn.seed ^ u64::from(turn.round) << 40 ^ u64::from(turn.rank) << 32 ^ u64::from(i));
            if i.is_multiple_of(2) { f32::from_bits(bits as u32) } else { bits as i32 as f32 / 2048.0 }
        };
        (0..self.pieces * PIECE).map(number).collect()
    }
}

impl Workload for Functions {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::new("x", bytemuck::cast_slice(&self.numbers(turn)).to_vec())]
    }

    /// What one simulated rank leaves.
    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let one = Functions { ranks: 1, ..self.clone() };
        let kernel =
            verify(one.trace(32).unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"));
        let kernel = Arc::new(Compiled::new(kernel));
        let mut machine = Machine::new(1);
        machine.buffers_of(kernel.kernel()).unwrap();
        machine.write(0, "x", 0, &self.numbers(turn)).unwrap();
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let memory = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}")).memory;
        vec![Expected::exactly("out", Dtype::F32, memory.read::<u8>(0, "out").unwrap().to_vec())]
    }
}

/// Rows of all ranks, each of which several blocks put together.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "together", kernel = together, args = TogetherArgs, warps = warps)]
pub struct Together {
    /// Elements that a block puts.
    #[key(short = "n", range = 1..=65536)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Blocks that put a row.
    #[tune(short = "p", values = [1, 2, 4, 16], default = 4)]
    pub parts: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4], default = 4)]
    pub warps: u32,
    /// How rows travel.
    #[tune(values = [Transport::Flags, Transport::Packets, Transport::Ll], default = Transport::Flags)]
    pub protocol: Transport,
}

impl Legal for Together {
    fn legal(&self) -> Result<(), Illegal> {
        let carried = self.protocol.carries(self.elements, Dtype::F32);
        Illegal::unless(carried, "protocol", self.protocol.name(), || "flags".to_owned())
    }
}

impl Together {
    fn row(&self) -> u32 {
        self.elements * self.parts
    }

    fn shape(&self) -> ChannelShape {
        ChannelShape::new(self.protocol, self.ranks, Slots::BySender(1)).parts(self.parts)
    }

    fn numbers(&self, turn: Turn) -> Vec<f32> {
        let number = |i| (turn.round * 1000 + turn.rank * 100 + i) as f32 + turn.seed as f32;
        (0..self.row()).map(number).collect()
    }
}

#[derive(KernelArgs)]
#[args(config = Together)]
pub struct TogetherArgs {
    /// A row.
    #[input]
    #[len(|c| u64::from(c.row()))]
    x: Ptr<f32>,
    /// Rows of all ranks.
    #[output]
    #[len(|c| u64::from(c.ranks * c.row()))]
    out: Ptr<f32>,
    /// Rows on their way.
    #[channel(|c| c.shape())]
    #[len(|c| c.row())]
    rows: Channel<f32>,
    /// Counts launches.
    epoch: EpochWord,
}

/// Gives every rank the rows of all ranks.
#[kernel]
pub fn together(c: &Together, a: &TogetherArgs) {
    let rows = a.rows.open(a.epoch.begin());
    role("send", c.parts, |b| {
        let at = b.index() * c.elements;
        let row = rows.to(Peers::all()).slot(0);
        row.put(at, a.x.load(at, c.elements));
        row.done();
    });
    role("receive", c.ranks, |b| {
        let from = b.index();
        a.out.store(from * c.row(), rows.from(from).slot(0).load(0, c.row()));
    });
    rows.credits();
}

impl Workload for Together {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::new("x", bytemuck::cast_slice(&self.numbers(turn)).to_vec())]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all = (0..self.ranks).flat_map(|rank| self.numbers(Turn { rank, ..turn })).collect::<Vec<f32>>();
        vec![Expected::exactly("out", Dtype::F32, bytemuck::cast_slice(&all).to_vec())]
    }
}
