use peerwarp_fabric::{LIBRARY_VARIABLE, library_version};

use super::*;
use crate::families::collectives::{Algorithm, AllReduceKey, BroadcastKey, RegisteredAllReduceKey};
use crate::runtime::WorldOptions;
use crate::runtime::gpu::RawStream;
use crate::runtime::mock::{self, Machine, MockGpu, Uncompiled, world};
use crate::runtime::op::RawTensor;

fn collectives(machine: &Machine) -> Collectives {
    Collectives::new(&world(machine))
}

fn key(elements: u32, in_place: bool) -> AllReduceKey {
    AllReduceKey { in_place, ..AllReduceKey::new(elements, 2, Dtype::Bf16) }
}

/// The configuration of a variant that was prepared.
fn all_reduce(variant: &Variant) -> AllReduce {
    variant.as_any().downcast_ref::<AllReduce>().unwrap().clone()
}

/// Memory of GPU 0.
fn tensor(ptr: u64, bytes: u64) -> RawTensor {
    // SAFETY: nothing runs on mocks.
    unsafe { RawTensor::new(ptr, bytes, 0) }
}

fn stream() -> StreamRef<'static> {
    // SAFETY: nothing runs on mocks.
    unsafe { StreamRef::from_raw(RawStream::from_raw(0xbeef), 0) }
}

fn grids(machine: &Machine) -> Vec<u32> {
    machine.launches.lock().unwrap().iter().map(|l| l.config.grid).collect()
}

#[test]
fn the_variant_goes_by_the_size() {
    let machine = Machine::default();
    let mut all = collectives(&machine);
    let mut prepare = |key: AllReduceKey| all_reduce(&all.prepare::<AllReduce>(&key, &Uncompiled).unwrap());
    let (small, large) = (prepare(key(1000, false)), prepare(key(1 << 20, false)));
    let in_place = prepare(key(1000, true));
    assert_eq!((small.blocks, large.blocks), (1, 128));
    assert_eq!((small.algorithm, in_place.in_place), (Algorithm::OneShot, true));

    let mut out = tensor(0x20_0000, 2 << 20);
    all.all_reduce(Reduction::Sum, 0, stream(), &tensor(0x1000, 2000), &mut tensor(0x2000, 2000)).unwrap();
    all.all_reduce(Reduction::Sum, 0, stream(), &tensor(0x80_0000, 2 << 20), &mut out).unwrap();
    all.all_reduce_in_place(Reduction::Sum, 0, stream(), &mut tensor(0x1000, 2000)).unwrap();
    // And a block that says when it has begun.
    assert_eq!(grids(&machine), [2, 129, 2]);

    // What is prepared again is what it was.
    let alive = machine.alive();
    all.prepare::<AllReduce>(&key(1000, false), &Uncompiled).unwrap();
    assert_eq!(machine.alive(), alive);
    drop(all);
    assert_eq!(machine.alive(), 0);
}

