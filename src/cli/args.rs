//! The command line's grammar. In each command its own options come first: an option behind a flattened group would stand under
//! the group's heading.

use std::path::PathBuf;

use peerwarp_codegen::print::{EmitOptions, FarEngine};

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Specialise, check, emit and run kernels that span several GPUs.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 110)]
#[command(
    after_help = "Exit status: 0 when all is well, 1 when something was found (a mismatch, a protocol \
                        error, a stale file), 2 when the input cannot be used."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colour: always, never, or auto, on terminals without NO_COLOR
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN")]
    #[arg(hide_possible_values = true)]
    pub color: When,
}

/// When to do something that suits terminals only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// If the output is a terminal and NO_COLOR is not set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run kernels on real inputs and compare with a plain reference
    Run(RunArgs),
    /// Check the communication protocol: many seeded schedules on simulated ranks
    Check(CheckArgs),
    /// Time kernels on this machine's GPUs, against what its links allow
    Bench(BenchArgs),
    /// Find the fastest variants on this machine's GPUs, and keep them in a table
    Tune(TuneArgs),
    /// Emit CUDA and HIP source
    Generate(GenerateArgs),
    /// Show a variant: its source, its IR, or what it does in words
    Show(ShowArgs),
    /// List families, models or variants
    List(ListArgs),
    /// Say how much memory an operation needs on each GPU, without allocating any
    Memory(MemoryArgs),
    /// Record on this machine's GPUs when each warp waits, signals and sends, for Perfetto
    Trace(TraceArgs),
    /// Measure the links between this machine's GPUs, or explain those of a machine that is described
    Topo(TopoArgs),
    /// Compile to cubins and AMD code objects, with a manifest to launch them by
    Pack(PackArgs),
    /// Show which compilers are found, and install pinned ones
    Toolchain(ToolchainArgs),
    /// Print completions for a shell
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

/// Which kernels, beside the options that suites add.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which kernels")]
pub(crate) struct Selection {
    /// A family; its fields follow as FIELD=VALUE [default: that of a program that has only one]
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
    /// World size
    #[arg(long, value_name = "R")]
    pub ranks: Option<String>,
    /// Nodes, each with equally many of the ranks: `all_reduce` on several is the family `all_reduce_nodes` [default: 1]
    #[arg(long, value_name = "N")]
    pub nodes: Option<String>,
    /// Set a field of the key or of tuning; with `FAMILY.` in front in that family only. May be repeated
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub settings: Vec<String>,
    /// Table of tuned variants: one that comes with the program, as in `h200`, a FILE.toml that `tune` wrote, or `none`
    /// [default: that of the GPUs, or of the device that stands for the target; none for the simulator]
    #[arg(long, value_name = "DEVICE|FILE")]
    pub tuned: Option<String>,
    /// Names of variants, or FIELD=VALUE pairs for --family; `bench` and `tune` take lists, FIELD=V1,V2
    #[arg(value_name = "VARIANT|FIELD=VALUE")]
    pub items: Vec<String>,
}

/// What kernels are run on, beside the options that suites add.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Inputs")]
pub(crate) struct InputArgs {
    /// Decides inputs and schedules
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Where to run: sim, the simulator on the CPU; gpu, a GPU of this machine for each rank, all of them in this process, or with
    /// torchrun, mpirun or srun one process a rank; auto, GPUs if the world fits on them, else the simulator
    #[arg(long, value_enum, default_value_t = Backend::Auto, value_name = "auto|sim|gpu", hide_possible_values = true)]
    pub backend: Backend,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub inputs: InputArgs,
    #[command(flatten)]
    pub gpu: GpuArgs,
}

