//! The devices that targets stand for, and what is known of them: the one place with such figures.
//!
//! Sources: for NVIDIA the table of technical specifications by compute capability in the CUDA C++ programming guide, and the
//! data sheets for the number of SMs and the memory's bandwidth; for AMD the ISA guides of CDNA 2, 3 and 4 and the data sheets.
//! What was measured says so. Latencies of memory: cycles by Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
//! Architecture via Microbenchmarking" (arXiv 2402.13499), at the boost clock.

use serde::Serialize;

use crate::family::{CudaArch, HipArch, Target};

const KIB: u32 = 1024;

/// Registers that a thread keeps where blocks share an SM. Kernels of this project spill with 64.
const ROOMY_REGISTERS: u32 = 128;

/// A device that a target stands for: of those that serving and training use, the smallest common one; of those on a board with
/// their CPU, the developer kit's. An SM is a compute
/// unit on AMD's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// What it is sold as.
    pub name: &'static str,
    /// SMs (compute units).
    pub sms: u32,
    /// Lanes a warp.
    pub warp_size: u32,
    /// Threads that an SM holds.
    pub sm_threads: u32,
    /// Blocks that an SM holds.
    pub sm_blocks: u32,
    /// Bytes of shared memory of an SM.
    pub sm_shared_bytes: u32,
    /// Bytes of shared memory that a block can have.
    pub block_shared_bytes: u32,
    /// Bytes of an SM's shared memory that the system takes for every block.
    pub reserved_shared_bytes: u32,
    /// Shared memory comes in units of so many bytes.
    pub shared_unit: u32,
    /// Registers of an SM.
    pub registers: Registers,
    /// Most registers of a thread.
    pub thread_registers: u32,
    /// Largest store, in bytes, that peers see whole or not at all: 16 in CUDA (128-bit relaxed stores), 8 of AMD's, of which
    /// wider ones are not documented to be.
    pub packet_bytes: u32,
    /// Whether products bring pieces of their operands ahead, as many as a variant has stages; if not, one is under way.
    pub stages_products: bool,
    /// GB/s that an SM stores at most, where it was measured.
    pub sm_store_gbps: Option<f64>,
    /// Bandwidth of its memory, and the time from a load to its value; none where no latency is published.
    pub memory: Option<Path>,
    /// Bandwidth to its peers, and the time from a store until a peer sees it; none where it was not measured.
    pub link: Option<Path>,
    /// NVLinks of boards that have an NVSwitch, and the GB/s that each is sold for in one direction; none where there are no
    /// such boards.
    pub nvlinks: Option<(u32, f64)>,
    /// The links of boards where each device has one to each other one; none where there are no such boards.
    pub mesh: Option<Mesh>,
    /// Dies that compute, each with an L2 cache of its own.
    pub dies: u32,
}

/// Links between all devices of a board, as their maker publishes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mesh {
    /// Other devices on the board.
    pub peers: u32,
    /// GB/s in one direction that a link is sold for.
    pub sold_gbps: f64,
    /// GB/s in one direction that copies were seen to reach; none where that is not published.
    pub seen_gbps: Option<f64>,
}

/// Bandwidth and latency of a way to memory or to a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// GB/s in one direction.
    pub gbps: f64,
    /// Nanoseconds.
    pub latency_ns: f64,
}

/// A way through network cards to the ranks of other nodes, as one GPU has it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FarPath {
    /// GB/s of its cards in one direction.
    pub gbps: f64,
    /// Microseconds from the command of a put until its bytes stand at the target, beside the time of the bytes.
    pub put_us: f64,
    /// Microseconds from the arrival of a put until a kernel sees it counted: the hop of a proxy, if there is one.
    pub count_us: f64,
    /// Puts a microsecond, whatever their size.
    pub puts_per_us: f64,
}

/// What one launch moves through the cards of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FarMoved {
    /// Puts to other ranks.
    pub puts: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Credits to other ranks: puts without bytes.
    pub credits: u64,
    /// Whether the launch waits for local completion.
    pub settles: bool,
}

impl FarPath {
    /// Microseconds that the cards are busy: bytes at their bandwidth, or puts and credits at their rate.
    pub fn card_us(&self, moved: &FarMoved) -> f64 {
        let puts = (moved.puts + moved.credits) as f64;
        (moved.bytes as f64 / self.gbps / 1e3).max(puts / self.puts_per_us)
    }

