//! What started this process: its rank, its node, and where the ranks meet.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;

use super::secret::Secret;
use super::teams::{LOCAL_RANKS, RANKS};
use crate::runtime::RuntimeError;

/// Names the place where ranks meet, `host:port`, whatever the launcher says.
pub const MEET_VARIABLE: &str = "PEERWARP_RENDEZVOUS";

/// Names the node of a rank, whatever its host is. Ranks with equal names are on one node.
pub const NODE_VARIABLE: &str = "PEERWARP_NODE";

/// Most characters of a node's name.
const NAME: usize = 64;

/// A process of several that were started together, one for each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// What started it: `torchrun`, `mpirun`, `mpiexec`, `srun`, or `NODE_RANK` for a program that sets this variable.
    pub launcher: &'static str,
    /// Its rank.
    pub rank: u32,
    /// How many ranks there are, on all nodes.
    pub ranks: u32,
    /// Its number among the ranks of its machine.
    pub local_rank: u32,
    /// The name of its node, from [`NODE_VARIABLE`]. Without one, the ranks of a host are a node.
    pub node: Option<String>,
    /// Where rank 0 listens, `host:port`.
    pub address: String,
    /// What all ranks of the world know, and no other process does.
    pub secret: Secret,
}

/// The variables in which a launcher describes a process; empty names are those that it does not set.
struct Launcher {
    name: &'static str,
    /// If empty, the rank follows from node, ranks of the machine and local rank.
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    /// Number of ranks of the machine.
    local_ranks: &'static str,
    /// The machine's number.
    node: &'static str,
    /// Number of machines.
    nodes: &'static str,
}

/// A row for each launcher: its name, then the variables of rank, local rank and node, each `of` the number of them.
macro_rules! launchers {
    ($($name:literal: $rank:literal of $ranks:literal,
       $local_rank:literal of $local_ranks:literal, $node:literal of $nodes:literal;)+) => {
        &[$(Launcher {
            name: $name,
            rank: $rank,
            ranks: $ranks,
            local_rank: $local_rank,
            local_ranks: $local_ranks,
            node: $node,
            nodes: $nodes,
        }),+]
    };
}

/// In the order in which they are looked for: torchrun may itself have been started by srun or mpirun.
const LAUNCHERS: &[Launcher] = launchers! {
    "torchrun": "RANK" of "WORLD_SIZE", "LOCAL_RANK" of "LOCAL_WORLD_SIZE", "GROUP_RANK" of "GROUP_WORLD_SIZE";
    // Programs that start the ranks of a node themselves, as those on pplx-kernels do.
    "NODE_RANK": "" of "WORLD_SIZE", "LOCAL_RANK" of "WORLD_LOCAL_SIZE", "NODE_RANK" of "";
    "mpirun": "OMPI_COMM_WORLD_RANK" of "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK" of "OMPI_COMM_WORLD_LOCAL_SIZE", "" of "";
    "mpiexec": "PMI_RANK" of "PMI_SIZE", "MPI_LOCALRANKID" of "MPI_LOCALNRANKS", "" of "";
    "srun": "SLURM_PROCID" of "SLURM_NTASKS", "SLURM_LOCALID" of "", "SLURM_NODEID" of "SLURM_STEP_NUM_NODES";
};

impl Launcher {
    /// Whether it started the process with this environment.
    fn started(&self, environment: &BTreeMap<String, String>) -> bool {
        let has = |name: &str| environment.contains_key(name);
        match self.rank {
            // Other programs set NODE_RANK or WORLD_SIZE too.
            "" => has(self.local_ranks),
            rank => has(rank) && has(self.ranks),
        }
    }

