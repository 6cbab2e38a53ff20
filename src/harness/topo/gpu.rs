//! Measuring on the GPUs of this machine. Kernels are timed as `bench` times them, started by all GPUs at once; copies of the
//! copy engine by events around several of them.
//!
//! What a launch takes beside its bytes is measured too, and left out: the rate is bytes over the time that they add.

use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;
use peerwarp_codegen::device::Device;
use peerwarp_codegen::family::{Family, FamilyError, Variant};

use super::cards::{self, Card};
use super::kernels::{Ball, By, Ping, PingKey, Send, SendKey};
use super::measure::{Facts, Latency, Place, Probe, measure_limits};
use super::profile::Way;
use crate::harness::bench::place::{Place as Timing, finish};
use crate::harness::bench::run::iterate;
use crate::harness::bench::{Limits, Stats};
use crate::runtime::copies::PeerCopies;
use crate::runtime::gpu::{Gpu, PeerLink};
use crate::runtime::handles::{Buffer, Graph};
use crate::runtime::image::Images;
use crate::runtime::op::{BufferSpec, LaunchSpec, Operation};
use crate::runtime::{RuntimeError, World};

/// Rounds of ping-pong that one measurement has more than the other.
const ROUNDS: u32 = 512;
/// Rounds of the shorter one.
const FEW: u32 = 64;

/// Copies one after the other that are timed together.
const COPIES: u32 = 8;

/// Bytes of a chunk: [`Send`]'s default, in words of 4 bytes.
const CHUNK_BYTES: u32 = 4 * 8192;

/// Empty kernels of the longer graph.
const NODES: u32 = 10;

/// The GPUs of this machine, all in this process.
pub struct OnGpus {
    gpus: Vec<Arc<dyn Gpu>>,
    copies: PeerCopies,
    bytes: u64,
    iterations: u32,
    kernels: Option<Kernels>,
}

/// What kernels are measured with, where all GPUs reach each other.
struct Kernels {
    // Graphs go before streams.
    stores: Sender,
    bulk: Sender,
    packets: Ready,
    signals: Ready,
    clock: Clock,
}

/// What starts kernels on all ranks at once, and times them.
struct Clock {
    places: Vec<Timing>,
    world: Arc<World>,
}

/// A kernel that sends, and so many chunks at most.
struct Sender {
    chunks: u32,
    ready: Ready,
}

/// A kernel on all ranks, as a graph of one launch each, with what it reads.
struct Ready {
    graphs: Vec<Graph>,
    /// `[rank]`, with their names.
    operands: Vec<Vec<(String, Buffer)>>,
    _op: Operation,
}

impl Ready {
    fn new(
        world: &Arc<World>,
        places: &[Timing],
        variant: Variant,
        images: &dyn Images,
    ) -> Result<Ready, RuntimeError> {
        let mut op = Operation::new(world, &[LaunchSpec::new("topo", variant)], images)?;
        let (mut graphs, mut operands) = (vec![], vec![]);
        for (place, rank) in places.iter().zip(op.ranks_mut()) {
            let buffer = |o: &BufferSpec| Ok((o.name.clone(), Buffer::new(rank.gpu(), o.param.bytes())?));
            let own = rank.operands().iter().map(buffer).collect::<Result<Vec<_>, RuntimeError>>()?;
            let addresses: Vec<u64> = own.iter().map(|(_, buffer)| buffer.ptr()).collect();
            let stream = place.stream();
            // SAFETY: the buffers are as large as the operands, of this rank's GPU, and live as long as the graph.
            graphs.push(stream.capture(|| unsafe { rank.launch_raw(0, &addresses, stream.raw()) })?);
            operands.push(own);
        }
        Ok(Ready { graphs, operands, _op: op })
    }

    /// Writes an operand of a rank.
    fn write<T: Pod>(&self, rank: usize, operand: &str, values: &[T]) -> Result<(), RuntimeError> {
        let own = self.operands[rank].iter().find(|(name, _)| name == operand);
        own.expect("an input of the kernel").1.write(0, values)
    }
}

