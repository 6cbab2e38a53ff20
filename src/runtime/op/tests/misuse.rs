//! What safe code tries on operations, and what it gets.

use std::panic::{AssertUnwindSafe, catch_unwind};

use peerwarp_codegen::family::{DynKernel, Target};

use super::*;
use crate::runtime::image::KernelImage;

/// Launches on rank 0.
fn launch<'s>(op: &mut Op<Scale>, on: impl Into<StreamRef<'s>>) -> Result<(), RuntimeError> {
    let (x, mut out) = (tensor(0x1000), tensor(0x3000));
    let args = ScaleLaunch { x: &x, by: 1.0, bias: BiasLaunch { bias: None }, out: &mut out };
    op.rank(0).launch(on, args)
}

#[test]
fn a_stream_that_has_the_handle_of_an_earlier_one_is_not_taken_for_it() {
    let machine = Machine::default();
    let mut op = op(&machine, false);
    let gpu = Arc::clone(op.ranks()[0].gpu());
    let first = Stream::new(&gpu).unwrap();
    launch(&mut op, &first).unwrap();
    drop(first);
    let said = launch(&mut op, &Stream::new(&gpu).unwrap()).unwrap_err().to_string();
    assert!(said.ends_with(": the one of the earlier launches of rank 0"), "{said}");
    assert_eq!(machine.launches.lock().unwrap().len(), 1);
}

#[test]
fn a_stream_that_is_another_one_on_each_thread_is_refused() {
    let machine = Machine::default();
    let mut op = op(&machine, false);
    // SAFETY: nothing runs on mocks.
    let each = unsafe { StreamRef::from_raw(RawStream::from_raw(2), 0) };
    let said = launch(&mut op, each).unwrap_err().to_string();
    assert_eq!(said, "stream = the default one of each thread: one that is the same on every thread");
    launch(&mut op, stream(0)).unwrap();
}

#[test]
fn what_the_kernel_writes_is_not_passed_as_an_input() {
    let machine = Machine::default();
    let mut op = op(&machine, false);
    let spec = LaunchSpec::new("scale", config(false).into_variant());
    let swapped = spec.with_buffer("x", "out").with_buffer("out", "x");
    let mut other = Operation::new(op.world(), &[swapped], &Uncompiled).unwrap();
    // Ranks can be moved from one operation to another by safe code.
    std::mem::swap(op.ranks_mut()[0].untyped(), &mut other.ranks_mut()[0]);
    let said = launch(&mut op, stream(0)).unwrap_err().to_string();
    assert_eq!(said, "x = an input: an output, as the kernel writes it");
    assert_eq!(machine.launches.lock().unwrap().len(), 0);
}

#[test]
fn an_operation_that_cannot_be_made_leaves_nothing() {
    for call in ["alloc_shared", "alloc", "fill", "load", "function"] {
        for good in 0.. {
            let machine = Machine::default();
            let world = world(&machine);
            let before = machine.alive();
            machine.fail(call, good);
            let made = Op::new(&world, &config(false), &Uncompiled);
            let failed = made.is_err();
            drop(made);
            assert_eq!(machine.alive(), before, "{call} after {good}");
            assert!(failed || good >= 2, "each of the two ranks asks for {call}");
            if !failed {
                break;
            }
        }
    }
}

#[test]
fn memory_that_is_perhaps_still_being_written_is_not_freed() {
    for good in 0.. {
        let machine = Machine::default();
        let world = world(&machine);
        let before = machine.alive();
        machine.fail("synchronize", good);
        let made = Op::new(&world, &config(false), &Uncompiled);
        let failed = made.is_err();
        drop(made);
        assert_eq!(machine.alive() > before, failed, "after {good}");
        // Nor does the world free what kernels tell of their waits in.
        drop(world);
        machine.leaves(machine.alive());
        if !failed {
            break;
        }
    }
}

/// Panics for the second rank.
struct Panics(std::sync::atomic::AtomicU32);

// SAFETY: nothing is run.
unsafe impl Images for Panics {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
        match self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Uncompiled.image(variant, target),
            _ => panic!("as told"),
        }
    }
}

#[test]
fn a_panic_leaves_nothing() {
    let machine = Machine::default();
    let world = world(&machine);
    let before = machine.alive();
    let make = || Op::new(&world, &config(false), &Panics(0.into()));
    assert!(catch_unwind(AssertUnwindSafe(make)).is_err());
    assert_eq!(machine.alive(), before);
}

/// A kernel of another configuration.
struct Other(Scale);

// SAFETY: nothing is run.
unsafe impl Images for Other {
    fn image(&self, _: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
        Uncompiled.image(&*self.0.clone().into_variant(), target)
    }
}

/// Whatever is asked for.
struct Fixed(KernelImage);

// SAFETY: nothing is run.
unsafe impl Images for Fixed {
    fn image(&self, _: &dyn DynKernel, _: Target) -> Result<KernelImage, RuntimeError> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_kernel_with_other_parameters_than_the_variant_s_is_refused() {
    let machine = Machine::default();
    let world = world(&machine);
    let made = |kernel: Scale| Op::new(&world, &config(false), &Other(kernel)).map(drop);
    let said = |kernel: Scale| made(kernel).unwrap_err().to_string();
    let longer = said(Scale { elements: 128, ..config(false) });
    let (x, again) =
        ("x: Local of 128 F32 in the kernel, and x: Local of 64 F32", "compile or pack it again");
    assert!(longer.ends_with(&format!(": is {x} in the variant: {again}")), "{longer}");
    assert!(longer.starts_with("argument `x` of scale_n128"), "{longer}");
    let more = said(config(true));
    assert!(more.contains("is bias: Local of 64 F32 in the kernel, and out: Local of 64 F32"), "{more}");
    let mut fewer = Uncompiled.image(&*config(false).into_variant(), "cuda:sm_90a".parse().unwrap()).unwrap();
    fewer.params.clear();
    let said = Op::new(&world, &config(false), &Fixed(fewer)).unwrap_err().to_string();
    assert!(said.contains("is not there in the kernel, and x: Local of 64 F32 in the variant"), "{said}");
    made(config(false)).unwrap();
}