    /// The rank of a process of so many ranks, and its number on the machine.
    fn rank(&self, environment: &BTreeMap<String, String>, ranks: u32) -> Result<(u32, u32), RuntimeError> {
        let optional = |name: &str, range| {
            let is_set = environment.contains_key(name);
            is_set.then(|| number(environment, name, range)).transpose()
        };
        let on_machine = optional(self.local_ranks, 1..=ranks.min(LOCAL_RANKS))?;
        let machines = optional(self.nodes, 1..=ranks)?;
        for (name, parts) in [(self.local_ranks, on_machine), (self.nodes, machines)] {
            if let Some(parts) = parts.filter(|parts| !ranks.is_multiple_of(*parts)) {
                let allowed = format!("a multiple of {name} = {parts}, as all nodes have equally many ranks");
                return Err(RuntimeError::invalid(self.ranks, ranks, allowed));
            }
        }
        if let (Some(size), Some(count)) = (on_machine, machines)
            && size * count != ranks
        {
            let allowed = format!("{} = {count} times {} = {size}", self.nodes, self.local_ranks);
            return Err(RuntimeError::invalid(self.ranks, ranks, allowed));
        }
        let size = on_machine.unwrap_or(ranks.min(LOCAL_RANKS));
        let local_rank = number(environment, self.local_rank, 0..=size - 1)?;
        let last = machines.or(on_machine.map(|size| ranks / size)).unwrap_or(ranks) - 1;
        let rank = match self.rank {
            "" => number(environment, self.node, 0..=last)? * size + local_rank,
            rank => {
                optional(self.node, 0..=last)?;
                number(environment, rank, 0..=ranks - 1)?
            }
        };
        Ok((rank, local_rank))
    }
}

impl Launched {
    /// From this process's environment; see [`Launched::of`].
    pub fn here() -> Result<Option<Launched>, RuntimeError> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Launched::of(&std::env::vars_os().filter_map(text).collect())
    }

    /// From an environment. None for a process of its own: one that no launcher started, or the only one of its job.
    ///
    /// | started by | rank | ranks | on the machine |
    /// |---|---|---|---|
    /// | torchrun | `RANK` | `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `GROUP_RANK`, `GROUP_WORLD_SIZE` |
    /// | a program that starts the ranks of a node | | `WORLD_SIZE` | `LOCAL_RANK`, `WORLD_LOCAL_SIZE`, `NODE_RANK` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK` | `.._SIZE` | `.._LOCAL_RANK`, `.._LOCAL_SIZE` |
    /// | MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
    /// | srun | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID`, `SLURM_NODEID`, `SLURM_STEP_NUM_NODES` |
    ///
    /// In the second row, `NODE_RANK` x `WORLD_LOCAL_SIZE` + `LOCAL_RANK` is the rank. Ranks meet at `PEERWARP_RENDEZVOUS`,
    /// or at `MASTER_ADDR` and `MASTER_PORT`.
    ///
    /// # Errors
    /// A variable is missing, is no number in its range, or contradicts another one; or no variable says where the ranks
    /// meet, or what their secret is ([`SECRET_VARIABLE`](super::SECRET_VARIABLE)).
    pub fn of(environment: &BTreeMap<String, String>) -> Result<Option<Launched>, RuntimeError> {
        let Some(launcher) = LAUNCHERS.iter().find(|launcher| launcher.started(environment)) else {
            return Ok(None);
        };
        let ranks = number(environment, launcher.ranks, 1..=RANKS)?;
        if ranks == 1 {
            return Ok(None);
        }
        let (rank, local_rank) = launcher.rank(environment, ranks)?;
        let node = environment.get(NODE_VARIABLE).map(|name| node(name)).transpose()?;
        let address = address(environment, launcher)?;
        let secret = Secret::of(environment, launcher.name)?;
        Ok(Some(Launched { launcher: launcher.name, rank, ranks, local_rank, node, address, secret }))
    }

    /// Whether the numbers are those of a rank of a world of so many ranks at most: a program that fills in the fields may
    /// have miscounted.
    pub(in crate::runtime) fn check(&self, most: u32) -> Result<(), RuntimeError> {
        let of = |field: &str, value: u32, range: RangeInclusive<u32>| match range.contains(&value) {
            true => Ok(()),
            false => {
                let allowed = format!("a number from {} to {}", range.start(), range.end());
                Err(RuntimeError::invalid(field, value, allowed))
            }
        };
        of("ranks", self.ranks, 2..=most)?;
        of("rank", self.rank, 0..=self.ranks - 1)
    }
}

