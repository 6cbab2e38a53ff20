use super::*;
use std::fs;
use tempfile::TempDir;

/// A folder with programs that answer as the real ones do.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, says: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let copy = format!("cat > {0} && chmod +x {0}", path.display());
        let mut child =
            Command::new("sh").args(["-c", &copy]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let script = format!("#!/bin/sh\n{says}\n");
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        path
    }

    fn clang(&self, name: &str, version: &str, targets: &str, lld: &str) -> PathBuf {
        self.program(
            name,
            &format!(
                "case $1 in --version) echo 'clang version {version}';; --print-targets) echo '{targets}';; \
                 *) echo {lld};; esac"
            ),
        )
    }
}

const NVCC: &str = "echo 'Cuda compilation tools, release 13.0, V13.0.88'";

#[test]
fn the_variable_goes_first_then_what_is_installed_then_the_system() {
    let place = Place::new();
    let named = place.program("named", NVCC);
    let installed = install::place(Tool::Nvcc, &place.path("cache/peerwarp/toolchain")).unwrap();
    let inner = installed.strip_prefix(place.dir.path()).unwrap().to_str().unwrap().to_owned();
    place.program(&inner, NVCC);
    let home = place.program("cuda/bin/nvcc", NVCC);
    place.program("bin/nvcc", NVCC);

    let mut env = vec![
        ("PEERWARP_NVCC", named.clone()),
        ("XDG_CACHE_HOME", place.path("cache")),
        ("CUDA_HOME", place.path("cuda")),
        ("PATH", place.path("bin")),
    ];
    let mut order = vec![];
    while !env.is_empty() {
        let all: Vec<(&str, &Path)> = env.iter().map(|(k, v)| (*k, v.as_path())).collect();
        let found = Search::with(&all).find(Tool::Nvcc).unwrap();
        assert_eq!(found.version.to_string(), "13.0.88");
        order.push((found.path, found.origin));
        env.remove(0);
    }
    let expected = [
        (named, Origin::Variable),
        (installed, Origin::Installed),
        (home, Origin::System),
        (place.path("bin/nvcc"), Origin::System),
    ];
    assert_eq!(order, expected);
    assert_eq!(Search::with(&[]).find(Tool::Nvcc), Err(ToolError::NotFound { tool: Tool::Nvcc }));
}

#[test]
fn an_installed_tool_of_another_user_or_that_others_can_write_is_not_started() {
    use std::os::unix::fs::chown;
    let place = Place::new();
    let cache = place.path("cache/peerwarp/toolchain");
    let tool = install::place(Tool::Zig, &cache).unwrap();
    let marked = format!("echo >> {}; echo 0.17.0", place.path("started").display());
    place.program(tool.strip_prefix(place.dir.path()).unwrap().to_str().unwrap(), &marked);
    let system = place.program("bin/zig", "echo 0.17.0");
    let xdg = place.path("cache");
    let with = |path: Option<&Path>| {
        let env = [Some(("XDG_CACHE_HOME", &*xdg)), path.map(|path| ("PATH", path))];
        Search::with(&env.into_iter().flatten().collect::<Vec<_>>()).find(Tool::Zig)
    };
    assert_eq!(with(None).unwrap().origin, Origin::Installed);
    let refused = |why: &str| {
        fs::remove_file(place.path("started")).unwrap();
        let said = with(None).unwrap_err().to_string();
        assert!(said.contains(why) && said.contains("remove "), "{said}");
        assert_eq!(with(Some(&place.path("bin"))).unwrap().path, system);
        assert!(!place.path("started").exists());
    };
    let set = tool.parent().unwrap();
    // Tools load and start what is beside them.
    let beside = set.join("lld");
    fs::write(&beside, "").unwrap();
    for path in [&tool, &beside, set, &cache, &place.path("cache/peerwarp")] {
        let before = path.metadata().unwrap().permissions();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        refused(&format!("{} is writable by every user", path.display()));
        fs::set_permissions(path, before).unwrap();
        if rustix::process::geteuid().is_root() {
            with(None).unwrap();
            chown(path, Some(65534), None).unwrap();
            refused(&format!("{} belongs to user 65534", path.display()));
            chown(path, Some(0), None).unwrap();
        }
        assert_eq!(with(None).unwrap().origin, Origin::Installed);
    }
}

