//! Collectives back to back: all of them in any order, without a barrier and with random pauses, and what came out to the bit. Some
//! rounds by default; so many of each with `PEERWARP_ROUNDS=100000 cargo test --release --test gpu soak -- --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerwarp::codegen::dsl::Binding;
use peerwarp::codegen::ir::ParamKind;
use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::harness::session::Windows;
use peerwarp::harness::suite;
use peerwarp::harness::verdict::{Expected, Verdict};
use peerwarp::harness::workload::{Inputs, Problem, Workload};
use peerwarp::runtime::gpu::DevicePtr;
use peerwarp::runtime::handles::{Buffer, Stream};
use peerwarp::runtime::op::{BufferSpec, Operation, RankOp};
use peerwarp::runtime::{RuntimeError, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::endurance::asked;
use super::{gpus, jit, options, report, two};

/// Rounds of a kernel that have inputs and results of their own; later ones repeat them.
const SLOTS: u32 = 3;

/// Launches between two looks at what came out: of few kernels and slots are there two, so that nearly half of all results are seen.
const BATCH: u64 = 100;

/// What results are filled with before each batch.
const POISON: u8 = 0xff;

/// A collective on all ranks.
struct Collective {
    name: String,
    op: Operation,
    problem: Box<dyn Problem>,
}

/// Every algorithm, and lengths of which none is a multiple of another.
struct Collectives<'a> {
    world: &'a Arc<World>,
    all: Vec<Collective>,
    /// Without room for the blocks of both ranks on one GPU.
    crowded: Vec<String>,
}

impl Collectives<'_> {
    fn add<F: Workload>(&mut self, settings: &str) {
        let settings = format!("ranks=2 {settings}");
        let config = F::from_text(&settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
        let name = config.variant_name();
        let inputs = Inputs { seed: self.all.len() as u64, rounds: SLOTS, ..Inputs::default() };
        let problem = suite::of::<F>().problem(&[config.into_variant()], &inputs).unwrap();
        match Operation::new(self.world, problem.launches(), &jit()) {
            Ok(op) => self.all.push(Collective { name, op, problem }),
            Err(RuntimeError::NotResidentTogether { .. }) => self.crowded.push(name),
            Err(e) => panic!("{name}: {e}"),
        }
    }

    fn every(&mut self) {
        self.add::<AllReduce>("elements=1003 dtype=bf16");
        self.add::<AllReduce>("elements=65539 dtype=f32 algorithm=one-shot senders=4");
        self.add::<AllReduce>("elements=20011 dtype=fp16 algorithm=one-shot protocol=flags");
        self.add::<AllReduce>("elements=65537 dtype=bf16 algorithm=two-shot");
        self.add::<AllReduce>("elements=30011 dtype=f32 algorithm=two-shot protocol=flags");
        self.add::<AllReduce>("elements=20021 dtype=bf16 algorithm=pull protocol=flags");
        self.add::<AllReduce>("elements=40009 dtype=f32 algorithm=pull-two-shot protocol=flags");
        self.add::<AllReduce>("elements=32768 dtype=bf16 hook=rms-norm hidden=4096");
        self.add::<RegisteredAllReduce>("elements=10007 dtype=bf16 shots=one");
        self.add::<RegisteredAllReduce>("elements=50021 dtype=f32 shots=two");
        self.add::<ReduceScatter>("elements=65539 dtype=bf16");
        self.add::<ReduceScatter>("elements=5003 dtype=f32 protocol=flags op=max");
        self.add::<AllGather>("elements=33013 dtype=bf16");
        self.add::<AllGather>("elements=7001 dtype=f32 protocol=flags");
        self.add::<AllGather>("elements=25013 dtype=fp16 algorithm=pull protocol=flags");
        self.add::<AllToAll>("elements=50021 dtype=bf16");
        self.add::<AllToAll>("elements=9001 dtype=f32 protocol=flags");
        self.add::<RaggedAllToAll>("capacity=20023 dtype=bf16");
        self.add::<RaggedAllToAll>("capacity=3001 dtype=f32 protocol=flags");
        self.add::<Broadcast>("elements=40013 dtype=bf16 root=1");
        self.add::<Broadcast>("elements=6007 dtype=f32 protocol=flags");
    }
}

