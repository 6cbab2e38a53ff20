//! The hook that checks commit messages, which `git config core.hooksPath .githooks` switches on.

use std::fs;
use std::path::Path;
use std::process::Command;

/// What the hook says of a message where nothing is committed: nothing if it lets it pass.
fn hook(message: &str) -> Option<String> {
    hook_in(tempfile::tempdir().unwrap().path(), message)
}

/// What it says in a folder.
fn hook_in(folder: &Path, message: &str) -> Option<String> {
    let file = folder.join("COMMIT_EDITMSG");
    fs::write(&file, message).unwrap();
    let ran = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(".githooks/commit-msg"))
        .arg(&file)
        .current_dir(folder)
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

#[test]
fn a_budget_rises_in_a_commit_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let git = |args: &[&str]| {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let ran = Command::new("git").args(who).args(args).current_dir(folder).output().unwrap();
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    let weigh = |code: &str, words: &str| {
        let budgets =
            format!("BUDGETS = {{\n    \"code lines\": {code},\n    \"words of docs\": {words},\n}}\n");
        fs::create_dir_all(folder.join(".ci")).unwrap();
        fs::write(folder.join(".ci/weigh"), budgets).unwrap();
        git(&["add", ".ci"]);
    };
    let message = "ci: raise the budget of docs\n\nTwo pages are new.";
    git(&["init", "--quiet"]);
    weigh("9_000", "300");
    assert_eq!(hook_in(folder, message), None, "nothing is committed yet");
    git(&["commit", "--quiet", "--no-verify", "--message", "first"]);
    weigh("9_000", "1_300");
    assert_eq!(hook_in(folder, message), None, "alone");
    fs::write(folder.join("page.md"), "A page.").unwrap();
    git(&["add", "page.md"]);
    let said = hook_in(folder, message).expect("passes with a page");
    assert!(said.contains("changes nothing else; raised: words of docs\n"), "{said}");
    weigh("8_000", "300");
    assert_eq!(hook_in(folder, message), None, "a budget falls");
}