#[test]
fn what_is_not_prepared_is_reported_beside_what_is() {
    let machine = Machine::default();
    let mut all = collectives(&machine);
    let launch = |all: &mut Collectives, op, x: RawTensor| {
        all.all_reduce(op, 0, stream(), &x, &mut tensor(0x2000, 2000)).unwrap_err().to_string()
    };
    assert!(launch(&mut all, Reduction::Sum, tensor(0x1000, 2000)).contains("nothing is"));
    all.prepare::<AllReduce>(&key(1000, false), &Uncompiled).unwrap();
    let x = tensor(0x1000, 2000);
    for (op, x) in
        [(Reduction::Sum, tensor(0x1000, 1998)), (Reduction::Max, x), (Reduction::Sum, x.of::<f32>())]
    {
        let error = launch(&mut all, op, x);
        assert!(error.contains("elements=1000 ranks=2 dtype=bf16 op=sum"), "{error}");
    }
    let fp16 = AllReduceKey { dtype: Dtype::Fp16, ..key(1000, false) };
    assert!(all.op::<AllReduce>(&fp16).is_err());
    all.prepare::<AllReduce>(&fp16, &Uncompiled).unwrap();
    let error = launch(&mut all, Reduction::Sum, x);
    assert!(error.contains("several types"), "{error}");
    assert_eq!(grids(&machine), [0; 0]);
    all.all_reduce(Reduction::Sum, 0, stream(), &x.of::<half::f16>(), &mut tensor(0x2000, 2000)).unwrap();
    assert_eq!(grids(&machine).len(), 1);

    let mut short = tensor(0x2000, 1000);
    let error = all.all_reduce(Reduction::Sum, 0, stream(), &x.of::<half::f16>(), &mut short).unwrap_err();
    assert!(error.to_string().contains("out"), "{error}");
    let error =
        all.prepare::<AllReduce>(&AllReduceKey { ranks: 4, ..key(8, false) }, &Uncompiled).unwrap_err();
    assert!(error.to_string().contains("size of the world"), "{error}");
}

#[test]
fn registered_buffers_are_memory_that_all_ranks_reach() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut all = Collectives::new(&world);
    let key = RegisteredAllReduceKey { elements: 500, ranks: 2, dtype: Dtype::F32, op: Reduction::Sum };
    all.prepare::<RegisteredAllReduce>(&key, &Uncompiled).unwrap();
    let mut parts = world.symmetric::<f32>(500).unwrap();
    all.registered_all_reduce(Reduction::Sum, 0, stream(), &mut parts[0]).unwrap();
    assert_eq!(grids(&machine).len(), 1);
    let mut refused = |data: &mut dyn Writable| {
        all.registered_all_reduce(Reduction::Sum, 0, stream(), data).unwrap_err().to_string()
    };
    // Of its GPU alone, of another world, of another rank, too short, of nothing that is prepared.
    let allowed = "2000 bytes of a `SymmetricPart` of this world, as peers read it";
    let said = refused(&mut tensor(0x1000, 2000));
    assert!(said.contains("memory of data = 0x1000") && said.ends_with(allowed), "{said}");
    let elsewhere = mock::world(&machine);
    assert!(refused(&mut elsewhere.symmetric::<f32>(500).unwrap()[0]).ends_with(allowed));
    assert!(refused(&mut parts[1]).contains("GPU of data = 1: 0"));
    let beyond = parts[0].buffer().ptr() + 16;
    let said = refused(&mut tensor(beyond, 2000));
    assert!(said.ends_with(allowed), "{said}");
    let said = refused(&mut world.symmetric::<f32>(499).unwrap()[0]);
    assert!(said.contains("1996 bytes") && said.contains("elements=500 ranks=2 dtype=f32 op=sum"), "{said}");
    assert_eq!(grids(&machine).len(), 1);
}

