//! What the command says when kernels are wrong: of families of one's own, with a mistake planted in each.

use peerwarp::cli::{App, Said, workload};
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Workload};
use peerwarp::prelude::*;

/// What is wrong.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    Nothing,
    /// Flags are reused a launch early.
    Flags,
    /// The reference expects something else.
    Result,
    /// The kernel cannot be traced.
    Kernel,
    /// The blocks that wait come before those that they wait for.
    Order,
}

/// Every rank sends its number to all others.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "numbers", kernel = numbers, args = NumbersArgs, warps = warps)]
struct Numbers {
    #[key(short = "r", range = 2..=8, ranks)]
    ranks: u32,
    #[key]
    wrong: Wrong,
    #[tune(short = "w", values = [1, 2])]
    warps: u32,
}

impl Legal for Numbers {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Numbers)]
struct NumbersArgs {
    #[len(|c| 2 * u64::from(c.ranks))]
    inbox: Sym<u32>,
    #[len(|c| 2 * u64::from(c.ranks))]
    arrived: Flags,
    #[output]
    #[len(|c| u64::from(c.ranks))]
    out: Ptr<u32>,
    epoch: EpochWord,
}

#[kernel]
fn numbers(c: &Numbers, a: &NumbersArgs) {
    let epoch = a.epoch.begin();
    let half = epoch.parity() * c.ranks;
    let flags = epoch.parity() * if c.wrong == Wrong::Flags { 0 } else { c.ranks };
    if c.wrong == Wrong::Order {
        receive(c, a, half, flags, epoch);
    }
    role("send", 1, |_| {
        let mut parcel = send_to(Peers::all());
        if c.wrong != Wrong::Kernel {
            parcel.put_value(&a.inbox, half + rank(), rank());
        }
        parcel.signal(&a.arrived, flags + rank(), epoch);
    });
    if c.wrong != Wrong::Order {
        receive(c, a, half, flags, epoch);
    }
}

#[kernel]
fn receive(c: &Numbers, a: &NumbersArgs, half: Val<u32>, flags: Val<u32>, epoch: Epoch) {
    role("recv", 1, |block| {
        for src in block.strided(c.ranks) {
            let got = a.arrived.from(src).wait(flags + src, epoch);
            a.out.set(src, a.inbox.get(&got, half + src));
        }
    });
}

impl Workload for Numbers {
    fn inputs(&self, _: Turn) -> Vec<Contents> {
        vec![]
    }

    fn expected(&self, _: Turn) -> Vec<Expected> {
        let off = u32::from(self.wrong == Wrong::Result);
        let numbers = (0..self.ranks).flat_map(|src| (src + off).to_le_bytes()).collect();
        vec![Expected::exactly("out", Dtype::U32, numbers).called("number of")]
    }
}

fn say(command: &str) -> Said {
    let app = App::new(&[workload::<Numbers>()]).name("numbers");
    app.run(["/bin/numbers"].into_iter().chain(command.split_whitespace()))
}

fn json(said: &Said) -> serde_json::Value {
    serde_json::from_str(&said.out).unwrap()
}

#[test]
fn nothing_wrong_is_reported_in_words() {
    let said = say("check --family numbers ranks=3 wrong=nothing --seeds 20 --epochs 4");
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.out);
    assert!(said.out.contains("explored 20 schedules of 4 epochs (seeds 0 to 19)"), "{}", said.out);
    assert_eq!(say("run --backend sim --family numbers ranks=3 wrong=nothing").code, 0);
}

#[test]
fn a_protocol_error_is_reported_with_the_seed_that_replays_it() {
    let said = say("check --family numbers ranks=3 wrong=flags --seeds 20 --seed 3");
    assert_eq!((said.code, said.err.as_str()), (1, ""));
    insta::assert_snapshot!(said.out);
    let replay = said.out.lines().find_map(|l| l.strip_prefix("replay: numbers ")).expect("a command");
    let again = say(replay);
    let findings = |said: &Said| said.out.split_once("(seed ").expect("findings").0.to_owned();
    assert_eq!(findings(&again), findings(&said));

    let said = json(&say("check --family numbers ranks=3 wrong=flags --seeds 20 --seed 3 --json"));
    assert_eq!((&said["ok"], &said["seed"]), (&false.into(), &3.into()));
    assert_eq!(said["findings"]["list"][0]["kind"], "lost-signal");
    assert!(said["findings"]["list"][0]["at"]["loc"].as_str().unwrap().starts_with("tests/findings.rs:"));
}

#[test]
fn run_tells_findings_too() {
    // One launch alone is right: there is nothing that could be overwritten.
    assert_eq!(say("run --backend sim --family numbers ranks=3 wrong=flags").code, 0);
    let said = say("run --backend sim --family numbers ranks=3 wrong=result --json");
    assert_eq!((said.code, &json(&said)["ok"]), (1, &false.into()));
    assert_eq!((&json(&said)["wrong"], &json(&said)["max_abs_err"]), (&9.into(), &1.0.into()));
}

#[test]
fn a_wrong_result_is_reported_with_its_place() {
    for command in ["run --backend sim", "check"] {
        let said = say(&format!("{command} --family numbers ranks=3 wrong=result"));
        assert_eq!(said.code, 1);
        let place = "the first at round 0, rank 0, number of 0: 0 where 1 is right";
        assert!(said.out.contains(place), "{}", said.out);
    }
}

#[test]
fn a_kernel_that_cannot_be_traced_is_reported_with_the_authors_line() {
    for command in ["run --backend sim", "check", "show"] {
        let said = say(&format!("{command} --family numbers ranks=3 wrong=kernel"));
        assert_eq!((said.code, said.out.as_str()), (1, ""));
        assert!(said.err.contains("tests/findings.rs:"), "{}", said.err);
        assert!(said.err.contains("signalling what was not sent"), "{}", said.err);
    }
}

#[test]
fn generating_a_wrong_kernel_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let said = say(&format!("generate --family numbers ranks=3 wrong=kernel --out {}", out.display()));
    assert_eq!((said.code, out.exists()), (1, false));
    let said = say(&format!("generate --family numbers ranks=3 wrong=nothing --out {}", out.display()));
    assert_eq!((said.code, out.exists()), (0, true), "{}", said.err);
}

#[test]
fn a_program_of_one_family_needs_no_name_of_it() {
    assert_eq!(say("run --backend sim ranks=3 wrong=nothing").code, 0);
    let said = say("run");
    assert_eq!(said.code, 2);
    assert!(said.err.contains("ranks, wrong is missing"), "{}", said.err);
}

#[test]
fn world_sizes_have_an_option_of_their_own() {
    let said = json(&say("run --backend sim --ranks 4 wrong=nothing --json"));
    assert_eq!(said["variant"], "numbers_r4_nothing__w1");
    assert_eq!((&said["backend"], &said["because"]), (&"sim".into(), &"as --backend says".into()));
}

#[test]
fn fewer_blocks_than_a_launch_has_may_run_at_once() {
    // Blocks that send come first and end by themselves; in the other order they never start.
    let said = json(&say("check ranks=3 wrong=nothing --seeds 2 --resident-blocks 1 --json"));
    assert_eq!((&said["resident_blocks"], &said["ok"]), (&1.into(), &true.into()));
    let said = json(&say("check ranks=3 wrong=order --seeds 2 --resident-blocks 1 --json"));
    assert_eq!(said["findings"]["list"][0]["kind"], "not-resident");
    let all = json(&say("check ranks=3 wrong=order --seeds 2 --json"));
    assert_eq!((&all["ok"], &all["epochs"]), (&true.into(), &4.into()));
}
