//! `peerwarp toolchain`, on a machine that has what the test puts there.

use std::process::Command;

use super::support::{Place, Ran};

/// Runs with a folder as home and with nothing but `bin` in it in the search path.
fn run(place: &Place, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let out = Command::new(env!("CARGO_BIN_EXE_peerwarp"))
        .args(args)
        .current_dir(place.dir.path())
        .env_clear()
        .env("HOME", place.dir.path())
        .env("PATH", place.path("bin"))
        .env("CUDA_HOME", place.path("no-cuda"))
        .env("ROCM_PATH", place.path("no-rocm"))
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: out.status.code().unwrap(), stdout: text(out.stdout), stderr: text(out.stderr) }
}

#[test]
fn shows_what_is_found_and_how_to_get_the_rest() {
    let place = Place::new();
    let zig = place.program("bin/zig", "echo 0.17.0");
    let ran = run(&place, &["toolchain"], &[]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(ran.code, 0, "{}", ran.report());
    let row: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(row, ["zig", "0.17", "system", "gfx90a", "..", "gfx1250", &zig]);
    let hipcc = "hipcc is not found: it comes with ROCm; without ROCm clang or zig does its work, or PEERWARP_HIPCC names one";
    assert!(lines.contains(&hipcc), "{}", ran.stdout);

    let json = run(&place, &["toolchain", "--json"], &[]).json();
    let tools = json["tools"].as_array().unwrap();
    let of = |name: &str| tools.iter().find(|t| t["tool"] == name).unwrap();
    assert_eq!(
        (&of("zig")["found"]["version"], &of("zig")["found"]["serves"][2]),
        (&"0.17".into(), &"hip:gfx950".into())
    );
    assert!(of("clang")["found"].is_null() && of("clang")["missing"].as_str().unwrap().contains("lld"));
}

#[test]
fn the_environment_is_for_a_shell_to_evaluate() {
    let place = Place::new();
    let zig = place.program("it's here/zig", "echo 0.17.0");
    let ran = run(&place, &["toolchain", "--env"], &[("PEERWARP_ZIG", &zig)]);
    let line = ran.stdout.lines().find(|l| l.contains("ZIG")).expect("zig is found");
    let told =
        Command::new("sh").args(["-c", &format!("{line}; printf %s \"$PEERWARP_ZIG\"")]).output().unwrap();
    assert_eq!(String::from_utf8(told.stdout).unwrap(), zig);
}

#[test]
fn installs_with_python_or_says_what_is_missing() {
    let place = Place::new();
    let ran = run(&place, &["toolchain", "install", "hip"], &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(
        ran.stderr.starts_with("error: python3 is needed to install hip, and it is not in PATH"),
        "{}",
        ran.stderr
    );

    let ran = run(&place, &["toolchain", "install", "rocm"], &[]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("set = rocm: no such name") && ran.stderr.contains("allowed: cuda, hip"),
        "{}",
        ran.stderr
    );

    place.program(
        "bin/python3",
        "PATH=/usr/bin:/bin\n[ $3 = --version ] && exit 0\n\
         while [ $# -gt 1 ]; do [ $1 = --target ] && into=$2; shift; done\n\
         mkdir -p $into/ziglang && printf '#!/bin/sh\\necho 0.17.0\\n' > $into/ziglang/zig && chmod +x $into/ziglang/zig",
    );
    let ran = run(&place, &["toolchain", "install", "hip"], &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.report());
    assert_eq!(ran.stdout, "hip 0.17.0 (zig, whose clang compiles for AMD GPUs) installed\n");
    let again = run(&place, &["toolchain", "install", "hip", "--json"], &[]).json();
    assert_eq!((&again["sets"][0]["set"], &again["sets"][0]["installed"]), (&"hip".into(), &false.into()));
    let shown = run(&place, &["toolchain"], &[]);
    assert!(shown.stdout.contains("installed"), "{}", shown.stdout);
}

#[test]
fn an_installed_tool_that_others_can_write_is_not_started_and_a_warning_says_so() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.program(
        "bin/python3",
        "PATH=/usr/bin:/bin\n[ $3 = --version ] && exit 0\n\
         while [ $# -gt 1 ]; do [ $1 = --target ] && into=$2; shift; done\n\
         mkdir -p $into/ziglang && printf '#!/bin/sh\\necho > $HOME/started\\necho 0.17.0\\n' > $into/ziglang/zig && chmod +x $into/ziglang/zig",
    );
    let zig = place.program("bin/zig", "echo 0.17.0");
    assert_eq!(run(&place, &["toolchain", "install", "hip"], &[]).code, 0);
    let cache = place.path(".cache/peerwarp/toolchain");
    set_permissions(&cache, Permissions::from_mode(0o777)).unwrap();
    let shown = run(&place, &["toolchain", "--json"], &[]);
    let tools = shown.json();
    let found = tools["tools"].as_array().unwrap().iter().find(|tool| tool["tool"] == "zig").unwrap();
    assert_eq!(found["found"]["path"], zig.as_str());
    assert!(!place.path("started").exists());
    let cache = cache.display();
    let warning = format!(
        "warning: the installed zig is not used: {cache} is writable by every user (mode 777), and must be writable by its owner \
         alone; remove {cache}, and install it anew\n"
    );
    assert_eq!(shown.stderr, warning);
    let again = run(&place, &["toolchain", "install", "hip"], &[]);
    assert_eq!(again.code, 2);
    assert!(
        again.stderr.starts_with(&format!("error: {cache} is writable by every user"))
            && again.stderr.contains("remove it, or let XDG_CACHE_HOME"),
        "{}",
        again.report()
    );
}
