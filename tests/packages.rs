//! What a release publishes: the crates, their order, versions, licences and what a registry shows of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn manifest(folder: &str) -> Table {
    read(&format!("{folder}/Cargo.toml")).parse().unwrap_or_else(|e| panic!("{folder}: {e}"))
}

/// Folders and manifests of the crates that are published, by name.
fn published() -> BTreeMap<String, (PathBuf, Table)> {
    let root = manifest(".");
    let members = root["workspace"]["members"].as_array().expect("members");
    let folders = members.iter().map(|m| m.as_str().expect("a folder")).chain(["."]);
    let crates = folders.map(|folder| (Path::new(ROOT).join(folder), manifest(folder)));
    let kept = crates.filter(|(_, m)| m["package"].get("publish") != Some(&Value::Boolean(false)));
    kept.map(|(folder, m)| (m["package"]["name"].as_str().expect("a name").to_owned(), (folder, m))).collect()
}

/// The crates of `.ci/package`, in their order.
fn packed() -> Vec<String> {
    let script = read(".ci/package");
    let (_, list) = script.split_once("\ncrates=(").expect("a list of crates");
    list.split_once(')').expect("the list ends").0.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn published_crates_are_packed_after_what_they_depend_on() {
    let crates = published();
    let order = packed();
    let mut names = order.clone();
    names.sort();
    assert_eq!(names, crates.keys().cloned().collect::<Vec<_>>(), ".ci/package packs what is published");
    for (at, name) in order.iter().enumerate() {
        let needed = crates[name].1["dependencies"].as_table().expect("dependencies");
        for later in &order[at..] {
            assert!(!needed.contains_key(later), "{name} depends on {later}, which is packed later");
        }
    }
}

#[test]
fn packages_carry_licences_and_what_a_registry_shows() {
    for (name, (folder, manifest)) in published() {
        let package = &manifest["package"];
        for field in ["description", "license", "repository", "readme"] {
            assert!(package.get(field).is_some(), "{name}: package.{field} is missing");
        }
        for field in ["version", "license", "repository"] {
            assert_eq!(package[field]["workspace"], Value::Boolean(true), "{name}: package.{field}");
        }
        let readme = folder.join(package["readme"].as_str().expect("a file"));
        assert!(readme.is_file(), "{name}: {}", readme.display());
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let text =
                fs::read_to_string(folder.join(licence)).unwrap_or_else(|e| panic!("{name}: {licence}: {e}"));
            assert_eq!(text, read(licence), "{name}: {licence}");
        }
        if let Some(include) = package.get("include") {
            let is_licences = |pattern: &Value| pattern.as_str() == Some("/LICENSE-*");
            let patterns = include.as_array().expect("patterns");
            assert!(patterns.iter().any(is_licences), "{name}: package.include leaves licences out");
        }
    }
}

/// A fresh machine needs two commands, one for the main job and one for the tests; CI runs the second one, with lints in the same build.
#[test]
fn the_readme_has_the_two_commands() {
    let readme = read("README.md");
    let part =
        readme.split("## ").find(|part| part.starts_with("Try it")).expect("README.md has a part to try it");
    let commands: Vec<&str> = part.lines().filter(|line| line.starts_with("cargo ")).collect();
    let [run, test] = commands[..] else { panic!("two commands, not {commands:?}") };
    assert!(run.starts_with("cargo run --release -- run "), "{run}");
    let of_ci = test.replace("cargo test", r#"cargo "${pw_cargo[@]}" test"#);
    assert!(of_ci != test && read(".ci/run").lines().any(|line| line.ends_with(&of_ci)), "{test}");
}

#[test]
fn what_is_emitted_belongs_to_its_user() {
    let said = "What Peerwarp emits is yours: sources, headers and packs carry no condition of ours.";
    assert!(read("README.md").contains(said), "README.md says whose emitted text is");
    let mut folders = vec![Path::new(ROOT).join("templates")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of templates") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("a template").to_lowercase();
            for notice in ["copyright", "spdx", "licen"] {
                assert!(!text.contains(notice), "{}: emitted text would say `{notice}`", path.display());
            }
            read += 1;
        }
    }
    assert!(read > 50, "{read} templates");
}

#[test]
fn versions_are_one() {
    let workspace = manifest(".")["workspace"].clone();
    for name in published().keys() {
        let version = workspace["dependencies"][name]["version"].as_str();
        assert_eq!(version, Some(VERSION), "workspace.dependencies.{name}");
    }
    let python = manifest("python");
    assert_eq!(python["package"]["version"].as_str(), Some(VERSION), "python/Cargo.toml: package.version");
    assert_eq!(python["package"]["license"], workspace["package"]["license"]);
    assert_eq!(
        python["dependencies"]["peerwarp"]["version"].as_str(),
        Some(VERSION),
        "python/Cargo.toml: peerwarp"
    );
    let lock: Table = read("python/Cargo.lock").parse().expect("a lock file");
    let locked = lock["package"].as_array().expect("packages");
    for package in
        locked.iter().filter(|p| p["name"].as_str().is_some_and(|name| name.starts_with("peerwarp")))
    {
        assert_eq!(package["version"].as_str(), Some(VERSION), "python/Cargo.lock: {}", package["name"]);
    }
    let generated: serde_json::Value =
        serde_json::from_str(&read("generated/manifest.json")).expect("a manifest");
    assert_eq!(generated["version"].as_str(), Some(VERSION), "generated/manifest.json: version");
    let newest = read("CHANGELOG.md").lines().find_map(|line| line.strip_prefix("## [").map(str::to_owned));
    let newest = newest.expect("a section of a version");
    assert!(
        newest.starts_with(&format!("{VERSION}] - ")),
        "CHANGELOG.md begins with {newest}, not with {VERSION}"
    );
}