/// What only a run on GPUs has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "On GPUs")]
pub(crate) struct GpuArgs {
    /// Rounds, each with inputs of its own [default: 3, on the simulator 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub rounds: Option<u32>,
    /// Then launch all rounds as a graph this many times, without the host in between
    #[arg(long, value_name = "N")]
    pub replays: Option<u32>,
    /// A folder that `pack` wrote: its kernels are run, and none is compiled
    #[arg(long, value_name = "DIR")]
    pub pack: Option<PathBuf>,
    /// Seconds after which a wait for another rank ends the run [default: 5]
    #[arg(long, value_name = "SECONDS")]
    pub wait_budget: Option<f64>,
    /// Let ranks share GPUs where there are fewer GPUs than ranks, to try kernels: times say nothing about links then
    #[arg(long)]
    pub share_gpus: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Iterations that count
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub iterations: u32,
    /// Rounds of the graph of many rounds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Write 256 MiB before each iteration, so that no cache holds what it reads
    #[arg(long)]
    pub flush_l2: bool,
    /// Let blocks of other kernels run on the same SMs, as with `WorldOptions::share_sms`
    #[arg(long)]
    pub share_sms: bool,
    /// Let ranks share GPUs where there are fewer GPUs than ranks, to try kernels: times say nothing about links then
    #[arg(long)]
    pub share_gpus: bool,
    /// Time other libraries on the same GPUs, those that the family has scripts for
    #[arg(long)]
    pub compare: bool,
    /// The Python that has them, for --compare
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: String,
    /// Write a report with plots: one file, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Take limits from what `topo --save` measured of this machine's links
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Do not run and compare with the reference first
    #[arg(long)]
    pub skip_check: bool,
    /// Seconds after which a wait for another rank ends the run [default: 5]
    #[arg(long, value_name = "SECONDS")]
    pub wait_budget: Option<f64>,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub inputs: InputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// A TOML file that lists several problems, or the name of a catalogue that comes with the program
    #[arg(long, value_name = "FILE")]
    pub catalogue: Option<String>,
    /// Table to go on with, or to begin [default: generated/tuned/DEVICE.toml]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Seconds for all problems; each gets an equal share of what is left
    #[arg(long, value_name = "SECONDS")]
    pub budget: Option<f64>,
    /// Candidates to time for a problem at most, before the run-off
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub trials: u32,
    /// Iterations of each; three times as many in the run-off
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub iterations: u32,
    /// Take limits, and the cost model's links, from what `topo --save` measured of this machine
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Tune again what the table has
    #[arg(long)]
    pub force: bool,
    /// Decides inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Seconds after which a wait for another rank ends a measurement [default: 1]
    #[arg(long, value_name = "SECONDS")]
    pub wait_budget: Option<f64>,
    #[command(flatten)]
    pub selection: Selection,
}

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// GPUs if the world fits on them, else the simulator; says which.
    Auto,
    /// The simulator, on the CPU.
    Sim,
    /// GPUs of this machine, one for each rank: all of them in this process, or with torchrun, mpirun or srun one process a
    /// rank.
    Gpu,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// How many schedules to try, from --seed on
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// How many rounds of a schedule, one right after the other [default: 4, or more by the kernel's banks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub epochs: Option<u32>,
    /// How many blocks a rank can run at once [default: as many as a launch has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub resident_blocks: Option<u32>,
    /// Where nothing is wrong, look for banks and credits of channels that are not needed: as many schedules again for each
    #[arg(long)]
    pub hints: bool,
    /// Run N schedules that each kill a rank after one of its stores, and in which the others go on without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub deaths: Option<u64>,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub inputs: InputArgs,
}

/// What emitted kernels record and say.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Recording {
    /// Source that records a timeline of waits and sends, with room for N records of each warp
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub timeline: Option<u32>,
    /// Name files of the kernel's source without lines: an edit that moves lines changes no emitted file
    #[arg(long)]
    pub no_lines: bool,
    /// What carries far channels: ring, commands to a proxy of the host, which hands them to libfabric; gin, puts of the GPU itself by
    /// NCCL's GIN
    #[arg(long, value_name = "ring|gin", default_value = FarEngine::Ring.name(), hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(FarEngine::ALL.map(FarEngine::name)).map(|name| engine(&name)))]
    pub far: FarEngine,
}

fn engine(name: &str) -> FarEngine {
    FarEngine::ALL.into_iter().find(|engine| engine.name() == name).unwrap_or_default()
}

impl Recording {
    /// The printer's options.
    pub fn options(self) -> EmitOptions {
        EmitOptions { timeline: self.timeline, lines: !self.no_lines, far: self.far }
    }
}

