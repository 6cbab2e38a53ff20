//! Commands where the system starts no thread, as under `ulimit -u` or in a container with a limit of processes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use super::support::{Place, Ran};

const SHAPE: &str = "--hidden 64 --experts 4 --topk 2 --tokens 4 --ranks 2";

/// A user whom the limit binds: root is not bound by it.
const OTHER_USER: u32 = 65534;

/// Runs `peerwarp` with room for so many processes and threads, its first one among them.
fn limited(place: &Place, limit: u32, args: &str, env: &[(&str, &str)]) -> Ran {
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("ulimit -u {limit} && exec \"$0\" \"$@\"")]).current_dir(place.dir.path());
    bash.env("XDG_CACHE_HOME", place.path("cache")).env_remove("PEERWARP_ZIG").envs(env.iter().copied());
    if rustix::process::geteuid().is_root() {
        // A copy, as the folder that it was built in may be root's alone.
        let copy = place.path("peerwarp");
        fs::copy(env!("CARGO_BIN_EXE_peerwarp"), &copy).unwrap();
        fs::set_permissions(place.dir.path(), Permissions::from_mode(0o777)).unwrap();
        bash.uid(OTHER_USER).arg(copy);
    } else {
        bash.arg(env!("CARGO_BIN_EXE_peerwarp"));
    }
    let Output { status, stdout, stderr } = bash.args(args.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) }
}

#[test]
fn commands_that_need_threads_say_which_limit_to_raise() {
    for command in ["run --backend sim", "run", "check --seeds 3", "generate --out made"] {
        let place = Place::new();
        let ran = limited(&place, 1, &format!("{command} {SHAPE}"), &[]);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{command}: {}", ran.report());
        assert!(
            ran.stderr.starts_with("error: the system starts no further thread or process ("),
            "{command}: {}",
            ran.report()
        );
        assert!(
            ran.stderr.contains("`ulimit -u`") && ran.stderr.contains("RAYON_NUM_THREADS"),
            "{}",
            ran.report()
        );
        assert!(!place.path("made").exists());
    }
}

#[test]
fn a_compiler_that_cannot_be_asked_says_which_limit_to_raise() {
    let place = Place::new();
    let zig = place.program("zig", "echo 0.17.0");
    let pack = format!("pack {SHAPE} --target hip:gfx942 --compiler zig --out packed");
    // Without room for its process, and without room for a thread that reads what it says.
    for limit in [1, 2] {
        let ran = limited(&place, limit, &pack, &[("PEERWARP_ZIG", &zig)]);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{limit}: {}", ran.report());
        let said = "it cannot be started: the system starts no further thread or process (";
        assert!(ran.stderr.contains(said) && ran.stderr.contains("`ulimit -u`"), "{limit}: {}", ran.report());
        assert!(!ran.stderr.contains("panicked"), "{limit}: {}", ran.report());
    }
}

#[test]
fn commands_that_need_none_do_their_work() {
    for command in ["list families", "completions bash"] {
        let ran = limited(&Place::new(), 1, command, &[]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{command}: {}", ran.report());
    }
    let place = Place::new();
    let ran = limited(&place, 1, &format!("show {SHAPE}"), &[]);
    assert_eq!(ran.code, 0, "{}", ran.report());
}
