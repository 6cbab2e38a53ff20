//! How many blocks of a kernel are resident at once. All blocks of a grid must be where blocks wait.

use peerwarp_codegen::device::{Device, Registers};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::print::LaunchShape;

use super::manifest::{Residency, Resources};

/// What limits the number of resident blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Registers,
    Threads,
    Shared,
    Blocks,
    TensorColumns,
}

/// Columns of tensor memory that an SM has (PTX ISA 9.0, 9.7.16.1).
const TENSOR_COLUMNS: u32 = 512;

/// The blocks that an SM of the target holds, and what sets that number.
pub(super) fn blocks_each(target: Target, launch: &LaunchShape, used: &Resources) -> (u32, Limit) {
    let m = Device::of(target);
    let warp = target.warp_size();
    let warps = launch.block_threads.div_ceil(warp).max(1);
    let by_registers = match m.registers {
        // The warps of a block are spread over the partitions.
        Registers::Files(file) => file / (used.registers * warp).next_multiple_of(256).max(256) * 4 / warps,
        Registers::Simds(lanes, unit) => lanes / used.registers.next_multiple_of(unit).max(unit) * 4 / warps,
    };
    let shared = launch.shared_bytes + used.static_shared_bytes + m.reserved_shared_bytes;
    let by_shared = m.sm_shared_bytes.checked_div(shared.next_multiple_of(m.shared_unit)).unwrap_or(u32::MAX);
    let all = [
        (by_registers, Limit::Registers),
        (m.sm_threads / (warps * warp), Limit::Threads),
        (by_shared, Limit::Shared),
        (m.sm_blocks, Limit::Blocks),
        (TENSOR_COLUMNS.checked_div(launch.tensor_columns).unwrap_or(u32::MAX), Limit::TensorColumns),
    ];
    all.into_iter().min_by_key(|(blocks, _)| *blocks).expect("there are limits")
}

