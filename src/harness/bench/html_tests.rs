use super::*;
use crate::harness::bench::Check;
use crate::harness::kinds;

/// A result that was made up: two ranks, three cases, one of them with a key of its own, and baselines of which one is absent.
pub(crate) fn made_up() -> Bench {
    serde_json::from_str(include_str!("testdata/result.json")).unwrap()
}

#[test]
fn a_report_is_one_file_that_needs_no_other() {
    let html = html(&made_up());
    insta::assert_snapshot!(kinds::of_lines(&html));
    for foreign in ["http", "<script", "<link", "<img", "url(", "@import"] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    // What scripts say is text, not markup.
    assert!(html.contains("No module named &#x27;other_kernels&#x27; &lt;here&gt;"), "{html}");
}

#[test]
fn json_reads_back_as_it_was_written() {
    let bench = made_up();
    let json = serde_json::to_value(&bench).unwrap();
    assert_eq!(serde_json::from_value::<Bench>(json.clone()).unwrap(), bench);
    insta::assert_snapshot!(kinds::of_json(&json));
}

#[test]
fn machines_without_a_limit_have_no_distance() {
    let mut bench = made_up();
    bench.cases.iter_mut().flat_map(|c| &mut c.times).for_each(|t| t.limit = None);
    let html = html(&bench);
    assert!(!html.contains("Distance to the limit") && html.contains("unknown"), "{html}");
}

#[test]
fn a_plot_is_over_the_number_in_which_most_cases_differ() {
    let mut bench = made_up();
    let over =
        |bench: &Bench| groups(bench).iter().map(|g| (g.over.clone(), g.title.clone())).collect::<Vec<_>>();
    let [(field, title)] = &over(&bench)[..] else { panic!("{:?}", over(&bench)) };
    let same = "columns 256, dtype bf16, hidden 7168, passes 8, ranks 2";
    assert_eq!((field.as_str(), title.as_str()), ("tokens", same));
    // Of another family: whatever its number is called.
    for (case, elements) in bench.cases.iter_mut().zip([1, 1, 8]) {
        case.key = [("elements".to_owned(), elements.into()), ("ranks".to_owned(), 2.into())].into();
    }
    let [(field, title)] = &over(&bench)[..] else { panic!("{:?}", over(&bench)) };
    assert_eq!((field.as_str(), title.as_str()), ("elements", "ranks 2"));
    // Two that differ in nothing are no line.
    bench.cases.truncate(2);
    assert_eq!(over(&bench), []);
    bench.cases.clear();
    assert_eq!(over(&bench), []);
}

#[test]
fn results_are_told_for_all_cases() {
    let mut bench = made_up();
    let results = |bench: &Bench| {
        let all = facts(bench);
        all.into_iter().find(|(name, _)| *name == "results").map(|(_, what)| what).unwrap()
    };
    assert_eq!(results(&bench), "right to the bit, in a run before");
    bench.cases[1].check = Check::Right { exact: false, max_abs_err: 0.25 };
    bench.cases[2].check = Check::NoReference;
    let told = "right to the bit, in a run before; others right within their tolerance, off by at most 0.25, in a run \
                before; others not compared: the family has no reference";
    assert_eq!(results(&bench), told);
    bench.cases.iter_mut().for_each(|case| case.check = Check::Skipped);
    assert_eq!(results(&bench), "not compared with the reference");
}
