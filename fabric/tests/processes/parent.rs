//! The parent of a world's processes: it passes cards around, and hears what they say. Tests of other packages have it too.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a process may take to say what is awaited, beyond the budgets of its job.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes that are killed and waited for when this is dropped.
pub struct Processes {
    children: Vec<(Child, ChildStdin)>,
    said: Receiver<(u16, Option<String>)>,
    readers: Vec<JoinHandle<()>>,
}

impl Processes {
    /// Starts a process for each rank, in which a test of this program runs with variables of the rank's own. Then passes their cards
    /// around.
    pub fn start<V: IntoIterator<Item = (String, String)>>(
        test: &str,
        variables: impl IntoIterator<Item = V>,
    ) -> Processes {
        let (say, said) = channel();
        let mut all = Processes { children: vec![], said, readers: vec![] };
        for (rank, variables) in (0..).zip(variables) {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", test, "--ignored", "--nocapture"]).envs(variables);
            command.env_remove("FI_PROVIDER").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let say = say.clone();
            all.readers.push(std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some((_, line)) = line.split_once('@') {
                        let _ = say.send((rank, Some(line.to_owned())));
                    }
                }
                let _ = say.send((rank, None));
            }));
            all.children.push((child, stdin));
        }
        let cards = all.hear_all("card ");
        all.tell_all(&cards.join(" "));
        all.hear_all("ready");
        all
    }

    /// Tells all processes that still listen.
    pub fn tell_all(&mut self, line: &str) {
        for (_, stdin) in &mut self.children {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    /// What follows this word in the next line of each of these ranks, and when the last one said it.
    pub fn hear(&mut self, ranks: &[u16], word: &str) -> (Vec<String>, Instant) {
        let mut heard = vec![None; self.children.len()];
        let end = Instant::now() + PATIENCE;
        let mut last = Instant::now();
        while let Some(silent) = ranks.iter().find(|rank| heard[usize::from(**rank)].is_none()) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok((rank, line)) = self.said.recv_timeout(left) else {
                panic!("rank {silent} does not say `{word}`")
            };
            if !ranks.contains(&rank) {
                continue;
            }
            let Some(line) = line else {
                if heard[usize::from(rank)].is_some() {
                    continue;
                }
                let status = self.children[usize::from(rank)].0.wait();
                panic!("rank {rank} ended with {status:?}, and `{word}` is awaited");
            };
            let rest = line.strip_prefix(word);
            let rest = rest.unwrap_or_else(|| panic!("rank {rank} says `{line}`, and `{word}` is awaited"));
            heard[usize::from(rank)] = Some(rest.to_owned());
            last = Instant::now();
        }
        (heard.into_iter().flatten().collect(), last)
    }

    pub fn hear_all(&mut self, word: &str) -> Vec<String> {
        let ranks: Vec<u16> = (0..self.children.len() as u16).collect();
        self.hear(&ranks, word).0
    }

    /// The identifier of a rank's process.
    pub fn pid(&self, rank: u16) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.children[usize::from(rank)].0)
    }

    /// Waits until these ranks' processes have ended well.
    pub fn end(&mut self, ranks: &[u16]) {
        for rank in ranks {
            assert!(self.children[usize::from(*rank)].0.wait().unwrap().success(), "rank {rank} failed");
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // Also one that is stopped. It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
            sweep(child.id());
        }
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
    }
}

/// Removes what a killed process's shared-memory provider leaves behind; that of others is left alone.
fn sweep(pid: u32) {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return };
    let pid = pid.to_string();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let numbers: Vec<&str> = name.split(|c: char| !c.is_ascii_digit()).collect();
        if name.contains("fi_shm") && numbers.contains(&pid.as_str())
            || numbers.first() == Some(&pid.as_str())
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
