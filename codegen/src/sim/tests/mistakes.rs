//! Each mistake in the token exchange is found, under every schedule, and called by its name.

use super::tokens::{self, Bug, Lines};
use super::*;

/// Runs a mistaken exchange under every schedule: all must fail. Returns the findings of all.
fn failures(bug: Bug) -> (Vec<Findings>, Lines) {
    let (kernel, lines) = tokens::kernel(bug, false);
    let machine = tokens::machine(kernel, 3);
    let run = |options: Options| match machine.run(&options) {
        Err(findings) => *findings,
        Ok(_) => panic!("{bug:?} is not found under {options:?}"),
    };
    (schedules().map(run).collect(), lines)
}

/// In every run one of the kinds must come first, and over all runs each of `must` must come up.
fn expect_also(bug: Bug, must: &[FindingKind], may: &[FindingKind]) -> (Vec<Findings>, Lines) {
    let (all, lines) = failures(bug);
    for findings in &all {
        let first = findings.list[0].kind;
        assert!(must.contains(&first) || may.contains(&first), "{bug:?}: {findings}");
    }
    for &kind in must {
        assert!(all.iter().any(|f| f.has(kind)), "{bug:?} is never called {kind}: {}", all[0]);
    }
    (all, lines)
}

fn expect(bug: Bug, must: &[FindingKind]) -> (Vec<Findings>, Lines) {
    expect_also(bug, must, &[])
}

use FindingKind::*;

#[test]
fn the_exchange_is_clean() {
    for receive_first in [false, true] {
        let machine = tokens::machine(tokens::kernel(Bug::None, receive_first).0, 3);
        for options in schedules() {
            machine.run(&options).unwrap_or_else(|f| panic!("{options:?}: {f}"));
        }
    }
}

#[test]
fn missing_release() {
    let (all, lines) = expect(Bug::MissingRelease, &[DataRace]);
    let race = all[0].first(DataRace).unwrap();
    assert_eq!(race.at.loc.unwrap().line, lines.load_row);
    let other = race.other.as_ref().unwrap();
    assert_eq!((other.loc.unwrap().line, other.role.as_deref()), (lines.put_row, Some("send")));
    assert_eq!((race.at.role.as_deref(), race.buffer.as_deref()), (Some("recv"), Some("inbox")));
    let (from, to) = race.elements.unwrap();
    assert_eq!((from % 64, to - from), (0, 64), "a whole row");
}

#[test]
fn wait_on_the_wrong_epoch() {
    let (all, lines) = expect(Bug::WaitsForOldEpoch, &[DataRace, UninitializedRead, EpochConfusion]);
    let at = all.iter().find_map(|f| f.first(EpochConfusion)).unwrap();
    assert_eq!(at.at.loc.unwrap().line, lines.wait_row);
    let (all, lines) = expect(Bug::WaitsForNewEpoch, &[Deadlock]);
    assert_eq!(all[0].list[0].at.loc.unwrap().line, lines.wait_row);
}

#[test]
fn flag_before_data() {
    let (all, lines) = expect(Bug::FlagBeforeData, &[DataRace, UninitializedRead]);
    let race = all[0].first(DataRace).unwrap();
    let sides = [race.at.loc, race.other.as_ref().unwrap().loc].map(|l| l.unwrap().line);
    assert!(sides.contains(&lines.put_row) && sides.contains(&lines.load_row), "{race}");
}

#[test]
fn flag_to_the_wrong_slot() {
    let (all, _) = expect_also(Bug::FlagToWrongSlot, &[Deadlock, DataRace], &[UninitializedRead]);
    let deadlock = all.iter().find_map(|f| f.first(Deadlock)).unwrap();
    assert!(deadlock.chain.iter().any(|l| l.starts_with("note: row_flag[")), "{deadlock}");
}

#[test]
fn missing_wait() {
    expect_also(Bug::MissingWait, &[DataRace, UninitializedRead], &[LostSignal, UnwaitedSignal]);
}

