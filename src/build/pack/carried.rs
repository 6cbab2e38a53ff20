//! Kernels that packs carry beside their machine code, for programs that do not have the families' types.

use std::collections::BTreeMap;

use peerwarp_codegen::dsl::ParamSpec;
use peerwarp_codegen::family::{DynKernel, FamilyError};
use peerwarp_codegen::ir::Kernel;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::build::emit::EmitError;

/// The version of the form that this crate writes and reads.
const FORM: u32 = 1;

/// A kernel for warps of some size, and its parameters. As MessagePack.
#[derive(Serialize, Deserialize)]
pub(super) struct Carried {
    form: u32,
    params: Vec<ParamSpec>,
    kernel: Kernel,
}

/// The kernel of a variant as a file of a pack.
pub(super) fn write(variant: &dyn DynKernel, kernel: &Kernel) -> Result<Vec<u8>, EmitError> {
    let carried = Carried { form: FORM, params: variant.params(), kernel: kernel.clone() };
    rmp_serde::to_vec(&carried)
        .map_err(|e| EmitError::Kernel { variant: variant.variant_name(), message: e.to_string() })
}

/// What [`write`] has written. The error says why it is none.
pub(super) fn read(bytes: &[u8]) -> Result<Carried, String> {
    // The first member says whether the others can be read.
    let form = rmp_serde::from_slice::<(u32, serde::de::IgnoredAny, serde::de::IgnoredAny)>(bytes);
    let (form, ..) = form.map_err(|e| e.to_string())?;
    if form != FORM {
        return Err(format!("form = {form}, and this version of Peerwarp reads {FORM}"));
    }
    rmp_serde::from_slice(bytes).map_err(|e| e.to_string())
}

/// A kernel out of a pack, which needs no type of its family: it runs on simulated ranks and on GPUs.
#[derive(Debug)]
pub struct PackedKernel {
    family: String,
    variant: String,
    ranks: u32,
    key: Vec<(String, serde_json::Value)>,
    params: Vec<ParamSpec>,
    /// By lanes of a warp.
    kernels: BTreeMap<u32, Kernel>,
}

impl PackedKernel {
    pub(super) fn new(entry: &Entry, carried: BTreeMap<u32, Carried>) -> PackedKernel {
        let params = carried.values().next().map(|c| c.params.clone()).unwrap_or_default();
        PackedKernel {
            family: entry.family.clone(),
            variant: entry.variant.clone(),
            ranks: entry.ranks,
            key: entry.key.clone().into_iter().collect(),
            params,
            kernels: carried.into_iter().map(|(lanes, c)| (lanes, c.kernel)).collect(),
        }
    }
}

impl DynKernel for PackedKernel {
    fn family_name(&self) -> &str {
        &self.family
    }
    fn variant_name(&self) -> String {
        self.variant.clone()
    }
    fn key(&self) -> Vec<(String, serde_json::Value)> {
        self.key.clone()
    }
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn nodes(&self) -> u32 {
        self.kernels.values().next().map_or(1, |kernel| kernel.nodes)
    }
    fn params(&self) -> Vec<ParamSpec> {
        self.params.clone()
    }
    fn trace(&self, warp_size: u32) -> Result<Kernel, FamilyError> {
        self.kernels.get(&warp_size).cloned().ok_or_else(|| FamilyError::Lanes {
            variant: self.variant.clone(),
            asked: warp_size,
            lanes: self.kernels.keys().copied().collect(),
        })
    }
}
