//! `generate` and `pack`, killed at random moments: the run after that ends as if nothing had happened.
//!
//! `PEERWARP_KILLS=200 cargo test -p peerwarp --test cli kill::` kills each of them 200 times; without the variable they are killed a
//! few times, so that the test is short.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use peerwarp::build::pack::Pack;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::pack::NVCC;
use super::support::{Place, names};

/// How often each is killed.
fn kills() -> u64 {
    std::env::var("PEERWARP_KILLS").map_or(8, |n| n.parse().expect("a number of kills"))
}

/// Files by path, of a folder and all in it.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in names(dir) {
        let path = dir.join(&name);
        if path.is_dir() {
            all.extend(files(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            all.insert(name, fs::read(path).unwrap());
        }
    }
    all
}

/// Commands that write to the folder `out`, and where they are run.
struct Killing {
    place: Place,
    commands: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Killing {
    fn command(&self, which: usize) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerwarp"));
        command.args(self.commands[which].split_whitespace()).current_dir(self.place.path("work"));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn out(&self) -> std::path::PathBuf {
        self.place.path("work/out")
    }

    fn fresh(&self) {
        let _ = fs::remove_dir_all(self.place.path("work"));
        fs::create_dir(self.place.path("work")).unwrap();
    }

    /// Runs a command to its end.
    fn run(&self, which: usize) -> Duration {
        let started = Instant::now();
        let out = self.command(which).stderr(Stdio::piped()).output().unwrap();
        assert!(out.status.success(), "{}: {}", self.commands[which], String::from_utf8_lossy(&out.stderr));
        started.elapsed()
    }

    /// Starts a command, and kills it: at any moment of its usual time, or soon after it has begun to write. Whether it was
    /// still running then.
    fn kill(&self, which: usize, usual: Duration, rng: &mut ChaCha8Rng) -> bool {
        let mut child = self.command(which).spawn().unwrap();
        let started = Instant::now();
        let mut until = usual.mul_f64(rng.random());
        if rng.random_bool(0.6) {
            let writes = || {
                ["work/.peerwarp-update", "work/out/.peerwarp-update"]
                    .iter()
                    .any(|p| self.place.path(p).exists())
            };
            while !writes() && started.elapsed() < usual * 4 && child.try_wait().unwrap().is_none() {
                std::hint::spin_loop();
            }
            until = started.elapsed() + Duration::from_micros(rng.random_range(0..2500));
        }
        // The moment is what is tested: nothing happens that could be waited for.
        std::thread::sleep(until.saturating_sub(started.elapsed()));
        let running = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        running
    }

    fn test(&self, check: &dyn Fn(usize)) {
        let mut wanted = vec![];
        let mut usual = Duration::ZERO;
        for which in 0..self.commands.len() {
            self.fresh();
            usual = usual.max(self.run(which));
            wanted.push(files(&self.out()));
        }
        let (mut running, mut writing) = (0, 0);
        for number in 0..kills() {
            let mut rng = ChaCha8Rng::seed_from_u64(number);
            if rng.random_bool(0.3) {
                self.fresh();
            }
            let any = |rng: &mut ChaCha8Rng| rng.random_range(0..self.commands.len());
            let (killed, next) = (any(&mut rng), any(&mut rng));
            running += u32::from(self.kill(killed, usual, &mut rng));
            let half =
                ["work/.peerwarp-update", "work/out/.peerwarp-update"].map(|p| self.place.path(p).exists());
            writing += u32::from(half.contains(&true));
            self.run(next);
            let found = files(&self.out());
            assert!(
                found == wanted[next],
                "kill {number}: {:?} after {}",
                found.keys(),
                self.commands[killed]
            );
            assert_eq!(names(&self.place.path("work")), ["out"], "kill {number}");
            assert!(!names(&self.out()).iter().any(|name| name.starts_with('.')), "kill {number}");
            check(next);
        }
        println!("{} kills, {running} of a run that had not ended, {writing} while it wrote", kills());
        assert!(running > 0);
    }
}

#[test]
fn generate_is_made_good_by_the_next_run() {
    let place = Place::new();
    let shape = "--hidden 64 --experts 4 --topk 2 --ranks 2 --out out";
    let commands = [
        format!("generate {shape} --tokens 4"),
        format!("generate {shape} --tokens 8 --target cuda:sm_90a,hip:gfx942,cuda:sm_80"),
        "generate --hidden 128 --experts 4 --topk 2 --ranks 2 --tokens 4 --target hip:gfx942 --out out"
            .into(),
    ];
    let killing = Killing { place, commands: commands.into(), env: vec![] };
    killing.test(&|next| {
        let status = killing.command(next).arg("--check").status().unwrap();
        assert!(status.success(), "--check of {}", killing.commands[next]);
    });
}

#[test]
fn pack_is_made_good_by_the_next_run() {
    let place = Place::new();
    let nvcc = place.program("nvcc", NVCC);
    let calls = place.write("calls", "").display().to_string();
    fs::create_dir(place.path("tmp")).unwrap();
    let tmp = place.path("tmp").display().to_string();
    let shape = "--compiler nvcc --hidden 64 --experts 4 --topk 2 --ranks 2 --out out";
    let commands = [
        format!("pack {shape} --tokens 4"),
        format!("pack {shape} --tokens 8 --target cuda:sm_90a,cuda:sm_80"),
        format!("pack {shape} --tokens 4 --set moe_dispatch.vectors=1"),
    ];
    let env = vec![("PEERWARP_NVCC", nvcc), ("CALLS", calls), ("TMPDIR", tmp)];
    let killing = Killing { place, commands: commands.into(), env };
    killing.test(&|_| assert!(Pack::open(&killing.out()).unwrap().kernels().count() >= 2));
}