/// Which kernels to emit, and what for.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// A TOML file that lists several problems, or the name of a catalogue that comes with the program
    #[arg(long, value_name = "FILE")]
    pub catalogue: Option<String>,
    /// What to emit for, as in `cuda:sm_90a,hip:gfx942` [default: the catalogue's, or cuda:sm_90a]
    #[arg(long, value_name = "TARGET,..", value_delimiter = ',')]
    pub target: Vec<String>,
    #[command(flatten)]
    pub recording: Recording,
    #[command(flatten)]
    pub selection: Selection,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Folder to write to; files of an earlier run are replaced all at once, or not at all
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Write nothing: compare with what is there
    #[arg(long)]
    pub check: bool,
    /// Write machine primitives to one header a target, which sources include, in place of one copy a source
    #[arg(long)]
    pub split_primitives: bool,
    #[command(flatten)]
    pub wanted: Wanted,
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// Folder to write to; files of an earlier run are replaced all at once, or not at all
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Compilers to choose from: nvrtc, nvcc, clang, zig, hipcc [default: the first of these that is found]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub compiler: Vec<String>,
    /// SMs (compute units on AMD) that all blocks must fit on [default: of the target's usual device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sms: Option<u32>,
    /// Pack kernels that spill registers, too
    #[arg(long)]
    pub allow_spills: bool,
    #[command(flatten)]
    pub wanted: Wanted,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The IR that the kernel was traced to
    #[arg(long, group = "form")]
    pub ir: bool,
    /// CUDA source
    #[arg(long, group = "form")]
    pub cuda: bool,
    /// HIP source
    #[arg(long, group = "form")]
    pub hip: bool,
    /// The C header that a host program launches it with
    #[arg(long, group = "form")]
    pub header: bool,
    /// What each role does, bytes, flags and shared memory, in words (the default)
    #[arg(long, group = "form")]
    pub explain: bool,
    /// Say with --explain what far puts take between the nodes of this machine: a name or a FILE.toml, as `topo` takes
    #[arg(long, value_name = "NAME|FILE")]
    pub machine: Option<String>,
    /// Source that includes its machine primitives, as `generate --split-primitives` writes it
    #[arg(long)]
    pub split_primitives: bool,
    /// What to emit for [default: cuda:sm_90a, or hip:gfx942 with --hip]
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    #[command(flatten)]
    pub recording: Recording,
    #[command(flatten)]
    pub selection: Selection,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// File to write: Chrome's trace-event JSON, to be opened at <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Rounds to record, each the last of --warmup that are launched at once
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Rounds that are launched at once, the last of which is recorded
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub warmup: u32,
    /// How many of the recorded rounds the file has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub keep: u32,
    /// Records that a warp has room for
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub slots: u32,
    /// A folder that `pack --timeline` wrote: its kernels are recorded, and none but that which compares clocks is compiled
    #[arg(long, value_name = "DIR", conflicts_with = "slots")]
    pub pack: Option<PathBuf>,
    /// Seconds after which a wait for another rank ends the run [default: 5]
    #[arg(long, value_name = "SECONDS")]
    pub wait_budget: Option<f64>,
    /// Let ranks share GPUs where there are fewer GPUs than ranks, to try kernels: times say nothing about links then
    #[arg(long)]
    pub share_gpus: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub inputs: InputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopoArgs {
    /// Explain this machine instead: one that comes with the program, or a FILE.toml that describes one
    #[arg(long, value_name = "NAME|FILE")]
    pub machine: Option<String>,
    /// Measure nothing: take what `--save` has kept
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Measure this machine's GPUs also if --machine is given, and set both side by side
    #[arg(long, conflicts_with = "profile")]
    pub measure: bool,
    /// Say of each pair of GPUs where its bytes pass, and of each way to sum over all GPUs what it takes, by size
    #[arg(long)]
    pub explain: bool,
    /// Say what families predict of network cards, and how far their models are from published figures; no card was used
    #[arg(long, conflicts_with_all = ["machine", "profile", "measure", "explain", "copy", "save", "html"])]
    pub predict: bool,
    /// Say what a copy of so many bytes takes, as in 200MiB, from GPU --from to GPUs --to
    #[arg(long, value_name = "BYTES", requires = "to")]
    pub copy: Option<String>,
    /// The GPU that --copy starts from
    #[arg(long, value_name = "GPU", default_value_t = 0, requires = "copy")]
    pub from: usize,
    /// The GPUs that --copy goes to
    #[arg(long, value_name = "GPU,..", value_delimiter = ',', requires = "copy")]
    pub to: Vec<usize>,
    /// Keep what was measured, for `bench --profile` and `tune --profile`
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    pub save: Option<PathBuf>,
    /// Write a report with drawings: one file, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Bytes of each transfer that is measured
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub bytes: String,
    /// Iterations of each measurement
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub iterations: u32,
    /// Seconds after which a wait for another rank ends the run [default: 5]
    #[arg(long, value_name = "SECONDS")]
    pub wait_budget: Option<f64>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// What to list: families with their fields, the built-in models, or the variants of a selection
    #[arg(value_enum, default_value_t = Listed::Families, value_name = "families|models|variants|targets")]
    #[arg(hide_possible_values = true)]
    pub what: Listed,
    #[command(flatten)]
    pub selection: Selection,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// What variants are chosen for [default: cuda:sm_90a]
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    #[command(flatten)]
    pub selection: Selection,
}

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listed {
    /// Families, with their fields.
    Families,
    /// The built-in model table.
    Models,
    /// The tuning space of a selection, or the default variants of the built-in catalogues.
    Variants,
    /// What kernels are emitted for, the least compilers, and the instructions that each target takes.
    Targets,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ToolchainArgs {
    /// Print what is found as lines that a shell evaluates: `eval "$(peerwarp toolchain --env)"`
    #[arg(long)]
    pub env: bool,
    /// What to do instead.
    #[command(subcommand)]
    pub command: Option<ToolchainCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ToolchainCommand {
    /// Install pinned compilers into the user's cache directory; needs python3, no root
    Install {
        /// What to install: `cuda` (NVRTC, nvcc, disassemblers), `hip` (zig), `nccl` (its headers) [default: all]
        #[arg(value_name = "SET")]
        sets: Vec<String>,
    },
}
