use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

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

#[test]
fn a_failed_build_leaves_nothing_behind_and_is_told() {
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