#[test]
fn relative_folders_are_not_looked_into() {
    let here = tempfile::tempdir_in(".").unwrap();
    let name = here.path().file_name().unwrap().to_owned();
    let place = Place { dir: here };
    place.program("zig", "echo 0.17.0");
    place.program("bin/nvcc", NVCC);
    let relative = Path::new(&name);
    assert!(relative.join("zig").exists());
    let search = |variable, tool| Search::with(&[(variable, relative)]).find(tool);
    assert_eq!(search("PATH", Tool::Zig), Err(ToolError::NotFound { tool: Tool::Zig }));
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        assert_eq!(search(variable, Tool::Nvcc), Err(ToolError::NotFound { tool: Tool::Nvcc }));
    }
    for variable in ["XDG_CACHE_HOME", "HOME"] {
        assert_eq!(Search::with(&[(variable, relative)]).cache(), None);
        assert_eq!(Search::with(&[(variable, Path::new(""))]).cache(), None);
    }
}

#[test]
fn a_variable_that_names_something_else_is_an_error_even_if_the_tool_is_elsewhere() {
    let place = Place::new();
    place.program("bin/nvcc", NVCC);
    let folder = place.path("bin");
    let error = |path: &Path| {
        let search = Search::with(&[("PEERWARP_NVCC", path), ("PATH", &folder)]);
        search.find(Tool::Nvcc).unwrap_err().to_string()
    };
    let absent = error(Path::new("/nowhere/nvcc"));
    assert_eq!(
        absent,
        "PEERWARP_NVCC = /nowhere/nvcc: nothing is there; it must be the absolute path of the program"
    );
    assert!(error(Path::new("nvcc")).contains("the path is not absolute"));
    assert!(error(&folder).contains("it is not a program"));
    let gcc = place.program("gcc", "echo 'gcc (Debian) 12.2'");
    assert!(error(&gcc).contains("asked for its version, it says \"gcc (Debian) 12.2\""));
    let broken = place.program("broken", "echo 'no libc' >&2; exit 3");
    assert!(error(&broken).contains("--version fails (exit status: 3): no libc"), "{}", error(&broken));
    let old = place.program("old", "echo 'release 11.8, V11.8.89'");
    assert!(error(&old).contains("version 11.8.89 is too old, 12.4 or newer is needed"), "{}", error(&old));
}

#[test]
fn a_clang_needs_the_back_end_and_the_linker() {
    let place = Place::new();
    let folder = place.path("bin");
    let find = || Search::with(&[("PATH", &folder)]).find(Tool::Clang);
    place.clang("bin/clang++", "19.1.7", "x86-64", "/usr/bin/lld");
    assert!(
        find()
            .unwrap_err()
            .to_string()
            .contains("it has no AMDGPU back end. Else: install clang 18 or newer")
    );
    place.clang("bin/clang++", "19.1.7", "amdgcn", "lld");
    assert!(find().unwrap_err().to_string().contains("its linker lld is not installed"));
    // One of the others is good, and the newest of those is taken.
    place.clang("bin/clang++-19", "19.1.7", "amdgcn", "/usr/bin/lld");
    place.clang("bin/clang++-21", "21.1.0", "amdgcn", "/usr/bin/lld");
    let found = find().unwrap();
    assert_eq!((found.path, found.version.major), (folder.join("clang++-21"), 21));
}

#[test]
fn nvrtc_needs_its_headers_and_must_be_a_library() {
    let place = Place::new();
    let lib = place.path("cu13/lib");
    fs::create_dir_all(&lib).unwrap();
    let find = || Search::with(&[("PEERWARP_NVRTC", &lib)]).find(Tool::Nvrtc).unwrap_err().to_string();
    assert!(
        find()
            .contains("nothing is there; it must be the absolute path of the folder that holds libnvrtc.so")
    );
    fs::write(lib.join("libnvrtc.so.13"), "not ELF").unwrap();
    assert!(find().contains("libnvrtc.so.13"), "{}", find());
}

