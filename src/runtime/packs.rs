//! Packs as a source of kernels for the runtime.

use peerwarp_codegen::family::{DynConfig, Target};

use super::RuntimeError;
use super::image::{Images, Jit, KernelImage};
use crate::input::nearest;

use crate::build::pack::Pack;

// SAFETY: objects and manifest are as `peerwarp pack` has written them: their hashes are compared when the pack is opened.
unsafe impl Images for Pack {
    fn image(&self, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, RuntimeError> {
        let name = variant.variant_name();
        let kernel = self.find(&name, target).ok_or_else(|| self.absent(&name, target))?;
        let entry = kernel.entry;
        Ok(KernelImage {
            variant: name,
            target,
            entry: entry.entry.clone(),
            launch: entry.launch,
            args: entry.args.clone(),
            params: entry.params.clone(),
            roles: entry.roles.clone(),
            timeline: entry.timeline.clone(),
            module: kernel.object.to_vec(),
        })
    }
}

/// Compiled kernels out of a pack, and what is not in it compiled when it is needed, if that can be.
#[derive(Debug)]
pub struct PackImages<'a> {
    /// The pack.
    pub pack: &'a Pack,
    /// The compiler for the rest.
    pub jit: Option<Jit>,
}

// SAFETY: one of the two above.
unsafe impl Images for PackImages<'_> {
    fn image(&self, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, RuntimeError> {
        match &self.jit {
            Some(jit) if self.pack.find(&variant.variant_name(), target).is_none() => {
                jit.image(variant, target)
            }
            _ => self.pack.image(variant, target),
        }
    }
}

impl Pack {
    /// The error for a variant that is not in the pack, with those that are nearest.
    fn absent(&self, variant: &str, target: Target) -> RuntimeError {
        let known: Vec<&str> =
            self.kernels().filter(|k| k.entry.target == target).map(|k| k.entry.variant.as_str()).collect();
        let near = nearest(variant, &known);
        let allowed = match (known.len(), near.as_slice()) {
            (0, _) => {
                let targets: Vec<String> = self.targets().iter().map(ToString::to_string).collect();
                format!("the pack has nothing for {target}, only for {}", targets.join(", "))
            }
            (n, []) => format!("not among the pack's {n} kernels for {target}"),
            (n, near) => {
                format!("not among the pack's {n} kernels for {target}; near it: {}", near.join(", "))
            }
        };
        RuntimeError::invalid("variant", variant, allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::kernels::Dispatch;
    use peerwarp_codegen::family::Family;

    #[test]
    fn a_kernel_that_is_absent_is_told_with_what_is_there() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pack");
        let pack = Pack::open(&folder).unwrap();
        let settings = [
            ("hidden", "64"),
            ("experts", "8"),
            ("topk", "2"),
            ("tokens", "4"),
            ("ranks", "2"),
            ("dtype", "bf16"),
        ];
        let more = [("hook", "raw"), ("layout", "expert-major"), ("phase", "both")];
        let variant = Dispatch::from_settings(&[&settings[..], &more].concat()).unwrap().into_variant();
        let said = |target: &str| pack.image(&*variant, target.parse().unwrap()).unwrap_err().to_string();
        let name = variant.variant_name();
        assert_eq!(
            said("cuda:sm_90a"),
            format!("variant = {name}: not among the pack's 1 kernels for cuda:sm_90a")
        );
        let other = "the pack has nothing for hip:gfx942, only for cuda:sm_90a";
        assert_eq!(said("hip:gfx942"), format!("variant = {name}: {other}"));
        let near = pack.absent("scale_n16", "cuda:sm_90a".parse().unwrap()).to_string();
        assert!(near.ends_with("near it: scale_n8"), "{near}");
    }
}
