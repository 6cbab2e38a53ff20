//! The hook that checks commit messages, which `git config core.hooksPath .githooks` switches on.

use std::fs;
use std::path::Path;
use std::process::Command;

/// What the hook says of a message: nothing if it lets it pass.
fn hook(message: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("COMMIT_EDITMSG");
    fs::write(&file, message).unwrap();
    let ran = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(".githooks/commit-msg"))
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.success(), said.is_empty(), "{said}");
    (!ran.status.success()).then_some(said)
}

#[test]
fn the_hook_checks_commit_messages() {
    let title = |length: usize| format!("moe: count rows{}", "s".repeat(length - 15));
    for passes in [
        "moe: count rows once\n\nTwo counts disagreed.\n".to_owned(),
        "gin-card: keep what kernels did\n\nSo that it can be read.\n# a comment of git's\n".to_owned(),
        format!("{}\n\nWhy.", title(72)),
        "Merge branch 'a'\n".to_owned(),
        "Revert \"moe: count rows once\"\n".to_owned(),
        "fixup! moe: count rows once\n".to_owned(),
    ] {
        assert_eq!(hook(&passes), None, "{passes}");
    }
    for (message, why) in [
        ("Count rows once\n\nWhy.".to_owned(), "`area: imperative summary`"),
        ("MoE: count rows once\n\nWhy.".to_owned(), "`area: imperative summary`"),
        ("moe: Count rows once\n\nWhy.".to_owned(), "a verb in lower case"),
        ("moe: count rows once.\n\nWhy.".to_owned(), "without a full stop"),
        (format!("{}\n\nWhy.", title(73)), "73 characters; 72 are allowed"),
        ("moe: count rows once\n".to_owned(), "a body says why"),
        ("moe: count rows once\n\n# a comment of git's\n".to_owned(), "a body says why"),
        ("moe: count rows once\nWhy.\n".to_owned(), "the second line is empty"),
        (String::new(), "given: (nothing)"),
    ] {
        let said = hook(&message).unwrap_or_else(|| panic!("passes: {message}"));
        assert!(said.contains(why), "{said}");
    }
}
