//! Compiled kernels, and how they come to be at run time.

use std::sync::Arc;

use peerwarp_codegen::family::{DynKernel, Target};
use peerwarp_codegen::print::{
    ArgsLayout, EmitOptions, FarEngine, LaunchShape, Source, Timeline, WaitSite, code,
};

use super::RuntimeError;
use super::cache::{Cached, Ingredients, ModuleCache};
use super::cuda::Nvrtc;
use super::gpu::GpuInfo;
use super::nccl;
use crate::build::emit;
use crate::build::pack::{CompileError, Compiler};
use crate::build::toolchain::Found;

/// A compiled kernel, and what is needed to launch it.
#[derive(Clone, Debug)]
pub struct KernelImage {
    /// The variant's name.
    pub variant: String,
    /// What it was compiled for.
    pub target: Target,
    /// Name of the entry.
    pub entry: String,
    /// How to launch it.
    pub launch: LaunchShape,
    /// What to pass.
    pub args: ArgsLayout,
    /// The kernel's parameters, [in words](peerwarp_codegen::ir::Param::signature): a launch compares them with the variant's.
    pub params: Vec<String>,
    /// Names of its roles in the order of their numbers, for messages; empty if they are not known.
    pub roles: Vec<String>,
    /// The places of its waits, by number, for messages; empty if they are not known.
    pub waits: Vec<WaitSite>,
    /// What it records about itself, if it was emitted with a timeline.
    pub timeline: Option<Timeline>,
    /// Name and version of the compiler: `nvrtc 13.0`.
    pub compiler: String,
    /// The version of NCCL that it puts by, if it puts by NCCL's GIN: `2.32.3`.
    pub nccl: Option<String>,
    /// The compiled module.
    pub module: Vec<u8>,
}

impl KernelImage {
    /// Checks that a GPU's driver takes the module: a driver takes those of compilers up to its own major version of CUDA. Where the kernel
    /// puts by NCCL's GIN, checks that NCCL is of its version.
    pub(crate) fn serves(&self, gpu: &GpuInfo) -> Result<(), RuntimeError> {
        self.nccl.as_ref().map_or(Ok(()), |nccl| nccl::serves(&self.variant, nccl))?;
        let major = |text: &str| text.split_whitespace().last()?.split('.').next()?.parse::<u32>().ok();
        let (made, has) = (major(&self.compiler), major(&gpu.driver));
        if self.target.backend() != "cuda" || made.zip(has).is_none_or(|(made, has)| made <= has) {
            return Ok(());
        }
        let (variant, compiler) = (self.variant.clone(), self.compiler.clone());
        Err(RuntimeError::ModuleTooNew { variant, compiler, driver: gpu.driver.clone() })
    }
}

/// Where compiled kernels come from: [`Jit`], a [`Pack`](crate::build::pack::Pack), or [`PackImages`](super::PackImages).
///
/// # Safety
/// An image is what a compiler has made of the variant that was asked for, for the target that was asked for; it is launched, and
/// its arguments laid out, as it says.
pub unsafe trait Images {
    /// The compiled kernel of a variant for a target.
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError>;
}

/// Traces, emits and compiles when a kernel is asked for, and keeps what comes out on disk.
#[derive(Clone, Debug)]
pub struct Jit {
    with: With,
    cache: ModuleCache,
    timeline: Option<u32>,
}

/// What compiles.
#[derive(Clone, Debug)]
enum With {
    /// In this process, for any NVIDIA GPU.
    Nvrtc(Nvrtc),
    /// The compiler that packs for one AMD architecture are made with: clang, zig or hipcc.
    Hip(Arc<Compiler>),
}

impl Jit {
    /// For NVIDIA GPUs: with NVRTC as it is found on this machine, and modules kept in `cache`.
    ///
    /// # Errors
    /// NVRTC is not found, or cannot be used.
    pub fn new(cache: ModuleCache) -> Result<Jit, RuntimeError> {
        Ok(Jit { with: With::Nvrtc(Nvrtc::find()?), cache, timeline: None })
    }

    /// The same with an NVRTC that was found.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn with_nvrtc(found: &Found, cache: ModuleCache) -> Result<Jit, RuntimeError> {
        Ok(Jit { with: With::Nvrtc(Nvrtc::load_from(found)?), cache, timeline: None })
    }

    /// For GPUs that take this target: NVRTC for NVIDIA's; for AMD's clang, zig or hipcc, whichever is found first.
    ///
    /// # Errors
    /// No compiler for the target is found.
    pub fn for_target(target: Target, cache: ModuleCache) -> Result<Jit, RuntimeError> {
        match target {
            Target::Cuda(_) => Jit::new(cache),
            Target::Hip(_) => {
                let compiler = Arc::new(Compiler::find(target, &[], FarEngine::Ring)?);
                Ok(Jit { with: With::Hip(compiler), cache, timeline: None })
            }
        }
    }

    /// The same for kernels that record a timeline, with room for `slots` records of each warp.
    #[must_use]
    pub fn with_timeline(mut self, slots: u32) -> Jit {
        self.timeline = Some(slots);
        self
    }

    /// Name and version of the compiler: `nvrtc 13.0`.
    pub fn version(&self) -> String {
        match &self.with {
            With::Nvrtc(nvrtc) => nvrtc.version(),
            With::Hip(compiler) => format!("{} {}", compiler.toolchain().name, compiler.toolchain().version),
        }
    }

    /// As [`Images::image`], and what the cache did for it.
    ///
    /// # Errors
    /// The kernel cannot be traced or compiled, or the target is not one of this compiler's.
    pub fn compile(
        &self,
        variant: &dyn DynKernel,
        target: Target,
    ) -> Result<(KernelImage, Cached), RuntimeError> {
        self.with.serves(target)?;
        let kernel = emit::trace(variant, target.warp_size())?;
        let options = EmitOptions { timeline: self.timeline, ..EmitOptions::default() };
        let source = emit::with_options("peerwarp", &kernel, target, &options)?;
        let (options, toolchain) = (self.with.options(target), self.with.identity(&source));
        let code = code(&source.text);
        let of = Ingredients { source: &code, options: &options, toolchain: &toolchain, arch: target.arch() };
        let (module, cached) = self.cache.get(&of, || self.with.compile(&source, target))?;
        let roles = kernel.roles.iter().map(|role| role.name.clone()).collect();
        let (variant, entry, launch, args) =
            (kernel.into_kernel().variant, source.entry, source.launch, source.args);
        let Source { timeline, params, waits, .. } = source;
        let compiler = self.version();
        let image = KernelImage {
            variant,
            target,
            entry,
            launch,
            args,
            params,
            roles,
            waits,
            timeline,
            compiler,
            nccl: None,
            module,
        };
        Ok((image, cached))
    }
}

