//! Each call of a driver that fails, with each documented error, once.

use std::path::Path;
use std::sync::Arc;

use peerwarp_codegen::family::Family;
use peerwarp_codegen::ir::Dtype;
use peerwarp_codegen::print::TensorMap;

use super::cuda::{self, api::Api as Cuda};
use super::gpu::{Gpu, LaunchConfig, RawStream, Sharing};
use super::handles::{Buffer, Event, LoadedKernel, Stream};
use super::hip::{self, api::Api as Hip};
use super::image::{Images, KernelImage};
use super::mock::Uncompiled;
use super::{RuntimeError, World, WorldOptions, remedy};
use crate::build::library::stub::{Stub, in_time};
use crate::harness::trace::sync::ClockSync;

type Gpus = Result<Vec<Arc<dyn Gpu>>, RuntimeError>;

/// An image that looks like PTX.
const IMAGE: &[u8] = b" \0";

/// Every call of a backend, until one fails.
fn everything(gpus: Gpus) -> Result<(), RuntimeError> {
    let gpus = gpus?;
    let gpu = &gpus[0];
    assert!(gpu.can_access(1)?);
    gpu.peer_link(1)?;
    memory(&gpus)?;
    gpu.sharing().iter().try_for_each(|&sharing| shared(&gpus, sharing))?;
    kernels(gpu)?;
    streams(gpu)?;
    let world = World::of_gpus(&gpus, &WorldOptions::default())?;
    world.allocate(64).map(|_| ())
}

fn memory(gpus: &[Arc<dyn Gpu>]) -> Result<(), RuntimeError> {
    let (buffer, there) = (Buffer::new(&gpus[0], 64)?, Buffer::new(&gpus[1], 64)?);
    buffer.write(0, &[7u32])?;
    // SAFETY: both are alive, and the stub copies at once.
    unsafe { gpus[0].copy_to_peer(1, there.ptr(), buffer.ptr(), 64, RawStream::DEFAULT)? };
    assert_eq!(there.read::<u32>(0, 1)?, [7]);
    buffer.clear(0)?;
    // SAFETY: nothing uses it.
    unsafe { gpus[0].free(gpus[0].alloc(8)?) }
}

fn shared(gpus: &[Arc<dyn Gpu>], sharing: Sharing) -> Result<(), RuntimeError> {
    let block = gpus[0].alloc_shared(64, sharing, &[0, 1])?;
    let there = gpus[0].export(&block).and_then(|handle| gpus[1].import(handle, block.bytes));
    // SAFETY: nothing uses them, and each is unmapped once.
    let closed = there.and_then(|there| unsafe { gpus[1].free_shared(&there) });
    // SAFETY: as above.
    closed.and(unsafe { gpus[0].free_shared(&block) })
}

fn kernels(gpu: &Arc<dyn Gpu>) -> Result<(), RuntimeError> {
    for cooperative in [false, true] {
        let config = LaunchConfig { grid: 2, block_threads: 32, cooperative, ..LaunchConfig::default() };
        // SAFETY: the stub loads and runs nothing.
        unsafe { LoadedKernel::new(gpu, IMAGE, "k", config)?.launch(&[0], RawStream::DEFAULT)? };
    }
    // SAFETY: as above.
    unsafe { gpu.unload(gpu.load(IMAGE)?)? };
    let mut page = [0u64; 8];
    // SAFETY: the page is there until it is unmapped.
    unsafe {
        gpu.map_host(page.as_mut_ptr().cast(), 64)?;
        gpu.unmap_host(page.as_mut_ptr().cast())?;
    }
    if gpu.info().target.backend() == "cuda" {
        let (name, of) = ("map".into(), "matrix".into());
        let (offset, symmetric, rows, columns, box_rows) = (0, false, 64, 64, 64);
        let map = TensorMap { name, offset, of, symmetric, dtype: Dtype::Bf16, rows, columns, box_rows };
        gpu.tensor_map(0x1000, &map)?;
    }
    Ok(())
}

