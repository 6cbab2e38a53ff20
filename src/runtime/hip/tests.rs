use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

use super::api::{Api, IpcByValue, IpcHandle};
use super::*;
use crate::build::pack::Pack;
use crate::harness::trace::sync::ClockSync;
use crate::runtime::gpu::{LaunchConfig, PeerLink, RawStream, ShareHandle, Sharing};
use crate::runtime::handles::{Event, LoadedKernel, Stream};
use crate::runtime::image::Images;
use crate::runtime::mock::{Machine, MockGpu, Uncompiled};
use crate::runtime::op::{LaunchSpec, Operation};
use crate::runtime::{World, WorldOptions};
use peerwarp_codegen::family::{Family, HipArch, Target};

/// A container of no modules.
const MODULE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__\0\0\0\0\0\0\0\0";

thread_local! {
    static CALLED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Writes a call down.
pub(super) fn called(name: &str) -> i32 {
    CALLED.with_borrow_mut(|all| all.push(name.to_owned()));
    0
}

/// What was called since it was last asked, without the choice of the device.
fn calls() -> Vec<String> {
    CALLED.with_borrow_mut(std::mem::take).into_iter().filter(|name| name != "hipSetDevice").collect()
}

unsafe extern "C" fn two(count: *mut i32) -> i32 {
    // SAFETY: the caller's variable.
    unsafe { *count = 2 };
    0
}

unsafe extern "C" fn no_device(_: *mut i32) -> i32 {
    NO_DEVICE
}

unsafe extern "C" fn mi300(properties: *mut c_void, _: i32) -> i32 {
    let write = |at: usize, text: &CStr| {
        let bytes = text.to_bytes_with_nul();
        // SAFETY: the caller's buffer is that large.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), properties.cast::<u8>().add(at), bytes.len())
        };
    };
    write(0, c"AMD Instinct MI300X");
    write(1160, c"gfx942:sramecc+:xnack-");
    0
}

unsafe extern "C" fn gaming(properties: *mut c_void, _: i32) -> i32 {
    let arch = c"gfx1100".to_bytes_with_nul();
    // SAFETY: the caller's buffer is that large.
    unsafe { std::ptr::copy_nonoverlapping(arch.as_ptr(), properties.cast::<u8>().add(1160), arch.len()) };
    0
}

unsafe extern "C" fn attribute(value: *mut i32, which: i32, _: i32) -> i32 {
    // SAFETY: the caller's variable.
    unsafe { *value = if which == 63 { 304 } else { -1 } };
    0
}

unsafe extern "C" fn bus_id(text: *mut c_char, _: i32, device: i32) -> i32 {
    let all = [c"0000:0c:00.0", c"0000:22:00.0"];
    let bytes = all[device as usize].to_bytes_with_nul();
    // SAFETY: the caller's buffer is that large.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), text.cast::<u8>(), bytes.len()) };
    0
}

unsafe extern "C" fn version(version: *mut i32) -> i32 {
    // SAFETY: the caller's variable.
    unsafe { *version = 60_342_131 };
    0
}

unsafe extern "C" fn already(_: i32, _: u32) -> i32 {
    704
}

unsafe extern "C" fn unsupported(_: i32, _: u32) -> i32 {
    217
}

unsafe extern "C" fn fine_grained(ptr: *mut *mut c_void, _: usize, flags: u32) -> i32 {
    // SAFETY: the caller's variable.
    unsafe { *ptr = (0x1000 + u64::from(flags)) as *mut c_void };
    called("hipExtMallocWithFlags")
}

unsafe extern "C" fn ipc(handle: *mut IpcHandle, ptr: *mut c_void) -> i32 {
    // SAFETY: the caller's variable.
    unsafe { (&mut *handle)[..8].copy_from_slice(&(ptr as u64).to_le_bytes()) };
    0
}

unsafe extern "C" fn open_ipc(ptr: *mut *mut c_void, handle: IpcByValue, _: u32) -> i32 {
    let from = u64::from_le_bytes(handle.0[..8].try_into().unwrap());
    // SAFETY: the caller's variable.
    unsafe { *ptr = (from + 0x10_0000) as *mut c_void };
    0
}