#[test]
fn headers_of_nccl_say_which_version_they_are_of() {
    let place = Place::new();
    let folder = place.path("cuda/include");
    fs::create_dir_all(&folder).unwrap();
    let search = || Search::with(&[("CUDA_HOME", &place.path("cuda"))]).find(Tool::Nccl);
    assert_eq!(search(), Err(ToolError::NotFound { tool: Tool::Nccl }));
    let header = |code: u32| fs::write(folder.join("nccl.h"), format!("#define NCCL_VERSION_CODE {code}\n"));
    header(23203).unwrap();
    assert!(search().unwrap_err().to_string().contains("no nccl_device.h"));
    fs::write(folder.join("nccl_device.h"), "").unwrap();
    let found = search().unwrap();
    assert_eq!((found.path.as_path(), found.version.to_string()), (folder.as_path(), "2.32.3".into()));
    header(22803).unwrap();
    assert!(search().unwrap_err().to_string().contains("2.28.3 is too old, 2.32 or newer"));
}

#[test]
fn folders_that_a_program_names_come_before_all_but_the_variable() {
    let place = Place::new();
    let [mine, path] = ["mine", "bin"].map(|folder| place.path(folder));
    for folder in ["mine", "bin"] {
        place.program(&format!("{folder}/zig"), "echo 0.17.0");
    }
    let search = Search::with(&[("PATH", &path)]).first_in(&[place.path("empty"), mine.clone()]);
    assert_eq!(search.find(Tool::Zig).unwrap().path, mine.join("zig"));
    let named = path.join("zig");
    let search = Search::with(&[("PEERWARP_ZIG", &named)]).first_in(&[mine]);
    assert_eq!(search.find(Tool::Zig).unwrap().path, named);
    // What is there and no good is passed over.
    let lib = place.path("cu13/lib");
    fs::create_dir_all(&lib).unwrap();
    fs::write(lib.join("libnvrtc.so.13"), "not ELF").unwrap();
    let said = Search::with(&[]).first_in(&[lib]).find(Tool::Nvrtc).unwrap_err().to_string();
    assert!(said.contains("libnvrtc.so.13"), "{said}");
}

#[test]
fn tools_serve_for_targets_by_their_version() {
    let place = Place::new();
    let folder = place.path("bin");
    let targets = |tool: Tool| {
        let found = Search::with(&[("PATH", &folder)]).find(tool).unwrap();
        found.targets().map(|t| t.to_string()).collect::<Vec<_>>().join(" ")
    };
    place.clang("bin/clang++", "19.1.7", "amdgcn", "/usr/bin/lld");
    assert_eq!(targets(Tool::Clang), "hip:gfx90a hip:gfx942");
    place.program("bin/zig", "echo 0.17.0");
    assert_eq!(targets(Tool::Zig), "hip:gfx90a hip:gfx942 hip:gfx950 hip:gfx1250");
    place.program("bin/nvcc", "echo 'release 12.6, V12.6.20'");
    assert_eq!(targets(Tool::Nvcc), "cuda:sm_80 cuda:sm_86 cuda:sm_87 cuda:sm_89 cuda:sm_90 cuda:sm_90a");
    let found = Search::with(&[("PATH", &folder)]).find(Tool::Nvcc).unwrap();
    let wanted = "cuda:sm_100a".parse().unwrap();
    let error = ToolError::too_old(&found, wanted, Tool::Nvcc.oldest_for(wanted)).to_string();
    assert!(error.contains("nvcc 12.6.20 in"), "{error}");
    assert!(error.contains("does not serve for cuda:sm_100a, which needs 12.8 or newer"), "{error}");
}

#[test]
fn a_tool_that_does_not_answer_is_reported() {
    let place = Place::new();
    let nvcc = place.program("nvcc", "sleep 1000");
    let started = std::time::Instant::now();
    let search = Search { patience: Duration::from_millis(200), ..Search::with(&[("PEERWARP_NVCC", &nvcc)]) };
    let said = search.find(Tool::Nvcc).unwrap_err().to_string();
    assert!(said.contains("asked for --version, it has not ended in 0.2 s"), "{said}");
    assert!(started.elapsed() < Duration::from_secs(20));
}
