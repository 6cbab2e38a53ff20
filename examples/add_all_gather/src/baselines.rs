//! What `bench --compare` times beside the kernel: the same sums by PyTorch and NCCL.

use peerwarp::harness::bench::TIMING;
use peerwarp::harness::workload::Baseline;

/// `torch.add`, then NCCL's all_gather: launched one by one, and as a CUDA graph.
pub const BASELINES: Baseline =
    Baseline { scripts: &[("nccl.py", include_str!("../baselines/nccl.py")), TIMING] };

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn scripts_are_python() {
        for (name, text) in BASELINES.scripts {
            let parse = "import ast, sys; ast.parse(sys.argv[1])";
            match Command::new("python3").args(["-c", parse, text]).output() {
                Ok(ran) => {
                    assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
                }
                Err(why) if std::env::var_os("CI").is_none() => eprintln!("skipped: python3: {why}"),
                Err(why) => panic!("python3: {why}"),
            }
        }
    }
}
