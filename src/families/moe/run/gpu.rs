//! MoE problems on GPUs.

mod memory;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use peerwarp_codegen::family::Family;
use rayon::prelude::*;
use serde::Serialize;

use self::memory::{Host, untouched};
use super::data::Round;
use super::io::{Io, combined_row_bytes};
use super::steps;
use super::{Errors, MoeTuning, Traffic};
use crate::families::moe::{MoeAllToAll, MoeRank};
use crate::families::moe::{MoeError, MoeProblem, MoeShape};
use crate::runtime::Recording;
use crate::runtime::handles::{Buffer, Event, Graph, Stream};
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World};

/// What fills memory that a round need not read: NaN in every dtype, and no index of anything.
const POISON: u8 = 0xff;

/// Why a problem cannot be run on GPUs.
#[derive(Debug, thiserror::Error)]
pub enum GpuRunError {
    /// The problem, or what it is run with.
    #[error(transparent)]
    Moe(#[from] MoeError),
    /// The GPUs.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// What a run on GPUs yields.
#[derive(Clone, Debug, Serialize)]
pub struct MoeGpuRun {
    /// Whether every bit is right.
    pub ok: bool,
    /// Names of the kernels in the order of their launches in a round.
    pub variants: Vec<String>,
    /// Rounds of dispatch, expert and combine whose every step was compared with the reference.
    pub rounds: u32,
    /// What dispatch yields and should not, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_dispatch: Option<String>,
    /// How the combined rows compare.
    pub errors: Errors,
    /// What the routing demands.
    pub traffic: Traffic,
    /// The ranks of this process: what follows is in their order, and errors are theirs.
    pub ranks: Vec<u32>,
    /// Their GPUs.
    pub gpus: Vec<String>,
    /// Time of the last round's dispatch, in microseconds: from the first block's start to the last one's end,
    /// waiting for other ranks included.
    pub dispatch_us: Vec<f64>,
    /// The same for combine.
    pub combine_us: Vec<f64>,
    /// What launching a graph of the rounds over and over yielded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
    /// The same for rounds in one launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fused: Option<Replayed>,
}

/// Rounds launched as a graph, over and over, without the host in between.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// How often the graph was launched.
    pub replays: u32,
    /// Rounds in the graph, all with inputs of their own.
    pub rounds: u32,
    /// How the combined rows compare, over all replays whose results were looked at.
    pub errors: Errors,
    /// Time of a round, in microseconds: the slowest rank's, over the replays that ran back to back at the end.
    pub round_us: f64,
}

/// A problem ready to be run on the ranks of this process.
#[derive(Debug)]
pub struct MoeGpu {
    shape: MoeShape,
    rounds: Arc<Vec<Round>>,
    variants: Vec<String>,
    traffic: Traffic,
    // Streams go before the memory and the modules of what is on them.
    places: Vec<Place>,
    op: MoeAllToAll,
    poisoned: bool,
    /// Whether every round is run in one launch, too.
    fused: bool,
}

/// How a round is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launches {
    Apart,
    Fused,
}

/// What the harness has on one rank.
#[derive(Debug)]
struct Place {
    rank: u32,
    stream: Stream,
    events: [Event; 4],
    /// For each round, what it reads and what it yields.
    rounds: Vec<Io>,
    /// The experts' outputs.
    y: Buffer,
}

impl MoeGpu {
    /// `rounds` rounds of a problem, in `world`.
    pub fn new(
        problem: &MoeProblem,
        tuning: &MoeTuning,
        rounds: u32,
        world: &Arc<World>,
        images: &dyn Images,
    ) -> Result<MoeGpu, GpuRunError> {
        problem.check()?;
        if rounds == 0 {
            return Err(MoeError::invalid("rounds", rounds, "must be 1 or more").into());
        }
        tuning.check(&problem.shape)?;
        let rounds = (0..rounds).map(|i| Round::new(problem, tuning.way(), i)).collect();
        MoeGpu::of_rounds(Arc::new(rounds), tuning, world, images)
    }

