//! Tuning that is killed at random moments, in processes of their own: this test binary, started again. `PEERWARP_KILLS=200` kills it
//! 200 times; without the variable it is a few times.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::example::{KEY, Pair, TARGET, pair, small};
use super::fake::Fake;
use super::*;

/// Names the table to tune, for the process that does.
const TABLE: &str = "PEERWARP_TEST_TABLE";

/// The test that is started again.
const ITSELF: &str = "harness::tune::kill_tests::a_table_is_made_good_by_the_next_run";

/// Keeps the table as the command does.
struct Keeping<'a>(&'a Path);

impl Watch for Keeping<'_> {
    fn progress(&mut self, _: f64, _: &Key) {}

    fn keep(&mut self, table: &Table) -> Result<(), TableError> {
        table.write(self.0)
    }
}

/// Goes on with a table, as the command does.
fn tune_here(path: &Path) {
    let mut table = if path.exists() { Table::read(path).unwrap() } else { Table::new("A", TARGET) };
    let tasks: Vec<Task> = [4, 8, 16, 32].map(|tokens| KEY.tokens(tokens).task()).into();
    let made = Made { peerwarp: "0.1.0".into(), driver: "13".into(), compiler: "nvrtc".into() };
    let options = Options { trials: 4, budget: None, force: true, made };
    tune(&tasks, &mut table, &mut Fake::new(small(&pair(KEY))), &options, &mut Keeping(path)).unwrap();
}

fn started(path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([ITSELF, "--exact", "--nocapture"])
        .env(TABLE, path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// What of a record does not depend on what the table had when the search began.
fn won(record: &Record) -> (Key, record::Names, f64) {
    (record.of(), record.variants.clone(), record.us)
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn a_table_is_made_good_by_the_next_run() {
    if let Some(path) = std::env::var_os(TABLE) {
        return tune_here(path.as_ref());
    }
    let kills = std::env::var("PEERWARP_KILLS").map_or(8, |n| n.parse::<u64>().expect("a number of kills"));
    let top = tempfile::tempdir().unwrap();
    let (dir, path) = (top.path().join("tuned"), top.path().join("tuned/a.toml"));
    let begun = Instant::now();
    assert!(started(&path).status().unwrap().success());
    let usual = begun.elapsed();
    let wanted: Vec<_> = Table::read(&path).unwrap().records.iter().map(won).collect();
    assert_eq!(wanted.len(), 4);
    let mut running = 0;
    for number in 0..kills {
        let mut rng = ChaCha8Rng::seed_from_u64(number);
        if rng.random_bool(0.3) {
            std::fs::remove_dir_all(&dir).unwrap();
        }
        let before = dir.exists().then(|| Table::read(&path).unwrap());
        let mut child = started(&path).spawn().unwrap();
        // The moment is what is tested: nothing happens that could be waited for.
        std::thread::sleep(usual.mul_f64(rng.random_range(0.0..1.1)).max(Duration::from_micros(1)));
        running += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        // What is there is whole at any moment.
        if path.exists() {
            let found = Table::read(&path).unwrap();
            assert!(before.is_none_or(|before| found.records.len() >= before.records.len()));
        }
        assert!(started(&path).status().unwrap().success(), "kill {number}");
        let found = Table::read(&path).unwrap();
        assert_eq!(found.records.iter().map(won).collect::<Vec<_>>(), wanted, "kill {number}");
        assert!(found.records.iter().all(|record| record.winner(&Pair).is_ok()), "kill {number}");
        assert_eq!(names(&dir), ["a.toml"], "kill {number}");
    }
    println!("{kills} kills, {running} of a run that had not ended");
    assert!(running > 0);
}