fn number(
    environment: &BTreeMap<String, String>,
    name: &str,
    range: RangeInclusive<u32>,
) -> Result<u32, RuntimeError> {
    let value = environment.get(name).map_or("", String::as_str);
    let number = value.trim().parse().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| {
        RuntimeError::invalid(name, value, format!("a number from {} to {}", range.start(), range.end()))
    })
}

/// The name of a node.
fn node(name: &str) -> Result<String, RuntimeError> {
    let plain = |c: char| !c.is_whitespace() && !c.is_control();
    match (1..=NAME).contains(&name.chars().count()) && name.chars().all(plain) {
        true => Ok(name.to_owned()),
        false => {
            let allowed = format!("a name of 1 to {NAME} characters without spaces");
            Err(RuntimeError::invalid(NODE_VARIABLE, name.escape_debug(), allowed))
        }
    }
}

fn address(environment: &BTreeMap<String, String>, launcher: &Launcher) -> Result<String, RuntimeError> {
    if let Some(given) = environment.get(MEET_VARIABLE) {
        let port = given.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|&port| port > 0);
        return match port {
            Some(_) => Ok(given.clone()),
            None => {
                Err(RuntimeError::invalid(MEET_VARIABLE, given, "host:port, with a port from 1 to 65535"))
            }
        };
    }
    let (Some(host), Some(_)) = (environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")) else {
        let allowed =
            format!("{MEET_VARIABLE}=host:port, or MASTER_ADDR and MASTER_PORT, the same for all ranks");
        return Err(RuntimeError::invalid(format!("{MEET_VARIABLE} under {}", launcher.name), "", allowed));
    };
    let port = number(environment, "MASTER_PORT", 1..=65534)?;
    // Under torchrun the port itself is taken by torchrun's store.
    let taken =
        environment.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let host = match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => host.clone(),
    };
    Ok(format!("{host}:{}", if taken { port + 1 } else { port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<Launched>, RuntimeError> {
        let pair = |word: &str| word.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
        Launched::of(&text.split_whitespace().filter_map(pair).collect())
    }

    const SECRET: &str = "PEERWARP_SECRET=0123456789abcdef0123456789abcdef";
    const MEET: &str = "MASTER_ADDR=node0 MASTER_PORT=29500 PEERWARP_SECRET=0123456789abcdef0123456789abcdef";

    #[test]
    fn every_launcher_says_it_in_its_own_words() {
        let here = |launcher, address: &str| {
            let address = address.to_owned();
            let secret = Secret::new("0123456789abcdef0123456789abcdef").unwrap();
            Some(Launched { launcher, rank: 3, ranks: 8, local_rank: 1, node: None, address, secret })
        };
        let found = |text: &str| of(&format!("{MEET} {text}")).unwrap();
        let plain = "node0:29500";
        assert_eq!(found("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1"), here("torchrun", plain));
        let ompi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1";
        assert_eq!(found(ompi), here("mpirun", plain));
        assert_eq!(found("PMI_RANK=3 PMI_SIZE=8 MPI_LOCALRANKID=1"), here("mpiexec", plain));
        let slurm = "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1";
        assert_eq!(found(slurm), here("srun", plain));
        let torchrun_in_srun =
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 RANK=3 WORLD_SIZE=8 LOCAL_RANK=1";
        assert_eq!(found(torchrun_in_srun), here("torchrun", plain));
        let agent = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 TORCHELASTIC_USE_AGENT_STORE=True";
        assert_eq!(found(agent), here("torchrun", "node0:29501"));
        assert_eq!(found(&format!("{slurm} PEERWARP_RENDEZVOUS=[::1]:77")), here("srun", "[::1]:77"));
    }

    #[test]
    fn ranks_of_many_nodes_are_counted_over_all_nodes() {
        let found = |text: &str| {
            let found = of(&format!("{MEET} {text}")).unwrap().unwrap();
            (found.launcher, found.rank, found.ranks, found.local_rank)
        };
        for (text, launcher) in [
            ("NODE_RANK=2 WORLD_SIZE=24 WORLD_LOCAL_SIZE=8 LOCAL_RANK=3", "NODE_RANK"),
            (
                "RANK=19 WORLD_SIZE=24 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 GROUP_RANK=2 GROUP_WORLD_SIZE=3",
                "torchrun",
            ),
            // Agents of torchrun number ranks as they come; a program that starts it may have set NODE_RANK.
            ("RANK=19 WORLD_SIZE=24 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 GROUP_RANK=2 NODE_RANK=0", "torchrun"),
            (
                "OMPI_COMM_WORLD_RANK=19 OMPI_COMM_WORLD_SIZE=24 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=8",
                "mpirun",
            ),
            ("PMI_RANK=19 PMI_SIZE=24 MPI_LOCALRANKID=3 MPI_LOCALNRANKS=8", "mpiexec"),
            ("SLURM_PROCID=19 SLURM_NTASKS=24 SLURM_LOCALID=3 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=3", "srun"),
        ] {
            assert_eq!(found(text), (launcher, 19, 24, 3), "{text}");
        }
        assert_eq!(
            found("NODE_RANK=15 WORLD_SIZE=1024 WORLD_LOCAL_SIZE=64 LOCAL_RANK=63"),
            ("NODE_RANK", 1023, 1024, 63)
        );
    }

    #[test]
    fn numbers_that_contradict_each_other_or_are_missing_are_named() {
        let said = |text: &str| of(&format!("{MEET} {text}")).unwrap_err().to_string();
        for (text, words) in [
            (
                "NODE_RANK=0 WORLD_SIZE=7 WORLD_LOCAL_SIZE=2 LOCAL_RANK=0",
                "WORLD_SIZE = 7: a multiple of WORLD_LOCAL_SIZE = 2, as all nodes have equally many ranks",
            ),
            (
                "NODE_RANK=2 WORLD_SIZE=8 WORLD_LOCAL_SIZE=4 LOCAL_RANK=0",
                "NODE_RANK = 2: a number from 0 to 1",
            ),
            (
                "NODE_RANK=1 WORLD_SIZE=8 WORLD_LOCAL_SIZE=4 LOCAL_RANK=4",
                "LOCAL_RANK = 4: a number from 0 to 3",
            ),
            ("NODE_RANK=1 WORLD_SIZE=8 WORLD_LOCAL_SIZE=4", "LOCAL_RANK = : a number from 0 to 3"),
            ("WORLD_SIZE=8 WORLD_LOCAL_SIZE=4 LOCAL_RANK=0", "NODE_RANK = : a number from 0 to 1"),
            ("NODE_RANK=1 WORLD_LOCAL_SIZE=4 LOCAL_RANK=0", "WORLD_SIZE = : a number from 1 to 1024"),
            (
                "NODE_RANK=0 WORLD_SIZE=130 WORLD_LOCAL_SIZE=65 LOCAL_RANK=0",
                "WORLD_LOCAL_SIZE = 65: a number from 1 to 64",
            ),
            (
                "RANK=0 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 GROUP_WORLD_SIZE=4",
                "WORLD_SIZE = 8: GROUP_WORLD_SIZE = 4 times LOCAL_WORLD_SIZE = 4",
            ),
            (
                "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=3",
                "SLURM_NTASKS = 8: a multiple of SLURM_STEP_NUM_NODES = 3, as all nodes have equally many ranks",
            ),
            (
                "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=2",
                "SLURM_NODEID = 2: a number from 0 to 1",
            ),
            ("SLURM_PROCID=0 SLURM_NTASKS=128 SLURM_LOCALID=64", "SLURM_LOCALID = 64: a number from 0 to 63"),
        ] {
            assert_eq!(said(text), words, "{text}");
        }
    }

    #[test]
    fn a_node_has_a_name_of_its_own() {
        let of = |name: &str| {
            let pairs = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("PEERWARP_NODE", name)];
            let mut environment: BTreeMap<String, String> =
                pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            for word in MEET.split_whitespace() {
                let (name, value) = word.split_once('=').unwrap();
                environment.insert(name.to_owned(), value.to_owned());
            }
            Launched::of(&environment).map(|launched| launched.unwrap().node)
        };
        assert_eq!(of("rack-3/b").unwrap(), Some("rack-3/b".to_owned()));
        for (bad, shown) in [("", ""), ("a b", "a b"), ("a\n", "a\\n"), (&"x".repeat(65), &*"x".repeat(65))] {
            let words = format!("PEERWARP_NODE = {shown}: a name of 1 to 64 characters without spaces");
            assert_eq!(of(bad).unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn addresses_of_ipv6_are_told_from_their_ports() {
        let at = |host: &str| {
            let text =
                format!("{SECRET} RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR={host} MASTER_PORT=29500");
            of(&text).unwrap().unwrap().address
        };
        assert_eq!(at("fd00::12"), "[fd00::12]:29500");
        assert_eq!(at("::1"), "[::1]:29500");
        assert_eq!(at("10.0.0.1"), "10.0.0.1:29500");
        assert_eq!(at("node0.cluster"), "node0.cluster:29500");
    }

    #[test]
    fn a_process_of_its_own_is_no_rank() {
        assert_eq!(of("").unwrap(), None);
        assert_eq!(of("RANK=0").unwrap(), None);
        assert_eq!(of("SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0").unwrap(), None);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let said = |text: &str| of(text).unwrap_err().to_string();
        assert_eq!(
            said(&format!("{MEET} RANK=8 WORLD_SIZE=8 LOCAL_RANK=0")),
            "RANK = 8: a number from 0 to 7"
        );
        assert_eq!(
            said(&format!("{MEET} RANK=x WORLD_SIZE=8 LOCAL_RANK=0")),
            "RANK = x: a number from 0 to 7"
        );
        assert_eq!(
            said(&format!("{MEET} RANK=0 WORLD_SIZE=1025 LOCAL_RANK=0")),
            "WORLD_SIZE = 1025: a number from 1 to 1024"
        );
        assert_eq!(said(&format!("{MEET} RANK=0 WORLD_SIZE=2")), "LOCAL_RANK = : a number from 0 to 1");
        let rank = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0";
        assert!(
            said(rank).starts_with("PEERWARP_RENDEZVOUS under torchrun = : PEERWARP_RENDEZVOUS=host:port")
        );
        assert!(
            said(&format!("{rank} MASTER_ADDR=a MASTER_PORT=0")).starts_with("MASTER_PORT = 0: a number")
        );
        for bad in ["a", ":1", "a:0", "a:99999", "a:b"] {
            let said = said(&format!("{rank} PEERWARP_RENDEZVOUS={bad}"));
            assert!(said.starts_with(&format!("PEERWARP_RENDEZVOUS = {bad}: host:port")), "{said}");
        }
    }
    #[test]
    fn processes_without_a_secret_are_not_ranks() {
        let plain = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1";
        let said = |more: &str| of(&format!("{plain} {more}")).unwrap_err().to_string();
        let none = said("SLURM_JOB_ID=7 TORCHELASTIC_RUN_ID=x");
        let start = "PEERWARP_SECRET under torchrun = : a secret of 32 bytes or more, the same for all ranks";
        assert!(none.starts_with(start) && none.ends_with("the number of a job is no secret"), "{none}");
        assert!(of(&format!("{plain} {SECRET}")).unwrap().is_some());
        let short = said("PEERWARP_SECRET=hunter2");
        assert_eq!(short, "PEERWARP_SECRET = (7 bytes): 32 to 4096 bytes that cannot be guessed");
        let both = said(&format!("{SECRET} PEERWARP_SECRET_FILE=/x"));
        assert_eq!(both, "PEERWARP_SECRET_FILE = /x: one of the two: PEERWARP_SECRET is set as well");
    }

    #[test]
    fn a_rank_that_somebody_counted_is_one_of_its_world() {
        let secret = Secret::draw().unwrap();
        let of = |rank, ranks| Launched {
            launcher: "mpirun",
            rank,
            ranks,
            local_rank: 0,
            node: None,
            address: String::new(),
            secret: secret.clone(),
        };
        let said = |rank, ranks| of(rank, ranks).check(64).unwrap_err().to_string();
        assert!(of(63, 64).check(64).is_ok() && of(1023, 1024).check(RANKS).is_ok());
        assert_eq!(said(2, 2), "rank = 2: a number from 0 to 1");
        assert_eq!(said(0, 0), "ranks = 0: a number from 2 to 64");
        assert_eq!(said(0, 65), "ranks = 65: a number from 2 to 64");
    }
}
