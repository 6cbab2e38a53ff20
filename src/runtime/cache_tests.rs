use std::cell::Cell;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;

use super::*;

fn ingredients<'a>(source: &'a str, options: &'a [String]) -> Ingredients<'a> {
    Ingredients { source, options, toolchain: "nvrtc 13.0", arch: "sm_90a" }
}

/// The one entry of a cache.
fn entry(folder: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn a_module_is_built_once_for_the_same_ingredients_and_anew_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ModuleCache::new(dir.path().join("made/when/needed"));
    let built = Cell::new(0);
    let build = || {
        built.set(built.get() + 1);
        Ok(vec![built.get(); 4])
    };
    let (one, two) = (["-O3".to_owned()], ["-O".to_owned(), "3".to_owned()]);
    let base = ingredients("source", &one);
    assert_eq!(cache.get(&base, build).unwrap(), (vec![1; 4], Cached::Miss));
    assert_eq!(cache.get(&base, build).unwrap(), (vec![1; 4], Cached::Hit));
    let others = [
        ingredients("sourc", &one),
        ingredients("source", &two),
        Ingredients { toolchain: "nvrtc 13.1", ..base },
        Ingredients { arch: "sm_90", ..base },
    ];
    for (i, other) in others.iter().enumerate() {
        assert_eq!(cache.get(other, build).unwrap(), (vec![i as u8 + 2; 4], Cached::Miss));
    }
    assert_eq!(cache.get(&base, build).unwrap().1, Cached::Hit);
}

#[test]
fn entries_that_are_damaged_or_of_something_else_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ModuleCache::new(dir.path());
    let get = |source| cache.get(&ingredients(source, &[]), || Ok(source.as_bytes().to_vec())).unwrap();
    get("right");
    let path = entry(dir.path());
    let good = fs::read(&path).unwrap();

    let replaced = |contents: &[u8], why: &str| {
        fs::write(&path, contents).unwrap();
        let (module, cached) = get("right");
        assert_eq!(module, b"right");
        assert!(matches!(&cached, Cached::Replaced(said) if said.contains(why)), "{cached:?}");
        assert_eq!(get("right").1, Cached::Hit);
    };
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    replaced(&good[..good.len() - 1], "cut short or changed");
    replaced(&changed(good.len() - 1), "cut short or changed");
    replaced(&changed(HEADER - 1), "cut short or changed");
    replaced(&changed(8), "the module of something else");
    replaced(&changed(0), "not a module of this version");
    replaced(&good[..HEADER - 1], "not a module of this version");
    replaced(&[], "not a module of this version");

    get("other");
    let other = fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().path()).find(|p| *p != path).unwrap();
    replaced(&fs::read(other).unwrap(), "the module of something else");
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A cache in whose one entry a stranger's module stands, well-formed.
fn planted(folder: &Path) -> (ModuleCache, PathBuf) {
    let cache = ModuleCache::new(folder);
    cache.get(&ingredients("source", &[]), || Ok(b"right".to_vec())).unwrap();
    let path = entry(folder);
    write(&path, &ingredients("source", &[]).key(), b"a stranger's").unwrap();
    assert_eq!(got(&cache), (b"a stranger's".to_vec(), Cached::Hit));
    (cache, path)
}

fn got(cache: &ModuleCache) -> (Vec<u8>, Cached) {
    cache.get(&ingredients("source", &[]), || Ok(b"right".to_vec())).unwrap()
}

