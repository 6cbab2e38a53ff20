//! Commands where a driver is there and fails: libraries that stand in for drivers answer with the errors of machines in need of repair.

use std::process::Command;

use super::support::{Place, Ran};

const SHAPE: &str = "--hidden 64 --experts 4 --topk 2 --tokens 4 --ranks 2";

/// Compiles `tests/data/driver/<name>.c`, without some of its calls.
fn library(place: &Place, name: &str, file: &str, without: &[&str]) {
    let path = place.write(&format!("lib/{file}"), "");
    let source = format!("{}/tests/data/driver/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(without.iter().map(|call| format!("-D{call}=absent_{call}")));
    let built = compiler.args(["-shared", "-fPIC", "-o"]).arg(path).arg(source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// A place with drivers of both vendors.
fn place(without: &[&str]) -> Place {
    let place = Place::new();
    library(&place, "cuda", "libcuda.so.1", without);
    library(&place, "hip", "libamdhip64.so", without);
    place
}

/// Runs a command whose drivers answer these calls with a number.
fn run(place: &Place, args: &str, calls: &str, error: i32) -> Ran {
    let (libraries, error) = (place.path("lib").display().to_string(), error.to_string());
    let env =
        [("LD_LIBRARY_PATH", &*libraries), ("PEERWARP_STUB_CALL", calls), ("PEERWARP_STUB_ERROR", &error)];
    place.run_with(&args.split_whitespace().collect::<Vec<_>>(), &env)
}

#[test]
fn drivers_in_need_of_repair_are_told_with_a_remedy() {
    let place = place(&[]);
    for (calls, error, words) in [
        ("cuInit,hipInit", 802, "start NVIDIA's Fabric Manager"),
        ("cuInit,hipInit", 803, "libcuda and the kernel module are of two versions: reboot"),
        ("cuInit,hipInit", 804, "cuda-compat"),
        ("cuInit,hipInit", 34, "take its folder `stubs` out of LD_LIBRARY_PATH"),
        ("cuInit,hipInit", 999, "read the kernel's log (`dmesg`)"),
        ("cuDevicePrimaryCtxRetain,hipGetDevicePropertiesR0600", 2, "end other programs on the GPU"),
        ("cuDeviceGetCount,hipGetDeviceCount", 3, "start anew"),
    ] {
        for command in ["topo".into(), format!("run --backend gpu {SHAPE}"), format!("bench {SHAPE}")] {
            let ran = run(&place, &command, calls, error);
            assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{command}: {}", ran.report());
            let told = ran.stderr.contains(words) && !ran.stderr.contains("panicked");
            assert!(told, "{command}, {calls}, {error}: {}", ran.report());
        }
        let ran = run(&place, &format!("run {SHAPE}"), calls, error);
        assert_eq!(ran.code, 0, "{}", ran.report());
        assert!(ran.stdout.contains(words), "{calls}, {error}: {}", ran.report());
    }
}

#[test]
fn calls_that_drivers_lack_are_told() {
    for (cuda, hip) in
        [("cuDriverGetVersion", "hipInit"), ("cuFuncLoad", "hipModuleUnload"), ("cuInit", "hipFree")]
    {
        let place = place(&[cuda, hip]);
        let ran = run(&place, "topo", "", 0);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
        for call in [cuda, hip] {
            let told = format!("lacks the call `{call}`: install ");
            assert!(ran.stderr.contains(&told) && !ran.stderr.contains("panicked"), "{}", ran.report());
        }
        let ran = run(&place, &format!("run {SHAPE}"), "", 0);
        assert_eq!(ran.code, 0, "{}", ran.report());
        assert!(ran.stdout.contains(&format!("lacks the call `{cuda}`")), "{}", ran.report());
    }
}
