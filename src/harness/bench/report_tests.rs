use super::*;
use crate::harness::html::tests::{assert_alone, embedded, shown};
use crate::harness::kinds;

/// A result that was made up: two ranks, three cases, one of them with a key of its own, and baselines of which one is absent.
pub(crate) fn made_up() -> Bench {
    serde_json::from_str(include_str!("testdata/result.json")).unwrap()
}

/// What a report shows, if it can be drawn here.
fn drawn(bench: &Bench) -> Option<String> {
    shown(&html(bench))
}

#[test]
fn a_report_is_one_file_that_embeds_the_result() {
    let bench = made_up();
    let page = html(&bench);
    assert_alone(&page);
    let json = embedded(&page);
    assert_eq!(serde_json::from_value::<Bench>(json["bench"].clone()).unwrap(), bench);
    assert_eq!(json["facts"][0][0], "GPUs");
}

#[test]
fn a_report_shows_plots_distances_times_and_baselines() {
    let Some(shown) = drawn(&made_up()) else { return };
    for text in [
        "columns 256, dtype bf16, hidden 7168, passes 8, ranks 2",
        "peerwarp: tokens 1, 8.1 us",
        "Distance to the limit",
        "1.30x the limit",
        "1.73x peerwarp",
        "bytes saved: 12.5 % of rows",
        "tokens: 1 on each rank",
        "absent: ModuleNotFoundError: No module named 'other_kernels' <here>",
    ] {
        assert!(shown.lines().any(|line| line == text), "{text}: {shown}");
    }
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
    let Some(shown) = drawn(&bench) else { return };
    assert!(!shown.contains("Distance to the limit") && shown.contains("unknown"), "{shown}");
}

#[test]
fn a_plot_is_over_the_number_in_which_most_cases_differ() {
    let over = |bench: &Bench| {
        let shown = drawn(bench)?;
        let over = shown.lines().filter(|line| line.starts_with("Microseconds over"));
        Some(over.filter_map(|line| line.split([' ', ',']).nth(2)).map(str::to_owned).collect::<Vec<_>>())
    };
    let mut bench = made_up();
    let Some(tokens) = over(&bench) else { return };
    assert_eq!(tokens, ["tokens"]);
    // Of another family: whatever its number is called.
    for (case, elements) in bench.cases.iter_mut().zip([1, 1, 8]) {
        case.key = [("elements".to_owned(), elements.into()), ("ranks".to_owned(), 2.into())].into();
    }
    assert_eq!(over(&bench).unwrap(), ["elements"]);
    // Two that differ in nothing are no line.
    bench.cases.truncate(2);
    assert!(over(&bench).unwrap().is_empty());
    bench.cases.clear();
    assert!(over(&bench).unwrap().is_empty());
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