fn streams(gpu: &Arc<dyn Gpu>) -> Result<(), RuntimeError> {
    let stream = Stream::new(gpu)?;
    let (start, end) = (Event::new(gpu)?, Event::new(gpu)?);
    start.record(stream.raw())?;
    end.record(stream.raw())?;
    end.since(&start)?;
    let graph = stream.capture(|| Ok(()))?;
    // SAFETY: nothing was captured.
    unsafe { graph.launch(stream.raw())? };
    stream.done()?;
    stream.synchronize()?;
    gpu.begin_capture(stream.raw())?;
    // SAFETY: each was just made, and goes once.
    unsafe {
        gpu.destroy_graph(gpu.end_capture(stream.raw())?)?;
        gpu.destroy_event(gpu.create_event()?)?;
        gpu.destroy_stream(gpu.create_stream()?)
    }
}

/// What a call that fails leads to.
enum Leads {
    /// An error that names the call, and what to do about its number.
    ToRemedy,
    /// An error with these words.
    To(&'static str),
    /// Nothing: the number is an answer, or no caller is left to tell.
    Nowhere,
}

fn leads(call: &str, error: i32) -> Leads {
    match (call, error) {
        ("cuInit" | "hipInit" | "hipGetDeviceCount", 100) => Leads::To("GPUs are needed and 0 can be seen"),
        ("cuStreamQuery" | "hipStreamQuery", 600) => Leads::Nowhere,
        ("cuCtxEnablePeerAccess" | "hipDeviceEnablePeerAccess", 704) => Leads::Nowhere,
        ("cuCtxEnablePeerAccess" | "hipDeviceEnablePeerAccess", 217) => {
            Leads::To("ranks need GPUs linked by NVLink, xGMI or PCIe peer access")
        }
        ("cuDevicePrimaryCtxRelease_v2" | "cuGraphDestroy" | "hipGraphDestroy", _) => Leads::Nowhere,
        _ => Leads::ToRemedy,
    }
}

/// Calls that are made only when another call has failed, and that one.
fn after(call: &'static str) -> &'static str {
    match call {
        "cuGetErrorName" | "cuGetErrorString" => "cuInit",
        "hipGetErrorString" => "hipInit",
        other => other,
    }
}

/// Lets each call answer each documented error.
fn each(stub: &Stub, calls: &[&'static str], gpus: impl Fn() -> Gpus, remedy: fn(i32) -> &'static str) {
    everything(gpus()).unwrap();
    for &call in calls {
        for &error in &stub.errors {
            stub.fail(&format!("{call},{}", after(call)), error);
            let result = everything(gpus());
            let answered = stub.answered();
            stub.fail("", 0);
            // The number of a missing GPU needs no words.
            let before = i32::from(after(call) != call && error != 100);
            assert!(answered > before, "no test calls {call}");
            let said = result.as_ref().map_err(ToString::to_string);
            let told = |words: &[&str]| {
                let said = said.as_ref().expect_err(call);
                assert!(words.iter().all(|word| said.contains(word)), "{call}, {error}: {said}");
                assert!(!said.contains('\n'), "{call}, {error}: {said}");
            };
            let name = after(call).trim_end_matches("_v2").trim_end_matches("R0600");
            match leads(after(call), error) {
                Leads::ToRemedy => told(&[name, &format!("error {error}"), remedy(error)]),
                Leads::To(words) => told(&[words]),
                Leads::Nowhere => assert!(result.is_ok(), "{call}, {error}: {said:?}"),
            }
        }
    }
}

/// Lets a library lack each call.
fn missing<A: std::fmt::Debug>(
    stub: &Stub,
    calls: &[&'static str],
    find: impl Fn(&[&Path]) -> Result<A, RuntimeError>,
) {
    for &call in calls {
        let error = find(&[&stub.without(call)]).unwrap_err();
        assert!(matches!(error, RuntimeError::MissingCall { call: found, .. } if found == call), "{error}");
        let said = error.to_string();
        assert!(said.contains(&format!("lacks the call `{call}`: install ")), "{said}");
    }
}

fn cuda(stub: &Stub) -> &'static Cuda {
    Box::leak(Box::new(Cuda::find(&[&stub.path]).unwrap()))
}

#[test]
fn each_error_of_each_call_of_nvidias_driver_is_reported_with_a_remedy() {
    in_time(|| {
        let stub = Stub::new("cuda");
        let api = cuda(&stub);
        each(&stub, Cuda::CALLS, || cuda::gpus_of(api), remedy::cuda);
    });
}

#[test]
fn each_error_of_each_call_of_hip_is_reported_with_a_remedy() {
    in_time(|| {
        let stub = Stub::new("hip");
        let api = Hip::find(&[&stub.path]).unwrap();
        each(&stub, Hip::CALLS, || hip::gpus_of(api), remedy::hip);
    });
}

#[test]
fn a_call_that_a_driver_lacks_is_reported() {
    let (nvidia, amd) = (Stub::new("cuda"), Stub::new("hip"));
    missing(&nvidia, Cuda::CALLS, |names| Cuda::find(names));
    missing(&amd, Hip::CALLS, |names| Hip::find(names));
}

#[test]
fn documented_errors_have_remedies() {
    for (stub, remedy) in [("cuda", remedy::cuda as fn(i32) -> &'static str), ("hip", remedy::hip)] {
        let errors = Stub::new(stub).errors;
        assert!(errors.len() > 70);
        let unknown: Vec<i32> = errors.into_iter().filter(|&e| remedy(e) == remedy(-1)).collect();
        assert_eq!(unknown, [0; 0], "{stub}");
    }
}

#[test]
fn a_number_that_is_not_documented_is_reported_too() {
    let stub = Stub::new("cuda");
    let api = cuda(&stub);
    stub.fail("cuInit", 4242);
    let said = cuda::gpus_of(api).unwrap_err().to_string();
    assert!(said.starts_with("cuInit failed: the driver has no words for it (error 4242): "), "{said}");
    assert!(said.ends_with(remedy::cuda(4242)), "{said}");
}

/// Sets the version that a driver says it supports.
fn says(driver: &Path, version: i32) {
    // SAFETY: it has no initialisers, and a variable of that type.
    unsafe {
        let library = crate::build::library::open(&[driver]).unwrap();
        **library.get::<*mut i32>(b"stub_version").unwrap() = version;
    }
}

#[test]
fn a_driver_of_cuda_12_4_does_everything_with_modules_of_its_version() {
    let stub = Stub::new("cuda");
    says(&stub.path, 12040);
    let api = cuda(&stub);
    everything(cuda::gpus_of(api)).unwrap();
    let gpus = cuda::gpus_of(api).unwrap();
    let world = World::of_gpus(&gpus[..1], &WorldOptions::default()).unwrap();
    let variant = ClockSync { ranks: 2, rounds: 4 }.into_variant();
    let image = Uncompiled.image(&*variant, gpus[0].info().target).unwrap();
    let load = |compiler: &str| {
        let image = KernelImage { compiler: compiler.into(), module: IMAGE.to_vec(), ..image.clone() };
        world.load(&gpus[0], &image).map(drop)
    };
    load("nvrtc 12.4").unwrap();
    load("nvrtc 12.9").unwrap();
    let said = load("nvrtc 13.0").unwrap_err().to_string();
    assert!(said.starts_with("clock_sync") && said.contains("compiled by nvrtc 13.0"), "{said}");
    assert!(said.contains("the driver is of CUDA 12.4: install a newer driver, or compile"), "{said}");
    says(&stub.path, 13000);
    let newer = cuda::gpus_of(api).unwrap();
    let world = World::of_gpus(&newer[..1], &WorldOptions::default()).unwrap();
    let image = KernelImage { compiler: "nvrtc 13.0".into(), module: IMAGE.to_vec(), ..image };
    world.load(&newer[0], &image).unwrap();
}

#[test]
fn an_old_driver_is_reported_as_one_whatever_it_lacks() {
    let stub = Stub::new("cuda");
    let old = stub.without("cuLaunchKernelEx");
    says(&old, 11040);
    let error = Cuda::find(&[&old]).unwrap_err().to_string();
    assert!(error.starts_with("the driver supports CUDA 11.4 and CUDA 12.4 is needed: install "), "{error}");
}

#[test]
fn a_library_that_cannot_be_loaded_is_not_told_as_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libcuda.so.1");
    let absent = Cuda::find(&[&path]).unwrap_err().to_string();
    assert!(absent.starts_with("the NVIDIA driver (libcuda.so.1) was not found: install "), "{absent}");
    std::fs::write(&path, "not ELF").unwrap();
    for said in [Cuda::find(&[&path]).unwrap_err(), Hip::find(&[&path]).unwrap_err()] {
        let said = said.to_string();
        assert!(said.contains("that can be loaded (") && said.contains("too short"), "{said}");
        assert!(said.contains("install "), "{said}");
    }
}