fn refused(e: FamilyError) -> RuntimeError {
    RuntimeError::invalid("topo kernel", "", e.to_string())
}

impl OnGpus {
    /// For transfers of so many bytes. Kernels are measured if there is a world of all of these GPUs.
    ///
    /// # Errors
    /// Memory runs out, or a kernel cannot be had.
    pub fn new(
        gpus: &[Arc<dyn Gpu>],
        world: Option<(Arc<World>, &dyn Images)>,
        bytes: u64,
        iterations: u32,
    ) -> Result<OnGpus, RuntimeError> {
        let kernels = world.map(|(world, images)| Kernels::new(world, images, bytes)).transpose()?;
        Ok(OnGpus { gpus: gpus.to_vec(), copies: PeerCopies::new(gpus, bytes)?, bytes, iterations, kernels })
    }

    fn kernels(&mut self) -> Result<&mut Kernels, RuntimeError> {
        let allowed = "GPUs that all reach each other";
        self.kernels.as_mut().ok_or_else(|| RuntimeError::invalid("kernels", "not there", allowed))
    }

    /// GB/s that each GPU sends by its copy engines.
    fn copied(&self, pairs: &[(usize, usize)]) -> Result<Vec<f64>, RuntimeError> {
        // Links and clocks come up.
        self.copies.time(pairs, 1)?;
        let mut slowest = vec![vec![]; self.gpus.len()];
        for _ in 0..self.iterations {
            let times = self.copies.time(pairs, COPIES)?;
            for (gpu, slowest) in slowest.iter_mut().enumerate() {
                let own = pairs.iter().zip(&times).filter(|((from, _), _)| *from == gpu);
                slowest.extend(own.map(|(_, time)| time.as_secs_f64() * 1e6).reduce(f64::max));
            }
        }
        let rate = |(gpu, slowest): (usize, &Vec<f64>)| {
            let copies = pairs.iter().filter(|(from, _)| *from == gpu).count() as f64 * f64::from(COPIES);
            if copies > 0.0 { gbps(copies * self.bytes as f64, Stats::of(slowest).median) } else { Ok(0.0) }
        };
        slowest.iter().enumerate().map(rate).collect()
    }
}

/// GB/s of so many bytes in so many microseconds.
fn gbps(bytes: f64, us: f64) -> Result<f64, RuntimeError> {
    match us > 0.0 {
        true => Ok(bytes / us / 1e3),
        false => {
            let allowed =
                "more than none: the clock does not tell so many bytes from none, try more with --bytes";
            Err(RuntimeError::invalid(format!("time of {bytes} bytes"), format!("{us:.3} us"), allowed))
        }
    }
}

impl Kernels {
    fn new(world: Arc<World>, images: &dyn Images, bytes: u64) -> Result<Kernels, RuntimeError> {
        let ranks = world.ranks();
        let places = Timing::all(&world, false, images)?;
        let ready = |variant: Variant| Ready::new(&world, &places, variant, images);
        let send = |by| {
            let words = bytes.next_multiple_of(CHUNK_BYTES.into()) / 4;
            let send = Send::with_defaults(&SendKey { ranks, words: words as u32, by }).map_err(refused)?;
            let chunks = send.words / send.chunk;
            Ok::<_, RuntimeError>(Sender { chunks, ready: ready(send.into_variant())? })
        };
        let ping = |ball| {
            let key = PingKey { ranks, rounds: FEW + ROUNDS, ball };
            ready(Ping::with_defaults(&key).map_err(refused)?.into_variant())
        };
        let (stores, bulk) = (send(By::Stores)?, send(By::Bulk)?);
        let (packets, signals) = (ping(Ball::Packet)?, ping(Ball::Signal)?);
        Ok(Kernels { stores, bulk, packets, signals, clock: Clock { places, world } })
    }