unsafe extern "C" fn xgmi_to_1(_: i32, peer: i32, link: *mut u32, hops: *mut u32) -> i32 {
    // SAFETY: the caller's variables.
    unsafe { (*link, *hops) = (if peer == 1 { 4 } else { 2 }, 1) };
    0
}

unsafe extern "C" fn peer_copy(
    to: *mut c_void,
    to_device: i32,
    from: *mut c_void,
    from_device: i32,
    bytes: usize,
    stream: *mut c_void,
) -> i32 {
    let all = (to as u64, to_device, from as u64, from_device, bytes, stream as u64);
    called(&format!("copy {all:?}"))
}

unsafe extern "C" fn busy(_: *mut c_void) -> i32 {
    600
}

unsafe extern "C" fn broken(_: *mut c_void) -> i32 {
    700
}

unsafe extern "C" fn one_block(blocks: *mut i32, _: *mut c_void, _: i32, _: usize) -> i32 {
    // SAFETY: the caller's variable.
    unsafe { *blocks = 1 };
    0
}

fn api() -> Api {
    Api {
        hipGetDeviceCount: two,
        hipGetDevicePropertiesR0600: mi300,
        hipDeviceGetAttribute: attribute,
        hipDeviceGetPCIBusId: bus_id,
        hipDriverGetVersion: version,
        hipExtMallocWithFlags: fine_grained,
        hipIpcGetMemHandle: ipc,
        hipIpcOpenMemHandle: open_ipc,
        hipModuleOccupancyMaxActiveBlocksPerMultiprocessor: one_block,
        ..Api::fake()
    }
}

#[test]
fn gpus_are_known_by_what_hip_says() {
    let gpus = gpus_of(api()).unwrap();
    assert_eq!(gpus.len(), 2);
    let info = gpus[1].info();
    assert_eq!((info.name.as_str(), info.bus_id.as_str()), ("AMD Instinct MI300X", "0000:22:00.0"));
    assert_eq!((info.target.to_string().as_str(), info.sms), ("hip:gfx942", 304));
    assert_eq!(info.driver, "HIP 6.3");
}

#[test]
fn gpus_that_cannot_be_used_are_told() {
    let said = |api| gpus_of(api).unwrap_err().to_string();
    let none = said(Api { hipGetDeviceCount: no_device, ..api() });
    assert!(none.starts_with("1 hip GPUs are needed and 0 can be seen; HIP_VISIBLE_DEVICES"), "{none}");
    let other = said(Api { hipGetDevicePropertiesR0600: gaming, ..api() });
    assert!(
        other.ends_with("is gfx1100, which is not supported: gfx90a, gfx942, gfx950 and gfx1250 are"),
        "{other}"
    );
}

#[test]
fn without_hip_the_error_says_what_to_install() {
    if let Err(e) = Api::load() {
        assert!(e.to_string().contains("install ROCm 6.0 or newer"), "{e}");
    }
}

#[test]
fn shared_memory_is_fine_grained_reachable_and_passed_on_as_ipc_handles() {
    let gpus = gpus_of(api()).unwrap();
    calls();
    let block = gpus[0].alloc_shared(100, Sharing::Ipc, &[0, 1]).unwrap();
    assert_eq!(block.ptr, 0x1001);
    assert_eq!(calls(), ["hipDeviceEnablePeerAccess", "hipExtMallocWithFlags"]);
    let handle = gpus[0].export(&block).unwrap();
    let there = gpus[1].import(handle, 100).unwrap();
    assert_eq!((there.ptr, there.imported), (0x10_1001, true));
    // SAFETY: nothing is there, and nothing uses it.
    unsafe {
        gpus[1].free_shared(&there).unwrap();
        gpus[0].free_shared(&block).unwrap();
    }
    assert_eq!(calls(), ["hipIpcCloseMemHandle", "hipFree"]);
    assert!(gpus[0].alloc_shared(1, Sharing::Vmm, &[]).is_err());
    assert!(gpus[0].import(ShareHandle::Ipc(vec![0; 3]), 1).is_err());

    gpus_of(Api { hipDeviceEnablePeerAccess: already, ..api() }).unwrap()[0]
        .alloc_shared(1, Sharing::Ipc, &[1])
        .unwrap();
    let far = gpus_of(Api { hipDeviceEnablePeerAccess: unsupported, ..api() }).unwrap();
    let error = far[0].alloc_shared(1, Sharing::Ipc, &[1]).unwrap_err();
    assert!(matches!(error, RuntimeError::NoPeerAccess { from: 1, to: 0, .. }), "{error}");
}

