use std::os::unix::fs::{chown, symlink};

use super::*;
use crate::input::logged;

/// A user that is neither root nor, in these tests, anybody else.
const OTHER: u32 = 65534;

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Hands a file or folder to another user, if these tests may.
fn hand_over(path: &Path) -> bool {
    geteuid().is_root() && chown(path, Some(OTHER), Some(OTHER)).is_ok()
}

#[test]
fn a_private_folder_is_made_with_mode_700_and_the_folders_above_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a/b");
    assert_eq!(private_folder(&folder), Ok(None));
    assert_eq!(make_private_folder(&folder), Ok(folder.canonicalize().unwrap()));
    assert_eq!((mode(&folder), mode(&dir.path().join("a"))), (0o700, 0o700));
    let relative = Distrust::Relative { path: "a/b".into() };
    assert_eq!(
        (private_folder(Path::new("a/b")), make_private_folder(Path::new("a/b"))),
        (Err(relative.clone()), Err(relative))
    );
    assert!(!Path::new("a/b").exists());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(make_private_folder(&file), Err(Distrust::Kind { .. })));
}

#[test]
fn a_folder_that_others_can_read_becomes_private_and_one_that_they_can_write_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let folder = make_private_folder(&dir.path().join("a")).unwrap();
    for readable in [0o755, 0o750, 0o705, 0o711] {
        set(&folder, readable);
        assert_eq!(
            (private_folder(&folder), mode(&folder)),
            (Ok(Some(folder.clone())), 0o700),
            "{readable:o}"
        );
    }
    for (writable, by) in [
        (0o777, "every user"),
        (0o1777, "every user"),
        (0o702, "every user"),
        (0o770, "its group"),
        (0o775, "its group"),
    ] {
        set(&folder, writable);
        let expected = Distrust::WritableBy { path: folder.clone(), by, mode: writable };
        assert_eq!((private_folder(&folder), mode(&folder)), (Err(expected.clone()), writable));
        assert_eq!(make_private_folder(&folder), Err(expected));
    }
    set(&folder, 0o700);
    if hand_over(&folder) {
        let said = private_folder(&folder).unwrap_err().to_string();
        assert!(said.ends_with("/a belongs to user 65534, and must belong to user 0"), "{said}");
    }
}

#[test]
fn others_cannot_put_another_folder_in_a_private_ones_place() {
    let dir = tempfile::tempdir().unwrap();
    let above = dir.path().canonicalize().unwrap().join("above");
    let folder = make_private_folder(&above.join("a")).unwrap();
    set(&above, 0o777);
    let expected = Distrust::WritableBy { path: above.clone(), by: "every user", mode: 0o777 };
    assert_eq!(private_folder(&folder), Err(expected));
    // In a folder for every user's files each user keeps what it owns.
    for mode in [0o1777, 0o755] {
        set(&above, mode);
        assert_eq!(private_folder(&folder), Ok(Some(folder.clone())));
    }
    // A link leads to the real folder, and that is looked at.
    symlink(&above, dir.path().join("link")).unwrap();
    assert_eq!(private_folder(&dir.path().join("link/a")), Ok(Some(folder.clone())));
    if hand_over(&above) {
        assert!(
            matches!(private_folder(&folder), Err(Distrust::Owner { path, owner: OTHER, .. }) if path == above)
        );
    }
}

#[test]
fn every_part_of_a_path_below_a_private_folder_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let folder = make_private_folder(&dir.path().join("a")).unwrap();
    fs::create_dir_all(folder.join("set/bin")).unwrap();
    fs::write(folder.join("set/bin/tool"), "").unwrap();
    symlink("tool", folder.join("set/bin/link")).unwrap();
    for part in ["set", "set/bin", "set/bin/tool"] {
        set(&folder.join(part), 0o755);
    }
    let look = |below: &str| private_path(&folder, Path::new(below));
    assert_eq!((look("set/bin/tool"), look("set/bin/link")), (Ok(()), Ok(())));
    for part in ["set", "set/bin", "set/bin/tool"] {
        let path = folder.join(part);
        for writable in [0o757, 0o775] {
            set(&path, writable);
            for whole in ["set/bin/tool", "set/bin/link"] {
                assert!(
                    matches!(look(whole), Err(Distrust::WritableBy { mode, .. }) if mode == writable),
                    "{part}"
                );
            }
        }
        set(&path, 0o755);
    }
    for part in ["set/bin/link", "set/bin/tool", "set/bin", "set"] {
        let path = folder.join(part);
        let before = fs::symlink_metadata(&path).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::lchown(&path, Some(OTHER), None).unwrap();
            assert!(matches!(look("set/bin/link"), Err(Distrust::Owner { owner: OTHER, .. })), "{part}");
            std::os::unix::fs::lchown(&path, Some(before.uid()), None).unwrap();
        }
    }
}