/// The residency of a kernel on so many SMs of its target, by default those of the reference device. The error is a
/// sentence that says what is too much.
pub(super) fn residency(
    target: Target,
    launch: &LaunchShape,
    used: &Resources,
    sms: Option<u32>,
) -> Result<Residency, String> {
    let Device { name: device, sms: own, .. } = Device::of(target);
    let (each, limit) = blocks_each(target, launch, used);
    let device = if sms.is_some() { "as given" } else { device };
    let residency = Residency { device: device.into(), sms: sms.unwrap_or(own), blocks_each: each };
    if residency.blocks() >= launch.grid || !launch.waits && each > 0 {
        return Ok(residency);
    }
    let LaunchShape { grid, block_threads, shared_bytes, .. } = *launch;
    let because = match limit {
        Limit::Registers => format!("{} registers for each of {block_threads} threads", used.registers),
        Limit::Threads => format!("{block_threads} threads a block"),
        Limit::Shared => {
            format!("{} bytes of shared memory a block", shared_bytes + used.static_shared_bytes)
        }
        Limit::Blocks => "the device".into(),
        Limit::TensorColumns => format!("{} columns of tensor memory a block", launch.tensor_columns),
    };
    if !launch.waits {
        return Err(format!("a block does not fit on an SM ({}): {because}", residency.device));
    }
    Err(format!(
        "{grid} blocks wait for each other and must be resident at once, and {} are: {because} leave room for {each} on \
         each of {} SMs ({})",
        residency.blocks(),
        residency.sms,
        residency.device,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    fn launch(grid: u32, block_threads: u32, shared_bytes: u32) -> LaunchShape {
        let (exclusive_sm_bytes, overlaps_previous, waits) = (None, true, true);
        let tensor_columns = 0;
        LaunchShape {
            grid,
            block_threads,
            shared_bytes,
            exclusive_sm_bytes,
            tensor_columns,
            overlaps_previous,
            waits,
        }
    }

    #[test]
    fn blocks_that_wait_for_nothing_need_not_be_resident_at_once() {
        let ask = |block_threads, waits| {
            let launch = LaunchShape { waits, ..launch(1000, block_threads, 0) };
            residency(target("cuda:sm_80"), &launch, &registers(128), None)
        };
        assert!(ask(512, true).is_err());
        assert_eq!(ask(512, false).unwrap().blocks(), 108);
        insta::assert_snapshot!(ask(1024, false).unwrap_err(), @"a block does not fit on an SM (A100): 128 registers for each of 1024 threads");
    }

    fn registers(registers: u32) -> Resources {
        Resources { registers, ..Resources::default() }
    }

    #[test]
    fn every_limit_counts() {
        let each =
            |t, threads, shared, regs| blocks_each(target(t), &launch(1, threads, shared), &registers(regs));
        // 63 registers are 64 for the file, which has 65536: 2 x 512 threads.
        assert_eq!(each("cuda:sm_90a", 512, 0, 63), (2, Limit::Registers));
        assert_eq!(each("cuda:sm_90a", 512, 0, 65), (1, Limit::Registers));
        assert_eq!(each("cuda:sm_90a", 512, 0, 32), (4, Limit::Registers));
        assert_eq!(each("cuda:sm_90a", 1024, 0, 16), (2, Limit::Threads));
        assert_eq!(each("cuda:sm_86", 1024, 0, 16), (1, Limit::Threads));
        assert_eq!(each("cuda:sm_90a", 128, 114 << 10, 32), (1, Limit::Shared));
        assert_eq!(each("cuda:sm_90a", 128, 113 << 10, 32), (2, Limit::Shared));
        assert_eq!(each("cuda:sm_90a", 32, 0, 16), (32, Limit::Blocks));
        assert_eq!(each("cuda:sm_90a", 1024, 0, 65), (0, Limit::Registers));
        let in_tensor_memory = LaunchShape { tensor_columns: 256, ..launch(1, 128, 0) };
        let resident = blocks_each(target("cuda:sm_100a"), &in_tensor_memory, &registers(32));
        assert_eq!(resident, (2, Limit::TensorColumns));
        // 512 registers a lane: 8 warps of 64 on each SIMD, 4 with 65 to 128.
        assert_eq!(each("hip:gfx942", 1024, 0, 64), (2, Limit::Registers));
        assert_eq!(each("hip:gfx942", 1024, 0, 65), (1, Limit::Registers));
        assert_eq!(each("hip:gfx942", 256, 33 << 10, 32), (1, Limit::Shared));
        assert_eq!(each("hip:gfx950", 256, 33 << 10, 32), (4, Limit::Shared));
    }

    #[test]
    fn static_shared_memory_counts_too() {
        let used = Resources { static_shared_bytes: 100 << 10, registers: 32, ..Resources::default() };
        assert_eq!(blocks_each(target("cuda:sm_90a"), &launch(1, 128, 20 << 10), &used), (1, Limit::Shared));
    }

    #[test]
    fn a_grid_that_is_too_large_is_reported_in_numbers() {
        let ask = |grid, regs, units| {
            residency(target("cuda:sm_80"), &launch(grid, 512, 0), &registers(regs), units)
        };
        let fits = ask(108, 128, None).unwrap();
        assert_eq!((fits.blocks(), fits.device.as_str()), (108, "A100"));
        insta::assert_snapshot!(ask(109, 128, None).unwrap_err(), @"109 blocks wait for each other and must be resident at once, and 108 are: 128 registers for each of 512 threads leave room for 1 on each of 108 SMs (A100)");
        assert!(ask(109, 128, Some(110)).is_ok());
        assert!(ask(1, 129, Some(1)).unwrap_err().contains("leave room for 0 on each of 1 SMs (as given)"));
    }

    #[test]
    fn every_target_has_a_device_that_holds_a_small_kernel() {
        for target in Target::all() {
            let found = residency(target, &launch(16, 256, 32 << 10), &registers(64), None);
            assert!(found.is_ok_and(|r| r.sms >= 16), "{target}");
        }
    }
}
