use super::super::html::tests::made_up;
use super::*;
use crate::families::moe::run::MoeTuning;
use crate::families::moe::{MoeProblem, RowDtype};

const REPLY: &str = include_str!("testdata/reply.json");

#[test]
fn times_of_peers_are_put_beside_ours() {
    let mut bench = made_up();
    bench.peers.clear();
    merge(&mut bench, REPLY).unwrap();
    let [nccl, pplx] = &bench.peers[..] else { panic!("{:?}", bench.peers) };
    let (ours, t) = (bench.cases[1].time(What::RoundTrip).unwrap().us.median, &nccl.times[0]);
    // The slowest ranks' are 100, 110 and 130; ranks are 5, 20 and 10 apart.
    assert_eq!((t.us.median, t.rank_spread_us, t.over_ours), (110.0, 10.0, Some(110.0 / ours)));
    assert_eq!(pplx.absent.as_deref(), Some("ModuleNotFoundError: No module named 'pplx_kernels'"));
    assert_eq!(bench.peer_times(1, What::RoundTrip).count(), 1);
    assert_eq!(bench.peer_times(0, What::RoundTrip).count(), 0);
}

#[test]
fn replies_that_do_not_fit_are_told() {
    let said = |from: &str, to: &str| merge(&mut made_up(), &REPLY.replacen(from, to, 1)).unwrap_err();
    assert!(said("\"case\": 1", "\"case\": 3").contains("has times of case 3, and there are 3"));
    let mut one_rank: serde_json::Value = serde_json::from_str(REPLY).unwrap();
    one_rank["peers"][0]["times"][0]["times_us"].as_array_mut().unwrap().truncate(1);
    let told = merge(&mut made_up(), &one_rank.to_string()).unwrap_err();
    assert_eq!(told, "NCCL all_to_all_single has times of 1 ranks, and there are 2");
    assert!(said("round_trip", "trip").contains("unknown variant `trip`"));
}

#[test]
fn scripts_are_asked_for_what_we_timed() {
    let shape = MoeShape { hidden: 64, experts: 4, topk: 2, tokens: 3, ranks: 2, dtype: RowDtype::Fp8 };
    let problem = MoeProblem::uniform(shape, &[3, 1], 1).unwrap();
    let ids = problem.routing(0).ids.clone();
    let case = Case { problem, tuning: MoeTuning::defaults(&shape).unwrap() };
    let options = BenchOptions { iterations: 7, rounds: 2, flush_l2: true, check: false };
    let asked = serde_json::to_value(asked(&[case], &options)).unwrap();
    assert_eq!((&asked["iterations"], &asked["flush_l2"]), (&7.into(), &true.into()));
    let case = &asked["cases"][0];
    assert_eq!((&case["hidden"], &case["dtype"], &case["tokens"]), (&64.into(), &"fp8".into(), &3.into()));
    assert_eq!(case["ids"], serde_json::json!(ids));
    let rows = |from: usize| case["rows"][from].as_array().unwrap().len();
    assert_eq!((rows(0), rows(1)), (2, 2));
}

#[test]
fn without_python_or_torch_all_peers_are_absent() {
    for (python, why) in [("/nowhere/python3", "/nowhere/python3: "), ("false", "the scripts failed")] {
        let mut bench = made_up();
        bench.peers.clear();
        let options = BenchOptions { iterations: 1, rounds: 1, flush_l2: false, check: false };
        compare(&mut bench, &[], &options, python);
        assert_eq!((bench.peers.len(), bench.peers[0].name.as_str()), (1, "all peers"));
        assert!(bench.peers[0].absent.as_ref().unwrap().starts_with(why), "{:?}", bench.peers);
    }
}

#[test]
fn scripts_compile() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in SCRIPTS {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let files = SCRIPTS.map(|(name, _)| folder.path().join(name));
    match Command::new("python3").args(["-m", "py_compile"]).args(files).output() {
        Ok(ran) => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr)),
        Err(why) if std::env::var_os("CI").is_none() => eprintln!("skipped: python3: {why}"),
        Err(why) => panic!("python3: {why}"),
    }
}
