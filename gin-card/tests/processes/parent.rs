//! The parent of both ranks: it passes handles around, and hears what they say.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::rank::Job;

/// How long a process may take to say its next line.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two processes, which are killed and waited for when this is dropped.
pub struct Processes {
    children: Vec<(Child, ChildStdin)>,
    said: Receiver<(usize, Option<String>)>,
    readers: Vec<JoinHandle<()>>,
    errors: Vec<JoinHandle<String>>,
}

fn text(mut errors: ChildStderr) -> String {
    let mut bytes = vec![];
    errors.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Processes {
    /// Starts both ranks.
    pub fn spawn(job: &Job, variables: &[(&str, &str)]) -> Processes {
        let (say, said) = channel();
        let mut both = Processes { children: vec![], said, readers: vec![], errors: vec![] };
        for rank in 0..2 {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "child", "--ignored", "--nocapture"]);
            command.envs(job.variables(rank)).envs(variables.iter().copied());
            if job.on_gpu {
                command.env("LD_LIBRARY_PATH", crate::driver::folder());
            }
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let (stderr, say) = (child.stderr.take().unwrap(), say.clone());
            both.readers.push(std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some((_, line)) = line.split_once('@') {
                        let _ = say.send((rank, Some(line.to_owned())));
                    }
                }
                let _ = say.send((rank, None));
            }));
            both.errors.push(std::thread::spawn(move || text(stderr)));
            both.children.push((child, stdin));
        }
        both
    }

    /// Starts both ranks, and passes their handles around.
    pub fn start(job: &Job, variables: &[(&str, &str)]) -> Processes {
        let mut both = Processes::spawn(job, variables);
        let handles = both.hear("handle ");
        both.tell(&handles.join(" "));
        both
    }

    /// Tells both ranks that still listen.
    pub fn tell(&mut self, line: &str) {
        for (_, stdin) in &mut self.children {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    /// What follows this word in the next line of both ranks.
    pub fn hear(&mut self, word: &str) -> [String; 2] {
        self.hear_from(&[0, 1], word).map(Option::unwrap)
    }

    /// What follows this word in the next line of one rank. What the other says is left out.
    pub fn hear_one(&mut self, rank: usize, word: &str) -> String {
        let mut heard = self.hear_from(&[rank], word);
        heard[rank].take().unwrap()
    }

    fn hear_from(&mut self, ranks: &[usize], word: &str) -> [Option<String>; 2] {
        let mut heard = [None, None];
        let end = Instant::now() + PATIENCE;
        while let Some(silent) = ranks.iter().find(|rank| heard[**rank].is_none()) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok((rank, line)) = self.said.recv_timeout(left) else {
                panic!("rank {silent} does not say `{word}`")
            };
            if !ranks.contains(&rank) || line.is_none() && heard[rank].is_some() {
                continue;
            }
            let Some(line) = line else {
                let said = std::mem::replace(&mut self.errors[rank], std::thread::spawn(String::new));
                panic!("rank {rank} ended, and `{word}` is awaited: {}", said.join().unwrap());
            };
            let rest = line.strip_prefix(word).map(str::to_owned);
            heard[rank] = Some(rest.unwrap_or_else(|| panic!("rank {rank} says `{line}`, not `{word}`")));
        }
        heard
    }

    /// Kills a rank, waits for it, and returns its process.
    pub fn kill(&mut self, rank: usize) -> u32 {
        let child = &mut self.children[rank].0;
        child.kill().unwrap();
        child.wait().unwrap();
        child.id()
    }

    /// Waits until both ranks have ended well, and returns what they wrote to standard error.
    pub fn end(mut self) -> [String; 2] {
        for (child, _) in &mut self.children {
            assert!(child.wait().unwrap().success());
        }
        self.errors_of_both()
    }

    /// As [`Processes::end`], where the other rank was killed.
    pub fn end_one(mut self, rank: usize) -> [String; 2] {
        assert!(self.children[rank].0.wait().unwrap().success());
        self.errors_of_both()
    }

    fn errors_of_both(&mut self) -> [String; 2] {
        let mut errors = self.errors.drain(..).map(|thread| thread.join().unwrap());
        [errors.next().unwrap(), errors.next().unwrap()]
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
    }
}