#[test]
fn copies_name_both_gpus_and_links_are_as_hip_names_them() {
    let api = Api { hipExtGetLinkTypeAndHopCount: xgmi_to_1, hipMemcpyPeerAsync: peer_copy, ..api() };
    let gpus = gpus_of(api).unwrap();
    assert_eq!(
        (gpus[0].peer_link(1).unwrap(), gpus[1].peer_link(0).unwrap()),
        (PeerLink::Xgmi, PeerLink::Pcie)
    );
    calls();
    // SAFETY: nothing is copied.
    unsafe { gpus[1].copy_to_peer(0, 0x20, 0x10, 7, RawStream::from_raw(3)).unwrap() };
    assert_eq!(calls(), ["copy (32, 0, 16, 1, 7, 3)"]);
}

#[test]
fn kernels_are_launched_as_they_ask_for() {
    let gpu = gpus_of(api()).unwrap().remove(0);
    let config = LaunchConfig { grid: 304, block_threads: 256, cooperative: true, ..LaunchConfig::default() };
    calls();
    // SAFETY: the library is a fake, which loads nothing.
    let kernel = unsafe { LoadedKernel::new(&gpu, MODULE, "k", config).unwrap() };
    // SAFETY: nothing runs.
    unsafe { kernel.launch(&[1, 2], RawStream::DEFAULT).unwrap() };
    drop(kernel);
    assert_eq!(
        calls(),
        ["hipModuleLoadData", "hipModuleGetFunction", "hipModuleLaunchCooperativeKernel", "hipModuleUnload"]
    );
    let plain = LaunchConfig { cooperative: false, ..config };
    // SAFETY: the library is a fake, which loads nothing.
    let kernel = unsafe { LoadedKernel::new(&gpu, MODULE, "k", plain).unwrap() };
    // SAFETY: as above.
    unsafe { kernel.launch(&[1, 2], RawStream::DEFAULT).unwrap() };
    assert_eq!(calls().last().unwrap(), "hipModuleLaunchKernel");
    for bad in [LaunchConfig { cluster: Some(2), ..plain }, LaunchConfig { overlaps_previous: true, ..plain }]
    {
        // SAFETY: the library is a fake, which loads nothing.
        let kernel = unsafe { LoadedKernel::new(&gpu, MODULE, "k", bad).unwrap() };
        // SAFETY: as above.
        assert!(unsafe { kernel.launch(&[1], RawStream::DEFAULT) }.is_err());
    }
    let many = LaunchConfig { grid: 305, ..config };
    // SAFETY: the library is a fake, which loads nothing.
    let many = unsafe { LoadedKernel::new(&gpu, MODULE, "k", many) };
    assert!(matches!(many, Err(RuntimeError::NotResident { .. })));
}

