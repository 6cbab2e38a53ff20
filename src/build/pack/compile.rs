//! From emitted source to objects.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use peerwarp_codegen::family::Target;
use peerwarp_codegen::print::{self, FarEngine, Source, code};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::build::toolchain::{Found, Nvrtc, Tool, ToolError, bounded, find_for, write_lld};

use super::manifest::{Resources, Toolchain};
use super::usage;
use crate::build::digest::hex;

/// How long a compiler may take for a kernel: none has taken a minute.
const COMPILE: Duration = Duration::from_secs(1200);

/// The compilers for a target and what carries far channels, the best first.
pub(super) fn compilers_for(target: Target, far: FarEngine) -> &'static [Tool] {
    match (target, far) {
        // In process: no host compiler is needed, and nothing is started for each kernel.
        (Target::Cuda(_), FarEngine::Ring) => &[Tool::Nvrtc, Tool::Nvcc],
        // NVRTC has no headers of a host, which NCCL's include.
        (Target::Cuda(_), FarEngine::Gin) => &[Tool::Nvcc],
        (Target::Hip(_), FarEngine::Ring) => &[Tool::Clang, Tool::Zig, Tool::Hipcc],
        // No pinned package has RCCL's headers.
        (Target::Hip(_), FarEngine::Gin) => &[],
    }
}

/// Why a source could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler refuses it.
    #[error("{compiler} does not compile {entry} for {target}:\n{log}")]
    Refused {
        /// Name and version.
        compiler: String,
        /// The kernel.
        entry: String,
        /// What for.
        target: Target,
        /// What the compiler says.
        log: String,
    },
    /// It was compiled, but what it uses cannot be read.
    #[error("what {entry} uses on {target} cannot be told: {why}")]
    Usage {
        /// The kernel.
        entry: String,
        /// What for.
        target: Target,
        /// What is wrong.
        why: String,
    },
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// An object, and what its kernel uses.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    pub object: Vec<u8>,
    pub resources: Resources,
}

/// A compiler that is ready to compile for a target.
#[derive(Debug)]
pub(crate) struct Compiler {
    target: Target,
    toolchain: Toolchain,
    how: How,
    /// SHA-256 of includes that are not the compiler's.
    includes: String,
}

#[derive(Debug)]
enum How {
    Nvrtc(Nvrtc),
    /// A program, with options that hold paths, and the folder it works in.
    Program(PathBuf, Vec<OsString>, TempDir),
}

impl Compiler {
    /// The best compiler for a target that is there, out of `choice` if that isn't empty.
    pub fn find(target: Target, choice: &[Tool], far: FarEngine) -> Result<Compiler, CompilerError> {
        let all = compilers_for(target, far);
        if all.is_empty() {
            return Err(CompilerError::Gin { target });
        }
        let wanted: Vec<Tool> =
            all.iter().copied().filter(|t| choice.is_empty() || choice.contains(t)).collect();
        if wanted.is_empty() {
            return Err(CompilerError::Choice { target, choice: choice.to_vec(), all });
        }
        let mut missing = vec![];
        for tool in wanted {
            match find_for(tool, target) {
                Ok(found) => return Compiler::new(target, &found, far),
                Err(e) => missing.push(e),
            }
        }
        Err(CompilerError::None { target, missing })
    }

