//! How one rank's part of an operation is made: memory, kernels and their arguments.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use peerwarp_codegen::dsl::ParamSpec;
use peerwarp_codegen::ir::signature_and_order;
use peerwarp_codegen::print::FarEngine;

use super::{Launch, RankOp};
use crate::runtime::far::FarRanks;
use crate::runtime::gpu::{DevicePtr, Gpu};
use crate::runtime::handles::Buffer;
use crate::runtime::image::{Images, KernelImage};
use crate::runtime::op::call::Passed;
use crate::runtime::op::plan::{LaunchSpec, Orders, Plan, most_rows};
use crate::runtime::{Recorder, RuntimeError, Symmetric, World};

/// What the parts of a rank are made of.
pub(in crate::runtime::op) struct Making<'a> {
    pub world: &'a Arc<World>,
    /// Which member of the world.
    pub index: usize,
    pub plan: &'a Plan,
    pub shared: &'a Arc<Symmetric>,
    pub far: Option<&'a Arc<FarRanks>>,
    pub launches: &'a [LaunchSpec],
    pub images: &'a dyn Images,
}

/// The memory of one rank's part.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) local: Buffer,
    _shared: Arc<Symmetric>,
    _far: Option<Arc<FarRanks>>,
}

impl Making<'_> {
    pub fn rank(&self) -> Result<RankOp, RuntimeError> {
        let member = &self.world.members()[self.index];
        let gpu = &member.gpu;
        let local = Buffer::new(gpu, self.plan.local_bytes)?;
        local.clear(0)?;
        let memory = Arc::new(Memory { local, _shared: Arc::clone(self.shared), _far: self.far.cloned() });
        let own = self.shared.own(self.index);
        let far = self.far.map_or(0, |far| far.of(self.index).memory());
        let buffers = self.plan.placed(own, memory.local.ptr(), far);
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&memory) as _;
        // Where a rank is missing, what it shares is zeros.
        let shared = self.world.clear(self.index, (own, self.shared.bytes()), 0, &owner);
        let mut cleared = self.plan.cleared.iter();
        let cleared =
            cleared.try_for_each(|(name, value)| self.world.clear(self.index, buffers[name], *value, &owner));
        if let Err(e) = gpu.synchronize() {
            // It may not have been cleared: it must not become another owner's memory.
            std::mem::forget(memory);
            return Err(e);
        }
        shared.and(cleared)?;
        let mut orders = Orders::default();
        let launches = (0..self.launches.len()).map(|at| self.launch(at, &memory, &buffers, &mut orders));
        let launches = launches.collect::<Result<_, RuntimeError>>()?;
        let written = buffers.iter().filter(|(name, _)| !self.plan.lasts(name));
        let payload = written.map(|(_, place)| *place).collect();
        Ok(RankOp {
            launches,
            rank: member.rank,
            index: self.index,
            gpu: Arc::clone(gpu),
            world: Arc::clone(self.world),
            passed: vec![Passed::default(); self.plan.operands.len()],
            operands: self.plan.operands.clone(),
            bytes: self.plan.bytes(),
            rows: self.plan.scalars.iter().map(|scalar| scalar.most_rows.unwrap_or(0)).collect(),
            by_rows: self.plan.by_rows(),
            scalars: self.plan.scalars.clone(),
            stream: None,
            launched: AtomicBool::new(false),
            begun: 0,
            buffers,
            payload,
            memory,
        })
    }

    fn launch(
        &self,
        number: usize,
        memory: &Memory,
        buffers: &BTreeMap<String, (DevicePtr, u64)>,
        orders: &mut Orders,
    ) -> Result<Launch, RuntimeError> {
        let (spec, params) = (&self.launches[number], &self.plan.params[number]);
        let member = &self.world.members()[self.index];
        let image = self.images.image(&*spec.variant, member.gpu.info().target)?;
        carried(&image, &member.gpu)?;
        same_params(&image, params)?;
        for (param, words) in params.iter().zip(&image.params) {
            orders.add(&spec.label, spec.buffer(&param.name), words)?;
        }
        multicast(&image, params, self.world.teams().local_ranks())?;
        let mut args = self.world.kernel_args(self.index, &image)?;
        let (mut slots, mut windows, mut scalars) = (vec![], vec![], vec![]);
        let mut epoch = None;
        // Members stand in the order of the parameters, and may be named otherwise where C++ has the word.
        for (p, field) in params.iter().zip(&image.args.fields) {
            let name = spec.buffer(&p.name);
            let everywhere = p.kind.is_symmetric();
            if let (true, Some(&(at, _))) = (everywhere, self.plan.symmetric.get(name)) {
                args.set_pointers(&field.name, &self.shared.pointers(self.index, at))?;
            } else if let Some(&(ptr, _)) = buffers.get(name) {
                args.set_u64(&field.name, ptr)?;
            } else if let Some(at) = self.plan.operands.iter().position(|o| o.name == name) {
                match everywhere {
                    true => windows.push((at, args.slots(&field.name)?)),
                    false => slots.push((at, args.slot(&field.name)?)),
                }
            } else if let Some(at) = self.plan.scalars.iter().position(|s| s.name == name) {
                scalars.push((at, args.place(&field.name)?));
                if let Some(most) = most_rows(params, &p.name) {
                    args.set_u32(&field.name, most)?;
                }
            }
            if p.kind == peerwarp_codegen::ir::ParamKind::EpochWord {
                epoch = buffers.get(name).map(|place| place.0);
            }
        }
        if let Some(far) = self.far.filter(|_| params.iter().any(|p| p.kind.far().is_some())) {
            args.set_far(&far.of(self.index).args(&self.plan.far, number))?;
        }
        let recorder = Recorder::new(&member.gpu, &image, &spec.label, member.rank, &mut args)?;
        args.ready_but_for(&scalars.iter().map(|(_, place)| *place).collect::<Vec<_>>())?;
        debug_assert!(memory.local.bytes() >= self.plan.local_bytes);
        let kernel = self.world.load(&member.gpu, &image)?;
        Ok(Launch { kernel, args, slots, windows, scalars, epoch, recorder })
    }
}