#[test]
fn streams_events_and_graphs_are_given_back() {
    let gpu = gpus_of(api()).unwrap().remove(0);
    calls();
    let stream = Stream::new(&gpu).unwrap();
    let (a, b) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
    a.record(stream.raw()).unwrap();
    b.record(stream.raw()).unwrap();
    b.since(&a).unwrap();
    assert!(stream.done().unwrap());
    let graph = stream.capture(|| Ok(())).unwrap();
    // SAFETY: nothing runs.
    unsafe { graph.launch(stream.raw()).unwrap() };
    stream.synchronize().unwrap();
    drop((graph, a, b, stream));
    let found = calls();
    let count = |name: &str| found.iter().filter(|c| *c == name).count();
    let pairs = [("hipStreamCreateWithFlags", "hipStreamDestroy"), ("hipEventCreate", "hipEventDestroy")];
    assert!(pairs.iter().all(|(made, gone)| count(made) == count(gone) && count(made) > 0), "{found:?}");
    assert_eq!((count("hipGraphDestroy"), count("hipGraphExecDestroy"), count("hipGraphLaunch")), (1, 1, 1));
}

#[test]
fn what_hip_says_is_reported() {
    let busy = gpus_of(Api { hipStreamQuery: busy, ..api() }).unwrap().remove(0);
    assert!(!busy.stream_done(RawStream::DEFAULT).unwrap());
    let broken = gpus_of(Api { hipStreamQuery: broken, ..api() }).unwrap().remove(1);
    let error = broken.stream_done(RawStream::DEFAULT).unwrap_err().to_string();
    let told = "hipStreamQuery on GPU 1 failed: told to (error 700): a kernel failed";
    assert!(error.starts_with(told), "{error}");
}

/// A world of AMD GPUs that stand in for real ones, and what they were asked for.
fn world() -> (Machine, Arc<World>) {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all_hip(&machine, 2), &WorldOptions::default()).unwrap();
    (machine, Arc::new(world))
}

#[test]
fn operations_run_in_worlds_of_amd_gpus() {
    let (machine, world) = world();
    let variant = ClockSync { ranks: 2, rounds: 3 }.into_variant();
    let launches = [LaunchSpec::new("clocks", variant.clone())];
    let mut op = Operation::new(&world, &launches, &Uncompiled).unwrap();
    let streams: Vec<Stream> = op.ranks().iter().map(|rank| Stream::new(rank.gpu()).unwrap()).collect();
    machine.launches.lock().unwrap().clear();
    for (rank, stream) in op.ranks_mut().iter_mut().zip(&streams) {
        // SAFETY: nothing runs.
        unsafe { rank.launch_raw(0, &[], stream.raw()).unwrap() };
    }
    world.finish_all(streams.iter().map(Stream::raw)).unwrap();
    let image = Uncompiled.image(&*variant, Target::Hip(HipArch::Gfx942)).unwrap();
    let launched = machine.launches.lock().unwrap().clone();
    assert_eq!(launched.iter().map(|l| l.gpu).collect::<Vec<_>>(), [0, 1]);
    for launch in &launched {
        let LaunchConfig { block_threads, cluster, overlaps_previous, .. } = launch.config;
        // Warps have 64 threads, and HIP has neither clusters nor overlapping launches.
        assert_eq!((block_threads, cluster, overlaps_previous), (64, None, false));
        assert_eq!(launch.args.len() as u32 * 8, image.args.bytes.next_multiple_of(8));
    }
    drop((streams, op));
    drop(world);
    assert_eq!(machine.alive(), 0);
}

#[test]
fn a_pack_for_nvidia_gpus_is_refused_with_what_it_is_for() {
    let (_machine, world) = world();
    let pack = Pack::open(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pack")).unwrap();
    let variant = ClockSync { ranks: 2, rounds: 3 }.into_variant();
    let error = Operation::new(&world, &[LaunchSpec::new("clocks", variant)], &pack).unwrap_err().to_string();
    assert!(error.ends_with("the pack has nothing for hip:gfx942, only for cuda:sm_90a"), "{error}");
}

#[test]
fn worlds_of_amd_gpus_say_that_they_are_untested() {
    let (_machine, world) = world();
    let real = gpus_of(api()).unwrap().remove(0);
    for gpu in [&world.members()[0].gpu, &real] {
        assert!(gpu.untested().unwrap().contains("has not run on hardware yet"));
    }
    let machine = Machine::default();
    assert_eq!(MockGpu::all(&machine, 1)[0].untested(), None);
}
