//! Installation, with a Python that is a shell script.

use super::*;
use tempfile::TempDir;

/// A cache folder, and a Python whose pip does what a script says. `$into` is the folder to install to, `$requirements`
/// the file.
struct Place {
    dir: TempDir,
}

const GOOD: &str =
    "mkdir -p $into/ziglang && echo zig > $into/ziglang/zig && cp $requirements $into/requirements.txt";

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    fn python(&self, pip: &str) -> PathBuf {
        self.script(&format!(
            "[ $2 = pip ] && [ $3 = --version ] && exit 0\n\
             echo called >> {}\n\
             while [ $# -gt 1 ]; do case $1 in --target) into=$2;; --requirement) requirements=$2;; esac; shift; done\n\
             {pip}\n",
            self.dir.path().join("calls").display()
        ))
    }

    fn script(&self, text: &str) -> PathBuf {
        let path = self.dir.path().join("python3");
        // Written by another process: had a test that runs beside this one forked in between, exec would say "busy".
        let write = format!("cat > {0} && chmod +x {0}", path.display());
        let mut child =
            Command::new("sh").args(["-c", &write]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        io::Write::write_all(&mut child.stdin.take().unwrap(), format!("#!/bin/sh\n{text}").as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
        path
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default().lines().count()
    }

    /// Names of what is in the cache.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn hip() -> Set {
    sets().iter().find(|s| s.name == "hip").unwrap().clone()
}

#[test]
fn the_second_installation_does_nothing() {
    let place = Place::new();
    let python = place.python(GOOD);
    assert_eq!(install_to(&hip(), &place.cache(), &python).unwrap(), Installed::Now);
    assert_eq!(install_to(&hip(), &place.cache(), &python).unwrap(), Installed::Already);
    assert_eq!((place.calls(), place.names()), (1, vec![".lock".into(), hip().folder()]));
    let folder = place.cache().join(hip().folder());
    assert_eq!(fs::read_to_string(folder.join("requirements.txt")).unwrap(), hip().requirements());
    let lld = folder.join("ziglang/lld");
    assert_eq!(lld.metadata().unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn python_runs_in_a_private_folder_as_it_imports_modules_of_the_current_one() {
    let place = Place::new();
    let seen = place.dir.path().join("seen");
    let log = format!("pwd -P >> {}", seen.display());
    let with_pip = place.script(&format!("{log}\n[ $3 = --version ]"));
    install_to(&hip(), &place.cache(), &with_pip).unwrap_err();
    let without_pip = place.script(&format!("{log}\nexit 1"));
    install_to(&hip(), &place.cache(), &without_pip).unwrap_err();
    let seen = fs::read_to_string(seen).unwrap();
    let cache = place.cache().canonicalize().unwrap();
    assert_eq!(seen.lines().count(), 4, "{seen}");
    assert!(seen.lines().all(|folder| Path::new(folder).starts_with(&cache)), "{seen}");
}

#[test]
fn zigs_linker_gets_its_arguments_without_the_flavour() {
    let place = Place::new();
    let zig = "printf '#!/bin/sh\\necho \"$@\"\\n' > $into/ziglang/zig && chmod +x $into/ziglang/zig";
    install_to(&hip(), &place.cache(), &place.python(&format!("{GOOD}\n{zig}"))).unwrap();
    let lld = place.cache().join(hip().folder()).join("ziglang/lld");
    let run =
        |args: &[&str]| String::from_utf8(Command::new(&lld).args(args).output().unwrap().stdout).unwrap();
    assert_eq!(run(&["-flavor", "gnu", "-o", "a b"]), "ld.lld -o a b\n");
    assert_eq!(run(&["-shared", "x"]), "ld.lld -shared x\n");
}

#[test]
fn a_killed_installation_is_done_anew() {
    let place = Place::new();
    // As a process leaves it that is killed while pip unpacks.
    let stale = place.cache().join(".stage-x/new/ziglang");
    fs::create_dir_all(&stale).unwrap();
    fs::write(stale.join("zig"), "half").unwrap();
    assert_eq!(install_to(&hip(), &place.cache(), &place.python(GOOD)).unwrap(), Installed::Now);
    assert_eq!(place.names(), [".lock", &hip().folder()]);
}

#[test]
fn failures_leave_nothing_behind() {
    let place = Place::new();
    let error = |python: &Path| install_to(&hip(), &place.cache(), python).unwrap_err().to_string();

    let failed = error(&place.python("echo half > $into; echo 'ERROR: no such version' >&2; exit 1"));
    assert_eq!(failed, "pip could not install hip:\nERROR: no such version");
    assert_eq!(place.names(), [".lock"]);

    let other = error(&place.python("mkdir -p $into/other"));
    assert_eq!(other, "hip was installed without ziglang/zig: the wheels are not those that were pinned");
    assert_eq!(place.names(), [".lock"]);

    let neither = error(&place.script("echo \"No module named $2\" >&2; exit 1"));
    assert!(
        neither.contains("neither pip nor venv") && neither.ends_with("No module named venv"),
        "{neither}"
    );
    let absent = error(Path::new("/nowhere/python3"));
    assert!(absent.contains("python3 is needed to install hip, and it is not in PATH"), "{absent}");
    assert_eq!(place.names(), [".lock"]);
}

#[test]
fn a_python_without_pip_makes_an_environment_that_has_it() {
    let place = Place::new();
    // `$3` of `-m venv` is the environment's folder; the Python in there is the good one.
    let good = place.python(GOOD);
    let kept = place.dir.path().join("good");
    fs::rename(&good, &kept).unwrap();
    let python = place.script(&format!(
        "[ $2 = pip ] && exit 1\nmkdir -p $3/bin && cp {} $3/bin/python3\n",
        kept.display()
    ));
    assert_eq!(install_to(&hip(), &place.cache(), &python).unwrap(), Installed::Now);
    assert_eq!(place.calls(), 1);
}

#[test]
fn several_at_once_fetch_once() {
    let place = Place::new();
    let python = place.python(GOOD);
    let done: Vec<Installed> = std::thread::scope(|scope| {
        let one = || install_to(&hip(), &place.cache(), &python).unwrap();
        let running: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(done.iter().filter(|d| **d == Installed::Now).count(), 1);
    assert_eq!(place.calls(), 1);
}

#[test]
fn what_is_installed_is_this_users_alone() {
    let place = Place::new();
    let loose = format!("umask 0\n{GOOD}\nchmod 777 $into/ziglang/zig");
    install_to(&hip(), &place.cache(), &place.python(&loose)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set = place.cache().join(hip().folder());
    let modes =
        [place.cache(), set.clone(), set.join("ziglang"), set.join("ziglang/zig")].map(|path| mode(&path));
    assert_eq!(modes, [0o700, 0o755, 0o755, 0o755]);
    assert_eq!(installed(Tool::Zig, &place.cache()), Ok(Some(set.join("ziglang/zig"))));
}

#[test]
fn a_folder_that_others_can_write_is_not_installed_to_and_not_taken_for_installed() {
    let place = Place::new();
    let python = place.python(GOOD);
    install_to(&hip(), &place.cache(), &python).unwrap();
    let set = place.cache().join(hip().folder());
    for path in [place.cache(), set.clone(), set.join("ziglang"), set.join("ziglang/zig")] {
        let before = fs::metadata(&path).unwrap().permissions();
        for mode in [0o777, 0o775] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = install_to(&hip(), &place.cache(), &python).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{} is writable by ", path.display())), "{said}");
            assert!(said.contains("remove it") && said.contains("install again"), "{said}");
            assert!(installed(Tool::Zig, &place.cache()).is_err());
        }
        fs::set_permissions(&path, before).unwrap();
    }
    assert_eq!(install_to(&hip(), &place.cache(), &python).unwrap(), Installed::Already);
    assert_eq!(place.calls(), 1);
}

#[test]
fn pins_are_exact() {
    let all: Vec<&Set> = sets().iter().collect();
    assert_eq!(all.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["cuda", "hip", "nccl"]);
    for wheel in all.iter().flat_map(|s| &s.wheels) {
        let hashes = &wheel.sha256;
        assert_eq!(hashes.len(), 2, "{}: one for x86_64, one for aarch64", wheel.name);
        assert!(
            hashes.iter().all(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit())),
            "{}",
            wheel.name
        );
    }
    let mut other = hip();
    other.wheels[0].version = "0.16.0".into();
    assert_ne!(other.folder(), hip().folder());
}
