//! A GPU for tests: its memory is the process's own, or for shared blocks a file in memory, so that other processes
//! really reach it. It counts what is alive, and refuses addresses that are not. A test fails at its end if anything is left
//! over, or was used after its end.

mod machine;

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use peerwarp_codegen::family::{CudaArch, DynKernel, HipArch, Target};
use peerwarp_codegen::print::{self, EmitInfo, TensorMap};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::gpu::{
    DevicePtr, Gpu, GpuInfo, LaunchConfig, PeerLink, RawEvent, RawFunction, RawGraph, RawModule, RawStream,
    ShareHandle, SharedBlock, Sharing,
};
use super::image::{Images, KernelImage};
use super::{RuntimeError, World, WorldOptions};
use machine::{Region, State};

pub(crate) use machine::{Launched, Machine};

type Result<T> = std::result::Result<T, RuntimeError>;

/// Kernels without a module: what the mock launches is looked at, not run.
pub(crate) struct Uncompiled;

// SAFETY: nothing is run.
unsafe impl Images for Uncompiled {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage> {
        let kernel = crate::build::emit::trace(variant, target.warp_size())?;
        let source = print::emit(&kernel, target, &EmitInfo { command: String::new() }).unwrap();
        Ok(KernelImage {
            variant: kernel.into_kernel().variant,
            target,
            entry: source.entry,
            launch: source.launch,
            args: source.args,
            params: source.params,
            roles: vec![],
            waits: source.waits,
            timeline: source.timeline,
            compiler: "mock".into(),
            nccl: None,
            module: vec![],
        })
    }
}

#[derive(Debug)]
pub(crate) struct MockGpu {
    info: GpuInfo,
    machine: Arc<State>,
    /// GPUs that it cannot reach.
    pub unreachable: Vec<u32>,
    sharing: Vec<Sharing>,
}

impl MockGpu {
    pub fn new(machine: &Machine, ordinal: u32) -> MockGpu {
        let info = GpuInfo {
            ordinal,
            name: "mock".into(),
            bus_id: format!("0000:{ordinal:02x}:00.0"),
            target: Target::Cuda(CudaArch::Sm90a),
            sms: 132,
            memory: 1 << 30,
            driver: "mock".into(),
        };
        MockGpu { info, machine: Arc::clone(&machine.0), unreachable: vec![], sharing: vec![Sharing::Vmm] }
    }

    /// As many as there are ranks.
    pub fn all(machine: &Machine, count: u32) -> Vec<Arc<dyn Gpu>> {
        (0..count).map(|i| Arc::new(MockGpu::new(machine, i)) as Arc<dyn Gpu>).collect()
    }

    /// As [`MockGpu::all`], with memory shared by IPC.
    pub fn all_ipc(machine: &Machine, count: u32) -> Vec<Arc<dyn Gpu>> {
        let gpu = |i| MockGpu { sharing: vec![Sharing::Ipc], ..MockGpu::new(machine, i) };
        (0..count).map(|i| Arc::new(gpu(i)) as Arc<dyn Gpu>).collect()
    }

    /// As [`MockGpu::all_ipc`], of AMD GPUs.
    pub fn all_hip(machine: &Machine, count: u32) -> Vec<Arc<dyn Gpu>> {
        let gpu = |i| {
            let mut gpu = MockGpu { sharing: vec![Sharing::Ipc], ..MockGpu::new(machine, i) };
            (gpu.info.target, gpu.info.sms) = (Target::Hip(HipArch::Gfx942), 304);
            gpu
        };
        (0..count).map(|i| Arc::new(gpu(i)) as Arc<dyn Gpu>).collect()
    }

    /// Memory of this process.
    fn plain(&self, bytes: u64) -> DevicePtr {
        let mut plain = vec![0u64; (bytes as usize).div_ceil(8)];
        // By bytes, which is one call without optimisation too.
        bytemuck::cast_slice_mut::<_, u8>(&mut plain).fill(u8::MAX);
        let ptr = plain.as_mut_ptr() as u64;
        let region = Region { bytes, _plain: Some(plain), file: None, of: None };
        self.machine.memory.lock().unwrap().insert(ptr, region);
        ptr
    }

    /// A mapping of a file, which is another process's block if that has a start.
    fn map(&self, file: OwnedFd, bytes: u64, sharing: Sharing, of: Option<u64>) -> Result<SharedBlock> {
        // SAFETY: a new mapping of a file of this size.
        let ptr = unsafe {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            mmap(std::ptr::null_mut(), bytes as usize, prot, flags, &file, 0).unwrap()
        };
        let imported = of.is_some();
        let region = Region { bytes, _plain: None, file: Some(file), of: of.filter(|&start| start > 0) };
        self.machine.memory.lock().unwrap().insert(ptr as u64, region);
        Ok(SharedBlock { ptr: ptr as u64, bytes, sharing, imported })
    }
}