    /// The same with the inputs and the reference's results of these rounds, of which there is one at least: they are the
    /// same for all pairs that go the same [way](MoeTuning::way).
    pub(crate) fn of_rounds(
        rounds: Arc<Vec<Round>>,
        tuning: &MoeTuning,
        world: &Arc<World>,
        images: &dyn Images,
    ) -> Result<MoeGpu, GpuRunError> {
        let shape = rounds[0].shape;
        tuning.check(&shape)?;
        let dispatch = tuning.dispatch_launches();
        let combine = tuning.combine_launches();
        let variants = dispatch.iter().map(Family::variant_name);
        let variants = variants.chain(combine.iter().map(Family::variant_name));
        let variants = variants.chain(tuning.round_trip.iter().map(Family::variant_name)).collect();
        let op = MoeAllToAll::new(world, tuning, images)?;
        let traffic = Traffic::of(&rounds[0].shape, &rounds.iter().map(|r| &r.routing).collect::<Vec<_>>());
        let y_bytes = tuning.combine.placed_rows() * combined_row_bytes(&shape);
        let place = |rank: &MoeRank| Place::new(&shape, rank, rounds.len(), y_bytes);
        let places = op.ranks().iter().map(place).collect::<Result<_, _>>()?;
        let fused = tuning.round_trip.is_some();
        Ok(MoeGpu { shape, rounds, variants, traffic, places, op, poisoned: false, fused })
    }

    /// With all that a round need not read filled with bytes 0xff before each round that the host looks at: outputs,
    /// inputs beyond the last token, and what rows arrive in. Beyond the last row they have to be there after it too. The
    /// host reads all of every output, which is for small problems.
    #[must_use]
    pub fn poisoned(self) -> MoeGpu {
        MoeGpu { poisoned: true, ..self }
    }

    /// Lets dispatch and combine begin in the epochs after `epoch`, as if so many rounds had gone before. Before the
    /// first round, on all ranks.
    pub fn start_after(&mut self, epoch: u32) -> Result<(), GpuRunError> {
        let set = self.op.ranks().iter().try_for_each(|rank| rank.start_after(epoch));
        Ok(self.op.world().agree(set)?)
    }

    /// Runs every round once, with the host looking at every step; then, if `replays` is not 0, all of them as a graph
    /// that often. Problems without the stand-in expert in dispatch use dispatched rows as they are in the latter.
    pub fn run(&mut self, replays: u32) -> Result<MoeGpuRun, GpuRunError> {
        let ran = self.run_here(replays);
        // Memory that others may still write to is not given up before they are done.
        Ok(self.op.world().agree(ran)?)
    }

    fn run_here(&mut self, replays: u32) -> Result<MoeGpuRun, RuntimeError> {
        let (mut wrong_dispatch, mut errors) = (None, Errors::default());
        let mut times = vec![];
        for number in 0..self.rounds.len() {
            let (wrong, round_errors) = self.round(number)?;
            errors = errors.merge(round_errors);
            wrong_dispatch = wrong_dispatch.or(wrong);
            times = self.times()?;
            if self.fused {
                errors = errors.merge(self.fused_round(number)?);
            }
        }
        let alone = replays > 0 && self.rounds[0].way.y_is_rows();
        let replayed = alone.then(|| self.replay(replays, Launches::Apart)).transpose()?;
        let in_one = replays > 0 && self.fused;
        let fused = in_one.then(|| self.replay(replays, Launches::Fused)).transpose()?;
        let right = |errors: &Errors| errors.wrong == 0;
        let ok = wrong_dispatch.is_none() && right(&errors);
        let ok = ok && [&replayed, &fused].into_iter().flatten().all(|r| right(&r.errors));
        let micros = |d: &Duration| d.as_secs_f64() * 1e6;
        let gpu = |rank: &MoeRank| format!("{} ({})", rank.gpu().info().name, rank.gpu().info().bus_id);
        Ok(MoeGpuRun {
            ok,
            variants: self.variants.clone(),
            rounds: self.rounds.len() as u32,
            wrong_dispatch,
            errors,
            traffic: self.traffic.clone(),
            ranks: self.places.iter().map(|p| p.rank).collect(),
            gpus: self.op.ranks().iter().map(gpu).collect(),
            dispatch_us: times.iter().map(|t| micros(&t.0)).collect(),
            combine_us: times.iter().map(|t| micros(&t.1)).collect(),
            replayed,
            fused,
        })
    }

    /// Fills what rounds need not read; with their inputs, which are then to be loaded, or without.
    fn poison(&self, rounds: Range<usize>, inputs: bool) -> Result<(), RuntimeError> {
        let fill = || {
            for (place, rank) in self.places.iter().zip(self.op.ranks()) {
                let stream = place.stream.raw();
                rank.fill_payload(POISON, stream)?;
                place.y.fill(POISON, stream)?;
                for io in &place.rounds[rounds.clone()] {
                    let read = [&io.x, &io.x_scale, &io.n, &io.ids, &io.weights];
                    let filled = read.into_iter().filter(|_| inputs).chain([&io.out]);
                    filled.into_iter().try_for_each(|buffer| buffer.fill(POISON, stream))?;
                }
            }
            finish(self.op.world(), &self.places)
        };
        // Nobody sends to memory that is still being filled.
        self.op.world().agree(fill())
    }

