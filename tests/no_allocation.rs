//! Selecting a variant does not allocate, and neither does launching it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use peerwarp::codegen::family::{DynKernel, Family, Target};
use peerwarp::families::moe::kernels::{RoundTrip, RoundTripLaunch, TokenLaunch};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeAllToAll, MoeKey, MoeRegistry, MoeShape, RowDtype, Tokens};
use peerwarp::runtime::gpu::{
    DevicePtr, Gpu, GpuInfo, LaunchConfig, RawEvent, RawFunction, RawGraph, RawModule, RawStream,
    ShareHandle, SharedBlock, Sharing,
};
use peerwarp::runtime::image::{Images, KernelImage};
use peerwarp::runtime::op::{Op, RawTensor, StreamRef};
use peerwarp::runtime::registry::{Registry, Selected};
use peerwarp::runtime::{RuntimeError, World, WorldOptions};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(act: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    act();
    COUNT.get() - before
}

fn shape(tokens: u32) -> MoeShape {
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens, ranks: 2, dtype: RowDtype::Bf16 }
}

#[test]
fn of_selection() {
    let registry = MoeRegistry::new([8, 64].map(|t| MoeTuning::defaults(&shape(t)).unwrap()), true);
    let keys = [8, 9, 65].map(|t| MoeKey::new(shape(t)));
    let selected = |i: usize| registry.select(&keys[i]).unwrap();
    assert_eq!(count(|| assert!(matches!(selected(0), Selected::Exact(_)))), 0);
    assert_eq!(count(|| assert!(matches!(selected(1), Selected::Covering(_)))), 0);
    assert_eq!(count(|| assert!(matches!(selected(2), Selected::Jit))), 0);
    let of = |t| RoundTrip::defaults(&shape(t)).unwrap();
    let registry = Registry::new([of(8), of(64)], true);
    let keys = [8, 9, 65].map(|t| of(t).key());
    let selected = |i: usize| registry.select(&keys[i]).unwrap();
    assert_eq!(count(|| assert!(matches!(selected(0), Selected::Exact(_)))), 0);
    assert_eq!(count(|| assert!(matches!(selected(1), Selected::Covering(_)))), 0);
    assert_eq!(count(|| assert!(matches!(selected(2), Selected::Jit))), 0);
    // That it counts at all.
    assert!(count(|| drop(std::hint::black_box(Box::new(1)))) > 0);
}

#[test]
fn of_launches() {
    let gpus = [0, 1].map(|ordinal| Arc::new(Host::new(ordinal)) as Arc<dyn Gpu>);
    let world = Arc::new(World::of_gpus(&gpus, &WorldOptions::default()).unwrap());
    let mut op = Op::new(&world, &RoundTrip::defaults(&shape(8)).unwrap(), &Sources).unwrap();
    // SAFETY: nothing runs.
    let tensor = |at: u64| unsafe { RawTensor::new(at << 20, 1 << 20, 0) };
    let [x, n, ids, weights, mut out] = [1, 2, 3, 4, 5].map(tensor);
    // SAFETY: nothing runs.
    let stream = unsafe { StreamRef::from_raw(RawStream::DEFAULT, 0) };
    let mut launch = || {
        let tokens = TokenLaunch {
            x: &x,
            x_scale: None,
            tensor_scale: None,
            n: &n,
            rows_there: 8,
            ids: &ids,
            place: None,
            replicas: None,
            weights: &weights,
        };
        op.rank(0).launch(stream, RoundTripLaunch { tokens, expert_load: None, out: &mut out }).unwrap();
    };
    assert_eq!(count(&mut launch), 0);
    assert_eq!(count(&mut launch), 0);

    let mut moe = MoeAllToAll::new(&world, &MoeTuning::defaults(&shape(8)).unwrap(), &Sources).unwrap();
    let tokens = Tokens { x: 1 << 20, x_scale: 0, rows_there: 8, n: 2 << 20, ids: 3 << 20, weights: 4 << 20 };
    let rank = &mut moe.ranks_mut()[0];
    // SAFETY: nothing runs.
    let round = || unsafe {
        let routed = rank.dispatch_raw(&tokens, RawStream::DEFAULT).unwrap();
        rank.combine_raw(routed, 5 << 20, 6 << 20, RawStream::DEFAULT).unwrap();
    };
    assert_eq!(count(round), 0);

    let tunings = [8, 64].map(|tokens| MoeTuning::defaults(&shape(tokens)).unwrap());
    let mut ladder = MoeAllToAll::with_capacities(&world, &tunings, &Sources).unwrap();
    assert_eq!(count(|| assert_eq!(ladder.ranks_for(9).unwrap()[0].shape().tokens, 64)), 0);
}

/// Kernels that are emitted and not compiled.
struct Sources;