    /// Microseconds until the last put is counted at its target.
    pub fn arrive_us(&self, moved: &FarMoved) -> f64 {
        self.card_us(moved) + self.put_us + self.count_us
    }

    /// Microseconds until the last put is locally complete: its bytes arrive, and the acknowledgement comes back.
    pub fn settle_us(&self, moved: &FarMoved) -> f64 {
        self.card_us(moved) + 2.0 * self.put_us
    }

    /// Microseconds of a credit, which waits for no other put.
    pub fn credit_us(&self) -> f64 {
        1.0 / self.puts_per_us + self.put_us + self.count_us
    }

    /// Microseconds that a launch takes at least, all waits included; 0 if it moves nothing.
    pub fn launch_us(&self, moved: &FarMoved) -> f64 {
        let waits = [
            (moved.puts > 0).then(|| self.arrive_us(moved)),
            (moved.puts > 0 && moved.settles).then(|| self.settle_us(moved)),
            (moved.credits > 0).then(|| self.credit_us()),
        ];
        waits.into_iter().flatten().fold(0.0, f64::max)
    }
}

/// How registers are shared by the warps of an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// A file for each of four partitions, of so many registers; a warp gets a multiple of 256.
    Files(u32),
    /// A file for each of four SIMDs, of so many registers a lane; a warp gets a multiple of so many.
    Simds(u32, u32),
}

/// Dynamic shared memory that reductions may need beside a block's arrays, in bytes.
pub const REDUCTION_BYTES: u32 = 2 * KIB;

const NVIDIA: Device = Device {
    name: "",
    sms: 0,
    warp_size: 32,
    sm_threads: 2048,
    sm_blocks: 32,
    sm_shared_bytes: 228 * KIB,
    block_shared_bytes: 227 * KIB,
    reserved_shared_bytes: KIB,
    shared_unit: 128,
    registers: Registers::Files(16 * KIB),
    thread_registers: 255,
    packet_bytes: 16,
    stages_products: true,
    sm_store_gbps: None,
    memory: None,
    link: None,
    nvlinks: None,
    mesh: None,
    dies: 1,
};

/// SMs of 100 KiB of shared memory, as compute capabilities 8.6, 8.9, 12.0 and 12.1 have them.
const NVIDIA_SMALL: Device = Device {
    sm_threads: 1536,
    sm_blocks: 24,
    sm_shared_bytes: 100 * KIB,
    block_shared_bytes: 99 * KIB,
    ..NVIDIA
};

const AMD: Device = Device {
    name: "",
    sms: 0,
    warp_size: 64,
    // Eight warps of 64 lanes on each of four SIMDs.
    sm_threads: 4 * 8 * 64,
    sm_blocks: 16,
    sm_shared_bytes: 64 * KIB,
    block_shared_bytes: 64 * KIB,
    reserved_shared_bytes: 0,
    shared_unit: 512,
    registers: Registers::Simds(512, 8),
    thread_registers: 512,
    packet_bytes: 8,
    stages_products: false,
    sm_store_gbps: None,
    memory: None,
    link: None,
    nvlinks: None,
    mesh: None,
    dies: 1,
};

