//! What to simulate: ranks, buffers with their first content, and a program for each rank.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;

use super::error::SimError;
use super::names::Names;
use super::options::Options;
use super::report::Report;
use crate::ir::{CommOp, Const, Dtype, FarPart, Kernel, OpKind, Param, ParamKind, WaitAll};
use crate::sim::findings::finding::Findings;
use crate::sim::flatten::code::Compiled;
use crate::sim::memory::global::{HostMemory, Memory, is_plain};
use crate::sim::schedule::{World, clock::MAX_AGENTS};
use crate::sim::values::bulk::const_bits;

/// Most bytes of all buffers of all ranks.
const MAX_BYTES: u64 = 1 << 37;

/// A buffer: every rank has one of the name and size.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub name: Arc<str>,
    pub kind: ParamKind,
    pub bytes: u64,
    /// Written with zeros before the run, on every rank.
    pub zeroed: bool,
    /// Flags for whose epochs, or later ones, kernels wait.
    pub grows: bool,
}

/// Content written before the run.
#[derive(Clone)]
pub(crate) struct Input {
    pub rank: u32,
    pub buffer: usize,
    pub at: u64,
    pub bytes: Arc<[u8]>,
}

/// What a parameter of a launch stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Buffer(usize),
    Scalar(u64),
}

pub(crate) type HostStep = Arc<dyn Fn(&mut HostMemory<'_, '_>) -> Result<(), String> + Send + Sync>;

/// One step of a rank's program.
#[derive(Clone)]
pub(crate) enum Step {
    /// A launch of the kernel with this number.
    Launch { kernel: usize, params: Arc<[Bound]> },
    /// Work of the host, after everything before it on the rank.
    Host { label: Arc<str>, run: HostStep },
}

/// What the parameters of a launch stand for. A buffer parameter that is not mentioned stands for the buffer of its
/// own name.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    buffers: Vec<(String, String)>,
    scalars: Vec<(String, Const)>,
}

impl Bindings {
    /// No bindings: every parameter stands for the buffer of its name.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Binds a parameter to a buffer of another name.
    #[must_use]
    pub fn buffer(mut self, param: &str, buffer: &str) -> Bindings {
        self.buffers.push((param.into(), buffer.into()));
        self
    }

    /// Gives a scalar parameter its value, another one if it has one.
    #[must_use]
    pub fn scalar(mut self, param: &str, value: Const) -> Bindings {
        self.scalars.retain(|(name, _)| name != param);
        self.scalars.push((param.into(), value));
        self
    }
}

/// Ranks, their buffers, and a program for each: what [`Machine::run`] runs, any number of times, from the start.
#[derive(Clone)]
pub struct Machine {
    pub(crate) ranks: u32,
    nodes: u32,
    /// Ranks that are not active, as a mask.
    pub(crate) inactive: u64,
    pub(crate) buffers: Vec<Buffer>,
    /// Of the buffers, in their order; what runs leave behind has them too.
    pub(crate) names: Arc<Names>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) kernels: Vec<Arc<Compiled>>,
    pub(crate) programs: Vec<Vec<Step>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<usize> = self.programs.iter().map(Vec::len).collect();
        f.debug_struct("Machine").field("buffers", &self.buffers).field("steps", &steps).finish()
    }
}

/// A finished run without findings.
#[derive(Debug)]
pub struct Outcome {
    /// What it did, in numbers.
    pub report: Report,
    /// The memory it left behind.
    pub memory: Memory,
}

impl Machine {
    /// A machine with `ranks` ranks (kernels are for 64 at most), no memory and empty programs.
    pub fn new(ranks: u32) -> Machine {
        Machine {
            ranks,
            nodes: 1,
            inactive: 0,
            buffers: vec![],
            names: Arc::default(),
            inputs: vec![],
            kernels: vec![],
            programs: vec![vec![]; ranks as usize],
        }
    }

    /// A machine of `nodes` computers with `ranks` ranks each. What is not far reaches the ranks of the own computer only. Ranks count
    /// through: those of the first computer, then those of the next one.
    pub fn of_nodes(nodes: u32, ranks: u32) -> Machine {
        Machine { nodes, ..Machine::new(nodes * ranks) }
    }

    /// Number of ranks, of all computers.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Leaves a rank out: its program does not run, what goes to it goes nowhere, and what waits for it ends at once, with zeros. What
    /// it shares with others holds anything, all other memory that is shared zeros.
    ///
    /// # Errors
    /// There is no such rank, it is the last one, or there are several computers.
    pub fn deactivate(&mut self, rank: u32) -> Result<(), SimError> {
        self.check_rank(rank)?;
        let inactive = self.inactive | 1 << rank;
        if self.nodes > 1 || self.ranks > 64 || inactive.count_ones() == self.ranks {
            return Err(SimError::Inactive { rank, ranks: self.ranks, nodes: self.nodes });
        }
        self.inactive = inactive;
        Ok(())
    }