/// One operation takes all lengths up to its capacity; one that is prepared for a length comes first, then the smallest capacity.
#[test]
fn a_capacity_takes_any_length() {
    let machine = Machine::default();
    let mut all = collectives(&machine);
    let capacity = |elements| AllReduceKey { length: Length::Host, row: 8, ..key(elements, false) };
    let any = AllReduceKey { row: 1, ..capacity(4096) };
    for key in [any, capacity(4096), capacity(65536), key(1000, false)] {
        all.prepare::<AllReduce>(&key, &Uncompiled).unwrap();
    }
    let mut launch = |bytes: u64| {
        let (x, mut out) = (tensor(0x10_0000, bytes), tensor(0x80_0000, bytes));
        all.all_reduce(Reduction::Sum, 0, stream(), &x, &mut out).map_err(|e| e.to_string())
    };
    // None, of the capacity, of the larger one, of the length, of elements that are no rows of eight.
    for bytes in [0, 8192, 8208, 131_072, 2000, 24] {
        launch(bytes).unwrap();
    }
    assert_eq!(grids(&machine), [5, 5, 65, 65, 2, 5]);
    for bytes in [131_088, 8200] {
        let said = launch(bytes).unwrap_err();
        assert!(said.contains(&format!("x = {bytes} bytes")) && said.contains("length=host row=8"), "{said}");
    }

    // What a host passes itself is compared with the capacity, and with what tensors hold.
    let op = all.op::<AllReduce>(&capacity(4096)).unwrap();
    let (x, mut out) = (tensor(0x10_0000, 8192), tensor(0x80_0000, 8192));
    let mut said = |rows, n: Option<&dyn Readable>| {
        let length = LengthLaunch { rows, all_rows: None, n };
        let args = AllReduceLaunch { x: Some(&x), out: &mut out, norm: no_norm(), length };
        op.rank(0).launch(stream(), args).map_err(|e| e.to_string())
    };
    said(Some(512), None).unwrap();
    assert_eq!(said(Some(513), None).unwrap_err(), "rows = 513: at most 512");
    assert_eq!(said(None, None).unwrap_err(), "rows = None: a number, as the variant has rows");
    let word = tensor(0x1000, 4).of::<u32>();
    assert!(said(Some(1), Some(&word)).unwrap_err().contains("the variant has no n"));

    let alive = machine.alive();
    all.free::<AllReduce>();
    assert!(machine.alive() < alive);
    assert!(all.op::<AllReduce>(&capacity(4096)).is_err());
    all.prepare::<AllReduce>(&capacity(4096), &Uncompiled).unwrap();
}

/// Lengths of each rank, as words on the GPU: tensors hold as many rows as the host says.
#[test]
fn ranks_say_their_lengths_on_the_gpu() {
    let machine = Machine::default();
    let mut all = collectives(&machine);
    let key = AllGatherKey { length: Length::Each, row: 8, ..AllGatherKey::new(4096, 2, Dtype::Bf16) };
    all.prepare::<AllGather>(&key, &Uncompiled).unwrap();
    let (x, n) = (tensor(0x10_0000, 1600), tensor(0x1000, 8).of::<u32>());
    let mut launch = |rows, all_rows, bytes| {
        let (n, mut out): (&dyn Readable, _) = (&n, tensor(0x80_0000, bytes));
        let length = LengthLaunch { rows: Some(rows), all_rows: Some(all_rows), n: Some(n) };
        let args = AllGatherLaunch { x: Some(&x), out: &mut out, length };
        all.op::<AllGather>(&key).unwrap().rank(0).launch(stream(), args).map_err(|e| e.to_string())
    };
    launch(100, 300, 4800).unwrap();
    assert!(launch(101, 300, 4800).unwrap_err().contains("bytes of x = 1600: 1616 or more"));
    assert!(launch(100, 301, 4800).unwrap_err().contains("bytes of out = 4800: 4816 or more"));
    assert_eq!(launch(100, 1025, 4800).unwrap_err(), "all_rows = 1025: at most 1024");
}

#[test]
fn a_registry_chooses() {
    let machine = Machine::default();
    let config = AllReduce { blocks: 4, ..AllReduce::with_defaults(&key(1000, false)).unwrap() };
    let mut all = collectives(&machine).with(Registry::new([config.clone()], false));
    assert_eq!(all_reduce(&all.prepare::<AllReduce>(&key(1000, false), &Uncompiled).unwrap()), config);
    let error = all.prepare::<AllReduce>(&key(1001, false), &Uncompiled).unwrap_err();
    assert!(error.to_string().contains("no compiled variant"), "{error}");
}

#[test]
fn a_broadcast_is_of_its_root() {
    let machine = Machine::default();
    let mut all = collectives(&machine);
    let key = BroadcastKey { root: 1, in_place: true, ..BroadcastKey::new(64, 2, Dtype::F32) };
    all.prepare::<Broadcast>(&key, &Uncompiled).unwrap();
    all.broadcast(1, 0, stream(), &mut tensor(0x1000, 256)).unwrap();
    assert!(all.broadcast(0, 0, stream(), &mut tensor(0x1000, 256)).is_err());
    assert_eq!(grids(&machine).len(), 1);
}

