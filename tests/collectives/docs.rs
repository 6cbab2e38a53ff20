//! What `docs/reference/collectives.md` has from `show --explain` is what that says.

use crate::cli::peerwarp;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/collectives.md");

/// The buffers and roles of a variant, as `show --explain` has them.
fn explained(variant: &str) -> String {
    let (code, text) = peerwarp(&format!("show {variant} --explain"));
    assert_eq!(code, 0, "{text}");
    let at = text.find("Runs on ").expect("how many ranks and blocks");
    // Headings of the page are its own. What is in flight names lines of source, which move.
    let kept = |paragraph: &&str| !paragraph.starts_with("In flight, ");
    let paragraphs: Vec<&str> = text[at..].split("\n\n").filter(kept).collect();
    paragraphs.join("\n\n").replace("## Role", "**Role**").trim_end().to_owned()
}

/// With `INSTA_UPDATE=always`, as for snapshots, the page is written anew.
#[test]
fn excerpts_are_what_show_explains() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (mut anew, mut rest, mut found) = (String::new(), page.as_str(), 0);
    while let Some((before, after)) = rest.split_once("<!-- show ") {
        let (variant, after) = after.split_once(" -->").expect("the comment ends");
        let (_, after) = after.split_once("<!-- end -->").expect("the excerpt ends");
        let text = explained(variant);
        anew += &format!("{before}<!-- show {variant} -->\n\n{text}\n\n<!-- end -->");
        (rest, found) = (after, found + 1);
    }
    anew += rest;
    assert!(found >= 1, "{found}");
    if std::env::var("INSTA_UPDATE").is_ok_and(|how| how == "always") {
        std::fs::write(PAGE, &anew).unwrap();
    } else {
        assert!(
            page == anew,
            "docs/reference/collectives.md is not what `show --explain` says: run this test with INSTA_UPDATE=always"
        );
    }
}
