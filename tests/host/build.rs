//! From emitted sources to a program that runs them: the sources, compiled by a CPU's compiler with its ThreadSanitizer
//! instrumentation, linked with the runtime in `runtime/` instead of ThreadSanitizer's own.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use peerwarp_codegen::print::Source;
use rayon::prelude::*;

use super::rewrite::rewrite;

/// Which prelude a source needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Language {
    /// Warps of 32.
    Cuda,
    /// Warps of 64.
    Hip,
    /// Those of 32, with products in tensor memory.
    Blackwell,
    /// AMD's of 32.
    Gfx12,
}

impl Language {
    /// Those of all kernels.
    pub const ALL: [Language; 2] = [Language::Cuda, Language::Hip];

    /// A target in the language.
    pub fn target(self) -> peerwarp_codegen::family::Target {
        let name = match self {
            Language::Cuda => "cuda:sm_90a",
            Language::Hip => "hip:gfx942",
            Language::Blackwell => "cuda:sm_100a",
            Language::Gfx12 => "hip:gfx1250",
        };
        name.parse().expect("these targets exist")
    }

    /// Whether it is HIP.
    pub fn is_hip(self) -> bool {
        matches!(self, Language::Hip | Language::Gfx12)
    }
}

/// An emitted source as it is to be compiled.
#[derive(Clone, Debug)]
pub struct Text {
    pub language: Language,
    pub entry: String,
    pub text: String,
    /// Whether it differs from what was emitted.
    is_edited: bool,
}

impl Text {
    pub fn of(source: &Source, language: Language) -> Text {
        Text { language, entry: source.entry.clone(), text: source.text.clone(), is_edited: false }
    }

    /// The text with one of its parts replaced, which must occur `count` times.
    #[track_caller]
    pub fn edited(mut self, from: &str, to: &str, count: usize) -> Text {
        let found = self.text.matches(from).count();
        assert_eq!(found, count, "occurrences of `{from}` in {}", self.entry);
        self.text = self.text.replace(from, to);
        self.is_edited = true;
        self
    }
}

/// Whether memory accesses are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Every access is checked for races, bounds and content that was never written.
    Checked,
    /// Nothing but results: several times as fast.
    Fast,
}

/// A program with some kernels in it.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub mode: Mode,
    /// Whether findings can name lines. Of texts with planted bugs they need not, and compiling takes a fifth less time without.
    pub has_lines: bool,
}

/// The clang that `PEERWARP_CLANG` names.
fn clang() -> Option<&'static str> {
    static NAMED: OnceLock<Option<String>> = OnceLock::new();
    NAMED.get_or_init(|| std::env::var("PEERWARP_CLANG").ok().filter(|c| !c.is_empty())).as_deref()
}

/// The compiler: that clang, or the system's C++ compiler.
pub fn compiler() -> &'static str {
    clang().unwrap_or("c++")
}

impl Program {
    /// Compiles and links, each text by itself.
    ///
    /// # Panics
    /// With the compiler's words, when it refuses.
    pub fn new(texts: &[Text], mode: Mode) -> Program {
        Program::of_units(&texts.chunks(1).collect::<Vec<_>>(), mode)
    }

    /// The same of translation units, each of some texts of one language.
    pub fn of_units(units: &[&[Text]], mode: Mode) -> Program {
        let mut objects: Vec<PathBuf> = runtime().to_vec();
        objects.par_extend(units.par_iter().map(|texts| object(texts, mode)));
        let path = cached(&(&objects, "link"), "program", |out| {
            let mut link = Command::new(compiler());
            // A clang for AMD's GPUs has lld beside it, which takes a quarter of the time.
            link.args(clang().map(|_| "-fuse-ld=lld")).args(["-no-pie", "-o"]).arg(out).args(&objects);
            link
        });
        let has_lines = units.iter().flat_map(|texts| texts.iter()).all(|text| !text.is_edited);
        Program { path, mode, has_lines }
    }
}

const RUNTIME: [&str; 15] = [
    "order", "fiber", "memory", "copies", "boxes", "cards", "products", "words", "scales", "tensor", "alone",
    "turns", "machine", "calls", "main",
];

/// Folder of the runtime's sources, for tests of this package and of those below it.
fn runtime_dir() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut folders = above.map(|package| package.join("tests/host/runtime"));
    folders.find(|folder| folder.is_dir()).expect("the runtime is in the repository")
}

