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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn scripts_compile() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        for (name, text) in BASELINES.scripts {
            std::fs::write(file(name), text).unwrap();
        }
        let files = BASELINES.scripts.iter().map(|(name, _)| file(name));
        match Command::new("python3").args(["-m", "py_compile"]).args(files).output() {
            Ok(ran) => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr)),
            Err(why) if std::env::var_os("CI").is_none() => eprintln!("skipped: python3: {why}"),
            Err(why) => panic!("python3: {why}"),
        }
    }
}