/// An operand that peers reach. All slots of its kernel share it, so that each launch gets its input by a copy before it, and its
/// result is copied away behind it.
struct Registered {
    operand: usize,
    part: Buffer,
}

impl Registered {
    /// That of the rank with this index, if the kernel has one.
    fn of(rank: &RankOp, windows: &Windows, index: usize) -> Option<Registered> {
        let parts = rank.operands().iter().map(|o| windows.part(&o.name, 0, index));
        parts.enumerate().find_map(|(operand, part)| Some(Registered { operand, part: part? }))
    }
}

/// Inputs and results of one kernel in one of its rounds, on one rank.
struct Slot {
    buffers: Vec<Buffer>,
    /// What a registered operand is before launches.
    input: Option<Buffer>,
    expected: Vec<Expected>,
}

impl Slot {
    fn new(rank: &RankOp, problem: &dyn Problem, round: u32) -> Slot {
        let buffer = |o: &BufferSpec| Buffer::new(rank.gpu(), o.param.bytes()).unwrap();
        let buffers: Vec<Buffer> = rank.operands().iter().map(buffer).collect();
        let input = rank.operands().iter().find(|o| o.param.kind == ParamKind::Window).map(buffer);
        for contents in problem.inputs(rank.rank(), round) {
            let own = &buffers[rank.operand(&contents.buffer).unwrap()];
            input.as_ref().unwrap_or(own).write(contents.at, &contents.bytes).unwrap();
        }
        Slot { buffers, input, expected: problem.expected(rank.rank(), round) }
    }

    fn launch(&self, op: &mut RankOp, registered: Option<&Registered>, stream: &Stream) {
        let mut addresses: Vec<DevicePtr> = self.buffers.iter().map(Buffer::ptr).collect();
        let gpu = Arc::clone(op.gpu());
        let copy = |to: DevicePtr, from: &Buffer| {
            // SAFETY: both are of this GPU, of that size, and live as long as the stream.
            unsafe {
                gpu.copy_to_peer(gpu.info().ordinal, to, from.ptr(), from.bytes(), stream.raw()).unwrap()
            };
        };
        if let (Some(Registered { operand, part }), Some(input)) = (registered, &self.input) {
            addresses[*operand] = part.ptr();
            copy(addresses[*operand], input);
        }
        // SAFETY: the buffers are of this GPU, as large as the specs demand, and live as long as the stream.
        unsafe { op.launch_raw(0, &addresses, stream.raw()).unwrap() };
        if let Some(Registered { operand, part }) = registered {
            copy(self.buffers[*operand].ptr(), part);
        }
    }

    fn poison(&self, rank: &RankOp, stream: &Stream) {
        let written = rank.operands().iter().zip(&self.buffers).filter(|(o, _)| o.binding == Binding::Output);
        written.for_each(|(_, buffer)| buffer.fill(POISON, stream.raw()).unwrap());
    }

    fn compare(&self, rank: &RankOp, at: &str, verdict: &mut Verdict) {
        for expected in &self.expected {
            let buffer = &self.buffers[rank.operand(&expected.buffer).unwrap()];
            let found: Vec<u8> = buffer.read(expected.at, expected.bytes.len()).unwrap();
            // That is what it says of equal bytes, too, and takes longer.
            if expected.tolerance.is_none() && found == expected.bytes {
                verdict.compared += (found.len() / expected.dtype.bytes() as usize) as u64;
            } else {
                expected.compare(&found, at, verdict);
            }
        }
    }
}