    fn new(target: Target, found: &Found, far: FarEngine) -> Result<Compiler, CompilerError> {
        let mut includes = String::new();
        let nccl = (far == FarEngine::Gin).then(|| find_for(Tool::Nccl, target)).transpose()?;
        let (how, version) = match found.tool {
            Tool::Nvrtc => {
                let nvrtc = Nvrtc::load_from(found)?;
                let version = nvrtc.version();
                (How::Nvrtc(nvrtc), version)
            }
            _ => {
                let dir = TempDir::new().map_err(CompilerError::Io)?;
                let mut paths = vec![];
                if let (Target::Hip(_), Tool::Clang | Tool::Zig) = (target, found.tool) {
                    let prelude = print::hip_prelude().map_err(|e| CompilerError::Prelude(e.to_string()))?;
                    includes = hex(&Sha256::digest(&prelude));
                    paths = own_includes(found, dir.path(), &prelude).map_err(CompilerError::Io)?;
                }
                paths.extend(nccl.iter().map(|nccl| option("-I", &nccl.path)));
                (How::Program(found.path.clone(), paths, dir), found.version)
            }
        };
        let options = options(found.tool, target).iter().map(|o| (*o).to_owned()).collect();
        let name = found.tool.name().to_owned();
        let nccl = nccl.map(|nccl| nccl.version.to_string());
        let toolchain = Toolchain { name, version: version.to_string(), options, nccl };
        Ok(Compiler { target, toolchain, how, includes })
    }

    /// What it compiles for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// What it is, for the manifest.
    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }

    /// SHA-256 of all that an object depends on.
    pub fn inputs(&self, source: &Source) -> String {
        let Toolchain { name, version, options, nccl } = &self.toolchain;
        let mut hash = Sha256::new();
        let (options, code) = (options.join("\n"), code(&source.text));
        for part in [name, version, &options, &self.includes, &source.entry, &code] {
            // With lengths, no two lists of parts are the same bytes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        nccl.iter().for_each(|nccl| hash.update(nccl));
        hex(&hash.finalize())
    }

    /// The object of a source that was emitted for this compiler's target.
    pub fn object(&self, source: &Source) -> Result<Vec<u8>, CompileError> {
        self.object_and_log(source).map(|(object, _)| object)
    }

    /// As [`Compiler::object`], with what its kernel uses.
    pub(super) fn compile(&self, source: &Source) -> Result<Compiled, CompileError> {
        let (object, log) = self.object_and_log(source)?;
        let resources = match self.target {
            Target::Cuda(_) => usage::from_ptxas(&log, &source.entry).and_then(|mut used| {
                // What is no ELF file, a program may have made that only stands in for the compiler: nothing to count.
                if object.starts_with(b"\x7fELF") {
                    usage::code_of_cubin(&object, &source.entry, &mut used)?;
                }
                Ok(used)
            }),
            Target::Hip(_) => usage::from_code_object(&object, &source.entry),
        };
        let usage = |why| CompileError::Usage { entry: source.entry.clone(), target: self.target, why };
        Ok(Compiled { object, resources: resources.map_err(usage)? })
    }

    fn object_and_log(&self, source: &Source) -> Result<(Vec<u8>, String), CompileError> {
        match &self.how {
            How::Nvrtc(nvrtc) => {
                let cubin = nvrtc
                    .compile(&source.file_name, &source.text, &self.toolchain.options)
                    .map_err(|e| self.refused(source, e.to_string()))?;
                Ok((cubin.bytes, cubin.log))
            }
            How::Program(program, paths, dir) => self.start(program, paths, dir.path(), source),
        }
    }

    /// Compiles in a folder of its own: the names of files then are the same every time, and so is the object.
    fn start(
        &self,
        program: &Path,
        paths: &[OsString],
        dir: &Path,
        source: &Source,
    ) -> Result<(Vec<u8>, String), CompileError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| CompileError::Io { path, source }
        };
        let work = TempDir::new_in(dir).map_err(io(dir))?;
        let path = work.path().join(&source.file_name);
        fs::write(&path, &source.text).map_err(io(&path))?;
        let mut command = Command::new(program);
        if self.toolchain.name == Tool::Zig.name() {
            command.arg("clang");
        }
        command.args(&self.toolchain.options).args(paths).args(["-o", "object", &source.file_name]);
        let out = bounded::output(command.current_dir(work.path()), COMPILE).map_err(io(program))?;
        let log = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        if !out.status.success() {
            return Err(self.refused(source, log.into_owned()));
        }
        let object = work.path().join("object");
        Ok((fs::read(&object).map_err(io(&object))?, log.into_owned()))
    }

    fn refused(&self, source: &Source, log: String) -> CompileError {
        let compiler = format!("{} {}", self.toolchain.name, self.toolchain.version);
        CompileError::Refused { compiler, entry: source.entry.clone(), target: self.target, log }
    }
}