#[test]
fn buffers_reused_an_epoch_early() {
    expect(Bug::RowsReusedEarly, &[DataRace]);
    expect(Bug::RecordsReusedEarly, &[DataRace]);
    expect(Bug::FlagsReusedEarly, &[LostSignal, EpochConfusion]);
}

#[test]
fn count_off_by_one() {
    let (all, lines) = expect(Bug::CountOffByOne, &[Deadlock]);
    assert_eq!(all[0].list[0].at.loc.unwrap().line, lines.wait_row);
    assert!(all[0].list[0].chain.iter().any(|l| l.contains("without signalling that")), "{}", all[0]);
}

#[test]
fn slot_out_of_range() {
    let (all, lines) = expect(Bug::SlotOutOfRange, &[OutOfBounds]);
    assert_eq!(all[0].list[0].at.loc.unwrap().line, lines.put_row);
}

#[test]
fn two_writers_of_one_slot() {
    let (all, lines) = expect(Bug::TwoWritersOfOneSlot, &[DataRace, DoubledSignal]);
    let race = all[0].first(DataRace).unwrap();
    assert_eq!(race.at.loc.unwrap().line, lines.put_row);
    assert_eq!(race.other.as_ref().unwrap().loc.unwrap().line, lines.put_row);
}

#[test]
fn a_rank_without_tokens_never_acknowledges() {
    let (all, lines) = expect(Bug::NoEmptyRecord, &[Deadlock]);
    let deadlock = &all[0].list[0];
    assert_eq!(deadlock.at.loc.unwrap().line, lines.wait_records);
    assert!(deadlock.chain.iter().any(|l| l.contains("from rank 1")), "{deadlock}");
}

#[test]
fn a_record_is_not_waited_for() {
    let causes = [LostSignal, UnwaitedSignal];
    expect_also(Bug::RecordWaitTooShort, &[DataRace, UninitializedRead], &causes);
    expect_also(Bug::LastRowUnwaited, &[DataRace], &[UninitializedRead, LostSignal, UnwaitedSignal]);
}

#[test]
fn the_wrong_sender_is_named() {
    expect(Bug::WrongSender, &[WrongSender]);
}

#[test]
fn a_role_without_room_to_run() {
    // The two receiving blocks come first and fill the machine.
    let machine = tokens::machine(tokens::kernel(Bug::None, true).0, 2);
    for options in schedules() {
        let options = Options { resident_blocks: Some(2), ..options };
        let findings = machine.run(&options).expect_err("no rank sends");
        let first = &findings.list[0];
        assert_eq!(first.kind, NotResident, "{findings}");
        let why = first.chain.last().unwrap();
        assert!(why.contains("at most 2 blocks") && why.contains("all its 5 blocks"), "{why}");
        assert!(why.contains("role send") || why.contains("role close"), "{why}");
    }
    // Room for senders and one receiver at a time is enough when senders come first.
    let machine = tokens::machine(tokens::kernel(Bug::None, false).0, 2);
    for options in schedules() {
        machine.run(&Options { resident_blocks: Some(2), ..options }).unwrap_or_else(|f| panic!("{f}"));
    }
}

#[test]
fn findings_are_printed_and_serialised() {
    let (all, _) = failures(Bug::MissingRelease);
    let text = all[0].to_string();
    assert!(text.starts_with("data-race: nothing orders"), "{text}");
    assert!(text.contains("\n  at src/sample.rs:") && text.contains("\n  and src/sample.rs:"), "{text}");
    assert!(text.ends_with("(seed 0)"), "{text}");
    let json = serde_json::to_value(&all[0]).unwrap();
    assert_eq!(json["list"][0]["kind"], "data-race");
    assert!(json["list"][0]["at"]["loc"].as_str().unwrap().starts_with("src/sample.rs:"));
    assert_eq!(json["list"][0]["at"]["role"], "recv");
}