/// One launch in 64 comes up to half a millisecond late. The thread spins, as shorter sleeps are not to be had.
fn pause(random: &mut StdRng) {
    if random.random_ratio(1, 64) {
        let until = Instant::now() + Duration::from_micros(random.random_range(1..500));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

/// What one rank does: launches whatever comes next, whether the other rank has got so far or not.
struct Rank<'a> {
    ops: Vec<&'a mut RankOp>,
    registered: Vec<Option<Registered>>,
    names: &'a [String],
    stream: Stream,
    slots: Vec<[Slot; SLOTS as usize]>,
}

impl Rank<'_> {
    /// `rounds` launches, each of a kernel and a slot that `order` draws; how their last results compare.
    fn run(&mut self, world: &World, member: usize, rounds: u64, seed: u64) -> Verdict {
        let (mut order, mut pauses) =
            (StdRng::seed_from_u64(seed), StdRng::seed_from_u64(!seed ^ member as u64));
        let mut verdict = Verdict::default();
        let mut done = 0;
        while done < rounds {
            let batch = BATCH.min(rounds - done);
            for (op, slots) in self.ops.iter().zip(&self.slots) {
                slots.iter().for_each(|slot| slot.poison(op, &self.stream));
            }
            let mut launched = vec![[false; SLOTS as usize]; self.ops.len()];
            for _ in 0..batch {
                let (which, slot) =
                    (order.random_range(0..self.ops.len()), order.random_range(0..SLOTS as usize));
                pause(&mut pauses);
                let registered = self.registered[which].as_ref();
                self.slots[which][slot].launch(self.ops[which], registered, &self.stream);
                launched[which][slot] = true;
            }
            world.finish(member, self.stream.raw()).unwrap();
            done += batch;
            for (which, (op, slots)) in self.ops.iter().zip(&self.slots).enumerate() {
                for (slot, _) in slots.iter().zip(launched[which]).filter(|(_, launched)| *launched) {
                    let at = format!("{} on rank {} after {done} launches", self.names[which], op.rank());
                    slot.compare(op, &at, &mut verdict);
                }
            }
            // The other rank will wait in vain, and says so after this.
            assert!(verdict.ok(), "{verdict:?}");
        }
        verdict
    }
}

#[test]
fn soak_of_all_collectives_in_any_order_is_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let mut collectives = Collectives { world: &world, all: vec![], crowded: vec![] };
    collectives.every();
    let Collectives { mut all, crowded, .. } = collectives;
    let rounds = asked("PEERWARP_ROUNDS", 2000) * all.len() as u64;
    let seed = asked("PEERWARP_SEED", 1);
    let names: Vec<String> = all.iter().map(|c| c.name.clone()).collect();
    let mut ranks: Vec<Rank<'_>> = world
        .members()
        .iter()
        .map(|m| Rank {
            ops: vec![],
            registered: vec![],
            names: &names,
            stream: Stream::new(&m.gpu).unwrap(),
            slots: vec![],
        })
        .collect();
    for Collective { op, problem, .. } in &mut all {
        let windows = Windows::new(&world, op.ranks()[0].operands(), |_| 1).unwrap();
        for (index, (rank, op)) in ranks.iter_mut().zip(op.ranks_mut()).enumerate() {
            rank.registered.push(Registered::of(op, &windows, index));
            rank.slots.push(std::array::from_fn(|round| Slot::new(op, &**problem, round as u32)));
            rank.ops.push(op);
        }
    }
    let start = Instant::now();
    let verdicts: Vec<Verdict> = std::thread::scope(|scope| {
        let world = &world;
        let run = |(member, rank): (usize, Rank<'_>)| {
            let mut rank = rank;
            rank.run(world, member, rounds, seed)
        };
        let threads: Vec<_> =
            ranks.into_iter().enumerate().map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let compared: u64 = verdicts.iter().map(|v| v.compared).sum();
    assert!(verdicts.iter().all(|v| v.compared > 0), "{verdicts:?}");
    let seconds = start.elapsed().as_secs_f64();
    report(
        "soak",
        json!({ "launches": rounds, "kernels": names, "no_room": crowded, "values_compared": compared, "seconds": seconds }),
    );
}