// SAFETY: nothing is run.
unsafe impl Images for Sources {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
        let source = peerwarp::build::emit::source("a test", variant, target)?;
        Ok(KernelImage {
            variant: variant.variant_name(),
            target,
            entry: source.entry,
            launch: source.launch,
            args: source.args,
            params: source.params,
            roles: vec![],
            waits: source.waits,
            timeline: None,
            compiler: String::new(),
            nccl: None,
            module: vec![],
        })
    }
}

/// A device whose memory is the process's, and which runs nothing.
#[derive(Debug)]
struct Host(GpuInfo);

impl Host {
    fn new(ordinal: u32) -> Host {
        Host(GpuInfo {
            ordinal,
            name: "host".into(),
            bus_id: format!("0000:{ordinal:02x}:00.0"),
            target: "cuda:sm_90a".parse().unwrap(),
            sms: 132,
            memory: 1 << 30,
            driver: "none".into(),
        })
    }
}

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes as usize, 256).unwrap()
}

// SAFETY: memory is leaked, handles are numbers.
unsafe impl Gpu for Host {
    fn info(&self) -> &GpuInfo {
        &self.0
    }
    fn can_access(&self, _: u32) -> Result<bool, RuntimeError> {
        Ok(true)
    }
    fn synchronize(&self) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn alloc(&self, bytes: u64) -> Result<DevicePtr, RuntimeError> {
        // SAFETY: not empty.
        Ok(unsafe { System.alloc(layout(bytes.max(1))) } as u64)
    }
    unsafe fn free(&self, _: DevicePtr) -> Result<(), RuntimeError> {
        Ok(())
    }
    unsafe fn upload(&self, to: DevicePtr, bytes: &[u8]) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }
    unsafe fn download(&self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
    unsafe fn fill(
        &self,
        to: DevicePtr,
        bytes: u64,
        value: u8,
        _: RawStream<'_>,
    ) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says.
        unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes as usize) };
        Ok(())
    }
    unsafe fn copy_to_peer(
        &self,
        _: u32,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        _: RawStream,
    ) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says; it is all memory of this process.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
        Ok(())
    }
    fn sharing(&self) -> &[Sharing] {
        &[Sharing::Vmm]
    }
    fn alloc_shared(&self, bytes: u64, sharing: Sharing, _: &[u32]) -> Result<SharedBlock, RuntimeError> {
        Ok(SharedBlock { ptr: self.alloc(bytes)?, bytes, sharing, imported: false })
    }
    fn export(&self, _: &SharedBlock) -> Result<ShareHandle, RuntimeError> {
        unreachable!("one process")
    }
    fn import(&self, _: ShareHandle, _: u64) -> Result<SharedBlock, RuntimeError> {
        unreachable!("one process")
    }
    unsafe fn free_shared(&self, _: &SharedBlock) -> Result<(), RuntimeError> {
        Ok(())
    }
    unsafe fn load(&self, _: &[u8]) -> Result<RawModule, RuntimeError> {
        // SAFETY: it is never read.
        Ok(unsafe { RawModule::from_raw(1) })
    }
    unsafe fn unload(&self, _: RawModule) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn function(&self, _: RawModule, _: &str, _: u32) -> Result<RawFunction, RuntimeError> {
        // SAFETY: it is never read.
        Ok(unsafe { RawFunction::from_raw(1) })
    }
    fn blocks_per_sm(&self, _: RawFunction, _: &LaunchConfig) -> Result<u32, RuntimeError> {
        Ok(4)
    }
    unsafe fn launch(
        &self,
        _: RawFunction,
        _: &LaunchConfig,
        args: &[u64],
        _: RawStream<'_>,
    ) -> Result<(), RuntimeError> {
        assert!(!args.is_empty());
        Ok(())
    }
    fn create_stream(&self) -> Result<RawStream<'static>, RuntimeError> {
        Ok(RawStream::DEFAULT)
    }
    unsafe fn destroy_stream(&self, _: RawStream<'_>) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn stream_done(&self, _: RawStream<'_>) -> Result<bool, RuntimeError> {
        Ok(true)
    }
    fn synchronize_stream(&self, _: RawStream<'_>) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn create_event(&self) -> Result<RawEvent, RuntimeError> {
        // SAFETY: it is never read.
        Ok(unsafe { RawEvent::from_raw(1) })
    }
    unsafe fn destroy_event(&self, _: RawEvent) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn record(&self, _: RawEvent, _: RawStream<'_>) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn elapsed(&self, _: RawEvent, _: RawEvent) -> Result<Duration, RuntimeError> {
        Ok(Duration::ZERO)
    }
    fn begin_capture(&self, _: RawStream<'_>) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn end_capture(&self, _: RawStream<'_>) -> Result<RawGraph, RuntimeError> {
        // SAFETY: it is never read.
        Ok(unsafe { RawGraph::from_raw(1) })
    }
    unsafe fn launch_graph(&self, _: RawGraph, _: RawStream<'_>) -> Result<(), RuntimeError> {
        Ok(())
    }
    unsafe fn destroy_graph(&self, _: RawGraph) -> Result<(), RuntimeError> {
        Ok(())
    }
}
