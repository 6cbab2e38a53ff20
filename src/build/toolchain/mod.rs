//! The compilers and disassemblers that emitted source goes through: where they are, what they serve for, and how to
//! get them.
//!
//! [`find`] looks for a tool in three places, in this order: the environment variable of its own ([`Tool::variable`]),
//! the folder that `peerwarp toolchain install` fills ([`install`]), and where CUDA, ROCm and the system keep theirs
//! (`CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`; `ROCM_PATH`, `/opt/rocm`; `PATH`). Relative paths are not used, nor an installed
//! tool that another user owns or can write. What it returns has been started
//! once and is recent enough; what it cannot find comes as an error that says what to install.
//!
//! ```
//! use peerwarp::build::toolchain::{self, Tool};
//!
//! match toolchain::find(Tool::Nvrtc) {
//!     Ok(nvrtc) => println!("NVRTC {} in {}", nvrtc.version, nvrtc.path.display()),
//!     Err(missing) => println!("{missing}"),
//! }
//! ```

pub(crate) mod bounded;
mod error;
mod install;
mod nvrtc;
mod search;
mod version;

use std::path::{Path, PathBuf};

use peerwarp_codegen::family::{CudaArch, HipArch, Target};
use serde::{Deserialize, Serialize, Serializer};

pub use error::{InstallError, ToolError};
pub(crate) use install::write_lld;
pub use install::{Installed, Set, Wheel, install, sets};
pub use nvrtc::{Cubin, Nvrtc, NvrtcError};
pub use version::Version;

use search::Search;

/// Something that emitted source goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// NVIDIA's compiler as a library; its path is the folder that holds `libnvrtc.so`.
    Nvrtc,
    /// NVIDIA's compiler as a program; it needs a host compiler beside it.
    Nvcc,
    /// NVIDIA's assembler.
    Ptxas,
    /// Shows what a cubin holds.
    Cuobjdump,
    /// NVIDIA's disassembler.
    Nvdisasm,
    /// AMD's compiler, of ROCm.
    Hipcc,
    /// A clang++ with the AMDGPU back end, and its lld.
    Clang,
    /// Zig, whose `zig clang` has the AMDGPU back end.
    Zig,
    /// LLVM's disassembler, `llvm-objdump`.
    Objdump,
    /// LLVM's reader of ELF files, `llvm-readelf`.
    Readelf,
    /// The headers of NCCL, for kernels that put by its GIN; its path is the folder that holds `nccl_device.h`.
    Nccl,
}

impl Tool {
    /// All of them, NVIDIA's first.
    pub const ALL: [Tool; 11] = [
        Tool::Nvrtc,
        Tool::Nvcc,
        Tool::Ptxas,
        Tool::Cuobjdump,
        Tool::Nvdisasm,
        Tool::Hipcc,
        Tool::Clang,
        Tool::Zig,
        Tool::Objdump,
        Tool::Readelf,
        Tool::Nccl,
    ];