    /// GB/s that each GPU sends by kernels.
    fn sent(&mut self, by: By, pairs: &[(usize, usize)], iterations: u32) -> Result<Vec<f64>, RuntimeError> {
        let Kernels { stores, bulk, clock, .. } = self;
        let sender = match by {
            By::Stores => stores,
            By::Bulk => bulk,
        };
        let ranks = clock.places.len();
        let mask = |of: &dyn Fn(&(usize, usize)) -> Option<usize>| -> u64 {
            pairs.iter().filter_map(of).fold(0, |all, rank| all | 1 << rank)
        };
        for rank in 0..ranks {
            let to = mask(&|&(from, to)| (from == rank).then_some(to));
            let from = mask(&|&(from, to)| (to == rank).then_some(from));
            sender.ready.write(rank, "plan", &[to, from])?;
        }
        let mut times = |chunks: u32| {
            (0..ranks).try_for_each(|rank| sender.ready.write(rank, "chunks", &[chunks]))?;
            clock.times(&sender.ready, iterations)
        };
        let (flags, all) = (times(0)?, times(sender.chunks)?);
        let bytes = f64::from(sender.chunks) * f64::from(CHUNK_BYTES);
        let rate = |rank: usize| {
            let targets = pairs.iter().filter(|(from, _)| *from == rank).count();
            if targets == 0 { Ok(0.0) } else { gbps(targets as f64 * bytes, all[rank] - flags[rank]) }
        };
        (0..ranks).map(rate).collect()
    }

    /// A way of one word, in microseconds: half a round of ping-pong.
    fn way(&mut self, ball: Ball, game: (usize, usize), iterations: u32) -> Result<f64, RuntimeError> {
        let Kernels { packets, signals, clock, .. } = self;
        let ready = match ball {
            Ball::Packet => packets,
            Ball::Signal => signals,
        };
        let mut times = |rounds: u32| {
            let game = [game.0 as u32, game.1 as u32, rounds];
            (0..clock.places.len()).try_for_each(|rank| ready.write(rank, "game", &game))?;
            Ok::<_, RuntimeError>(clock.times(ready, iterations)?[game[0] as usize])
        };
        let (few, many) = (times(FEW)?, times(FEW + ROUNDS)?);
        match many > few {
            true => Ok((many - few) / (2.0 * f64::from(ROUNDS))),
            false => {
                let allowed = "more than none: the clock does not tell so many rounds from none";
                Err(RuntimeError::invalid(
                    format!("time of {ROUNDS} rounds"),
                    format!("{:.3} us", many - few),
                    allowed,
                ))
            }
        }
    }

    /// Graphs of one empty kernel, and what each more takes.
    fn launches(&mut self, iterations: u32) -> Result<(f64, f64), RuntimeError> {
        let places = &self.clock.places;
        let graphs = |nodes| places.iter().map(|p| p.idle_graph_of(nodes)).collect::<Result<Vec<_>, _>>();
        let (one, many) = (graphs(1)?, graphs(NODES)?);
        let (one, many) = (self.clock.slowest(&one, iterations)?, self.clock.slowest(&many, iterations)?);
        Ok((one, ((many - one) / f64::from(NODES - 1)).max(0.0)))
    }
}

impl Clock {
    /// Medians of each rank's time of a kernel, in microseconds.
    fn times(&mut self, ready: &Ready, iterations: u32) -> Result<Vec<f64>, RuntimeError> {
        let times = iterate(&self.world, &mut self.places, &[&ready.graphs], iterations)?.swap_remove(0);
        Ok(times.iter().map(|rank| Stats::of(rank).median).collect())
    }

    /// The median of the slowest rank's time.
    fn slowest(&mut self, graphs: &[Graph], iterations: u32) -> Result<f64, RuntimeError> {
        let times = iterate(&self.world, &mut self.places, &[graphs], iterations)?.swap_remove(0);
        Ok(Stats::of_ranks(&times).0.median)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // Nothing may run any more when graphs and operands go; who asked has been told of errors.
        let _ = finish(&self.clock.world, &self.clock.places);
    }
}

impl Probe for OnGpus {
    fn gpus(&self) -> Vec<Facts> {
        let facts = |gpu: &Arc<dyn Gpu>| {
            let info = gpu.info();
            let place = place(Path::new("/sys/bus/pci/devices"), &info.bus_id);
            let Device { nvlinks, mesh, .. } = Device::of(info.target);
            Facts { name: info.name.clone(), place, nvlinks, xgmi_gbps: mesh.map(|mesh| mesh.sold_gbps) }
        };
        self.gpus.iter().map(facts).collect()
    }

