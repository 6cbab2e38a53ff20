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

/// Rows of all other ranks on rank 0.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "gather_to_root", kernel = gather_to_root, args = GatherArgs, warps = 4)]
pub struct GatherToRoot {
    /// Elements of a row.
    #[key(short = "n", range = 1..=1048576)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Blocks that receive, on rank 0 alone.
    #[tune(short = "b", values = [1, 16, 128], default = 16)]
    pub blocks: u32,
}

impl Legal for GatherToRoot {
    fn legal(&self) -> Result<(), Illegal> {
        let allowed = || "so many that rows of two launches are fewer than 2^31 elements".to_owned();
        let all = 2 * u64::from(self.ranks) * u64::from(self.elements);
        Illegal::unless(all < 1 << 31, "elements", self.elements, allowed)
    }
}

impl GatherToRoot {
    fn numbers(&self, turn: Turn) -> Vec<u32> {
        let first = turn.seed ^ u64::from(turn.round) << 40 ^ u64::from(turn.rank) << 32;
        (0..self.elements).map(|i| mixed(first ^ u64::from(i)) as u32).collect()
    }
}

#[derive(KernelArgs)]
#[args(config = GatherToRoot)]
pub struct GatherArgs {
    /// A row.
    #[input]
    #[len(|c| c.elements.into())]
    x: Ptr<u32>,
    /// Rows of all ranks on rank 0, a rank's own row on others.
    #[output]
    #[len(|c| u64::from(c.ranks * c.elements))]
    out: Ptr<u32>,
    /// Rows on their way, of two launches.
    #[len(|c| 2 * u64::from(c.ranks * c.elements))]
    inbox: Sym<u32>,
    /// Rows have arrived.
    #[len(|c| 2 * u64::from(c.ranks))]
    sent: Flags,
    /// Rank 0 has begun, and so read what came in the launches before.
    #[len(|c| 2 * u64::from(c.ranks))]
    free: Flags,
    /// Counts launches.
    epoch: EpochWord,
}

/// Brings the rows of all ranks to rank 0.
#[kernel]
pub fn gather_to_root(c: &GatherToRoot, a: &GatherArgs) {
    let epoch = a.epoch.begin();
    let bank = epoch.parity() * c.ranks;
    role_on([0], "free", 1, |_| a.free.signal(Peers::others(), bank, epoch));
    role_on([0], "receive", c.blocks, |b| {
        for from in b.strided(c.ranks) {
            if from > 0 {
                let arrived = a.sent.from(from).wait(bank + from, epoch);
                a.out
                    .store(from * c.elements, a.inbox.load(&arrived, (bank + from) * c.elements, c.elements));
            }
        }
    });
    role_on(1..c.ranks, "send", 1, |_| {
        let _free = a.free.from(0).wait(bank, epoch);
        let mut row = send_to(Peers::rank(0));
        row.put(&a.inbox, (bank + rank()) * c.elements, a.x.load(0, c.elements));
        row.signal(&a.sent, bank + rank(), epoch);
    });
    role("keep", 1, |_| a.out.store(rank() * c.elements, a.x.load(0, c.elements)));
}

impl Workload for GatherToRoot {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::new("x", bytemuck::cast_slice(&self.numbers(turn)).to_vec())]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let ranks = if turn.rank == 0 { 0..self.ranks } else { turn.rank..turn.rank + 1 };
        let at = 4 * u64::from(ranks.start * self.elements);
        let rows: Vec<u32> = ranks.flat_map(|rank| self.numbers(Turn { rank, ..turn })).collect();
        vec![Expected { at, ..Expected::exactly("out", Dtype::U32, bytemuck::cast_slice(&rows).to_vec()) }]
    }
}
