use std::process::Command;

use super::*;

/// The JSON that a page embeds.
pub(crate) fn embedded(page: &str) -> Value {
    let (_, data) = page.split_once(r#"id="data">"#).unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

/// Asserts that a page needs no other file.
pub(crate) fn assert_alone(page: &str) {
    for foreign in ["src=", "href=", "<link", "<img", "url(", "@import", "import(", "fetch("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    // The name of a language, which is not loaded.
    assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
}

/// Elements and texts that a page shows, a line each; none where Node is missing.
pub(crate) fn shown(page: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let [dom, html] = ["dom.js", "page.html"].map(|name| folder.path().join(name));
    std::fs::write(&dom, include_str!("testdata/dom.js")).unwrap();
    std::fs::write(&html, page).unwrap();
    match Command::new("node").arg(&dom).arg(&html).output() {
        Ok(out) if out.status.success() => Some(String::from_utf8(out.stdout).unwrap()),
        Ok(out) => panic!("{}", String::from_utf8_lossy(&out.stderr)),
        Err(e) => {
            println!("skipped: node: {e}");
            None
        }
    }
}

#[test]
fn no_text_leaves_the_script_element() {
    let bad = json!({ "a</script><script>alert(1)</script>": ["<!--", "<b>&amp;\u{2028}", "{{title}}"] });
    let page = report("a <b> & c", &bad);
    assert_eq!(embedded(&page), bad);
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    assert!(page.contains("<h1>a &lt;b&gt; &amp; c</h1>") && !page.contains("<!--"), "{page}");
    assert_alone(&page);
}
