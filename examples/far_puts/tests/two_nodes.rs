//! Four processes as two nodes of one host.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peerwarp_fabric::{LIBRARY_VARIABLE, library_version};

/// How long a process may take to say what is awaited.
const PATIENCE: Duration = Duration::from_secs(60);

const SECRET: &str = "what the ranks of this test know and others do not";

/// Processes, one a rank. They are killed and waited for when this is dropped.
struct Ranks {
    children: Vec<Child>,
    /// Lines that ranks print.
    said: Receiver<(usize, String)>,
    readers: Vec<JoinHandle<String>>,
}

impl Ranks {
    /// Starts a process for each node's name, by rank, with these variables besides.
    fn start(nodes: &[&str], address: &str, options: &[&str], more: &[(&str, &str)]) -> Ranks {
        let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
        let (say, said) = channel();
        let mut ranks = Ranks { children: vec![], said, readers: vec![] };
        for (rank, node) in nodes.iter().enumerate() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_far-puts"));
            command.env_clear().args(options).stdout(Stdio::piped()).stderr(Stdio::piped());
            for name in [LIBRARY_VARIABLE, "LD_LIBRARY_PATH"] {
                command.envs(std::env::var_os(name).map(|value| (name, value)));
            }
            // As pplx's users start the ranks of a node.
            let half = nodes.len() / 2;
            for (name, value) in [
                ("WORLD_SIZE", nodes.len()),
                ("WORLD_LOCAL_SIZE", half),
                ("NODE_RANK", rank / half),
                ("LOCAL_RANK", rank % half),
                ("MASTER_PORT", port.into()),
            ] {
                command.env(name, value.to_string());
            }
            command.env("MASTER_ADDR", address).env("PEERWARP_NODE", node).env("PEERWARP_SECRET", SECRET);
            let mut child = command.envs(more.iter().copied()).spawn().unwrap();
            let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
            let say = say.clone();
            ranks.readers.push(std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = say.send((rank, line));
                }
                let mut error = String::new();
                let _ = stderr.read_to_string(&mut error);
                error
            }));
            ranks.children.push(child);
        }
        ranks
    }

    /// Waits until all ranks have printed a line that ends like this.
    fn all_say(&self, end: &str) {
        let mut silent: Vec<usize> = (0..self.children.len()).collect();
        let deadline = Instant::now() + PATIENCE;
        while !silent.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let heard = self.said.recv_timeout(left);
            let (rank, line) = heard.unwrap_or_else(|_| panic!("ranks {silent:?} do not say `{end}`"));
            silent.retain(|other| *other != rank || !line.ends_with(end));
        }
    }

    /// How each rank ended, and its errors.
    fn end(mut self) -> Vec<(ExitStatus, String)> {
        // A process that does not end keeps its output open, so that this receives until it has ended.
        let deadline = Instant::now() + PATIENCE;
        while self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        if Instant::now() >= deadline {
            self.children.iter_mut().for_each(|child| drop(child.kill()));
        }
        let ended: Vec<ExitStatus> = self.children.iter_mut().map(|child| child.wait().unwrap()).collect();
        let errors = self.readers.drain(..).map(|reader| reader.join().unwrap());
        ended.into_iter().zip(errors).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The loopback addresses that this host has.
fn addresses() -> Vec<&'static str> {
    let has = |address: &&str| TcpListener::bind((*address, 0)).is_ok();
    ["127.0.0.1", "::1"].into_iter().filter(has).collect()
}

/// Whether there is a libfabric to test with. Where PEERWARP_LIBFABRIC names one, it has to be.
fn library_is_there() -> bool {
    let is_there = std::env::var_os(LIBRARY_VARIABLE).is_some() || library_version().is_ok();
    if !is_there {
        println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    is_there
}

fn all_end_well(ended: Vec<(ExitStatus, String)>) {
    for (rank, (status, error)) in ended.into_iter().enumerate() {
        assert!(status.success() && error.is_empty(), "rank {rank} {status}: {error}");
    }
}

#[test]
fn ranks_of_two_nodes_meet() {
    for address in addresses() {
        let ranks = Ranks::start(&["0", "0", "1", "1"], address, &["--rounds", "0"], &[]);
        ranks.all_say(" of 2");
        all_end_well(ranks.end());
    }
}

#[test]
fn nodes_of_different_sizes_are_named_by_all_ranks() {
    let ranks = Ranks::start(&["0", "0", "0", "1"], "127.0.0.1", &["--rounds", "0"], &[]);
    for (rank, (status, error)) in ranks.end().into_iter().enumerate() {
        let words = "the node of rank 0 has 3 ranks, and the node of rank 3 has 1";
        assert!(!status.success() && error.contains(words), "rank {rank} {status}: {error}");
    }
}

#[test]
fn numbers_that_contradict_each_other_are_named() {
    let ranks =
        Ranks::start(&["0", "1"], "127.0.0.1", &[], &[("WORLD_SIZE", "3"), ("WORLD_LOCAL_SIZE", "2")]);
    for (status, error) in ranks.end() {
        assert!(!status.success(), "{error}");
        assert_eq!(
            error.trim_end(),
            "WORLD_SIZE = 3: a multiple of WORLD_LOCAL_SIZE = 2, as all nodes have equally many ranks"
        );
    }
}

const OVER_TCP: [&str; 4] = ["--provider", "tcp", "--domain", "lo"];

#[test]
fn puts_between_two_nodes_arrive() {
    if !library_is_there() {
        return;
    }
    for address in addresses() {
        let options = [&OVER_TCP[..], &["--rounds", "200"]].concat();
        let ranks = Ranks::start(&["0", "0", "1", "1"], address, &options, &[]);
        // 200 rounds, two peers, a message and a credit.
        ranks.all_say(": 800 puts delivered, 800 arrived, every byte compared");
        all_end_well(ranks.end());
    }
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    if !library_is_there() {
        return;
    }
    // Rank 0 is the one that all others are connected to.
    for victim in [3, 0] {
        let options = [&OVER_TCP[..], &["--rounds", "1000000000", "--budget", "2"]].concat();
        let mut ranks = Ranks::start(&["0", "0", "1", "1"], "127.0.0.1", &options, &[]);
        ranks.all_say("first round done");
        ranks.children[victim].kill().unwrap();
        for (rank, (status, error)) in ranks.end().into_iter().enumerate() {
            assert!(!status.success(), "rank {rank} ended well without rank {victim}");
            let words = format!("; rank {victim} is gone: its process ended, or closed its connection");
            assert!(rank == victim || error.contains(&words), "rank {rank}: {error}");
        }
    }
}

#[test]
fn a_rank_that_cannot_open_the_network_is_named_by_all_others() {
    let missing = [(LIBRARY_VARIABLE, "/nonexistent/libfabric.so")];
    let ranks = Ranks::start(&["0", "1"], "127.0.0.1", &["--rounds", "1"], &missing);
    for (rank, (status, error)) in ranks.end().into_iter().enumerate() {
        assert!(!status.success() && error.contains("libfabric cannot be loaded"), "rank {rank}: {error}");
    }
}
