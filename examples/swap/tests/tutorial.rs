//! The tutorial and the README show this crate: its code, the two bugs that are planted into it, and what the commands say.

use std::path::{Path, PathBuf};
use std::process::Command;

const MAIN: &str = include_str!("../src/main.rs");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn updates() -> bool {
    std::env::var("INSTA_UPDATE").is_ok_and(|how| how == "always")
}

/// The blocks of code below a comment that begins so: what the comment says more, and the block.
fn blocks<'t>(page: &'t str, comment: &str) -> Vec<(&'t str, &'t str)> {
    let mut found = vec![];
    for part in page.split(&format!("<!-- {comment} ")).skip(1) {
        let (name, rest) = part.split_once(" -->\n```").expect("a block of code follows");
        let (_, code) = rest.split_once('\n').expect("lines");
        let (code, _) = code.split_once("\n```").expect("the block ends");
        found.push((name, code));
    }
    found
}

/// What a command of a page says on standard output, as a user of the crate has it.
fn said(program: &str, command: &str) -> String {
    let path = match program {
        "swap" => env!("CARGO_BIN_EXE_swap"),
        "one_half" => env!("CARGO_BIN_EXE_one_half"),
        "wrong_flag" => env!("CARGO_BIN_EXE_wrong_flag"),
        other => panic!("{other} is no program of this crate"),
    };
    let place = tempfile::tempdir().unwrap();
    let line = command.strip_prefix("$ ").expect("a command");
    let shell = format!("swap() {{ {path} \"$@\"; }}; {line}");
    let ran =
        Command::new("bash").args(["-c", &shell]).current_dir(&place).env("NO_COLOR", "1").output().unwrap();
    let text = String::from_utf8(ran.stdout).expect("text");
    let text = text.replace(&format!("examples/swap/src/bin/{program}.rs"), "src/main.rs");
    let text = text
        .replace("examples/swap/src/main.rs", "src/main.rs")
        .replace(&format!("{program} check"), "swap check");
    // Times differ from run to run.
    let is_time = |word: &str| word.contains('.') && word.parse::<f64>().is_ok();
    let lines = text.trim_end().lines().map(|line| match line.rsplit_once(" in ") {
        Some((before, time)) if time.strip_suffix(" s").is_some_and(is_time) => format!("{before} in 0.1 s"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// With `INSTA_UPDATE=always`, as for snapshots, the pages are written anew.
#[test]
fn commands_say_what_the_pages_show() {
    for (name, least) in [("docs/tutorial/guide.md", 5), ("README.md", 1)] {
        let text = page(name);
        let shown = blocks(&text, "runs");
        assert!(shown.len() >= least, "{name} runs {} commands", shown.len());
        let (mut anew, mut done) = (String::new(), 0);
        for (program, block) in shown {
            let at = block.as_ptr() as usize - text.as_ptr() as usize;
            let command = block.lines().next().expect("a command");
            anew += &format!("{}{command}\n{}", &text[done..at], said(program, command));
            done = at + block.len();
        }
        anew += &text[done..];
        if updates() {
            std::fs::write(root().join(name), &anew).unwrap();
        } else {
            assert!(
                anew == text,
                "{name} is not what the commands say now: run this test with INSTA_UPDATE=always\n{anew}"
            );
        }
    }
}

#[test]
fn code_of_the_pages_is_this_crate() {
    let text = page("docs/tutorial/guide.md");
    let code: Vec<&str> = blocks(&text, "of").into_iter().map(|(_, code)| code).collect();
    assert_eq!(code.join("\n\n") + "\n", MAIN);
    let readme = page("README.md");
    for (_, code) in blocks(&readme, "of") {
        assert!(MAIN.contains(code), "{code}");
    }
}

/// The programs with bugs are the crate with the changes that the page shows. With `INSTA_UPDATE=always` they are written anew.
#[test]
fn bugs_of_the_page_are_those_that_are_planted() {
    let text = page("docs/tutorial/guide.md");
    let bugs = blocks(&text, "bug");
    assert_eq!(bugs.len(), 2);
    for (program, diff) in bugs {
        let (old, new) = diff.split_once("\n+").expect("a line and what replaces it");
        let old = old.strip_prefix('-').expect("the line that goes");
        assert_eq!(MAIN.matches(old).count(), 1, "{old}");
        let planted = MAIN.replace(old, new);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/bin/{program}.rs"));
        if updates() {
            std::fs::write(&path, &planted).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == planted,
            "{} is not what the page shows",
            path.display()
        );
    }
}
