//! `include/peerwarp.h` says what the sources say, and no panic leaves the library.

use std::path::Path;

/// The library's module of errors, by itself.
#[allow(dead_code, unused_imports)]
#[path = "../src/error.rs"]
mod error;

use error::{PeerwarpResult, guarded, peerwarp_last_error};

const SOURCES: [&str; 3] = ["error.rs", "world.rs", "operation.rs"];

fn source(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name)
}

#[test]
fn the_header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let mut made = vec![];
    let builder = SOURCES.iter().fold(builder, |builder, name| builder.with_src(source(name)));
    builder.generate().unwrap().write(&mut made);
    let (header, new) =
        (root.join("include/peerwarp.h"), Path::new(env!("CARGO_TARGET_TMPDIR")).join("peerwarp.h"));
    std::fs::write(&new, &made).unwrap();
    let committed = std::fs::read(&header).unwrap_or_default();
    assert!(committed == made, "the sources say something else: cp {} {}", new.display(), header.display());
}

#[test]
fn each_function_catches_panics() {
    let mut functions = 0;
    for name in SOURCES {
        let text = std::fs::read_to_string(source(name)).unwrap();
        for (at, _) in text.match_indices("extern \"C\" fn peerwarp_") {
            let body = text[at..].split_once("{\n").unwrap().1.trim_start();
            let last_error = body.starts_with("LAST.try_with(");
            assert!(
                body.contains("guarded(") && body.find("guarded(") < body.find("\n}") || last_error,
                "{body:.300}"
            );
            functions += 1;
        }
    }
    assert_eq!(functions, 20);
}

#[test]
fn a_panic_is_an_error_with_words() {
    let last = || {
        // SAFETY: a text of this thread.
        unsafe { std::ffi::CStr::from_ptr(peerwarp_last_error()) }.to_str().unwrap().to_owned()
    };
    assert_eq!((guarded(|| Ok(())), last().as_str()), (PeerwarpResult::Ok, ""));
    assert_eq!(guarded(|| panic!("{} were left", 3)), PeerwarpResult::Bug);
    assert_eq!(last(), "a bug in Peerwarp, which is worth a report: 3 were left");
    std::thread::spawn(move || assert_eq!(last(), "")).join().unwrap();
}
