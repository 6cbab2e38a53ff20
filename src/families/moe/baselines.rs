//! Other libraries that dispatch and combine, timed by scripts for PyTorch.

use crate::harness::bench::TIMING;
use crate::harness::workload::Baseline;

/// PyTorch with NCCL, DeepEP, pplx-kernels and flashinfer, each where it is installed.
pub const BASELINES: Baseline = Baseline {
    scripts: &[
        ("baselines.py", include_str!("../../../bench/baselines/baselines.py")),
        TIMING,
        ("nccl_baselines.py", include_str!("../../../bench/baselines/nccl_baselines.py")),
        ("deep_ep_baseline.py", include_str!("../../../bench/baselines/deep_ep_baseline.py")),
        ("pplx_baseline.py", include_str!("../../../bench/baselines/pplx_baseline.py")),
        ("flashinfer_baseline.py", include_str!("../../../bench/baselines/flashinfer_baseline.py")),
    ],
};