#[test]
fn a_world_without_multicast_memory_has_no_multimem() {
    let machine = Machine::default();
    let config = AllReduce::from_text("elements=1000 ranks=2 dtype=bf16 algorithm=multimem").unwrap();
    let mut all = collectives(&machine).with(Registry::new([config.clone()], false));
    let error = all.prepare::<AllReduce>(&config.key(), &Uncompiled).unwrap_err();
    assert!(matches!(&error, RuntimeError::NoMulticast { buffer, .. } if buffer == "vector"), "{error}");
    assert!(error.to_string().contains("this world has no multicast memory"), "{error}");
}

/// The calls are the same in a world of several nodes.
#[test]
fn worlds_of_several_nodes_have_families_of_their_own() {
    if std::env::var_os(LIBRARY_VARIABLE).is_none() && library_version().is_err() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    let machine = Machine::default();
    let options = WorldOptions { nodes: 2, ..WorldOptions::default() };
    let world = Arc::new(World::of_gpus(&MockGpu::all(&machine, 4), &options).unwrap());
    let mut all = Collectives::new(&world);
    let (ranks, dtype, op) = (4, Dtype::Bf16, Reduction::Max);
    let key = AllReduceKey { ranks, op, ..key(1000, false) };
    let name = |variant: Variant| variant.family().name();
    assert_eq!(name(all.prepare::<AllReduce>(&key, &Uncompiled).unwrap()), "all_reduce_nodes");
    let scatter = ReduceScatterKey { op, ..ReduceScatterKey::new(4000, ranks, dtype) };
    assert_eq!(name(all.prepare::<ReduceScatter>(&scatter, &Uncompiled).unwrap()), "reduce_scatter_nodes");
    let gather = AllGatherKey::new(1000, ranks, dtype);
    assert_eq!(name(all.prepare::<AllGather>(&gather, &Uncompiled).unwrap()), "all_gather_nodes");
    let exchange = AllToAllKey::new(4000, ranks, dtype);
    assert_eq!(name(all.prepare::<AllToAll>(&exchange, &Uncompiled).unwrap()), "all_to_all_nodes");
    let spread = BroadcastKey { root: 3, in_place: true, ..BroadcastKey::new(1000, ranks, dtype) };
    assert_eq!(name(all.prepare::<Broadcast>(&spread, &Uncompiled).unwrap()), "broadcast_nodes");

    let (x, long) = (tensor(0x1000, 2000), tensor(0x10_0000, 8000));
    let mut out = tensor(0x2000, 2000);
    all.all_reduce(op, 0, stream(), &x, &mut out).unwrap();
    all.reduce_scatter(op, 0, stream(), &long, &mut out).unwrap();
    all.all_gather(0, stream(), &x, &mut tensor(0x20_0000, 8000)).unwrap();
    all.all_to_all(0, stream(), &long, &mut tensor(0x20_0000, 8000)).unwrap();
    all.broadcast(3, 0, stream(), &mut out).unwrap();
    assert_eq!(grids(&machine).len(), 5);
    assert!(all.all_reduce(Reduction::Sum, 0, stream(), &x, &mut out).is_err(), "the maximum is prepared");

    // One node alone has these.
    let refused = all.prepare::<AllReduce>(&AllReduceKey { in_place: true, ..key }, &Uncompiled).unwrap_err();
    let said = refused.to_string();
    assert!(said.starts_with("nodes of the world, for all_reduce of elements=1000 ranks=4"), "{said}");
    let registered = RegisteredAllReduceKey { elements: 500, ranks, dtype, op };
    assert!(all.prepare::<RegisteredAllReduce>(&registered, &Uncompiled).is_err());
}