impl With {
    fn serves(&self, target: Target) -> Result<(), RuntimeError> {
        let allowed = match self {
            With::Nvrtc(_) if matches!(target, Target::Cuda(_)) => return Ok(()),
            With::Nvrtc(_) => "a CUDA target: NVRTC compiles for NVIDIA GPUs".into(),
            With::Hip(compiler) if compiler.target() == target => return Ok(()),
            With::Hip(compiler) => format!("{}, which this compiler is for", compiler.target()),
        };
        Err(RuntimeError::invalid("target", target, allowed))
    }

    fn options(&self, target: Target) -> Vec<String> {
        match self {
            With::Nvrtc(nvrtc) => nvrtc.options(target.arch()),
            With::Hip(compiler) => compiler.toolchain().options.clone(),
        }
    }

    /// What a module depends on beside source, options and architecture.
    fn identity(&self, source: &Source) -> String {
        match self {
            With::Nvrtc(nvrtc) => nvrtc.identity(),
            // A digest of the compiler, its includes and the source.
            With::Hip(compiler) => compiler.inputs(source),
        }
    }

    fn compile(&self, source: &Source, target: Target) -> Result<Vec<u8>, RuntimeError> {
        match self {
            With::Nvrtc(nvrtc) => nvrtc.compile(&source.entry, &source.text, target.arch()),
            With::Hip(compiler) => compiler.object(source).map_err(|e| {
                let log = match e {
                    CompileError::Refused { log, .. } => log,
                    other => other.to_string(),
                };
                RuntimeError::Compile { variant: source.entry.clone(), arch: target.arch().into(), log }
            }),
        }
    }
}

// SAFETY: the compiler's module, with the arguments of the source that it was given.
unsafe impl Images for Jit {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
        self.compile(variant, target).map(|(image, _)| image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::trace::sync::ClockSync;
    use peerwarp_codegen::family::{CudaArch, Family, HipArch};

    #[test]
    fn kernels_are_compiled_once_and_then_found() {
        let folder = tempfile::tempdir().unwrap();
        let jit = match Jit::new(ModuleCache::new(folder.path())) {
            Ok(jit) => jit,
            Err(why) if std::env::var_os("CI").is_none() => return eprintln!("skipped: {why}"),
            Err(why) => panic!("{why}"),
        };
        let target = Target::Cuda(CudaArch::Sm90a);
        let [few, many] = [4, 8].map(|rounds| ClockSync { ranks: 2, rounds }.into_variant());
        for variant in [&few, &many] {
            let (image, cached) = jit.compile(&**variant, target).unwrap();
            assert_eq!((&image.variant, cached), (&variant.variant_name(), Cached::Miss));
            assert_eq!(&image.module[..4], b"\x7fELF");
            assert_eq!(image.args.fields.len(), variant.params().len() + 3);
            let (again, cached) = jit.compile(&**variant, target).unwrap();
            assert_eq!((again.module == image.module, cached), (true, Cached::Hit));
            assert_eq!(image.roles, ["clock"]);
        }
        let hip = jit.compile(&*few, Target::Hip(HipArch::Gfx942));
        assert!(hip.unwrap_err().to_string().contains("NVRTC compiles for NVIDIA GPUs"));
    }

    #[test]
    fn amd_kernels_are_compiled_by_what_makes_packs() {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::Hip(HipArch::Gfx942);
        let jit = match Jit::for_target(target, ModuleCache::new(folder.path())) {
            Ok(jit) => jit.with_timeline(8),
            Err(why) => {
                let why = why.to_string();
                assert!(
                    why.starts_with("there is no compiler for hip:gfx942") && why.contains("zig"),
                    "{why}"
                );
                assert!(std::env::var_os("CI").is_none(), "{why}");
                return eprintln!("skipped: {why}");
            }
        };
        let variant = ClockSync { ranks: 2, rounds: 4 }.into_variant();
        let (image, cached) = jit.compile(&*variant, target).unwrap();
        assert_eq!((&image.module[..4], cached), (&b"\x7fELF"[..], Cached::Miss));
        assert!(image.timeline.is_some() && image.args.fields.iter().any(|f| f.name == "timeline"));
        assert_eq!(jit.compile(&*variant, target).unwrap().1, Cached::Hit);
        let other = jit.compile(&*variant, Target::Hip(HipArch::Gfx90a)).unwrap_err().to_string();
        assert_eq!(other, "target = hip:gfx90a: hip:gfx942, which this compiler is for");
    }
}