/// Why there is no compiler.
#[derive(Debug, thiserror::Error)]
pub enum CompilerError {
    /// None is found; says how to get each.
    #[error("there is no compiler for {target}{}", listed(.missing))]
    None {
        /// What for.
        target: Target,
        /// Those that would do.
        missing: Vec<ToolError>,
    },
    /// None of those to choose from is for this target.
    #[error("there is no compiler for {target} among {}: {} would do", names(.choice), names(.all))]
    Choice {
        /// What for.
        target: Target,
        /// Those to choose from.
        choice: Vec<Tool>,
        /// All compilers that Peerwarp knows.
        all: &'static [Tool],
    },
    /// Kernels that put by GIN, for GPUs whose headers of it cannot be had.
    #[error(
        "--far = gin: packs for {target} cannot be made, as no package has RCCL's headers; `generate --far gin` writes the sources, or leave \
         --far out"
    )]
    Gin {
        /// What for.
        target: Target,
    },
    /// One is found and cannot be loaded.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// Peerwarp's own include file cannot be had.
    #[error("{0}")]
    Prelude(String),
    /// There is no temporary folder to work in.
    #[error("temporary folder: {0}")]
    Io(std::io::Error),
}

fn names(tools: &[Tool]) -> String {
    tools.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ")
}

fn listed(missing: &[ToolError]) -> String {
    missing.iter().map(|e| format!("\n  {e}")).collect()
}

/// Options that are the same on every machine.
fn options(tool: Tool, target: Target) -> Vec<String> {
    let arch = target.arch();
    let own = |list: &[&str]| list.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>();
    match tool {
        Tool::Nvrtc => {
            [own(&["--std=c++17", "--ptxas-options=-v"]), vec![format!("--gpu-architecture={arch}")]].concat()
        }
        Tool::Nvcc => {
            [own(&["-std=c++17", "-O3", "-cubin", "-Xptxas", "-v"]), vec![format!("-arch={arch}")]].concat()
        }
        _ => {
            // Without `-fuse-cuid=none` the object would hold a digest of paths.
            let mut all =
                own(&["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-fuse-cuid=none"]);
            all.push(format!("--offload-arch={arch}"));
            all.extend(own(&["-std=c++17", "-O3", "-Wall", "-Wno-unused-function"]));
            if tool != Tool::Hipcc {
                all.extend(own(&["-nogpuinc", "-nogpulib", "-fdeclspec"]));
            }
            all
        }
    }
}

/// An option with a path right behind it.
fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> Vec<u8> {
    let inner: Vec<&[u8]> = path.as_os_str().as_bytes().split(|&byte| byte == b'\'').collect();
    [&b"'"[..], &inner.join(&br"'\''"[..]), b"'"].concat()
}

/// Puts the stand-in for ROCm's header into `dir`, and for a zig that has none beside it the linker too. Returns the
/// options that name them.
fn own_includes(found: &Found, dir: &Path, prelude: &str) -> std::io::Result<Vec<OsString>> {
    let folder = dir.join("include/hip");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("hip_runtime.h"), prelude)?;
    let mut options = vec![option("-I", &dir.join("include"))];
    if found.tool == Tool::Zig && !found.path.with_file_name("lld").exists() {
        let folder = dir.join("bin");
        fs::create_dir_all(&folder)?;
        write_lld(&folder.join("lld"), &quoted(&found.path))?;
        options.push(option("-B", &folder));
    }
    Ok(options)
}
