//! Programs that rustc must refuse. Each `.rs` file of a folder has what rustc says of it beside it, in a `.stderr` file.
//!
//! A program is compiled against the libraries that this test is linked with: nothing is built for it. `PEERWARP_REFUSED=write` writes
//! the `.stderr` files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// A crate that the programs use: its name, and its first file as cargo names it to rustc.
pub type Crate = (&'static str, &'static str);

/// Compiles programs that use the crate of the DSL.
#[allow(dead_code)] // where other crates are used
#[track_caller]
pub fn of_codegen(folder: &str) {
    let crates =
        [("peerwarp_codegen", "codegen/src/lib.rs"), ("peerwarp_macros", "codegen/macros/src/lib.rs")];
    all(folder, &crates, Path::new(env!("CARGO_MANIFEST_DIR")));
}

/// Compiles the programs in a folder of the package.
///
/// `manifest_dir` is what macros take for the folder of the package.
///
/// # Panics
/// When rustc accepts one, or says something else of it.
#[track_caller]
pub fn all(folder: &str, crates: &[Crate], manifest_dir: &Path) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(package.join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut programs: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    programs.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    programs.sort();
    assert!(!programs.is_empty(), "{folder} has no programs");
    let libraries: Vec<String> =
        crates.iter().map(|one| format!("{}={}", one.0, library(*one).display())).collect();
    let mut wrong = vec![];
    for program in &programs {
        let mut rustc = Command::new("rustc");
        // There rustc finds the sources of the libraries.
        rustc.current_dir(root()).env("CARGO_MANIFEST_DIR", manifest_dir);
        rustc.args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "-Adead_code", "--out-dir"]);
        rustc.arg(env!("CARGO_TARGET_TMPDIR")).arg(format!("-Ldependency={}", built().display()));
        rustc.args(libraries.iter().map(|library| format!("--extern={library}"))).arg(program);
        let out = rustc.output().expect("rustc starts");
        let said = plain(&String::from_utf8_lossy(&out.stderr), program);
        let expected = program.with_extension("stderr");
        if std::env::var("PEERWARP_REFUSED").is_ok_and(|what| what == "write") {
            fs::write(&expected, &said).unwrap_or_else(|e| panic!("{}: {e}", expected.display()));
        }
        let expected = fs::read_to_string(&expected).unwrap_or_default();
        if out.status.success() {
            wrong.push(format!("{} compiles", program.display()));
        } else if said != expected {
            wrong.push(format!("{}: expected\n{expected}\nfound\n{said}", program.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The folder of the workspace.
fn root() -> &'static Path {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.filter(|folder| folder.join("Cargo.lock").exists()).last().expect("a workspace has a lock file")
}

/// The folder that cargo builds libraries into, where this test is too.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    test.parent().expect("a file is in a folder").to_owned()
}

/// The library of a crate that cargo built of this workspace before this test: of several, the newest.
fn library((name, source): Crate) -> PathBuf {
    let changed = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
    let test = changed(&std::env::current_exe().expect("a test knows its file")).expect("it is there");
    let entries = fs::read_dir(built()).expect("the folder of a test is readable");
    let candidate = |path: PathBuf| -> Option<(SystemTime, PathBuf)> {
        let file = path.file_stem()?.to_str()?;
        let is_lists = path.extension()? == "d" && file.rsplit_once('-')?.0 == name;
        // A crate that is built from elsewhere has absolute paths.
        let is_of_workspace = is_lists && fs::read_to_string(&path).ok()?.contains(&format!(": {source} "));
        let library = ["rlib", "so"].map(|end| path.with_file_name(format!("lib{file}.{end}")));
        let library = library.into_iter().find(|path| path.exists()).filter(|_| is_of_workspace)?;
        Some((changed(&library).filter(|time| *time <= test)?, library))
    };
    let found = entries.filter_map(|entry| candidate(entry.ok()?.path())).max();
    found.unwrap_or_else(|| panic!("{} has no library of {name}", built().display())).1
}

/// What rustc says, without what differs between machines and with every change elsewhere: folders, the lines of other files, and how
/// many there are of something.
fn plain(said: &str, program: &Path) -> String {
    let said = said.split("error: aborting due to").next().expect("a split has a first part").trim_end();
    said.split("\n\n").map(|one| plain_error(one, program)).collect::<Vec<_>>().join("\n\n") + "\n"
}

/// Where the arrow before a place begins.
fn arrow(line: &str) -> Option<usize> {
    line.find("--> ").or_else(|| line.find("::: "))
}

/// The number of a line of source, with the margin before it.
fn number(line: &str) -> Option<&str> {
    let (number, _) = line.split_once(" |")?;
    number.trim_start().parse::<u32>().is_ok().then_some(number)
}

fn plain_error(said: &str, program: &Path) -> String {
    let mut elsewhere = false;
    let plain_line = |line: &str| {
        if let Some((before, place)) = arrow(line).map(|at| line.split_at(at + 4)) {
            let (file, within) = place.split_once(':').unwrap_or((place, ""));
            elsewhere = Path::new(file) != program;
            let within = if elsewhere { String::new() } else { format!(":{within}") };
            return format!("{before}{}{within}", plain_place(file));
        }
        if ["error", "help", "note"].iter().any(|part| line.starts_with(part)) {
            elsewhere = false;
        }
        let words = line.trim_start();
        match number(line).filter(|_| elsewhere) {
            Some(number) => " ".repeat(number.len()) + &line[number.len()..],
            None if words.starts_with("and ") && words.ends_with(" others") => {
                line.replace(words, "and $N others")
            }
            None => line.to_owned(),
        }
    };
    let lines: Vec<String> = said.lines().map(plain_line).collect();
    // The margin is as wide as its widest number, of which some are gone.
    let was = said.lines().find_map(arrow).unwrap_or(0);
    let is = lines.iter().filter_map(|line| number(line)).map(|number| number.trim_start().len()).max();
    let narrow = |line: &String| {
        let goes_on = line.trim_start().starts_with("but trait");
        let has_margin = line.starts_with(|c: char| c == ' ' || c.is_ascii_digit()) && !goes_on;
        line[if has_margin { was - is.unwrap_or(was) } else { 0 }..].to_owned()
    };
    lines.iter().map(narrow).collect::<Vec<_>>().join("\n")
}

/// A file, without the folder of the package, the workspace or Rust.
fn plain_place(file: &str) -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Some((_, of_rust)) = file.split_once("/library/") {
        return format!("$RUST/{of_rust}");
    }
    match (root().join(file).strip_prefix(package), Path::new(file).strip_prefix(root())) {
        (Ok(inside), _) => inside.display().to_string(),
        (_, Ok(inside)) => format!("$WORKSPACE/{}", inside.display()),
        _ => format!("$WORKSPACE/{file}"),
    }
}