    fn cards(&self) -> Vec<Card> {
        let places: Vec<Option<Place>> = self.gpus().into_iter().map(|gpu| gpu.place).collect();
        cards::cards(Path::new("/sys/class/infiniband"), &places)
    }

    fn driver(&self) -> String {
        self.gpus.first().map_or_else(String::new, |gpu| gpu.info().driver.clone())
    }

    fn peer_access(&self, from: usize, to: usize) -> Result<bool, RuntimeError> {
        self.gpus[from].can_access(self.gpus[to].info().ordinal)
    }

    fn link(&self, from: usize, to: usize) -> Result<PeerLink, RuntimeError> {
        self.gpus[from].peer_link(self.gpus[to].info().ordinal)
    }

    fn has_kernels(&self) -> bool {
        self.kernels.is_some()
    }

    fn launches_us(&mut self) -> Result<(f64, f64), RuntimeError> {
        let iterations = self.iterations;
        self.kernels()?.launches(iterations)
    }

    fn latency(&mut self, from: usize, to: usize) -> Result<Latency, RuntimeError> {
        let (iterations, game) = (self.iterations, (from, to));
        let kernels = self.kernels()?;
        Ok(Latency {
            packet_us: kernels.way(Ball::Packet, game, iterations)?,
            signal_us: kernels.way(Ball::Signal, game, iterations)?,
        })
    }

    fn gbps(&mut self, way: Way, pairs: &[(usize, usize)]) -> Result<Vec<f64>, RuntimeError> {
        let iterations = self.iterations;
        match way {
            Way::Copies => self.copied(pairs),
            Way::Stores => self.kernels()?.sent(By::Stores, pairs, iterations),
            Way::Bulk => self.kernels()?.sent(By::Bulk, pairs, iterations),
            Way::Loads => Err(RuntimeError::invalid("way", "loads", "stores, bulk or copies")),
        }
    }
}

/// Bytes of a transfer, and iterations of a measurement, for limits alone: the whole takes about two seconds on eight GPUs.
const QUICK_BYTES: u64 = 16 << 20;
const QUICK_ITERATIONS: u32 = 5;

/// Measures the limits of a world whose GPUs are all in this process.
///
/// # Errors
/// Why they cannot be measured, in words.
pub fn limits_of(world: &Arc<World>, images: &dyn Images) -> Result<Limits, String> {
    const INSTEAD: &str =
        "measure with `peerwarp topo --save FILE` in one process, then pass `--profile FILE`";
    if world.ranks() == 1 {
        return Err("one rank has no peers, and takes no link".into());
    }
    if world.members().len() < world.ranks() as usize {
        return Err(format!("each rank is a process, and no process reaches all GPUs: {INSTEAD}"));
    }
    if world.ranks_per_gpu() > 1 {
        return Err(format!(
            "up to {} ranks share a GPU, and have no link between them",
            world.ranks_per_gpu()
        ));
    }
    let gpus: Vec<Arc<dyn Gpu>> = world.members().iter().map(|member| Arc::clone(&member.gpu)).collect();
    let kernels = Some((Arc::clone(world), images));
    let measured = OnGpus::new(&gpus, kernels, QUICK_BYTES, QUICK_ITERATIONS)
        .and_then(|mut probe| measure_limits(&mut probe));
    measured.map_err(|e| format!("measuring this machine's links failed: {e}"))
}

/// Where a PCIe device is, as the system shows it in `devices`: a link to a path of bridges, and its memory node.
fn place(devices: &Path, bus_id: &str) -> Option<Place> {
    // The driver's letters may be capitals, and its domain longer than the system's.
    let id = bus_id.to_lowercase();
    let id = id.strip_prefix("0000").filter(|rest| rest.len() == "0000:18:00.0".len()).unwrap_or(&id);
    cards::place(&devices.join(id))
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
