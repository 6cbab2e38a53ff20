mod alike;
mod far;
mod misuse;
mod windows;

use std::sync::Arc;

use peerwarp_codegen::family::Family;

use super::*;
use crate::prelude::*;
use crate::runtime::gpu::RawStream;
use crate::runtime::handles::Stream;
use crate::runtime::mock::{Launched, Machine, Uncompiled, world};

/// Scales a vector, and signals all ranks.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "scale", kernel = scale, args = ScaleArgs, warps = warps)]
struct Scale {
    #[key(short = "n", range = 1..=4096)]
    elements: u32,
    #[key(short = "r", range = 2..=8, ranks)]
    ranks: u32,
    #[key(values = [Dtype::F32, Dtype::Bf16])]
    dtype: Dtype,
    /// Whether something is added.
    #[key]
    biased: bool,
    #[tune(short = "w", values = [4])]
    warps: u32,
}

impl Legal for Scale {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// What is added.
#[derive(KernelArgs)]
#[args(config = Scale)]
struct BiasArgs {
    #[input]
    #[len(|c| if c.biased { u64::from(c.elements) } else { 0 })]
    bias: Option<Ptr<f32>>,
}

#[derive(KernelArgs)]
#[args(config = Scale)]
struct ScaleArgs {
    #[input]
    #[len(|c| u64::from(c.elements))]
    #[dtype(|c| c.dtype)]
    x: AnyPtr,
    /// The factor.
    by: Val<f32>,
    #[group]
    #[input]
    bias: BiasArgs,
    #[output]
    #[len(|c| u64::from(c.elements))]
    #[dtype(|c| c.dtype)]
    out: AnyPtr,
    #[len(|c| u64::from(2 * c.ranks))]
    arrived: Flags,
    #[len(|c| u64::from(2 * c.ranks * c.elements))]
    inbox: Sym<f32>,
    epoch: EpochWord,
}

#[kernel]
fn scale(c: &Scale, a: &ScaleArgs) {
    let epoch = a.epoch.begin();
    let half = epoch.parity() * c.ranks;
    role("send", 1, |_| {
        let mut x = a.x.load_f32(0, c.elements) * a.by;
        if let Some(bias) = a.bias.bias {
            x = x + bias.load(0, c.elements);
        }
        let mut parcel = send_to(Peers::all());
        parcel.put(&a.inbox, (half + rank()) * c.elements, x);
        parcel.signal(&a.arrived, half + rank(), epoch);
    });
    role("recv", 1, |_| {
        let got = a.arrived.from(0).wait(half, epoch);
        a.out.store_f32(0, a.inbox.load(&got, half * c.elements, c.elements));
    });
}

fn config(biased: bool) -> Scale {
    let key = ScaleKey { elements: 64, ranks: 2, dtype: Dtype::F32, biased };
    Scale::with_defaults(&key).unwrap()
}

fn op(machine: &Machine, biased: bool) -> Op<Scale> {
    Op::new(&world(machine), &config(biased), &Uncompiled).unwrap()
}

/// 256 bytes of GPU 0.
fn tensor(ptr: u64) -> RawTensor {
    // SAFETY: nothing runs on mocks.
    unsafe { RawTensor::new(ptr, 256, 0) }
}

/// A stream of GPU 0 or 1.
fn stream(device: u32) -> StreamRef<'static> {
    // SAFETY: nothing runs on mocks.
    unsafe { StreamRef::from_raw(RawStream::from_raw(0xbeef), device) }
}

/// A member's bytes in what was launched, from its place on.
fn member(launched: &Launched, config: &Scale, name: &str) -> u64 {
    use crate::runtime::image::Images as _;
    let target = "cuda:sm_90a".parse().unwrap();
    let image = Uncompiled.image(&*config.clone().into_variant(), target).unwrap();
    let field = image.args.fields.iter().find(|f| f.name == name).unwrap();
    let bytes: &[u8] = bytemuck::cast_slice(&launched.args);
    let at = &bytes[field.offset as usize..];
    match field.bytes {
        4 => u32::from_ne_bytes(at[..4].try_into().unwrap()).into(),
        _ => u64::from_ne_bytes(at[..8].try_into().unwrap()),
    }
}