#[test]
fn a_named_file_may_be_roots_and_its_private_groups() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    fs::write(&path, "").unwrap();
    let look = || Rule::Named.check(&path, &fs::metadata(&path).unwrap());
    for good in [0o600, 0o644, 0o755] {
        set(&path, good);
        assert_eq!(look(), Ok(()));
    }
    for bad in [0o646, 0o666, 0o777] {
        set(&path, bad);
        assert_eq!(look(), Err(Distrust::WritableBy { path: path.clone(), by: "every user", mode: bad }));
    }
    // The system's own files are root's, and root's group may write some.
    let passwd = Path::new("/etc/passwd");
    assert_eq!(Rule::Named.check(passwd, &fs::metadata(passwd).unwrap()), Ok(()));
    set(&path, 0o664);
    let gid = fs::metadata(&path).unwrap().gid();
    assert_eq!(
        look().is_ok(),
        [geteuid().as_raw(), 0].contains(&gid),
        "a group with the user's number is the user's alone"
    );
    if geteuid().is_root() {
        chown(&path, None, Some(100)).unwrap();
        assert_eq!(look(), Err(Distrust::WritableBy { path: path.clone(), by: "its group", mode: 0o664 }));
        set(&path, 0o644);
        assert!(hand_over(&path) && matches!(look(), Err(Distrust::Owner { owner: OTHER, .. })));
    }
}

#[test]
fn an_access_list_counts_as_others_who_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    fs::write(&path, "").unwrap();
    let (user, look) = (geteuid().as_raw(), || Rule::Named.check(&path, &fs::metadata(&path).unwrap()));
    // A group that is the user's alone; who is not root has one in most systems.
    if fs::metadata(&path).unwrap().gid() != user {
        return eprintln!("skipped: this user has no group of its own");
    }
    // Version 2, and entries of tag, rights and number: owner, one user, group, mask, others.
    let entry = |tag: u16, rights: u16, number: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &number.to_le_bytes()].concat()
    };
    let list = |rights: u16| {
        let named = [entry(1, 6, u32::MAX), entry(2, rights, OTHER), entry(4, 4, u32::MAX)];
        let rest = [entry(0x10, rights, u32::MAX), entry(0x20, 4, u32::MAX)];
        [2u32.to_le_bytes().to_vec(), named.concat(), rest.concat()].concat()
    };
    let set_list = |rights| {
        let name = "system.posix_acl_access";
        rustix::fs::setxattr(&path, name, &list(rights), rustix::fs::XattrFlags::empty())
    };
    if set_list(4) == Err(Errno::OPNOTSUPP) {
        return eprintln!("skipped: this file system has no access lists");
    }
    assert_eq!(look(), Ok(()));
    set_list(6).unwrap();
    let by = "users of its access list";
    assert_eq!(look(), Err(Distrust::WritableBy { path: path.clone(), by, mode: 0o664 }));
}

#[test]
fn the_cache_folder_is_an_absolute_path_or_none() {
    let of = |xdg: Option<&str>, home: Option<&str>| {
        user_cache(|name| if name == "HOME" { home } else { xdg }.map(OsString::from))
    };
    assert_eq!(of(Some("/x"), Some("/home/me")), Ok("/x".into()));
    for unusable in [None, Some(""), Some("cache"), Some("./x"), Some("~/x")] {
        assert_eq!(of(unusable, Some("/home/me")), Ok("/home/me/.cache".into()));
        for home in [None, Some(""), Some("me"), Some(".")] {
            assert!(matches!(of(unusable, home), Err(Distrust::NoFolder { .. })), "{unusable:?} {home:?}");
        }
    }
    let said = of(Some("x"), None).unwrap_err().to_string();
    assert_eq!(said, "XDG_CACHE_HOME = \"x\", HOME = (not set): one of them must be an absolute path");
}

#[test]
fn a_warning_is_said_once() {
    logged::keep();
    for what in ["a folder of none", "a folder of somebody", "a folder of none"] {
        warn(what.into());
    }
    let kept = logged::kept();
    let said: Vec<&str> =
        kept.iter().map(String::as_str).filter(|said| said.contains(": a folder of ")).collect();
    assert_eq!(said, ["WARN: a folder of none", "WARN: a folder of somebody"]);
}