impl MockGpu {
    /// Maps a file where a block is.
    fn map_over(&self, block: &SharedBlock, file: OwnedFd) {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: in place of a mapping of this size.
        unsafe { mmap(block.ptr as *mut c_void, block.bytes as usize, prot, flags, &file, 0).unwrap() };
        let mut memory = self.machine.memory.lock().unwrap();
        memory.get_mut(&block.ptr).expect("a block that is alive").file = Some(file);
    }
}

/// A world of two ranks, with a GPU each.
pub(crate) fn world(machine: &Machine) -> Arc<World> {
    Arc::new(World::of_gpus(&MockGpu::all(machine, 2), &WorldOptions::default()).unwrap())
}

// SAFETY: it gives out memory of the host, and keeps it until it is given back.
unsafe impl Gpu for MockGpu {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn untested(&self) -> Option<&'static str> {
        matches!(self.info.target, Target::Hip(_)).then_some(super::hip::UNTESTED)
    }

    fn can_access(&self, peer: u32) -> Result<bool> {
        Ok(!self.unreachable.contains(&peer))
    }

    fn peer_link(&self, peer: u32) -> Result<PeerLink> {
        Ok(if self.unreachable.contains(&peer) { PeerLink::Pcie } else { PeerLink::NvLink })
    }

    fn synchronize(&self) -> Result<()> {
        self.machine.attempt("synchronize")
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr> {
        self.machine.attempt("alloc")?;
        Ok(self.plain(bytes))
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        if self.machine.memory.lock().unwrap().remove(&ptr).is_none() {
            self.machine.double();
        }
        Ok(())
    }

    unsafe fn upload(&self, to: DevicePtr, bytes: &[u8]) -> Result<()> {
        self.machine.check("upload", to, bytes.len() as u64)?;
        // SAFETY: checked to be memory of this process that is alive.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        self.machine.check("download", from, bytes.len() as u64)?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn fill(&self, to: DevicePtr, bytes: u64, value: u8, _: RawStream) -> Result<()> {
        self.machine.attempt("fill")?;
        self.machine.check("fill", to, bytes)?;
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes as usize) };
        Ok(())
    }

    unsafe fn map_host(&self, first: *mut c_void, bytes: u64) -> Result<DevicePtr> {
        self.machine.attempt("map_host")?;
        let region = Region { bytes, _plain: None, file: None, of: None };
        self.machine.memory.lock().unwrap().insert(first as u64, region);
        Ok(first as u64)
    }

    unsafe fn unmap_host(&self, first: *mut c_void) -> Result<()> {
        // SAFETY: as the caller says.
        unsafe { self.free(first as u64) }
    }

    unsafe fn copy_to_peer(
        &self,
        _: u32,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        self.machine.touch(stream.raw());
        self.machine.attempt("copy_to_peer")?;
        [to, from].into_iter().try_for_each(|ptr| self.machine.check("copy_to_peer", ptr, bytes))?;
        // SAFETY: checked to be memory of this process that is alive.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
        Ok(())
    }

    fn sharing(&self) -> &[Sharing] {
        &self.sharing
    }

    fn alloc_shared(&self, bytes: u64, sharing: Sharing, _: &[u32]) -> Result<SharedBlock> {
        self.machine.attempt("alloc_shared")?;
        let bytes = bytes.next_multiple_of(4096);
        if cfg!(miri) {
            // It has no files in memory, and no other process.
            return Ok(SharedBlock { ptr: self.plain(bytes), bytes, sharing, imported: false });
        }
        let file = memfd_create("mock", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        self.map(file, bytes, sharing, None)
    }

    fn export(&self, block: &SharedBlock) -> Result<ShareHandle> {
        self.machine.attempt("export")?;
        match block.sharing {
            Sharing::Vmm => Ok(ShareHandle::Fd(self.machine.file(block.ptr))),
            // Good in this process only.
            Sharing::Ipc => {
                Ok(ShareHandle::Ipc([block.ptr, 0, 0, 0, 0, 0, 0, 0].map(u64::to_ne_bytes).concat()))
            }
        }
    }

    fn import(&self, handle: ShareHandle, bytes: u64) -> Result<SharedBlock> {
        self.machine.attempt("import")?;
        match handle {
            ShareHandle::Fd(file) => self.map(file, bytes, Sharing::Vmm, Some(0)),
            ShareHandle::Ipc(raw) => {
                let of = u64::from_ne_bytes(raw[..8].try_into().expect("eight bytes"));
                self.map(self.machine.file(of), bytes, Sharing::Ipc, Some(of))
            }
        }
    }

    unsafe fn renew(&self, block: &SharedBlock, keeps: bool) -> Result<()> {
        self.machine.attempt("renew")?;
        if block.sharing == Sharing::Ipc {
            return Err(super::gpu::fixed(&self.info));
        }
        let file = memfd_create("mock", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, block.bytes).unwrap();
        // SAFETY: mapped by `map`.
        let old =
            unsafe { std::slice::from_raw_parts(block.ptr as *const u8, block.bytes as usize) }.to_vec();
        self.map_over(block, file);
        if keeps {
            // SAFETY: mapped just now, of that size.
            unsafe { std::ptr::copy_nonoverlapping(old.as_ptr(), block.ptr as *mut u8, old.len()) };
        }
        Ok(())
    }

    unsafe fn remap(&self, block: &SharedBlock, handle: ShareHandle) -> Result<()> {
        self.machine.attempt("remap")?;
        match handle {
            ShareHandle::Fd(file) => self.map_over(block, file),
            ShareHandle::Ipc(_) => panic!("memory that goes by IPC stays where it is"),
        }
        Ok(())
    }

    unsafe fn detach(&self, block: &SharedBlock) -> Result<()> {
        self.machine.attempt("detach")?;
        let file = memfd_create("mock", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, block.bytes).unwrap();
        self.map_over(block, file);
        Ok(())
    }

    unsafe fn free_shared(&self, block: &SharedBlock) -> Result<()> {
        let mut memory = self.machine.memory.lock().unwrap();
        let Some(region) = memory.remove(&block.ptr) else {
            self.machine.double();
            return Ok(());
        };
        if memory.values().any(|region| region.of == Some(block.ptr)) {
            self.machine.torn.fetch_add(1, Ordering::Relaxed);
        }
        if region.file.is_some() {
            // SAFETY: mapped by `map`, and not yet unmapped.
            unsafe { munmap(block.ptr as *mut c_void, block.bytes as usize).unwrap() };
        }
        Ok(())
    }

    unsafe fn load(&self, _: &[u8]) -> Result<RawModule> {
        self.machine.attempt("load")?;
        // SAFETY: the mock looks at none of its handles.
        Ok(unsafe { RawModule::from_raw(self.machine.handle()) })
    }

    unsafe fn unload(&self, it: RawModule) -> Result<()> {
        self.machine.drop_handle(it.raw())
    }

    fn function(&self, module: RawModule, _: &str, _: u32) -> Result<RawFunction> {
        self.machine.attempt("function")?;
        // SAFETY: as above.
        Ok(unsafe { RawFunction::from_raw(module.raw()) })
    }

    fn blocks_per_sm(&self, _: RawFunction, _: &LaunchConfig) -> Result<u32> {
        Ok(self.machine.per_sm.load(Ordering::Relaxed).max(1))
    }

    fn clustered_blocks(&self, _: RawFunction, _: &LaunchConfig) -> Result<Option<u32>> {
        Ok(Some(self.machine.clustered.load(Ordering::Relaxed)).filter(|blocks| *blocks > 0))
    }

    fn tensor_map(&self, matrix: DevicePtr, _map: &TensorMap) -> Result<[u64; 16]> {
        self.machine.attempt("tensor_map")?;
        self.machine.maps.fetch_add(1, Ordering::Relaxed);
        let mut words = [0; 16];
        words[0] = matrix;
        Ok(words)
    }

    unsafe fn launch(
        &self,
        function: RawFunction,
        config: &LaunchConfig,
        args: &[u64],
        stream: RawStream,
    ) -> Result<()> {
        [function.raw(), stream.raw()].into_iter().for_each(|handle| self.machine.touch(handle));
        self.machine.attempt("launch")?;
        let launched = Launched { gpu: self.info.ordinal, config: *config, args: args.to_vec() };
        self.machine.launches.lock().unwrap().push(launched);
        Ok(())
    }

    fn create_stream(&self) -> Result<RawStream<'static>> {
        let stale = self.machine.stale.lock().unwrap().pop();
        let handle = stale.unwrap_or_else(|| self.machine.handle());
        self.machine.handles.lock().unwrap().insert(handle);
        // SAFETY: as above.
        Ok(unsafe { RawStream::from_raw(handle) })
    }

    unsafe fn destroy_stream(&self, it: RawStream) -> Result<()> {
        self.machine.stale.lock().unwrap().push(it.raw());
        self.machine.drop_handle(it.raw())
    }

    fn stream_done(&self, stream: RawStream) -> Result<bool> {
        self.machine.touch(stream.raw());
        Ok(true)
    }

    fn synchronize_stream(&self, stream: RawStream) -> Result<()> {
        self.machine.touch(stream.raw());
        self.machine.attempt("synchronize_stream")
    }

    fn create_event(&self) -> Result<RawEvent> {
        // SAFETY: as above.
        Ok(unsafe { RawEvent::from_raw(self.machine.handle()) })
    }

    unsafe fn destroy_event(&self, it: RawEvent) -> Result<()> {
        self.machine.drop_handle(it.raw())
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        [event.raw(), stream.raw()].into_iter().for_each(|handle| self.machine.touch(handle));
        Ok(())
    }

    fn elapsed(&self, _: RawEvent, _: RawEvent) -> Result<Duration> {
        let growth = self.machine.growth.load(Ordering::Relaxed);
        Ok(match self.machine.gap.fetch_add(growth, Ordering::Relaxed) {
            0 => Duration::from_micros(1),
            gap => Duration::from_nanos(gap),
        })
    }

    fn begin_capture(&self, stream: RawStream) -> Result<()> {
        self.machine.touch(stream.raw());
        Ok(())
    }

    fn end_capture(&self, _: RawStream) -> Result<RawGraph> {
        // SAFETY: as above.
        Ok(unsafe { RawGraph::from_raw(self.machine.handle()) })
    }

    unsafe fn launch_graph(&self, graph: RawGraph, stream: RawStream) -> Result<()> {
        [graph.raw(), stream.raw()].into_iter().for_each(|handle| self.machine.touch(handle));
        self.machine.graphs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn destroy_graph(&self, it: RawGraph) -> Result<()> {
        self.machine.drop_handle(it.raw())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::runtime::handles::{Buffer, Stream};

    /// What the end of a test says after this has been done in it.
    fn end(act: impl FnOnce(&Machine, &Arc<dyn Gpu>)) -> Option<String> {
        let machine = Machine::default();
        let gpu = MockGpu::all(&machine, 1).remove(0);
        act(&machine, &gpu);
        drop(gpu);
        let said = catch_unwind(AssertUnwindSafe(|| drop(machine))).err()?;
        said.downcast::<String>().ok().map(|said| said.lines().next().unwrap_or_default().to_owned())
    }

    #[test]
    fn what_is_left_over_or_used_after_its_end_fails_a_test() {
        let left = "so many things are left over, and so many were to be";
        let used = "so many things were used after their end";
        assert_eq!(end(|_, gpu| drop(Buffer::new(gpu, 8).unwrap())), None);
        let said = |act: &dyn Fn(&Machine, &Arc<dyn Gpu>)| end(act).expect("it fails");
        assert!(said(&|_, gpu| std::mem::forget(Buffer::new(gpu, 8).unwrap())).contains(left));
        assert!(said(&|_, gpu| std::mem::forget(Stream::new(gpu).unwrap())).contains(left));
        assert!(said(&|machine, _| machine.leaves(1)).contains(left));
        let forgotten = |machine: &Machine, gpu: &Arc<dyn Gpu>| {
            machine.leaves(1);
            std::mem::forget(Buffer::new(gpu, 8).unwrap());
        };
        assert_eq!(end(forgotten), None);
        // SAFETY: not at all, and nothing runs on mocks.
        unsafe {
            assert!(said(&|_, gpu| gpu.free(Buffer::new(gpu, 8).unwrap().ptr()).unwrap()).contains(used));
            let unmapped_twice = |_: &Machine, gpu: &Arc<dyn Gpu>| {
                let block = gpu.alloc_shared(8, Sharing::Vmm, &[]).unwrap();
                [(); 2].into_iter().for_each(|()| gpu.free_shared(&block).unwrap());
            };
            assert!(said(&unmapped_twice).contains(used));
            let gone = |_: &Machine, gpu: &Arc<dyn Gpu>| {
                let stream = gpu.create_stream().unwrap();
                gpu.destroy_stream(stream).unwrap();
                gpu.synchronize_stream(stream).unwrap();
            };
            assert!(said(&gone).contains(used));
        }
    }

    #[test]
    fn handles_of_streams_come_again() {
        let machine = Machine::default();
        let gpu = MockGpu::all(&machine, 1).remove(0);
        let first = Stream::new(&gpu).unwrap().raw().raw();
        assert_eq!(Stream::new(&gpu).unwrap().raw().raw(), first);
    }
}
