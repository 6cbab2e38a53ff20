//! Packs as a source of kernels for the runtime.

mod select;

use peerwarp_codegen::family::{DynKernel, Target};
use peerwarp_codegen::print::{EmitOptions, FarEngine, Timeline};
use serde::Serialize;

use super::RuntimeError;
use super::image::{Images, Jit, KernelImage};
use crate::input::nearest;

use crate::build::emit;
use crate::build::pack::{Entry, Pack};

// SAFETY: objects are those that the manifest means: their hashes are compared when the pack is opened. How they are launched is
// what this program would emit for the variant. The maker of the pack vouches that the object was made of that.
unsafe impl Images for Pack {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
        let name = variant.variant_name();
        let kernel = self.find(&name, target).ok_or_else(|| self.absent(&name, target))?;
        let entry = kernel.entry;
        agrees(entry, variant)?;
        Ok(KernelImage {
            variant: name,
            target,
            entry: entry.entry.clone(),
            launch: entry.launch,
            args: entry.args.clone(),
            params: entry.params.clone(),
            roles: entry.roles.clone(),
            waits: entry.waits.clone(),
            timeline: entry.timeline.clone(),
            compiler: format!("{} {}", entry.toolchain.name, entry.toolchain.version),
            nccl: entry.toolchain.nccl.clone(),
            module: kernel.object.to_vec(),
        })
    }
}

/// Whether an entry says of a variant what this program emits for it: how many blocks there are and what they are passed is not to
/// be had from a file alone.
fn agrees(entry: &Entry, variant: &dyn DynKernel) -> Result<(), RuntimeError> {
    let kernel = emit::trace(variant, entry.target.warp_size())?;
    let timeline = entry.timeline.as_ref().map(|t| t.slots);
    let far = if entry.toolchain.nccl.is_some() { FarEngine::Gin } else { FarEngine::Ring };
    let options = EmitOptions { timeline, far, ..EmitOptions::default() };
    let source = emit::with_options("peerwarp", &kernel, entry.target, &options)?;
    let roles: Vec<&str> = kernel.roles.iter().map(|role| role.name.as_str()).collect();
    let sizes = |t: &Timeline| (t.slots, t.warps, t.slices, t.bytes, t.sites.len());
    let (found, emitted) = (&entry.timeline, &source.timeline);
    for (field, found, emitted) in [
        ("family", text(&entry.family), text(&variant.family_name())),
        ("ranks", text(&entry.ranks), text(&variant.ranks())),
        ("entry", text(&entry.entry), text(&source.entry)),
        ("roles", text(&entry.roles), text(&roles)),
        ("launch", text(&entry.launch), text(&source.launch)),
        ("args", text(&entry.args), text(&source.args)),
        ("params", text(&entry.params), text(&source.params)),
        ("timeline", text(&found.as_ref().map(sizes)), text(&emitted.as_ref().map(sizes))),
    ] {
        if found != emitted {
            let field = format!("pack.json: {field} of {}", entry.variant);
            let allowed =
                format!("it is {emitted} as it is emitted now; write the pack anew with `peerwarp pack`");
            return Err(RuntimeError::invalid(field, found, allowed));
        }
    }
    Ok(())
}

/// A value as manifests have it.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a part of a manifest")
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
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
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

pub use select::SelectError;

#[cfg(test)]
#[path = "packs_tests.rs"]
mod tests;