#[test]
fn an_entry_of_another_user_or_that_others_can_write_is_ignored_and_replaced() {
    let replaced = |spoil: &dyn Fn(&Path), why: &str| {
        let dir = tempfile::tempdir().unwrap();
        let (cache, path) = planted(dir.path());
        spoil(&path);
        let (module, cached) = got(&cache);
        assert_eq!(module, b"right");
        assert!(
            matches!(&cached, Cached::Replaced(said) if said.contains(why) && said.contains("compiled anew")),
            "{cached:?}"
        );
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!((found.mode(), found.uid()), (0o100600, geteuid().as_raw()));
        assert_eq!(got(&cache), (b"right".to_vec(), Cached::Hit));
    };
    for mode in [0o666, 0o622, 0o602, 0o646] {
        replaced(&|path| set(path, mode), "is writable by every user");
    }
    for mode in [0o660, 0o664, 0o620] {
        replaced(&|path| set(path, mode), "is writable by its group");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let link = |path: &Path| {
        let target = elsewhere.path().join("entry");
        fs::rename(path, &target).unwrap();
        symlink(&target, path).unwrap();
    };
    let dir = tempfile::tempdir().unwrap();
    let (cache, path) = planted(dir.path());
    link(&path);
    assert!(matches!(got(&cache), (module, Cached::Replaced(_)) if module == b"right"));
    if geteuid().is_root() {
        replaced(&|path| chown(path, Some(65534), None).unwrap(), "belongs to user 65534");
    }
}

#[test]
fn a_folder_of_another_user_or_that_others_can_write_is_not_used() {
    let ignored = |spoil: &dyn Fn(&Path), why: &str| {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("peerwarp/modules");
        let (cache, path) = planted(&folder);
        spoil(&folder);
        let before = fs::read(&path).unwrap();
        let (module, cached) = got(&cache);
        assert_eq!(module, b"right");
        let Cached::NotKept(said) = &cached else { panic!("{cached:?}") };
        assert!(said.contains(why) && said.contains("XDG_CACHE_HOME"), "{said}");
        assert_eq!((fs::read(&path).unwrap(), entry(&folder)), (before, path));
    };
    for mode in [0o777, 0o1777, 0o733, 0o702] {
        ignored(&|folder| set(folder, mode), "modules is writable by every user");
    }
    ignored(&|folder| set(folder, 0o775), "modules is writable by its group");
    ignored(&|folder| set(folder.parent().unwrap(), 0o777), "peerwarp is writable by every user");
    if geteuid().is_root() {
        ignored(&|folder| chown(folder, Some(65534), None).unwrap(), "modules belongs to user 65534");
        ignored(
            &|folder| chown(folder.parent().unwrap(), Some(65534), None).unwrap(),
            "peerwarp belongs to user 65534",
        );
    }
}

#[test]
fn the_folder_is_this_users_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("peerwarp/modules");
    let (cache, path) = planted(&folder);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
    // One that others could only read becomes private.
    set(&folder, 0o755);
    set(&path, 0o644);
    assert_eq!((got(&cache).1, mode(&folder)), (Cached::Hit, 0o700));
}

#[test]
fn without_a_folder_of_the_user_nothing_is_kept_anywhere() {
    let of = |xdg: Option<&Path>, home: Option<&Path>| {
        ModuleCache::of_environment(|name| if name == "HOME" { home } else { xdg }.map(OsString::from))
    };
    let (dir, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in(".").unwrap());
    let relative = Path::new(here.path().file_name().unwrap());
    for (xdg, home) in [
        (None, None),
        (None, Some(Path::new(""))),
        (Some(Path::new("")), Some(relative)),
        (Some(relative), None),
        (Some(relative), Some(Path::new(""))),
    ] {
        for _ in 0..2 {
            let (module, cached) = got(&of(xdg, home));
            assert_eq!(module, b"right");
            assert!(
                matches!(&cached, Cached::NotKept(said) if said.contains("must be an absolute path")),
                "{cached:?}"
            );
        }
    }
    assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0);
    assert!(!std::env::temp_dir().join("peerwarp/modules").exists() && !Path::new("peerwarp").exists());
    assert_eq!(got(&of(Some(relative), Some(dir.path()))).1, Cached::Miss);
    entry(&dir.path().join(".cache/peerwarp/modules"));
    let told = got(&ModuleCache::new(relative)).1;
    assert!(matches!(&told, Cached::NotKept(said) if said.contains("the path must be absolute")), "{told:?}");
}

#[test]
fn a_failed_build_leaves_nothing_behind_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ModuleCache::new(dir.path());
    let failed = || Err(RuntimeError::invalid("x", 1, "nothing"));
    assert_eq!(cache.get(&ingredients("s", &[]), failed).unwrap_err().to_string(), "x = 1: nothing");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_that_cannot_be_written_costs_no_more_than_the_time_to_build() {
    let dir = tempfile::tempdir().unwrap();
    let in_the_way = dir.path().join("file");
    fs::write(&in_the_way, "").unwrap();
    let cache = ModuleCache::new(in_the_way.join("cache"));
    let (module, cached) = cache.get(&ingredients("s", &[]), || Ok(vec![7])).unwrap();
    assert_eq!(module, [7]);
    assert!(matches!(cached, Cached::NotKept(_)), "{cached:?}");
}

#[test]
fn many_at_once_all_get_the_right_module() {
    let dir = tempfile::tempdir().unwrap();
    let built = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cache = ModuleCache::new(dir.path());
                for i in 0..50u8 {
                    let source = i.to_string();
                    let (module, cached) = cache
                        .get(&ingredients(&source, &[]), || {
                            built.fetch_add(1, Ordering::Relaxed);
                            Ok(vec![i; 100_000])
                        })
                        .unwrap();
                    assert!(module.len() == 100_000 && module.iter().all(|&b| b == i));
                    assert!(matches!(cached, Cached::Hit | Cached::Miss), "{cached:?}");
                }
            });
        }
    });
    assert!(built.into_inner() >= 50);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 50);
}