/// Text of the runtime's files that a condition holds for.
fn text_of(wanted: impl Fn(&Path) -> bool) -> String {
    let mut files = vec![];
    for dir in [runtime_dir(), runtime_dir().join("cuda"), runtime_dir().join("hip")] {
        let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        files.extend(entries.map(|e| e.expect("readable").path()).filter(|p| p.is_file() && wanted(p)));
    }
    files.sort();
    files.iter().map(|f| fs::read_to_string(f).unwrap_or_else(|e| panic!("{}: {e}", f.display()))).collect()
}

/// What the runtime's objects depend on.
fn runtime_text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| text_of(|_| true))
}

/// What kernels include.
fn prelude_text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let own = ["host.h", "floats.h"];
        text_of(|p| p.parent() != Some(&runtime_dir()) || own.iter().any(|name| p.ends_with(name)))
    })
}

fn runtime() -> &'static [PathBuf] {
    static OBJECTS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    OBJECTS.get_or_init(|| {
        let object = |name: &str| {
            cached(&(name, runtime_text()), "o", |out| {
                let mut compile = Command::new(compiler());
                compile.args([
                    "-std=c++17",
                    "-O3",
                    "-g1",
                    "-fno-pie",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-c",
                    "-o",
                ]);
                compile.arg(out).arg(runtime_dir().join(format!("{name}.cc")));
                compile
            })
        };
        // By threads of their own: those of rayon may all be waiting for this.
        std::thread::scope(|scope| {
            let object = &object;
            let compiling = RUNTIME.map(|name| scope.spawn(move || object(name)));
            compiling.into_iter().map(|one| one.join().expect("the runtime compiles")).collect()
        })
    })
}

/// A text as the CPU's compiler gets it, with lines of its own numbers.
fn registered(text: &Text) -> String {
    let entry = &text.entry;
    let source = rewrite(&text.text).unwrap_or_else(|e| panic!("{entry}: {e}"));
    let (_, after) = source.split_once("\nnamespace ").expect("a source has a namespace");
    let (space, _) = after.split_once(' ').expect("a namespace has a name");
    format!(
        "#line 1 \"{entry}\"\n{source}\n\
         static void run_{entry}(const void* args) {{ {space}::{entry}(*static_cast<const {space}::Args*>(args)); }}\n\
         static ::host::Kernel registered_{entry}(\"{entry}\", run_{entry}, sizeof({space}::Args));\n"
    )
}

fn object(texts: &[Text], mode: Mode) -> PathBuf {
    let source: String = texts.iter().map(registered).collect();
    // Kernels that share a unit run for less time than it takes to optimise them.
    let effort = if texts.len() == 1 { "-O1" } else { "-O0" };
    let lines = if texts.iter().any(|text| text.is_edited) { "-g0" } else { "-g1" };
    let dir = runtime_dir();
    let (prelude, include) = match texts[0].language {
        Language::Cuda | Language::Blackwell => (dir.join("cuda/cuda_runtime.h"), dir.join("cuda")),
        Language::Hip | Language::Gfx12 => (dir.join("hip/hip_runtime.h"), dir),
    };
    cached(&(&source, mode, effort, lines, prelude_text()), "o", |out| {
        // A name of its own, as `out` has: another thread may be compiling the same.
        let file = PathBuf::from(format!("{}.cc", out.display()));
        fs::write(&file, &source).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut compile = Command::new(compiler());
        compile.args([
            "-x",
            "c++",
            "-std=c++17",
            effort,
            lines,
            "-fno-pie",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-w",
        ]);
        if mode == Mode::Checked {
            compile.arg("-fsanitize=thread");
        }
        compile.arg("-I").arg(include).arg("-include").arg(prelude).args(["-c", "-o"]).arg(out).arg(file);
        compile
    })
}

/// A file that a command makes of what the key says, made once for each key and compiler.
fn cached(key: &impl Hash, extension: &str, command: impl FnOnce(&Path) -> Command) -> PathBuf {
    static TEMPORARY: AtomicU32 = AtomicU32::new(0);
    let mut hasher = DefaultHasher::new();
    (compiler(), key).hash(&mut hasher);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host");
    let path = dir.join(format!("{:016x}.{extension}", hasher.finish()));
    if path.exists() {
        return path;
    }
    fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let number = TEMPORARY.fetch_add(1, Ordering::Relaxed);
    let out = dir.join(format!("{:016x}.{}.{number}", hasher.finish(), std::process::id()));
    let mut command = command(&out);
    let made = command.output().unwrap_or_else(|e| panic!("{}: {e}", compiler()));
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{command:?}\n{said}");
    fs::rename(&out, &path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}