    /// One round with the host in between: what is wrong after dispatch, and how the combined rows compare.
    fn round(&mut self, number: usize) -> Result<(Option<String>, Errors), RuntimeError> {
        if self.poisoned {
            self.poison(number..number + 1, true)?;
        }
        let round = &self.rounds[number];
        let hosts = self.places.par_iter().zip(self.op.ranks().par_iter());
        let loaded = hosts.map(|(place, rank)| steps::load(round, &mut Host { place, number, rank }));
        loaded.collect::<Result<(), String>>().map_err(host)?;
        let mut routed = vec![];
        for (place, rank) in self.places.iter().zip(self.op.ranks_mut()) {
            place.events[0].record(place.stream.raw())?;
            // SAFETY: the buffers are of this GPU, as large as the shape demands, and live as long as the stream.
            routed.push(unsafe { rank.dispatch_raw(&place.rounds[number].tokens(), place.stream.raw())? });
            place.events[1].record(place.stream.raw())?;
        }
        finish(self.op.world(), &self.places)?;
        // What the reference says is a lot to compute and to read.
        let checked = self.places.par_iter().zip(self.op.ranks().par_iter()).map(|(place, rank)| {
            let mut host = Host { place, number, rank };
            let beyond = if self.poisoned { host.beyond_rows(round) } else { Ok(()) };
            let found = beyond.and(steps::check_and_run_expert(round, &mut host));
            found.err().map(|e| format!("round {number}, rank {}: {e}", place.rank))
        });
        let wrong = checked.collect::<Vec<_>>().into_iter().flatten().next();
        let ranks = self.op.ranks_mut();
        for ((place, rank), routed) in self.places.iter().zip(ranks.iter_mut()).zip(routed) {
            let out = place.rounds[number].out.ptr();
            let y = if round.way.y_is_rows() { rank.buffer("rows")?.0 } else { place.y.ptr() };
            place.events[2].record(place.stream.raw())?;
            // SAFETY: as above.
            unsafe { rank.combine_raw(routed, y, out, place.stream.raw())? };
            place.events[3].record(place.stream.raw())?;
        }
        finish(self.op.world(), &self.places)?;
        Ok((wrong, self.compare(number)?))
    }

    /// One round in one launch, with the inputs that [`MoeGpu::round`] has loaded.
    fn fused_round(&mut self, number: usize) -> Result<Errors, RuntimeError> {
        for (place, rank) in self.places.iter().zip(self.op.ranks_mut()) {
            let (io, stream) = (&place.rounds[number], place.stream.raw());
            io.out.fill(POISON, stream)?;
            // SAFETY: as above.
            unsafe { rank.round_trip_raw(&io.tokens(), io.out.ptr(), stream)? };
        }
        finish(self.op.world(), &self.places)?;
        self.compare(number)
    }

    fn compare(&self, number: usize) -> Result<Errors, RuntimeError> {
        let mut errors = Errors::default();
        for place in &self.places {
            let (out, round) = (&place.rounds[number].out, &self.rounds[number]);
            let got: Vec<u8> = out.read(0, out.bytes() as usize)?;
            errors = errors.merge(round.errors(number, place.rank, &got));
            if self.poisoned {
                let beyond = untouched("out", &got, round.out[place.rank as usize].len());
                let found = beyond.err().map(|e| format!("round {number}, rank {}: {e}", place.rank));
                errors = errors.merge(Errors {
                    wrong: found.iter().len() as u64,
                    first_wrong: found,
                    ..Errors::default()
                });
            }
        }
        Ok(errors)
    }

    /// Dispatch's and combine's time on each rank, of the round that was run last.
    fn times(&self) -> Result<Vec<(Duration, Duration)>, RuntimeError> {
        let of = |place: &Place| {
            let [a, b, c, d] = &place.events;
            Ok::<_, RuntimeError>((b.since(a)?, d.since(c)?))
        };
        self.places.iter().map(of).collect()
    }

