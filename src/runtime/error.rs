//! What can go wrong between a host program and its GPUs.

use std::path::PathBuf;
use std::time::Duration;

use peerwarp_codegen::threads::ThreadsRefused;

use super::status::Aborted;

/// Why the runtime cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A driver or a library is not there.
    #[error("{what} was not found: {install}")]
    NotInstalled {
        /// What was looked for.
        what: String,
        /// What to install, or which variable names the place where it is.
        install: String,
    },
    /// A driver's library is there, and lacks a call.
    #[error("{library} lacks the call `{call}`: {install}")]
    MissingCall {
        /// The library.
        library: &'static str,
        /// The call.
        call: &'static str,
        /// What to install.
        install: &'static str,
    },
    /// What carries far channels cannot be had.
    #[error("far channels: {reason}")]
    Fabric {
        /// The words of the engine.
        reason: String,
    },
    /// The far channels of an operation's launches are together more than an engine's commands can name.
    #[error(
        "far channels of {launches}: {sum} {what} together, of at most {most} an operation; give some launches an operation of their own"
    )]
    FarLimit {
        /// Of what there is too much.
        what: &'static str,
        /// How much its launches have.
        sum: u64,
        /// The most that an operation may have.
        most: u64,
        /// The launches with far channels, by their labels.
        launches: String,
    },
    /// What a kernel recorded cannot be read.
    #[error(transparent)]
    Timeline(#[from] super::recording::TimelineError),
    /// The system starts no thread.
    #[error(transparent)]
    Threads(#[from] ThreadsRefused),
    /// A compiler is missing or cannot be used.
    #[error(transparent)]
    Tool(#[from] crate::build::toolchain::ToolError),
    /// There is no compiler for a target.
    #[error(transparent)]
    Compiler(#[from] crate::build::pack::CompilerError),
    /// The driver is there and too old.
    #[error("the driver supports {found} and {needed} is needed: install {install}")]
    DriverTooOld {
        /// What the driver says it supports.
        found: String,
        /// The oldest that will do.
        needed: String,
        /// What to install.
        install: String,
    },
    /// A driver is older than the compiler of a module.
    #[error(
        "{variant} was compiled by {compiler}, and the driver is of {driver}: install a newer driver, or compile with an NVRTC of the \
         driver's version (PEERWARP_NVRTC names its folder)"
    )]
    ModuleTooNew {
        /// The kernel.
        variant: String,
        /// What has compiled it.
        compiler: String,
        /// The newest version of CUDA that the driver knows.
        driver: String,
    },
    /// NCCL is of another version than a kernel that puts by its GIN.
    #[error(
        "{variant} was compiled for the GIN of NCCL {compiled}, and libnccl is {found}: let LD_LIBRARY_PATH lead to NCCL {compiled}, or \
         compile with the headers of {found} (PEERWARP_NCCL names their folder)"
    )]
    NcclVersion {
        /// The kernel.
        variant: String,
        /// The version of the headers that it was compiled with.
        compiled: String,
        /// The version of the library.
        found: String,
    },
    /// A kernel puts by NCCL's GIN, and there is no NCCL.
    #[error(
        "{variant} was compiled for the GIN of NCCL {compiled}, which cannot be loaded: {why}; let LD_LIBRARY_PATH lead to it"
    )]
    NoNccl {
        /// The kernel.
        variant: String,
        /// The version of the headers that it was compiled with.
        compiled: String,
        /// What is wrong.
        why: String,
    },
    /// There are fewer GPUs than ranks that need one.
    #[error("{needed} {backend} GPUs are needed and {found} can be seen{}{}", hidden_by(.backend), simulated(*.found))]
    TooFewGpus {
        /// `cuda` or `hip`.
        backend: &'static str,
        /// GPUs that the driver shows.
        found: u32,
        /// GPUs that are needed.
        needed: u32,
    },
    /// There are no GPUs of any vendor.
    #[error("no GPU can be used\n  NVIDIA: {cuda}\n  AMD: {hip}")]
    NoGpus {
        /// Why there are none of NVIDIA's.
        cuda: Box<RuntimeError>,
        /// Why there are none of AMD's.
        hip: Box<RuntimeError>,
    },
    /// A call of the driver failed.
    #[error("{call}{} failed: {reason}", on(.gpu))]
    Driver {
        /// Its name.
        call: &'static str,
        /// The GPU it was for.
        gpu: Option<u32>,
        /// The driver's words and number, and what to do.
        reason: String,
    },
    /// Two GPUs cannot reach each other's memory.
    #[error(
        "GPU {from} cannot reach the memory of GPU {to}: ranks need GPUs linked by NVLink, xGMI or PCIe peer access \
         (`peerwarp topo` shows which are){}",
        instead(.together)
    )]
    NoPeerAccess {
        /// The GPU that is to read and write.
        from: u32,
        /// The GPU whose memory it is.
        to: u32,
        /// The most GPUs of the world that all reach each other; none if that is not known.
        together: Vec<u32>,
    },
    /// GPUs of a world are of different architectures.
    #[error(
        "GPU {gpu} of rank {rank} is {name} ({arch}), and that of rank 0 is {first_name} ({first_arch}): the kernels of a world \
         are compiled for one architecture{}",
        instead(.together)
    )]
    MixedGpus {
        /// A rank whose GPU is not as that of rank 0.
        rank: u32,
        /// Its GPU.
        gpu: u32,
        /// The GPU's name.
        name: String,
        /// Its architecture.
        arch: &'static str,
        /// The name of rank 0's GPU.
        first_name: String,
        /// Its architecture.
        first_arch: &'static str,
        /// The most GPUs of the world that are alike and reach each other.
        together: Vec<u32>,
    },
    /// The emitted source does not compile.
    #[error("{variant} does not compile for {arch}:\n{log}")]
    Compile {
        /// The variant.
        variant: String,
        /// Architecture that it was compiled for.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// The architecture of a GPU is not one that sources are emitted for.
    #[error("GPU {gpu} ({name}) is {arch}, which is not supported: {allowed}")]
    Unsupported {
        /// The GPU.
        gpu: u32,
        /// Its name.
        name: String,
        /// Its architecture.
        arch: String,
        /// What is.
        allowed: String,
    },
    /// A kernel reaches the memory of all ranks at once, and no pointer does.
    #[error(
        "{kernel} reaches `{buffer}` of all ranks at once, and this world has no multicast memory: use a variant without multimem"
    )]
    NoMulticast {
        /// The variant.
        kernel: String,
        /// The first parameter that it reaches so.
        buffer: String,
    },
    /// Blocks that wait for each other would not all be resident.
    #[error(
        "{kernel} needs {blocks} blocks resident at once and GPU {gpu} holds {resident} ({per_sm} on each of {sms} \
         SMs): use a variant with fewer blocks"
    )]
    NotResident {
        /// The variant.
        kernel: String,
        /// Blocks of its grid.
        blocks: u32,
        /// The GPU.
        gpu: u32,
        /// Blocks that fit on it.
        resident: u32,
        /// Blocks that fit on an SM.
        per_sm: u32,
        /// SMs.
        sms: u32,
    },
    /// Blocks that wait for each other would not all be resident, as several launches share a GPU.
    #[error(
        "{launches} launches may be under way on GPU {gpu}, which holds {fit} blocks for each ({narrowest} leaves room for {per_sm} on \
         each of {sms} SMs), and {kernel} needs {blocks} resident at once: use variants with fewer blocks or threads, or have fewer \
         ranks a GPU or launches at once"
    )]
    NotResidentTogether {
        /// The variant with the most blocks of those that are loaded.
        kernel: String,
        /// Blocks of its grid.
        blocks: u32,
        /// The GPU.
        gpu: u32,
        /// Launches on it: of all its ranks, and of each as many as may be under way.
        launches: u32,
        /// Blocks that fit for each of them.
        fit: u32,
        /// The variant of which the fewest blocks fit on an SM.
        narrowest: String,
        /// How many of it do.
        per_sm: u32,
        /// SMs.
        sms: u32,
    },
    /// What is passed to a kernel does not fit its argument struct.
    #[error("argument `{field}` of {kernel}: {problem}")]
    Argument {
        /// The variant.
        kernel: String,
        /// Member of the struct.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// A value outside what is allowed.
    #[error("{field} = {value}: {allowed}")]
    Invalid {
        /// The setting, variable or parameter.
        field: String,
        /// What it was.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A kernel's source cannot be had.
    #[error(transparent)]
    Emit(#[from] crate::build::emit::EmitError),
    /// The file system refused.
    #[error("{}: {reason}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Ranks would launch different kernels for one operation.
    #[error(
        "{launch} of rank {rank} is {variant}, and {first} on rank 0: all ranks run the same variants; give them one version of the \
         program, one kind of GPUs and driver, and the same tables of tuned variants"
    )]
    OtherVariant {
        /// The launch, by its label.
        launch: String,
        /// A rank that does not have the variant of rank 0.
        rank: u32,
        /// Its variant.
        variant: String,
        /// The variant of rank 0.
        first: String,
    },
    /// Ranks did not come together, or one of them is gone.
    #[error(transparent)]
    Form(#[from] super::net::FormError),
    /// Ranks on nodes that make no world.
    #[error(transparent)]
    Teams(#[from] super::net::TeamsError),
    /// A wait on a GPU ran out of time, here or on another rank.
    #[error(transparent)]
    Aborted(Box<Aborted>),
    /// An earlier error left the world in a state in which nothing may be launched.
    #[error("the world was aborted before and has not been reset: {first}")]
    Poisoned {
        /// The error that did it.
        first: String,
    },
    /// The world goes on without this rank.
    #[error("the world goes on without rank {rank}, which launches nothing any more")]
    Inactive {
        /// The rank.
        rank: u32,
    },
    /// A GPU did not finish in time, and no kernel said why.
    #[error("GPU {gpu} of rank {rank} is still busy after {waited:?}")]
    Busy {
        /// The rank.
        rank: u32,
        /// Its GPU.
        gpu: u32,
        /// How long it was waited for.
        waited: Duration,
    },
}

impl RuntimeError {
    /// A [`RuntimeError::Invalid`].
    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> RuntimeError {
        RuntimeError::Invalid { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }
}

impl RuntimeError {
    /// Whether this process has no GPU that it can use.
    pub fn is_no_gpu(&self) -> bool {
        matches!(
            self,
            RuntimeError::NotInstalled { .. }
                | RuntimeError::MissingCall { .. }
                | RuntimeError::DriverTooOld { .. }
                | RuntimeError::TooFewGpus { .. }
                | RuntimeError::NoGpus { .. }
        )
    }
}

fn on(gpu: &Option<u32>) -> String {
    gpu.map_or_else(String::new, |gpu| format!(" on GPU {gpu}"))
}

/// Which GPUs do make a world.
fn instead(together: &[u32]) -> String {
    let list: Vec<String> = together.iter().map(u32::to_string).collect();
    match list.len() {
        0 => String::new(),
        1 => "; no two of these GPUs make a world, the simulator needs none (`run --backend sim`)".into(),
        n => format!(
            "; {n} ranks can have GPUs {} (CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES chooses them)",
            list.join(",")
        ),
    }
}

/// What can be done with fewer GPUs than ranks.
fn simulated(found: u32) -> String {
    let fewer = if found >= 2 { format!("use {found} ranks at most, or ") } else { String::new() };
    format!("; {fewer}the simulator, which takes any number of ranks (`run --backend sim`)")
}

fn hidden_by(backend: &str) -> &'static str {
    match backend {
        "hip" => "; HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES hide some if they are set",
        _ => "; CUDA_VISIBLE_DEVICES hides some if it is set",
    }
}