    /// Whether a rank is active.
    pub(crate) fn is_active(&self, rank: usize) -> bool {
        self.inactive >> rank.min(63) & 1 == 0 || rank > 63
    }

    /// Declares a buffer of `len` elements on every rank. Memory without a write is uninitialised, except flags and
    /// epoch words, which are zero, and packets, which are empty. Declared twice, the larger size holds.
    pub fn buffer(&mut self, name: &str, kind: ParamKind, dtype: Dtype, len: u64) -> Result<(), SimError> {
        let bytes = len.saturating_mul(u64::from(kind.element_bytes(dtype)));
        self.check_size(name, bytes)?;
        if let Some(at) = self.names.get(name) {
            let buffer = &mut self.buffers[at];
            if buffer.kind != kind && !(is_plain(kind) && is_plain(buffer.kind)) {
                let (old, new) = (buffer.kind.noun(), kind.noun());
                return Err(SimError::KindConflict { name: name.into(), old, new });
            }
            buffer.bytes = buffer.bytes.max(bytes);
            if kind == ParamKind::Window || kind == ParamKind::Symmetric && buffer.kind != ParamKind::Window {
                buffer.kind = kind;
            }
            return Ok(());
        }
        let name: Arc<str> = name.into();
        Arc::make_mut(&mut self.names).add(name.clone());
        self.buffers.push(Buffer { name, kind, bytes, zeroed: kind == ParamKind::Counters, grows: false });
        Ok(())
    }

    /// Declares a buffer for every parameter of a kernel that is not a scalar, under the parameter's name.
    pub fn buffers_of(&mut self, kernel: &Kernel) -> Result<(), SimError> {
        for p in kernel.params.iter().filter(|p| p.kind != ParamKind::Scalar) {
            self.buffer(&p.name, p.kind, p.dtype, p.len)?;
        }
        Ok(())
    }

    /// Zeroes a buffer on every rank before the run.
    pub fn zero(&mut self, name: &str) -> Result<(), SimError> {
        let at = self.find(name)?;
        self.buffers[at].zeroed = true;
        Ok(())
    }

    /// Lets an epoch word hold `epoch` on every rank before the run, as if so many launches had gone before.
    pub fn start_epoch(&mut self, name: &str, epoch: u32) -> Result<(), SimError> {
        let buffer = self.find(name)?;
        let kind = self.buffers[buffer].kind;
        if kind != ParamKind::EpochWord {
            let (old, new) = (kind.noun(), ParamKind::EpochWord.noun());
            return Err(SimError::KindConflict { name: name.into(), old, new });
        }
        let bytes: Arc<[u8]> = bytemuck::bytes_of(&epoch).into();
        self.inputs.extend((0..self.ranks).map(|rank| Input { rank, buffer, at: 0, bytes: bytes.clone() }));
        Ok(())
    }

    /// Writes elements to a rank's buffer before the run; `at` counts elements of type `T`. An epoch word may be
    /// written too, so that a test can begin anywhere; flags, packets and LL elements may not.
    pub fn write<T: Pod>(&mut self, rank: u32, name: &str, at: u64, data: &[T]) -> Result<(), SimError> {
        self.check_rank(rank)?;
        let buffer = self.find(name)?;
        let b = &self.buffers[buffer];
        let at = at * size_of::<T>() as u64;
        let to = at + size_of_val(data) as u64;
        if matches!(
            b.kind,
            ParamKind::Flags | ParamKind::Counts | ParamKind::Messages(_) | ParamKind::Far(FarPart::Counts)
        ) {
            return Err(SimError::NotPlain { name: name.into(), kind: b.kind.noun() });
        }
        if to > b.bytes {
            return Err(SimError::OutOfBounds { name: name.into(), from: at, to, bytes: b.bytes });
        }
        let bytes: Arc<[u8]> = bytemuck::cast_slice(data).into();
        self.inputs.push(Input { rank, buffer, at, bytes });
        Ok(())
    }

    /// Appends a launch to a rank's program.
    pub fn launch(&mut self, rank: u32, kernel: &Arc<Compiled>, bindings: &Bindings) -> Result<(), SimError> {
        self.check_rank(rank)?;
        let params = self.bind(kernel, bindings)?;
        for op in &kernel.kernel().ops {
            if let OpKind::Comm(CommOp::WaitAll(WaitAll { flag, or_later: true, .. })) = op.kind
                && let Bound::Buffer(buffer) = params[flag.index()]
            {
                self.buffers[buffer].grows = true;
            }
        }
        let kernel = self.kernel_number(kernel);
        self.programs[rank as usize].push(Step::Launch { kernel, params });
        Ok(())
    }

    /// Appends a launch to every rank's program.
    pub fn launch_all(&mut self, kernel: &Arc<Compiled>, bindings: &Bindings) -> Result<(), SimError> {
        (0..self.ranks).try_for_each(|rank| self.launch(rank, kernel, bindings))
    }

