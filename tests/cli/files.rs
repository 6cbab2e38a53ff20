//! Unexpected files: names that are not UTF-8, links, pipes, folders of two families, limits of memory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use super::support::{Place, Ran, names};

const SHAPE: &str = "--hidden 64 --experts 4 --topk 2 --tokens 4 --ranks 2";
const SWAP: &str = "generate --hidden 64 --experts 4 --topk 2 --tokens 4 --ranks 2 --out out";

/// A name that is no text.
fn odd() -> &'static OsStr {
    OsStr::from_bytes(b"o\xff")
}

/// Runs `peerwarp` with arguments that need not be text.
fn run(place: &Place, args: &str, last: &OsStr, env: &[(&str, OsString)]) -> Ran {
    let out = Command::new(env!("CARGO_BIN_EXE_peerwarp"))
        .args(args.split_whitespace())
        .arg(last)
        .current_dir(place.dir.path())
        // CI names its compilers, and these tests bring their own.
        .env_remove("PEERWARP_ZIG")
        .envs(env.iter().cloned())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: out.status.code().unwrap_or(-1), stdout: text(out.stdout), stderr: text(out.stderr) }
}

/// Runs `peerwarp`, which must not take long.
fn soon(place: &Place, args: &str) -> Ran {
    let started = Instant::now();
    let ran = place
        .run(&["run", "--backend", "sim"].into_iter().chain(args.split_whitespace()).collect::<Vec<_>>());
    assert!(started.elapsed() < Duration::from_secs(20), "{args}");
    ran
}

#[test]
fn folders_need_no_names_in_utf8() {
    let place = Place::new();
    for args in ["generate --json", "generate --json --check", "generate --check"] {
        let ran = run(&place, &format!("{args} {SHAPE} --out"), odd(), &[]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.report());
    }
    assert!(place.dir.path().join(odd()).join("manifest.json").is_file());
    // What may be a name as well as a path is text, and so are values of a suite's options.
    for args in ["generate --out out --catalogue", "run --ranks 2 --hf-config"] {
        let ran = run(&place, args, odd(), &[]);
        assert!(ran.code == 2 && ran.stderr.contains("UTF-8"), "{}", ran.report());
    }
    for args in ["trace --out", "tune --out", "bench --html", "run --backend gpu --pack", "trace --pack"] {
        let (command, option) = args.rsplit_once(' ').unwrap();
        let ran = run(&place, &format!("{command} {SHAPE} --json {option}"), odd(), &[]);
        assert!(ran.code == 2 && !ran.stderr.contains("panicked"), "{args}: {}", ran.report());
        assert!(ran.json()["error"]["message"].is_string());
    }
}

#[test]
fn tools_need_no_folders_with_names_in_utf8() {
    let place = Place::new();
    let folder = place.dir.path().join(odd());
    let zig = place.program("zig", "echo 0.17.0");
    fs::create_dir(&folder).unwrap();
    fs::rename(zig, folder.join("zig")).unwrap();
    let env = [
        ("PATH", folder.clone().into_os_string()),
        ("HOME", place.dir.path().into()),
        ("XDG_CACHE_HOME", "".into()),
    ];
    let json = run(&place, "toolchain", OsStr::new("--json"), &env).json();
    let tools = json["tools"].as_array().unwrap();
    let found = tools.iter().find(|t| t["tool"] == "zig").unwrap()["found"]["path"].as_str().unwrap();
    assert!(found.ends_with("o\u{fffd}/zig"), "{found}");
    // What a shell makes of it is the path, byte for byte.
    let lines = run(&place, "toolchain", OsStr::new("--env"), &env).stdout;
    let line = lines.lines().find(|l| l.contains("ZIG")).expect("zig is found");
    let out =
        Command::new("bash").args(["-c", &format!("{line}; printf %s \"$PEERWARP_ZIG\"")]).output().unwrap();
    assert_eq!(OsString::from_vec(out.stdout), folder.join("zig").into_os_string());
}

#[test]
fn nothing_goes_through_links() {
    let place = Place::new();
    assert_eq!(place.say(SWAP).code, 0);
    place.write("precious/x.cu", "mine");
    symlink(place.path("precious"), place.path("out/link")).unwrap();
    symlink(place.path("out"), place.path("out/loop")).unwrap();
    // A manifest that says that a file outside is of an earlier run.
    let manifest = fs::read_to_string(place.path("out/manifest.json")).unwrap();
    place
        .write("out/manifest.json", manifest.replacen("\"files\": [", "\"files\": [\n    \"link/x.cu\",", 1));
    let ran = place.say(SWAP);
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert_eq!(fs::read_to_string(place.path("precious/x.cu")).unwrap(), "mine");
    let ran = place.say(&format!("{SWAP} --check"));
    assert_eq!((ran.code, ran.stdout.contains("link/")), (0, false), "{}", ran.report());

    // A folder that files are to go to is a link.
    let folder = place.path("out/h64-e4-k2");
    fs::rename(&folder, place.path("elsewhere")).unwrap();
    symlink(place.path("elsewhere"), &folder).unwrap();
    let before = names(&place.path("elsewhere/sm_90a"));
    let ran = place.say(&SWAP.replace("--tokens 4", "--tokens 8"));
    assert_eq!(ran.code, 2, "{}", ran.report());
    assert!(ran.stderr.contains("--out = out: h64-e4-k2 is a symbolic link"), "{}", ran.stderr);
    assert_eq!(names(&place.path("elsewhere/sm_90a")), before);
}