const A100: Device = Device {
    name: "A100",
    sms: 108,
    sm_shared_bytes: 164 * KIB,
    block_shared_bytes: 163 * KIB,
    memory: Some(Path { gbps: 2039.0, latency_ns: 466.3 / 1.41 }),
    nvlinks: Some((12, 25.0)),
    ..NVIDIA
};
/// Of the same generation as an A100, with SMs of fewer threads.
const ORIN: Device = Device {
    name: "Jetson AGX Orin",
    sms: 16,
    sm_threads: 1536,
    sm_blocks: 16,
    sm_shared_bytes: 164 * KIB,
    block_shared_bytes: 163 * KIB,
    ..NVIDIA
};
const A40: Device = Device { name: "A40", sms: 84, sm_blocks: 16, ..NVIDIA_SMALL };
const L40S: Device = Device { name: "L40S", sms: 142, ..NVIDIA_SMALL };
/// Stores of an SM, and the link: measured on H200s, which have the same SMs, to peers over NVLink.
const H100: Device = Device {
    name: "H100 SXM",
    sms: 132,
    sm_store_gbps: Some(40.0),
    memory: Some(Path { gbps: 3350.0, latency_ns: 478.8 / 1.755 }),
    link: Some(Path { gbps: 360.0, latency_ns: 800.0 }),
    nvlinks: Some((18, 25.0)),
    ..NVIDIA
};
const B200: Device = Device { name: "B200", sms: 148, nvlinks: Some((18, 50.0)), ..NVIDIA };
const B300: Device = Device { name: "B300", sms: 148, nvlinks: Some((18, 50.0)), ..NVIDIA };
/// 20 of the chip's 24 SMs, with as many threads and blocks as those of compute capability 12.0.
const THOR: Device = Device { name: "Jetson AGX Thor", sms: 20, sm_threads: 1536, sm_blocks: 24, ..NVIDIA };
const RTX_PRO_6000: Device = Device { name: "RTX PRO 6000 Blackwell", sms: 188, ..NVIDIA_SMALL };
const GB10: Device = Device { name: "GB10", sms: 48, ..NVIDIA_SMALL };
const MI210: Device = Device { name: "MI210", sms: 104, ..AMD };
/// Links of 128 GB/s both directions together, seven a GPU, and eight XCDs of 38 compute units: AMD, Instinct MI300X platform data
/// sheet. What arrives: AMD's ROCm documentation of TransferBench.
const MI300X: Device = Device {
    name: "MI300X",
    sms: 304,
    mesh: Some(Mesh { peers: 7, sold_gbps: 64.0, seen_gbps: Some(48.0) }),
    dies: 8,
    ..AMD
};
/// Links of 153.6 GB/s both directions together, seven a GPU, and eight XCDs of 32 compute units: AMD, Instinct MI355X data sheet.
const MI355X: Device = Device {
    name: "MI355X",
    sms: 256,
    sm_shared_bytes: 160 * KIB,
    block_shared_bytes: 160 * KIB,
    shared_unit: 1280,
    mesh: Some(Mesh { peers: 7, sold_gbps: 76.8, seen_gbps: None }),
    dies: 8,
    ..AMD
};

/// Warps of 32 lanes, 16 on each of four SIMDs with 1024 registers a lane, and 320 KiB of shared memory: LLVM 22, `AMDGPU.td` and
/// `AMDGPUBaseInfo.cpp`. No number of compute units is published: that of an MI355X stands for it.
const GFX1250: Device = Device {
    name: "gfx1250",
    sms: 256,
    warp_size: 32,
    sm_threads: 4 * 16 * 32,
    sm_blocks: 32,
    sm_shared_bytes: 320 * KIB,
    block_shared_bytes: 320 * KIB,
    registers: Registers::Simds(1024, 16),
    thread_registers: 1024,
    ..AMD
};

impl Device {
    /// The device that a target stands for.
    pub const fn of(target: Target) -> Device {
        match target {
            Target::Cuda(arch) => match arch {
                CudaArch::Sm80 => A100,
                CudaArch::Sm86 => A40,
                CudaArch::Sm87 => ORIN,
                CudaArch::Sm89 => L40S,
                CudaArch::Sm90 | CudaArch::Sm90a => H100,
                CudaArch::Sm100 | CudaArch::Sm100a => B200,
                CudaArch::Sm103a => B300,
                CudaArch::Sm110a => THOR,
                CudaArch::Sm120 | CudaArch::Sm120a => RTX_PRO_6000,
                CudaArch::Sm121a => GB10,
            },
            Target::Hip(arch) => match arch {
                HipArch::Gfx90a => MI210,
                HipArch::Gfx942 => MI300X,
                HipArch::Gfx950 => MI355X,
                HipArch::Gfx1250 => GFX1250,
            },
        }
    }

    /// The device that defaults and costs of the kernels of this project were measured on.
    pub const fn measured() -> Device {
        H100
    }

    /// Devices of all targets.
    pub fn all() -> impl Iterator<Item = Device> {
        Target::all().map(Device::of)
    }

    /// 32-bit registers of an SM, over all lanes.
    pub const fn sm_registers(&self) -> u32 {
        match self.registers {
            Registers::Files(file) => 4 * file,
            Registers::Simds(lane, _) => 4 * lane * self.warp_size,
        }
    }