    /// Appends work of the host to a rank's program: it runs after everything before it on that rank. An error ends
    /// the run with a finding. `label` names it in findings.
    pub fn host(
        &mut self,
        rank: u32,
        label: &str,
        run: impl Fn(&mut HostMemory<'_, '_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Result<(), SimError> {
        self.check_rank(rank)?;
        self.programs[rank as usize].push(Step::Host { label: label.into(), run: Arc::new(run) });
        Ok(())
    }

    /// How many steps a rank's program has.
    pub fn steps(&self, rank: u32) -> usize {
        self.programs.get(rank as usize).map_or(0, Vec::len)
    }

    /// Runs all programs from the start under one schedule. Finding nothing means that this schedule showed nothing
    /// wrong, not that no schedule does; races and unordered flags are found whether or not the schedule makes them
    /// bite.
    pub fn run(&self, options: &Options) -> Result<Outcome, Box<Findings>> {
        World::new(self, options).run()
    }

    /// Memory that is never touched costs nothing, but needs addresses.
    fn check_size(&self, name: &str, bytes: u64) -> Result<(), SimError> {
        let there = self.names.get(name).map_or(0, |at| self.buffers[at].bytes);
        let others = self.buffers.iter().map(|b| b.bytes).sum::<u64>() - there;
        let all = others.saturating_add(bytes).saturating_mul(u64::from(self.ranks));
        if all <= MAX_BYTES {
            return Ok(());
        }
        Err(SimError::TooLarge { name: name.into(), bytes, ranks: self.ranks, most: MAX_BYTES })
    }

    fn check_rank(&self, rank: u32) -> Result<(), SimError> {
        if rank < self.ranks { Ok(()) } else { Err(SimError::UnknownRank { rank, ranks: self.ranks }) }
    }

    pub(crate) fn find(&self, name: &str) -> Result<usize, SimError> {
        self.names.find(name)
    }

    fn kernel_number(&mut self, kernel: &Arc<Compiled>) -> usize {
        let known = self.kernels.iter().position(|k| Arc::ptr_eq(k, kernel));
        known.unwrap_or_else(|| {
            self.kernels.push(kernel.clone());
            self.kernels.len() - 1
        })
    }

    fn bind(&self, compiled: &Compiled, bindings: &Bindings) -> Result<Arc<[Bound]>, SimError> {
        let kernel = compiled.kernel();
        let variant = || kernel.variant.clone();
        // A kernel of one node runs on each, by itself.
        let on_each = kernel.nodes == 1 && kernel.ranks.saturating_mul(self.nodes) == self.ranks;
        if kernel.all_ranks() != self.ranks && !on_each {
            return Err(SimError::WorldSize {
                kernel: variant(),
                wants: kernel.all_ranks(),
                has: self.ranks,
            });
        }
        if kernel.nodes != self.nodes && !on_each {
            return Err(SimError::Nodes { kernel: variant(), wants: kernel.nodes, has: self.nodes });
        }
        if compiled.agents >= MAX_AGENTS {
            let agents = u64::from(compiled.agents);
            return Err(SimError::TooManyAgents { kernel: variant(), agents, most: MAX_AGENTS - 1 });
        }
        let mut names = bindings.buffers.iter().map(|b| &b.0).chain(bindings.scalars.iter().map(|s| &s.0));
        if let Some(unknown) = names.find(|n| kernel.params.iter().all(|p| p.name != **n)) {
            return Err(SimError::UnknownParam { kernel: variant(), param: unknown.clone() });
        }
        kernel.params.iter().map(|p| self.bind_param(kernel, p, bindings)).collect()
    }

    fn bind_param(&self, kernel: &Kernel, p: &Param, bindings: &Bindings) -> Result<Bound, SimError> {
        let (variant, param) = (|| kernel.variant.clone(), || p.name.clone());
        if p.kind == ParamKind::Scalar {
            let value = bindings.scalars.iter().find(|s| s.0 == p.name).ok_or_else(|| {
                SimError::MissingScalar { kernel: variant(), param: param(), dtype: p.dtype }
            })?;
            let given = value.1.dtype();
            if given != p.dtype {
                let dtype = p.dtype;
                return Err(SimError::ScalarType { kernel: variant(), param: param(), dtype, given });
            }
            return Ok(Bound::Scalar(const_bits(value.1)));
        }
        let name = bindings.buffers.iter().find(|b| b.0 == p.name).map_or(&p.name, |b| &b.1);
        let at = self.find(name)?;
        let b = &self.buffers[at];
        let (buffer, need) = (name.clone(), p.len * u64::from(p.element_bytes()));
        if b.kind != p.kind && !(is_plain(p.kind) && is_plain(b.kind)) {
            let (wants, has) = (p.kind.noun(), b.kind.noun());
            return Err(SimError::WrongKind { kernel: variant(), param: param(), buffer, wants, has });
        }
        if b.bytes < need {
            let have = b.bytes;
            return Err(SimError::TooSmall { kernel: variant(), param: param(), buffer, need, have });
        }
        Ok(Bound::Buffer(at))
    }
}