#[test]
fn pipes_and_devices_are_not_read() {
    let place = Place::new();
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    symlink("pipe", place.path("pipe.npy")).unwrap();
    symlink("/dev/zero", place.path("zero.npy")).unwrap();
    fs::create_dir(place.path("folder.npy")).unwrap();
    let shape = "--hidden 64 --experts 4 --topk 2 --tokens 4 --ranks 2";
    for (field, args) in [
        ("--routing", format!("{shape} --routing pipe.npy")),
        ("--routing", format!("{shape} --routing zero.npy")),
        ("--routing", format!("{shape} --routing folder.npy")),
        ("--hf-config", "--hf-config /dev/zero --ranks 2".into()),
        ("--tuned", format!("{shape} --tuned pipe.toml")),
    ] {
        if args.ends_with("pipe.toml") {
            fs::rename(place.path("pipe"), place.path("pipe.toml")).unwrap();
        }
        let ran = soon(&place, &args);
        assert_eq!(ran.code, 2, "{args}: {}", ran.report());
        assert!(
            ran.stderr.contains(field) && ran.stderr.contains("a regular file"),
            "{args}: {}",
            ran.stderr
        );
    }
    let ran = place.say("generate --catalogue pipe.toml --out out");
    assert!(ran.code == 2 && ran.stderr.contains("a regular file"), "{}", ran.report());
    let ran = place.say("tune --model glm-4.5 --out pipe.toml");
    assert!(ran.code == 2 && ran.stderr.contains("a regular file"), "{}", ran.report());
    // What stands in the way of what is written is replaced, or told, and never read.
    assert_eq!(place.say(SWAP).code, 0);
    let manifest = place.path("out/manifest.json");
    fs::remove_file(&manifest).unwrap();
    fs::rename(place.path("pipe.toml"), &manifest).unwrap();
    let ran = place.say(SWAP);
    assert!(ran.code == 0 && manifest.is_file(), "{}", ran.report());
}

#[test]
fn a_configuration_comes_out_of_a_file_a_folder_a_pipe_or_standard_input() {
    let place = Place::new();
    let text =
        r#"{"hidden_size": 4096, "moe_latent_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2}"#;
    fs::create_dir(place.path("model")).unwrap();
    place.write("model/config.json", text);
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let show = |from: &str| {
        let args = format!("show --explain --tokens 4 --ranks 2 --hf-config {from}");
        let command = format!("cat model/config.json >pipe & exec \"$0\" {args} <model/config.json");
        let command =
            if from == "pipe" { command } else { command.replace("cat model/config.json >pipe &", "") };
        let mut sh = Command::new("bash");
        sh.args(["-c", &command, env!("CARGO_BIN_EXE_peerwarp")]).current_dir(place.dir.path());
        let out = sh.output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(0), "{from}: {said}");
        String::from_utf8(out.stdout).unwrap()
    };
    for from in ["model/config.json", "model", "pipe", "<(cat model/config.json)", "-"] {
        let shown = show(from);
        let facts = ["- hidden = 64\n- experts = 8\n- topk = 2\n"; 2];
        assert_eq!(shown.matches(facts[0]).count(), facts.len(), "{from}: {shown}");
    }
}

#[test]
fn a_pipe_without_a_writer_is_refused_in_five_seconds() {
    let place = Place::new();
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let start = std::time::Instant::now();
    let ran = place.say("show --hf-config pipe --ranks 2");
    let took = start.elapsed().as_secs_f64();
    assert_eq!(ran.code, 2, "{}", ran.report());
    let said = "--hf-config = pipe: no program opened it for writing in 5 s";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert!((5.0..10.0).contains(&took), "{took}");
}

#[test]
fn errors_show_the_start_of_long_values() {
    let place = Place::new();
    let long = "x".repeat(3 << 20);
    place.write("config.json", format!("{{\"hidden_size\": \"{long}\"}}"));
    place.write("c.toml", format!("[[family]]\nfamily = \"{long}\"\n"));
    place.write("d.toml", format!("[[family]]\n{long} = 3\n"));
    place.write("e.toml", format!("schema = 4\ndevice = {long}\n"));
    for args in [
        "run --hf-config config.json --ranks 2".to_owned(),
        "generate --catalogue c.toml --out out".into(),
        "generate --catalogue d.toml --out out".into(),
        format!("show {SHAPE} --tuned e.toml"),
    ] {
        let ran = place.say(&args);
        assert_eq!(ran.code, 2, "{args}");
        assert!(ran.stderr.len() < 8192, "{args}: {} bytes", ran.stderr.len());
        let ran = place.say(&format!("{args} --json"));
        assert!(ran.stdout.len() < 16384, "{args}: {} bytes of JSON", ran.stdout.len());
    }
}