#[test]
fn launches_get_what_the_caller_passes_and_nothing_is_left() {
    let machine = Machine::default();
    let mut op = op(&machine, true);
    let (x, bias, mut out) = (tensor(0x1000), tensor(0x2000), tensor(0x3000));
    for by in [1.5f32, 2.5] {
        let bias = BiasLaunch { bias: Some(&bias) };
        op.rank(0).launch(stream(0), ScaleLaunch { x: &x, by, bias, out: &mut out }).unwrap();
    }
    let launches = machine.launches.lock().unwrap().clone();
    let config = config(true);
    let of = |at: usize, name| member(&launches[at], &config, name);
    assert_eq!(["x", "bias", "out"].map(|name| of(0, name)), [0x1000, 0x2000, 0x3000]);
    assert_eq!([0, 1].map(|at| f32::from_bits(of(at, "by") as u32)), [1.5, 2.5]);
    assert_eq!(of(0, "epoch"), op.ranks_mut()[0].untyped().buffer("epoch").unwrap().0);
    assert_eq!(of(0, "rank"), 0);
    drop(op);
    assert_eq!(machine.alive(), 0);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_launched() {
    let machine = Machine::default();
    let mut op = op(&machine, false);
    let (x, out) = (tensor(0x1000), tensor(0x3000));
    let mut said = |x: RawTensor, mut out: RawTensor, biased: Option<RawTensor>, on: StreamRef<'_>| {
        let bias = BiasLaunch { bias: biased.as_ref().map(|b| b as &dyn Readable) };
        let args = ScaleLaunch { x: &x, by: 1.0, bias, out: &mut out };
        op.rank(0).launch(on, args).unwrap_err().to_string()
    };
    // SAFETY: nothing runs on mocks.
    let [short, far] = unsafe { [RawTensor::new(0x1000, 255, 0), RawTensor::new(0x1000, 256, 1)] };
    let here = stream(0);
    assert_eq!(said(short, out, None, here), "bytes of x = 255: 256 or more: 64 elements of F32");
    assert_eq!(said(far, out, None, here), "GPU of x = 1: 0, that of the stream");
    assert_eq!(said(x.of::<u32>(), out, None, here), "elements of x = U32: F32");
    assert_eq!(said(x, out.of::<half::bf16>(), None, here), "elements of out = Bf16: F32");
    assert_eq!(said(tensor(0x1008), out, None, here), "address of x = 0x1008: one that 16 divides");
    assert_eq!(said(tensor(0), out, None, here), "address of x = 0x0: one that 16 divides");
    let overlap = "memory of out = 0x10f0: memory that is not also x's, 256 bytes at 0x1000";
    assert_eq!(said(x, tensor(0x10f0), None, here), overlap);
    assert_eq!(said(x, out, Some(x), here), "bias = a tensor: None, as the variant has no bias");
    assert_eq!(said(x, out, None, stream(1)), "GPU of the stream = 1: that of rank 0, 0");
    let (x, mut out) = (tensor(0x1000), tensor(0x1100));
    let mut launch = |rank: u32, on: StreamRef<'_>| {
        let bias = BiasLaunch { bias: None };
        op.rank(rank).launch(on, ScaleLaunch { x: &x, by: 1.0, bias, out: &mut out })
    };
    assert_eq!(launch(2, here).unwrap_err().to_string(), "rank = 2: a rank of this process, in a world of 2");
    assert_eq!(machine.launches.lock().unwrap().len(), 0);
    launch(0, here).unwrap();
    // SAFETY: nothing runs on mocks.
    let other = unsafe { StreamRef::from_raw(RawStream::from_raw(0xcafe), 0) };
    let refused = launch(0, other).unwrap_err().to_string();
    assert_eq!(refused, "stream = 0xcafe: the one of the earlier launches of rank 0");
    assert_eq!(machine.launches.lock().unwrap().len(), 1);
}

#[test]
fn a_parameter_that_the_variant_has_must_be_there() {
    let machine = Machine::default();
    let mut op = op(&machine, true);
    let (x, mut out) = (tensor(0x1000), tensor(0x3000));
    let bias = BiasLaunch { bias: None };
    let said = op.rank(0).launch(stream(0), ScaleLaunch { x: &x, by: 1.0, bias, out: &mut out });
    assert_eq!(said.unwrap_err().to_string(), "bias = None: 64 elements of F32, which the variant uses");
}

#[test]
fn bytes_and_bits_are_any_element_type_of_their_size() {
    let fits = |tensor: RawTensor| tensor.info().dtypes.contains(&Dtype::Bf16);
    assert!(
        fits(tensor(16).of::<u8>()) && fits(tensor(16).of::<u16>()) && fits(tensor(16).of::<half::bf16>())
    );
    assert!(!fits(tensor(16).of::<f32>()) && !fits(tensor(16).of::<half::f16>()));
}