    fn replay(&mut self, replays: u32, launches: Launches) -> Result<Replayed, RuntimeError> {
        let graphs = self.capture(launches)?;
        let mut errors = Errors::default();
        // Results are looked at after the first, an odd number of replays, and the last.
        let stops = [1, 3, replays];
        let mut done = 0;
        let mut round_us = 0.0;
        if self.poisoned {
            self.poison(0..self.rounds.len(), false)?;
        }
        for stop in stops.into_iter().filter(|&stop| stop <= replays) {
            if stop <= done {
                continue;
            }
            for place in &self.places {
                for io in &place.rounds {
                    io.out.fill(POISON, place.stream.raw())?;
                }
                place.events[0].record(place.stream.raw())?;
            }
            for _ in done..stop {
                for (place, graph) in self.places.iter().zip(&graphs) {
                    // SAFETY: all that was captured is this one's, which waits for graphs.
                    unsafe { graph.launch(place.stream.raw())? };
                }
            }
            for place in &self.places {
                place.events[1].record(place.stream.raw())?;
            }
            finish(self.op.world(), &self.places)?;
            let time = |p: &Place| p.events[1].since(&p.events[0]);
            let times = self.places.iter().map(time).collect::<Result<Vec<_>, RuntimeError>>()?;
            let slowest = times.into_iter().max().unwrap_or_default().as_secs_f64() * 1e6;
            round_us = slowest / (f64::from(stop - done) * self.rounds.len() as f64);
            done = stop;
            for number in 0..self.rounds.len() {
                errors = errors.merge(self.compare(number)?);
            }
        }
        Ok(Replayed { replays: done, rounds: self.rounds.len() as u32, errors, round_us })
    }

    /// Launches all rounds as a graph, `times` times without the host in between, and waits. Then reads what the last
    /// launches recorded, kernel by kernel and rank by rank: nothing unless images have a timeline. Inputs are those that
    /// [`MoeGpu::run`] has loaded, which comes first.
    pub fn record(&mut self, times: u32) -> Result<Vec<Recording>, GpuRunError> {
        let all = if self.fused { &[Launches::Apart, Launches::Fused][..] } else { &[Launches::Apart] };
        for &launches in all {
            let graphs = self.capture(launches)?;
            for _ in 0..times {
                for (place, graph) in self.places.iter().zip(&graphs) {
                    // SAFETY: all that was captured is this one's, which waits for graphs.
                    unsafe { graph.launch(place.stream.raw())? };
                }
            }
            finish(self.op.world(), &self.places)?;
        }
        let by_rank = self.op.ranks().iter().map(MoeRank::recordings).collect::<Result<Vec<_>, _>>()?;
        let kernels = by_rank.first().map_or(0, Vec::len);
        let of_kernel = |k: usize| by_rank.iter().map(move |all| all[k].clone());
        Ok((0..kernels).flat_map(of_kernel).collect())
    }

    /// All rounds of each rank as a graph.
    fn capture(&mut self, launches: Launches) -> Result<Vec<Graph>, RuntimeError> {
        let way = self.rounds[0].way;
        let capture = |(place, rank): (&Place, &mut MoeRank)| {
            // Or else what the last round that the host looked at left there.
            let y = if way.y_is_rows() { rank.buffer("rows")?.0 } else { place.y.ptr() };
            place.stream.capture(|| {
                for io in &place.rounds {
                    let stream = place.stream.raw();
                    // SAFETY: the buffers are of this GPU, as large as the shape demands, and live as long as the stream.
                    unsafe {
                        match launches {
                            Launches::Apart => {
                                let routed = rank.dispatch_raw(&io.tokens(), stream)?;
                                rank.combine_raw(routed, y, io.out.ptr(), stream)?;
                            }
                            Launches::Fused => rank.round_trip_raw(&io.tokens(), io.out.ptr(), stream)?,
                        }
                    }
                }
                Ok(())
            })
        };
        self.places.iter().zip(self.op.ranks_mut()).map(capture).collect()
    }

    /// The shape of the problem.
    pub fn shape(&self) -> &MoeShape {
        &self.shape
    }
}

/// Waits until everything on all ranks of this process has ended.
fn finish(world: &World, places: &[Place]) -> Result<(), RuntimeError> {
    world.finish_all(places.iter().map(|p| p.stream.raw()))
}

fn host(problem: String) -> RuntimeError {
    RuntimeError::invalid("host memory", problem, "what fits the buffers")
}

impl Place {
    fn new(shape: &MoeShape, rank: &MoeRank, rounds: usize, y_bytes: u64) -> Result<Place, RuntimeError> {
        let gpu = rank.gpu();
        let events = [Event::new(gpu)?, Event::new(gpu)?, Event::new(gpu)?, Event::new(gpu)?];
        let rounds = (0..rounds).map(|_| Io::new(gpu, shape)).collect::<Result<_, RuntimeError>>()?;
        let (stream, y) = (Stream::new(gpu)?, Buffer::new(gpu, y_bytes)?);
        Ok(Place { rank: rank.rank(), stream, events, rounds, y })
    }
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
