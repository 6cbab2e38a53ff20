//! Compiled kernels, and how they come to be at run time.

use peerwarp_codegen::family::{DynConfig, Target};
use peerwarp_codegen::print::{ArgsLayout, LaunchShape, Timeline};

use super::RuntimeError;
use super::cache::{Cached, Ingredients, ModuleCache};
use super::cuda::Nvrtc;
use crate::build::emit;

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
    /// Names of its roles in the order of their numbers, for messages; empty if they are not known.
    pub roles: Vec<String>,
    /// What it records about itself, if it was emitted with a timeline.
    pub timeline: Option<Timeline>,
    /// The compiled module.
    pub module: Vec<u8>,
}

/// Where compiled kernels come from: [`Jit`], a [`Pack`](crate::build::pack::Pack), or [`PackImages`](super::PackImages).
///
/// # Safety
/// An image is what a compiler has made of the variant that was asked for, for the target that was asked for; it is launched, and
/// its arguments laid out, as it says.
pub unsafe trait Images {
    /// The compiled kernel of a variant for a target.
    fn image(&self, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, RuntimeError>;
}

/// Traces, emits and compiles when a kernel is asked for, and keeps what comes out on disk.
#[derive(Clone, Debug)]
pub struct Jit {
    nvrtc: Nvrtc,
    cache: ModuleCache,
    timeline: Option<u32>,
}

impl Jit {
    /// With NVRTC as it is found on this machine, and modules kept in `cache`.
    pub fn new(cache: ModuleCache) -> Result<Jit, RuntimeError> {
        Ok(Jit { nvrtc: Nvrtc::find()?, cache, timeline: None })
    }

    /// The same for kernels that record a timeline, with room for `slots` records of each warp.
    #[must_use]
    pub fn with_timeline(mut self, slots: u32) -> Jit {
        self.timeline = Some(slots);
        self
    }

    /// As [`Images::image`], and what the cache did for it.
    pub fn compile(
        &self,
        variant: &dyn DynConfig,
        target: Target,
    ) -> Result<(KernelImage, Cached), RuntimeError> {
        let Target::Cuda(_) = target else {
            let allowed = "a CUDA target: HIP kernels come from a pack";
            return Err(RuntimeError::invalid("target", target, allowed));
        };
        let kernel = emit::trace(variant, target.warp_size())?;
        // The program's name stands in the banner only, and must not make a difference to the cache.
        let source = emit::with_options("peerwarp", &kernel, target, self.timeline)?;
        let arch = target.arch();
        let (options, toolchain) = (self.nvrtc.options(arch), self.nvrtc.identity());
        let of = Ingredients { source: &source.text, options: &options, toolchain: &toolchain, arch };
        let build = || self.nvrtc.compile(&source.entry, &source.text, arch);
        let (module, cached) = self.cache.get(&of, build)?;
        let roles = kernel.roles.iter().map(|role| role.name.clone()).collect();
        let (variant, entry, launch, args) =
            (kernel.into_kernel().variant, source.entry, source.launch, source.args);
        let timeline = source.timeline;
        Ok((KernelImage { variant, target, entry, launch, args, roles, timeline, module }, cached))
    }
}

// SAFETY: the compiler's module, with the arguments of the source that it was given.
unsafe impl Images for Jit {
    fn image(&self, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, RuntimeError> {
        self.compile(variant, target).map(|(image, _)| image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::run::MoeTuning;
    use crate::families::moe::{MoeShape, RowDtype};
    use peerwarp_codegen::family::{CudaArch, Family, HipArch};

    #[test]
    fn kernels_are_compiled_once_and_then_found() {
        let folder = tempfile::tempdir().unwrap();
        let jit = match Jit::new(ModuleCache::new(folder.path())) {
            Ok(jit) => jit,
            Err(why) if std::env::var_os("CI").is_none() => return eprintln!("skipped: {why}"),
            Err(why) => panic!("{why}"),
        };
        let shape = MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };
        let tuning = MoeTuning::defaults(&shape).unwrap();
        let target = Target::Cuda(CudaArch::Sm90a);
        for variant in [tuning.dispatch.clone().into_variant(), tuning.combine.into_variant()] {
            let (image, cached) = jit.compile(&*variant, target).unwrap();
            assert_eq!((&image.variant, cached), (&variant.variant_name(), Cached::Miss));
            assert_eq!(&image.module[..4], b"\x7fELF");
            assert_eq!(image.args.fields.len(), variant.params().len() + 3);
            let (again, cached) = jit.compile(&*variant, target).unwrap();
            assert_eq!((again.module == image.module, cached), (true, Cached::Hit));
            assert!(image.roles.contains(&"recv".to_owned()), "{:?}", image.roles);
        }
        let hip = jit.compile(&*tuning.dispatch.into_variant(), Target::Hip(HipArch::Gfx942));
        assert!(hip.unwrap_err().to_string().contains("HIP kernels come from a pack"));
    }
}