/// Refuses a kernel that takes a pointer to all ranks' memory at once beside those of the ranks: no world has any.
fn multicast(image: &KernelImage, params: &[ParamSpec], ranks: u32) -> Result<(), RuntimeError> {
    let symmetric = params.iter().zip(&image.args.fields).filter(|(p, _)| p.kind.is_symmetric());
    match { symmetric }.find(|(_, field)| field.bytes > 8 * ranks) {
        None => Ok(()),
        Some((p, _)) => {
            let (kernel, buffer) = (image.variant.clone(), p.name.clone());
            Err(RuntimeError::NoMulticast { kernel, buffer })
        }
    }
}

/// Refuses kernels that put by NCCL's GIN: proxies of this runtime carry commands of rings.
fn carried(image: &KernelImage, gpu: &Arc<dyn Gpu>) -> Result<(), RuntimeError> {
    image.serves(gpu.info())?;
    let Some(nccl) = &image.nccl else { return Ok(()) };
    let allowed = format!(
        "ring: {} puts by GIN of NCCL {nccl}, and a program in C launches it with a communicator of its own; pack it without --far gin",
        image.variant
    );
    Err(RuntimeError::invalid("far", FarEngine::Gin, allowed))
}

/// Whether a kernel was compiled for just these parameters: its name says nothing of their lengths, which its author may have
/// changed since.
fn same_params(image: &KernelImage, params: &[ParamSpec]) -> Result<(), RuntimeError> {
    let mut compiled = image.params.iter();
    for param in params {
        let there = compiled.next().map_or("not there", |words| signature_and_order(words).0);
        let here = param.signature();
        if here != there {
            return Err(differs(image, &param.name, there, &here));
        }
    }
    compiled.next().map_or(Ok(()), |more| Err(differs(image, more, more, "not there")))
}

fn differs(image: &KernelImage, field: &str, kernel: &str, variant: &str) -> RuntimeError {
    let problem =
        format!("is {kernel} in the kernel, and {variant} in the variant: compile or pack it again");
    RuntimeError::Argument { kernel: image.variant.clone(), field: field.to_owned(), problem }
}
