use std::os::unix::fs::PermissionsExt;

use super::super::report::tests::made_up;
use super::*;

const REPLY: &str = include_str!("testdata/reply.json");

const BASELINE: Baseline = Baseline { scripts: &[("own.py", "import timing\n"), TIMING] };

const OPTIONS: BenchOptions =
    BenchOptions { iterations: 7, rounds: 10, flush_l2: true, check: false, limits: Err(String::new()) };

#[test]
fn times_of_baselines_are_put_beside_ours() {
    let mut bench = made_up();
    bench.baselines.clear();
    merge(&mut bench, REPLY).unwrap();
    let [nccl, theirs] = &bench.baselines[..] else { panic!("{:?}", bench.baselines) };
    let (ours, t) = (bench.cases[1].time("round_trip", 1).unwrap().us.median, &nccl.times[0]);
    // The slowest ranks' are 100, 110 and 130; ranks are 5, 20 and 10 apart.
    assert_eq!((t.us.median, t.rank_spread_us, t.over_ours), (110.0, 10.0, Some(110.0 / ours)));
    assert_eq!(theirs.absent.as_deref(), Some("ModuleNotFoundError: No module named 'their_kernels'"));
    assert_eq!((nccl.checked, theirs.checked), (true, false));
    assert_eq!(bench.baseline_times(1, "round_trip", 1).count(), 1);
    assert_eq!(bench.baseline_times(0, "round_trip", 1).count(), 0);
    // One of many rounds is another metric.
    assert_eq!(bench.baseline_times(1, "round_trip", 10).count(), 0);
}

#[test]
fn replies_that_do_not_fit_are_told() {
    let told = |from: &str, to: &str| merge(&mut made_up(), &REPLY.replacen(from, to, 1)).unwrap_err();
    assert!(told("\"case\": 1", "\"case\": 3").contains("has times of case 3, and there are 3"));
    let mut one_rank: serde_json::Value = serde_json::from_str(REPLY).unwrap();
    one_rank["baselines"][0]["times"][0]["times_us"].as_array_mut().unwrap().truncate(1);
    let of_one = merge(&mut made_up(), &one_rank.to_string()).unwrap_err();
    assert_eq!(of_one, "NCCL all_to_all_single has times of 1 ranks, and there are 2");
    let other = told("round_trip", "trip");
    let known = "scatter; gather; round_trip; round_trip, one of 10";
    assert_eq!(other, format!("NCCL all_to_all_single has a time of trip, and case 1 has {known}"));
    assert!(told("\"graph\": true", "\"graph\": 1").starts_with("the scripts' reply: "));
}

/// A program in place of Python: it looks at what it is given, and replies.
fn python(folder: &Path, commands: &str) -> String {
    let program = folder.join("python");
    std::fs::write(&program, format!("#!/bin/sh\n{commands}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program.display().to_string()
}

#[test]
fn scripts_are_run_with_a_request_and_their_reply_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let [reply, seen] = ["reply.json", "seen"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&reply, REPLY).unwrap();
    // -m torch.distributed.run --standalone --nproc-per-node 2 own.py REQUEST REPLY
    // Python imports modules of the current folder first: it is the scripts' own.
    let looked = format!(
        "[ $(pwd -P) = $(cd $(dirname $6) && pwd -P) ] || exit 1; ls $(dirname $6) > {seen}; echo $5 >> {seen}; cat $7 >> {seen}; cp {reply} $8"
    );
    let commands = format!("echo progress: theirs: loading >&2; echo loud >&2; {looked}");
    let mut bench = made_up();
    bench.baselines.clear();
    let mut told = vec![];
    let mut tell = |what: &str| told.push(what.to_owned());
    compare(&mut bench, &BASELINE, &[], &OPTIONS, &python(folder.path(), &commands), &mut tell);
    assert_eq!(bench.baselines.len(), 2, "{:?}", bench.baselines);
    assert_eq!(told, ["theirs: loading"]);
    let seen = std::fs::read_to_string(seen).unwrap();
    let (before, request) = seen.split_once('{').unwrap();
    assert_eq!(before.split_whitespace().collect::<Vec<_>>(), ["own.py", "request.json", "timing.py", "2"]);
    let request: serde_json::Value = serde_json::from_str(&format!("{{{request}")).unwrap();
    let expected = serde_json::json!({
        "schema": 2, "iterations": 7, "rounds": 10, "flush_l2": true, "seed": bench.method.seed, "cases": [],
    });
    assert_eq!(request, expected);
}

#[test]
fn without_python_or_torch_all_baselines_are_absent() {
    let folder = tempfile::tempdir().unwrap();
    let loop_ =
        "for i in 1 2 3 4 5 6 7 8; do echo line $i >&2; echo >&2; echo progress: $i >&2; done; exit 1";
    let loud = python(folder.path(), loop_);
    for (python, why) in [
        ("/nowhere/python3", "/nowhere/python3: "),
        ("false", "the scripts failed"),
        (&loud, "the scripts failed:\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8"),
    ] {
        let mut bench = made_up();
        bench.baselines.clear();
        compare(&mut bench, &BASELINE, &[], &OPTIONS, python, &mut |_| {});
        assert_eq!((bench.baselines.len(), bench.baselines[0].name.as_str()), (1, "all baselines"));
        assert!(bench.baselines[0].absent.as_ref().unwrap().starts_with(why), "{:?}", bench.baselines);
    }
}
