//! What to do about the number that a driver's call answers. HIP took over CUDA's numbers, with few of its own.

/// What to do about a number that the vendor does not document.
const UNDOCUMENTED: &str =
    "this number is newer than this Peerwarp: look it up in the driver's documentation, or update Peerwarp";
const FAULT: &str =
    "a fault of Peerwarp or of the driver: update the driver, and report this message if it stays";
const KERNEL: &str = "a kernel failed and this process cannot use the GPU any more: start anew, and look for the cause with `peerwarp check`";
const HARDWARE: &str = "the hardware failed: read the kernel's log (`dmesg`), and reset or replace the GPU";
const IMAGE: &str =
    "the compiled kernel does not fit this GPU and driver: compile it for this GPU, or update the driver";
const RESTART: &str =
    "this process has lost the GPU: end it and start anew, and never use a GPU after `fork`";
const MAPPING: &str =
    "free memory of the GPU and of the host, and raise the limit of address space (`ulimit -v`)";
const UPDATE: &str = "update the driver to the newest version for this GPU";
const FABRIC: &str = "start NVIDIA's Fabric Manager, in the driver's version (`systemctl start nvidia-fabricmanager`), \
                      and wait for `nvidia-smi -q` to say `Fabric: Completed`";
const MPS: &str =
    "restart the MPS server (`echo quit | nvidia-cuda-mps-control`, then `nvidia-cuda-mps-control -d`)";

/// What to do about a `CUresult`.
pub(super) fn cuda(error: i32) -> &'static str {
    match error {
        5..=8 | 47 | 225 | 811 | 812 | 907 | 914 | 915 | 917 | 918 => FAULT,
        34 => {
            "the loader found the toolkit's stub of libcuda: take its folder `stubs` out of LD_LIBRARY_PATH, and install the driver"
        }
        36 | 227 => UPDATE,
        46 => "another process holds the GPU: end it, or allow several (`nvidia-smi --compute-mode=DEFAULT`)",
        102 => "the driver has no licence for this virtual GPU: ask the administrator of the machine for one",
        218 | 221 | 222 | 223 => IMAGE,
        220 | 226 | 911 => HARDWARE,
        224 | 402 | 703 => FAULT,
        711 => "use fewer GPUs in one process: the hardware allows no more peers",
        714..=718 | 721 => KERNEL,
        800 => {
            "the system forbids this: in a container share GPUs and memory (`--gpus all --ipc=host`), else ask the administrator"
        }
        802 | 919 => FABRIC,
        803 => {
            "libcuda and the kernel module are of two versions: reboot after an update of the driver; in a container remove its own \
             libcuda"
        }
        804 => {
            "the forward compatibility package (cuda-compat) does not serve this GPU: take it out of LD_LIBRARY_PATH, and update \
             the driver"
        }
        805..=807 | 810 => MPS,
        808 | 809 => "end other clients of the MPS server: it takes no more of them",
        909 | 916 => RESTART,
        912 => "use a variant with smaller clusters",
        913 => FAULT,
        _ => shared(error),
    }
}

/// What to do about a `hipError_t`.
pub(super) fn hip(error: i32) -> &'static str {
    match error {
        5..=8 | 9 | 12 | 13 | 17 | 21 | 52 | 218 | 907 | 911 | 912 => FAULT,
        35 => UPDATE,
        53 => KERNEL,
        98 => IMAGE,
        1052 | 1053 => {
            "ROCm's runtime failed: read the kernel's log (`dmesg`), and install a ROCm that fits the driver"
        }
        _ => shared(error),
    }
}

fn shared(error: i32) -> &'static str {
    match error {
        1 | 201 | 202 | 207 | 208 | 210..=213 | 215 | 216 | 219 | 400 | 401 | 600 | 704 | 705 | 708 => FAULT,
        712 | 713 | 900..=906 | 908 | 910 => FAULT,
        2 => "end other programs on the GPU, or run a smaller problem: its memory is full",
        3 | 4 | 709 => RESTART,
        100 => "no GPU is visible: `nvidia-smi` or `rocm-smi` must list one, and no variable may hide it",
        101 => "no visible GPU has this number: look at CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES",
        200 | 209 | 300..=303 | 500 => IMAGE,
        205 | 206 => MAPPING,
        214 => HARDWARE,
        217 => "these GPUs cannot reach each other: choose GPUs that `peerwarp topo` shows as linked",
        304 => {
            "the operating system refused: raise the limits of open files and locked memory (`ulimit -n`, `ulimit -l`), and read \
             `dmesg`"
        }
        700 | 710 | 719 => KERNEL,
        701 => {
            "use a variant with fewer threads or less shared memory: the GPU has too few registers or bytes"
        }
        702 => "use a GPU without a display: the system ends kernels that run long on a GPU with one",
        720 => {
            "use a variant with fewer blocks, or keep other programs off the GPU: not all blocks fit at once"
        }
        801 => "this GPU or driver lacks the feature: update the driver, or use another GPU",
        999 => {
            "the driver gives no reason: read the kernel's log (`dmesg`), then reload the driver or reboot"
        }
        _ => UNDOCUMENTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_documented_is_reported_as_one() {
        for unknown in [-1, 0, 99, 1234, i32::MAX] {
            assert_eq!((cuda(unknown), hip(unknown)), (UNDOCUMENTED, UNDOCUMENTED));
        }
        assert!(cuda(802).contains("Fabric Manager") && cuda(803).contains("two versions"));
        assert_eq!(hip(802), UNDOCUMENTED);
    }
}
