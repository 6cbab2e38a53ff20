use super::*;

/// A result that was made up: two ranks, three cases, one of them alone in its shape, and peers of which one is absent.
pub(crate) fn made_up() -> Bench {
    serde_json::from_str(include_str!("testdata/result.json")).unwrap()
}

#[test]
fn a_report_is_one_file_that_needs_no_other() {
    let html = html(&made_up());
    insta::assert_snapshot!(html);
    for foreign in ["http", "<script", "<link", "<img", "url(", "@import"] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    // What scripts say is text, not markup.
    assert!(html.contains("No module named &#x27;deep_ep&#x27; &lt;here&gt;"), "{html}");
}

#[test]
fn json_reads_back_as_it_was_written() {
    let bench = made_up();
    let json = serde_json::to_value(&bench).unwrap();
    assert_eq!(serde_json::from_value::<Bench>(json.clone()).unwrap(), bench);
    insta::assert_json_snapshot!(json);
}

#[test]
fn machines_without_a_limit_have_no_distance() {
    let mut bench = made_up();
    bench.cases.iter_mut().flat_map(|c| &mut c.times).for_each(|t| t.limit = None);
    let html = html(&bench);
    assert!(!html.contains("Distance to the limit") && html.contains("unknown"), "{html}");
}