    /// Blocks of so many threads and bytes of shared memory that it holds at once, as far as registers allow.
    pub fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> u32 {
        let taken = shared_bytes.saturating_add(self.reserved_shared_bytes);
        let by_shared = self.sm_shared_bytes.checked_div(taken).unwrap_or(u32::MAX);
        self.sms * by_shared.min(self.sm_threads / threads.max(1)).min(self.sm_blocks)
    }

    /// Blocks that each SM holds at once when all `blocks` are resident, for which a compiler has to leave registers. It is at least 1, and
    /// at most what shared memory has room for, and registers with 128 for each thread: with fewer, kernels spill.
    pub fn blocks_each(&self, blocks: u32, threads: u32, shared_bytes: u32) -> u32 {
        let room = self.resident_blocks(threads, shared_bytes) / self.sms;
        let room = room.min(self.sm_registers() / (ROOMY_REGISTERS * threads.max(1)));
        blocks.div_ceil(self.sms).clamp(1, room.max(1))
    }

    /// Blocks that are resident at once, however many registers a compiler gives a thread while it leaves enough for `each` blocks of an SM.
    pub fn surely_resident_blocks(&self, threads: u32, shared_bytes: u32, each: u32) -> u32 {
        let lanes = threads.max(1).next_multiple_of(self.warp_size);
        let unit = match self.registers {
            Registers::Files(_) => 8,
            Registers::Simds(_, unit) => unit,
        };
        let most = self.sm_registers() / (lanes * each);
        let registers = most.min(self.thread_registers.next_multiple_of(unit)) / unit * unit;
        let by_registers = self.sm_registers() / (registers.max(unit) * lanes);
        self.resident_blocks(threads, shared_bytes).min(self.sms * by_registers.max(1))
    }

    /// Bytes of shared memory that a block's arrays can take, what reductions need aside.
    pub const fn block_array_bytes(&self) -> u32 {
        self.block_shared_bytes - REDUCTION_BYTES
    }
}

/// Bytes of a packet on devices with warps of so many lanes; a kernel is traced for these. A device whose stores are narrower has
/// several parts of one, each with a mark of its own. `None` if there is no such device.
pub fn packet_bytes(warp_size: u32) -> Option<u32> {
    Device::all().filter(|d| d.warp_size == warp_size).map(|d| d.packet_bytes).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_device_that_fits_it() {
        for target in Target::all() {
            let d = Device::of(target);
            assert_eq!(d.warp_size, target.warp_size(), "{target}");
            assert!(!d.name.is_empty() && d.sms >= 16, "{target}");
            assert!(d.block_shared_bytes + d.reserved_shared_bytes <= d.sm_shared_bytes, "{target}");
        }
    }

    #[test]
    fn registers_count_as_many_as_a_thread_may_have() {
        let of = |target: &str| Device::of(target.parse().unwrap());
        let blocks = |target, threads| of(target).surely_resident_blocks(threads, 0, 1) / of(target).sms;
        assert_eq!([64, 128, 384, 512, 1024].map(|threads| blocks("cuda:sm_90a", threads)), [4, 2, 1, 1, 1]);
        assert_eq!([64, 256, 1024].map(|threads| blocks("hip:gfx942", threads)), [4, 1, 1]);
        assert_eq!(of("cuda:sm_90a").surely_resident_blocks(64, 227 * KIB, 1), 132);
        assert_eq!(of("cuda:sm_90a").surely_resident_blocks(192, 98 * KIB, 1), 132);
        assert_eq!(of("cuda:sm_90a").surely_resident_blocks(192, 98 * KIB, 2), 264);
    }

    #[test]
    fn compilers_leave_registers_for_blocks_that_shared_memory_has_room_for() {
        let each = |blocks, bytes| Device::measured().blocks_each(blocks, 160, bytes);
        assert_eq!([132, 133, 264, 265].map(|blocks| each(blocks, 98 * KIB)), [1, 2, 2, 2]);
        assert_eq!(each(264, 144 * KIB), 1);
        assert_eq!([256, 288].map(|threads| Device::measured().blocks_each(264, threads, 0)), [2, 1]);
    }

    #[test]
    fn packets_are_what_devices_of_a_warp_size_store_whole_at_most() {
        assert_eq!([32, 64, 16].map(packet_bytes), [Some(16), Some(8), None]);
    }
}
