use std::os::unix::fs::{DirBuilderExt, symlink};

use super::*;
use crate::build::steps::killed;

fn tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::default();
    let list: Vec<_> = files.iter().map(|f| f.0).collect();
    tree.insert(MANIFEST, serde_json::json!({ "files": list }).to_string()).unwrap();
    files.iter().for_each(|(p, t)| tree.insert(p, (*t).to_owned()).unwrap());
    tree
}

/// Everything under a folder: paths with contents, folders with a slash.
fn everything(dir: &Path) -> Vec<String> {
    let mut all = vec![];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            all.push(format!("{name}/"));
            all.extend(everything(&path).into_iter().map(|inner| format!("{name}/{inner}")));
        } else if name != MANIFEST {
            all.push(format!("{name}={}", fs::read_to_string(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn writes_updates_and_removes_what_it_wrote_before() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("a/b");
    let first = tree(&[("m/x.cu", "1"), ("m/y.cu", "2"), ("n/z.hip", "3")]);
    assert_eq!(first.compare(&dir).unwrap().missing.len(), 4);
    assert_eq!(first.write(&dir).unwrap().missing.len(), 4);
    assert!(first.compare(&dir).unwrap().is_empty());
    assert_eq!(
        everything(top.path()),
        ["a/", "a/b/", "a/b/m/", "a/b/m/x.cu=1", "a/b/m/y.cu=2", "a/b/n/", "a/b/n/z.hip=3"]
    );

    fs::write(dir.join("README.md"), "mine").unwrap();
    let kept = fs::metadata(dir.join("m/x.cu")).unwrap().modified().unwrap();
    let second = tree(&[("m/x.cu", "1"), ("m/y.cu", "20"), ("o/w.cu", "4")]);
    let found = second.compare(&dir).unwrap();
    assert_eq!(found.missing, ["o/w.cu"]);
    assert_eq!(found.changed, ["m/y.cu", MANIFEST]);
    assert_eq!(found.extra, ["n/z.hip"]);
    assert_eq!(second.write(&dir).unwrap(), found);
    assert!(second.compare(&dir).unwrap().is_empty());
    assert_eq!(everything(&dir), ["README.md=mine", "m/", "m/x.cu=1", "m/y.cu=20", "o/", "o/w.cu=4"]);
    assert_eq!(fs::metadata(dir.join("m/x.cu")).unwrap().modified().unwrap(), kept);
    assert!(second.write(&dir).unwrap().is_empty());
}

#[test]
fn reports_sources_from_elsewhere_but_does_not_remove_them() {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(&[("m/x.cu", "1")]);
    tree.write(dir.path()).unwrap();
    fs::write(dir.path().join("m/mine.cu"), "").unwrap();
    fs::write(dir.path().join("m/mine.h"), "").unwrap();
    fs::write(dir.path().join("m/mine.txt"), "").unwrap();
    let found = tree.compare(dir.path()).unwrap();
    assert_eq!(found.foreign, ["m/mine.cu", "m/mine.h"]);
    assert!(found.extra.is_empty() && !found.is_empty());
    tree.write(dir.path()).unwrap();
    assert!(dir.path().join("m/mine.cu").exists());
}

#[test]
fn tells_what_was_edited_from_what_is_stale() {
    let with_hashes = |text: &str| {
        let mut tree = Tree::default();
        let manifest =
            serde_json::json!({ "files": ["a.cu", "b.cu"], "sha256": { "a.cu": sha256(text.as_bytes()) } });
        tree.insert(MANIFEST, manifest.to_string()).unwrap();
        tree.insert("a.cu", text).unwrap();
        tree.insert("b.cu", text).unwrap();
        tree
    };
    let dir = tempfile::tempdir().unwrap();
    with_hashes("old").write(dir.path()).unwrap();
    let new = with_hashes("new");
    let found = new.compare(dir.path()).unwrap();
    assert_eq!((found.changed.len(), found.edited.len()), (3, 0));
    for file in ["a.cu", "b.cu"] {
        fs::write(dir.path().join(file), "edited").unwrap();
    }
    let found = new.compare(dir.path()).unwrap();
    // The state of b.cu is unknown.
    assert_eq!((found.changed.len(), found.edited), (3, vec!["a.cu".to_owned()]));
    fs::write(dir.path().join("a.cu"), "new").unwrap();
    assert!(new.compare(dir.path()).unwrap().edited.is_empty());
}

#[test]
fn a_failed_update_changes_nothing() {
    for blocker in ["p/q.cu/", "p"] {
        let dir = tempfile::tempdir().unwrap();
        tree(&[("m/x.cu", "1"), ("m/z.cu", "3")]).write(dir.path()).unwrap();
        match blocker.strip_suffix('/') {
            Some(folder) => fs::create_dir_all(dir.path().join(folder)).unwrap(),
            None => fs::write(dir.path().join(blocker), "in the way").unwrap(),
        }
        let before = everything(dir.path());
        let manifest = fs::read(dir.path().join(MANIFEST)).unwrap();
        // `m/x.cu` and `a/b.cu` come first, and go into place before `p/q.cu` cannot.
        let next = tree(&[("a/b.cu", "0"), ("m/x.cu", "10"), ("p/q.cu", "2")]);
        let e = next.write(dir.path()).unwrap_err();
        assert!(matches!(e.problem, crate::input::Problem::Io(_)), "{e}");
        assert_eq!(everything(dir.path()), before, "{blocker}");
        assert_eq!(fs::read(dir.path().join(MANIFEST)).unwrap(), manifest);
    }
}

#[test]
fn a_failed_creation_leaves_nothing() {
    let top = tempfile::tempdir().unwrap();
    fs::write(top.path().join("file"), "").unwrap();
    let e = tree(&[("x.cu", "1")]).write(&top.path().join("file/out")).unwrap_err();
    assert_eq!(e.field, "--out");
    assert_eq!(everything(top.path()), ["file="]);
}

#[test]
fn a_manifest_cannot_point_outside() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("out");
    fs::create_dir(&dir).unwrap();
    fs::write(top.path().join("precious"), "").unwrap();
    let absolute = top.path().join("precious");
    let list = serde_json::json!({ "files": ["../precious", absolute, "gone"] });
    fs::write(dir.join(MANIFEST), list.to_string()).unwrap();
    let tree = tree(&[("x.cu", "1")]);
    assert_eq!(tree.compare(&dir).unwrap().extra, [""; 0]);
    tree.write(&dir).unwrap();
    assert!(absolute.exists());
}

#[test]
fn two_files_of_one_name_must_agree() {
    let mut tree = Tree::default();
    tree.insert("a", "1").unwrap();
    tree.insert("a", "1").unwrap();
    assert_eq!(tree.insert("a", "2").unwrap_err().value, "a");
    assert_eq!(tree.files().collect::<Vec<_>>(), [("a", &b"1"[..])]);
}

/// Everything in a folder and what is beside it, with the manifest.
fn all(top: &Path) -> Vec<String> {
    let mut all = everything(top);
    all.push(format!("manifest={:?}", fs::read_to_string(top.join("out").join(MANIFEST)).ok()));
    all
}

#[test]
fn a_run_killed_at_any_step_is_made_good_by_the_next() {
    let first = tree(&[("a/b.cu", "0"), ("m/x.cu", "1"), ("m/y.cu", "2"), ("n/o/z.hip", "3")]);
    let second = tree(&[("m/w.cu", "5"), ("m/x.cu", "10"), ("p/q/r.cu", "4"), ("p/q/s.cu", "4")]);
    let third = tree(&[("m/x.cu", "10"), ("t.cu", "6")]);
    let fresh = |before: Option<&Tree>| {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("out");
        if let Some(before) = before {
            before.write(&dir).unwrap();
            fs::write(dir.join("README.md"), "mine").unwrap();
        }
        (top, dir)
    };
    let after = |before: Option<&Tree>, runs: &[&Tree]| {
        let (top, dir) = fresh(before);
        runs.iter().for_each(|run| drop(run.write(&dir).unwrap()));
        all(top.path())
    };
    for before in [None, Some(&first)] {
        for next in [&second, &third, &first] {
            let (wanted, mut ended) = (after(before, &[next]), false);
            for steps in 0.. {
                let (top, dir) = fresh(before);
                let old = everything(top.path());
                if killed::after(steps, || second.write(&dir).unwrap()).is_some() {
                    ended = true;
                    break;
                }
                // What is there is never taken for somebody else's.
                if dir.exists() {
                    let found = next.compare(&dir).unwrap();
                    assert!(found.foreign.is_empty() || found.unfinished, "{steps}: {found:?}");
                }
                // Killed again while it is being undone, at a few steps of that.
                for again in [1, 2, 3, 5, 8, 13] {
                    killed::after(again, || next.write(&dir).unwrap());
                }
                next.write(&dir).unwrap();
                let found = all(top.path());
                // It was at its end, or as if it had never been.
                let late = after(before, &[&second, next]);
                assert!(found == wanted || found == late, "{steps}: {found:#?} {wanted:#?} {old:?}");
                assert!(next.compare(&dir).unwrap().is_empty());
            }
            assert!(ended);
        }
    }
}

#[test]
fn nothing_is_left_beside_what_was_written() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("out");
    tree(&[("x.cu", "1")]).write(&dir).unwrap();
    tree(&[("x.cu", "2")]).write(&dir).unwrap();
    assert_eq!(everything(top.path()), ["out/", "out/x.cu=2"]);
}

#[test]
fn runs_at_once_come_one_after_the_other() {
    for there in [false, true] {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("out");
        if there {
            tree(&[("x.cu", "0"), ("old.cu", "0")]).write(&dir).unwrap();
        }
        let trees: Vec<Tree> =
            (0..8).map(|n| tree(&[("x.cu", &n.to_string()), (&format!("f{n}/y.cu"), "1")])).collect();
        std::thread::scope(|scope| {
            for tree in &trees {
                scope.spawn(|| tree.write(&dir).unwrap());
            }
        });
        let last = trees.iter().filter(|tree| tree.compare(&dir).unwrap().is_empty()).count();
        assert_eq!((last, everything(&dir).len()), (1, 3), "{:?}", everything(top.path()));
    }
}

#[test]
fn links_are_neither_followed_nor_written_through() {
    let top = tempfile::tempdir().unwrap();
    let (dir, other) = (top.path().join("out"), top.path().join("other"));
    let one = tree(&[("m/x.cu", "1")]);
    one.write(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("x.cu"), "precious").unwrap();
    symlink(&other, dir.join("link")).unwrap();
    symlink(&dir, dir.join("loop")).unwrap();
    assert_eq!(one.compare(&dir).unwrap(), Differences::default());
    let list = serde_json::json!({ "files": ["link/x.cu", "m/x.cu"] });
    fs::write(dir.join(MANIFEST), list.to_string()).unwrap();
    assert_eq!(one.write(&dir).unwrap().extra, [""; 0]);
    let said = tree(&[("link/x.cu", "2")]).write(&dir).unwrap_err().to_string();
    assert!(said.contains("link is a symbolic link"), "{said}");
    assert_eq!(fs::read_to_string(other.join("x.cu")).unwrap(), "precious");
    // A link where a file goes is replaced itself.
    fs::remove_file(dir.join("m/x.cu")).unwrap();
    symlink(other.join("x.cu"), dir.join("m/x.cu")).unwrap();
    assert_eq!(one.write(&dir).unwrap().changed, ["m/x.cu"]);
    assert_eq!(fs::read_to_string(other.join("x.cu")).unwrap(), "precious");
    assert!(fs::symlink_metadata(dir.join("m/x.cu")).unwrap().is_file());
}

#[test]
fn a_workplace_that_is_no_runs_is_left_alone() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("out");
    let (one, two) = (tree(&[("x.cu", "1")]), tree(&[("x.cu", "2")]));
    one.write(&dir).unwrap();
    let place = dir.join(".peerwarp-update");
    fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
    for journal in ["{", r#"{"added":["../precious"],"replaced":[],"removed":[],"folders":[]}"#] {
        fs::write(top.path().join("precious"), "").unwrap();
        fs::write(place.join("journal.json"), journal).unwrap();
        let said = two.write(&dir).unwrap_err().to_string();
        assert!(said.contains("journal.json is none that an update has left"), "{said}");
        assert!(top.path().join("precious").exists() && place.join("journal.json").exists());
    }
    fs::remove_dir_all(&place).unwrap();
    symlink(top.path(), &place).unwrap();
    let said = two.write(&dir).unwrap_err().to_string();
    assert!(said.contains(".peerwarp-update is no folder: move back what is yours"), "{said}");
}