    /// What it is called, and the environment variable that names it.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Tool::Nvrtc => ("nvrtc", "PEERWARP_NVRTC"),
            Tool::Nvcc => ("nvcc", "PEERWARP_NVCC"),
            Tool::Ptxas => ("ptxas", "PEERWARP_PTXAS"),
            Tool::Cuobjdump => ("cuobjdump", "PEERWARP_CUOBJDUMP"),
            Tool::Nvdisasm => ("nvdisasm", "PEERWARP_NVDISASM"),
            Tool::Hipcc => ("hipcc", "PEERWARP_HIPCC"),
            Tool::Clang => ("clang", "PEERWARP_CLANG"),
            Tool::Zig => ("zig", "PEERWARP_ZIG"),
            Tool::Objdump => ("llvm-objdump", "PEERWARP_OBJDUMP"),
            Tool::Readelf => ("llvm-readelf", "PEERWARP_READELF"),
            Tool::Nccl => ("nccl", "PEERWARP_NCCL"),
        }
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// The environment variable that names it, by an absolute path: that of the program, or for NVRTC and NCCL of the folder.
    pub const fn variable(self) -> &'static str {
        self.names().1
    }

    /// Whether its path is that of a folder.
    const fn is_folder(self) -> bool {
        matches!(self, Tool::Nvrtc | Tool::Nccl)
    }

    /// How to get it.
    pub const fn advice(self) -> &'static str {
        match self {
            Tool::Nvrtc | Tool::Nvcc | Tool::Ptxas | Tool::Cuobjdump | Tool::Nvdisasm => {
                "`peerwarp toolchain install cuda` installs it"
            }
            Tool::Hipcc => "it comes with ROCm; without ROCm clang or zig does its work",
            Tool::Clang => "install clang 18 or newer and its lld (Debian: clang-19 lld-19), or use zig",
            Tool::Zig => "`peerwarp toolchain install hip` installs it",
            Tool::Objdump | Tool::Readelf => "install LLVM's tools, 18 or newer (Debian: llvm-19)",
            Tool::Nccl => "`peerwarp toolchain install nccl` installs it",
        }
    }

    /// The oldest version that compiles or reads what is emitted for a target; `None` if none does.
    pub const fn oldest_for(self, target: Target) -> Option<Version> {
        match (self, target) {
            (
                Tool::Nvrtc | Tool::Nvcc | Tool::Ptxas | Tool::Cuobjdump | Tool::Nvdisasm,
                Target::Cuda(arch),
            ) => Some(match arch {
                CudaArch::Sm80 | CudaArch::Sm86 | CudaArch::Sm87 | CudaArch::Sm89 => Version::new(12, 4),
                CudaArch::Sm90 | CudaArch::Sm90a => Version::new(12, 4),
                CudaArch::Sm100 | CudaArch::Sm100a => Version::new(12, 8),
                CudaArch::Sm120 | CudaArch::Sm120a => Version::new(12, 8),
                // PTX ISA 8.8 and 9.0.
                CudaArch::Sm103a | CudaArch::Sm121a => Version::new(12, 9),
                CudaArch::Sm110a => Version::new(13, 0),
            }),
            // Its GIN has puts that EFA carries, too.
            (Tool::Nccl, Target::Cuda(_)) => Some(Version::new(2, 32)),
            (Tool::Clang | Tool::Objdump | Tool::Readelf, Target::Hip(arch)) => Some(match arch {
                HipArch::Gfx90a | HipArch::Gfx942 => Version::new(18, 0),
                HipArch::Gfx950 => Version::new(20, 0),
                HipArch::Gfx1250 => Version::new(22, 0),
            }),
            // Zig 0.13 brings clang 18, 0.15 brings clang 20, and 0.17 brings clang 22.
            (Tool::Zig, Target::Hip(arch)) => Some(match arch {
                HipArch::Gfx90a | HipArch::Gfx942 => Version::new(0, 13),
                HipArch::Gfx950 => Version::new(0, 15),
                HipArch::Gfx1250 => Version::new(0, 17),
            }),
            (Tool::Hipcc, Target::Hip(arch)) => Some(match arch {
                HipArch::Gfx90a | HipArch::Gfx942 => Version::new(6, 0),
                HipArch::Gfx950 => Version::new(7, 0),
                HipArch::Gfx1250 => Version::new(7, 2),
            }),
            _ => None,
        }
    }

    /// Whether some version of it serves for a target.
    pub const fn is_for(self, target: Target) -> bool {
        self.oldest_for(target).is_some()
    }
}

/// Where a tool was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Its environment variable names it.
    Variable,
    /// `peerwarp toolchain install` installed it.
    Installed,
    /// It belongs to the system: CUDA, ROCm, or a folder in `PATH`.
    System,
}

/// A tool that was found, and could be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Which.
    pub tool: Tool,
    /// The program; for NVRTC the folder that holds the library, for NCCL that of the headers.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
    /// Where it was found.
    pub origin: Origin,
    /// The folder of CUDA's headers, which NVRTC must be given; `None` for all others.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text_if_any")]
    pub include: Option<PathBuf>,
}

/// A path in formats that have nothing but text: what is not UTF-8 of it reads as U+FFFD.
fn as_text<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&path.to_string_lossy())
}

fn as_text_if_any<S: Serializer>(path: &Option<PathBuf>, s: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => as_text(path, s),
        None => s.serialize_none(),
    }
}

impl Found {
    /// Whether it compiles or reads what is emitted for a target.
    pub fn serves(&self, target: Target) -> bool {
        self.tool.oldest_for(target).is_some_and(|oldest| self.version >= oldest)
    }

    /// The targets that it serves for.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        Target::all().filter(|t| self.serves(*t))
    }
}

/// Looks for a tool; see the module's documentation for where.
///
/// # Errors
/// The tool is nowhere, its variable names something else, or what is there does not work or is too old.
pub fn find(tool: Tool) -> Result<Found, ToolError> {
    Search::here().find(tool)
}

/// [`find`], in these folders before anywhere but where the tool's variable says: for NVRTC as a Python package brings it.
///
/// # Errors
/// As [`find`].
pub fn find_in(tool: Tool, folders: &[PathBuf]) -> Result<Found, ToolError> {
    Search::here().first_in(folders).find(tool)
}

/// Looks for a tool that serves for a target. A tool that is there but too old for it is an error that says so.
///
/// # Errors
/// As [`find`], or [`ToolError::TooOld`].
pub fn find_for(tool: Tool, target: Target) -> Result<Found, ToolError> {
    let found = find(tool)?;
    match tool.oldest_for(target) {
        Some(oldest) if found.version >= oldest => Ok(found),
        oldest => Err(ToolError::too_old(&found, target, oldest)),
    }
}

/// The folder that `peerwarp toolchain install` fills: `peerwarp/toolchain` in the user's cache directory. `None` if
/// neither `XDG_CACHE_HOME` nor `HOME` is an absolute path.
pub fn cache_dir() -> Option<PathBuf> {
    Search::here().cache()
}