#[test]
fn in_a_user_namespace_a_table_of_an_unknown_user_is_not_trusted() {
    let place = Place::new();
    let [program, table] = ["peerwarp", "table.toml"].map(|name| place.path(name));
    let isolated = |args: &str| {
        let mut command = Command::new("unshare");
        command.arg("-Ur").arg(&program).args(args.split_whitespace()).current_dir(place.dir.path()).output()
    };
    fs::copy(env!("CARGO_BIN_EXE_peerwarp"), &program).unwrap();
    if !isolated("list families").is_ok_and(|out| out.status.success()) {
        return eprintln!("skipped: this user makes no user namespace");
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root gives files to others");
    }
    fs::write(&table, "no table").unwrap();
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Two users outside, who have one number inside.
    for (path, owner) in [(&program, 12345), (&table, 23456)] {
        chown(path, Some(owner), None).unwrap();
    }
    let out = isolated(&format!("show {SHAPE} --tuned table.toml")).unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("table.toml belongs to user 65534"), "{said}");
}

#[test]
fn too_little_memory_is_reported_in_bytes_before_the_run() {
    let place = Place::new();
    let command =
        "ulimit -v 3000000; exec \"$0\" run --backend sim --model deepseek-v3 --tokens 4096 --ranks 8";
    let out = Command::new("sh")
        .args(["-c", command, env!("CARGO_BIN_EXE_peerwarp")])
        .current_dir(place.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("bytes of memory for the simulator = ") && said.contains("RLIMIT_AS"), "{said}");
}

#[test]
fn two_families_share_a_folder() {
    let place = Place::new();
    let moe = place.say(SWAP);
    assert_eq!(moe.code, 0, "{}", moe.report());
    let manifest = || -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(place.path("out/manifest.json")).unwrap()).unwrap()
    };
    let first = manifest();
    // As a program of another family would have left it.
    let mut both = first.clone();
    let mut other = first["kernels"][0].clone();
    let (file, header) = ("other/sm_90a/scale.cu", "other/sm_90a/scale.h");
    (other["family"], other["file"], other["header"]) = ("scale".into(), file.into(), header.into());
    both["kernels"].as_array_mut().unwrap().push(other.clone());
    both["files"].as_array_mut().unwrap().extend([file.into(), header.into()]);
    place.write("out/manifest.json", serde_json::to_string(&both).unwrap());
    place.write(&format!("out/{file}"), "// scale");
    place.write(&format!("out/{header}"), "// scale");

    let ran = place.say(&SWAP.replace("--tokens 4", "--tokens 8"));
    assert!(ran.code == 0 && ran.stdout.contains("4 removed"), "{}", ran.report());
    assert_eq!(fs::read_to_string(place.path("out").join(file)).unwrap(), "// scale");
    let now = manifest();
    assert_eq!(now["kernels"].as_array().unwrap().len(), 3);
    assert!(now["kernels"].as_array().unwrap().contains(&other));
    assert!(now["files"].as_array().unwrap().contains(&header.into()));
    let check = place.say(&format!("{} --check", SWAP.replace("--tokens 4", "--tokens 8")));
    assert_eq!(check.code, 0, "{}", check.report());
}

#[test]
fn a_header_of_primitives_is_of_one_program() {
    let place = Place::new();
    let split = format!("{SWAP} --split-primitives");
    assert_eq!(place.say(&split).code, 0);
    let read = || fs::read_to_string(place.path("out/manifest.json")).unwrap();
    let mut both: serde_json::Value = serde_json::from_str(&read()).unwrap();
    // As a program of another family would have left it, whose sources need what this run does not know.
    let mut other = both["kernels"][0].clone();
    let (file, header) = ("other/sm_90a/scale.cu", "other/sm_90a/scale.h");
    (other["family"], other["file"], other["header"]) = ("scale".into(), file.into(), header.into());
    let primitives = other["primitives"].as_str().unwrap().to_owned();
    both["kernels"].as_array_mut().unwrap().push(other);
    both["files"].as_array_mut().unwrap().extend([file.into(), header.into()]);
    place.write("out/manifest.json", serde_json::to_string(&both).unwrap());
    let before = fs::read_to_string(place.path("out").join(&primitives)).unwrap();
    let ran = place.say(&split.replace("--tokens 4", "--tokens 8"));
    assert_eq!(ran.code, 2, "{}", ran.report());
    for needle in ["`scale`, which stays", &primitives, "use another folder"] {
        assert!(ran.stderr.contains(needle), "{needle}: {}", ran.report());
    }
    assert_eq!(fs::read_to_string(place.path("out").join(&primitives)).unwrap(), before);
    // Sources that hold their primitives leave the header to the other family.
    let ran = place.say(SWAP);
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert_eq!(fs::read_to_string(place.path("out").join(&primitives)).unwrap(), before);
}