#[test]
fn numbers_are_set_and_of_their_type() {
    let machine = Machine::default();
    let mut op = op(&machine, false);
    let rank = op.ranks_mut()[0].untyped();
    // SAFETY: nothing runs on mocks.
    let unset = unsafe { rank.launch_raw(0, &[0x1000, 0x2000], RawStream::DEFAULT) }.unwrap_err().to_string();
    assert!(unset.starts_with("argument `by` of") && unset.ends_with("has not been set"), "{unset}");
    let said = rank.set_scalar("by", 1u32).unwrap_err().to_string();
    assert_eq!(said, "scalar = by (U32): one of by (F32)");
    rank.set_scalar("by", 1f32).unwrap();
    // SAFETY: as above.
    unsafe { rank.launch_raw(0, &[0x1000, 0x2000], RawStream::DEFAULT).unwrap() };
}

#[test]
fn only_who_answers_for_the_graph_launches_on_a_stream_that_is_captured() {
    let machine = Machine::default();
    let mut op = op(&machine, false);
    let own = Stream::new(op.ranks()[0].gpu()).unwrap();
    let (x, mut out) = (tensor(0x1000), tensor(0x3000));
    let mut launch = |captured: bool| {
        let args = ScaleLaunch { x: &x, by: 1.0, bias: BiasLaunch { bias: None }, out: &mut out };
        match captured {
            false => op.rank(0).launch(&own, args),
            // SAFETY: nothing runs on mocks.
            true => unsafe { op.rank(0).capture(&own, args) },
        }
    };
    let said = own.capture(|| launch(false)).unwrap_err().to_string();
    assert!(said.starts_with("stream = being captured: "), "{said}");
    own.capture(|| launch(true)).unwrap();
    launch(false).unwrap();
}

#[test]
fn an_aborted_world_launches_nothing() {
    let machine = Machine::default();
    let mut op = op(&machine, false);
    machine.fail("synchronize_stream", 0);
    assert!(op.world().finish(0, RawStream::DEFAULT).is_err());
    let (x, mut out) = (tensor(0x1000), tensor(0x3000));
    let args = ScaleLaunch { x: &x, by: 1.0, bias: BiasLaunch { bias: None }, out: &mut out };
    assert!(matches!(op.rank(0).launch(stream(0), args), Err(RuntimeError::Poisoned { .. })));
    assert_eq!(machine.launches.lock().unwrap().len(), 0);
}

#[test]
fn memory_is_freed_after_the_kernels_that_use_it_or_not_at_all() {
    let machine = Machine::default();
    let world = world(&machine);
    let before = machine.alive();
    for (launched, synchronized) in [(false, 0), (true, 1)] {
        let mut op = Op::new(&world, &config(false), &Uncompiled).unwrap();
        let (x, mut out) = (tensor(0x1000), tensor(0x3000));
        if launched {
            let args = ScaleLaunch { x: &x, by: 1.0, bias: BiasLaunch { bias: None }, out: &mut out };
            op.rank(0).launch(stream(0), args).unwrap();
        }
        let count = machine.calls("synchronize");
        drop(op);
        assert_eq!(machine.calls("synchronize") - count, synchronized);
        assert_eq!(machine.alive(), before);
    }
    let mut op = Op::new(&world, &config(false), &Uncompiled).unwrap();
    let (x, mut out) = (tensor(0x1000), tensor(0x3000));
    let args = ScaleLaunch { x: &x, by: 1.0, bias: BiasLaunch { bias: None }, out: &mut out };
    op.rank(0).launch(stream(0), args).unwrap();
    machine.fail("synchronize", 0);
    drop(op);
    assert!(machine.alive() > before, "kernels may still run");
    drop(world);
    machine.leaves(machine.alive());
}

#[test]
fn configurations_that_are_not_legal_or_for_another_world_are_refused() {
    let machine = Machine::default();
    let said = |config: &Scale| Op::new(&world(&machine), config, &Uncompiled).unwrap_err().to_string();
    let large = Scale { elements: 5000, ..config(false) };
    assert!(said(&large).starts_with("configuration = scale_n5000_r2_f32"), "{}", said(&large));
    let three = said(&Scale { ranks: 3, ..config(false) });
    assert!(three.ends_with("= 3: 2, the size of the world"), "{three}");
}
