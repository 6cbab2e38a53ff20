//! Who started this process: which rank it is, of how many, and where they meet.

use std::collections::BTreeMap;

use super::secret::Secret;
use crate::runtime::RuntimeError;

/// Names the place where ranks meet, `host:port`, whatever the launcher says.
pub const MEET_VARIABLE: &str = "PEERWARP_RENDEZVOUS";

/// A process of several that were started together, one for each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// What started it: `torchrun`, `mpirun`, `mpiexec` or `srun`.
    pub launcher: &'static str,
    /// Its rank.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// Its number among the ranks of its machine.
    pub local_rank: u32,
    /// Where rank 0 listens, `host:port`.
    pub address: String,
    /// What all ranks of the world know, and nobody else.
    pub secret: Secret,
}

/// The variables in which a launcher says rank, world size and number on the machine.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
}

/// In the order in which they are asked: torchrun may itself have been started by srun or mpirun.
const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "torchrun", rank: "RANK", ranks: "WORLD_SIZE", local_rank: "LOCAL_RANK" },
    Launcher {
        name: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    },
    Launcher { name: "mpiexec", rank: "PMI_RANK", ranks: "PMI_SIZE", local_rank: "MPI_LOCALRANKID" },
    Launcher { name: "srun", rank: "SLURM_PROCID", ranks: "SLURM_NTASKS", local_rank: "SLURM_LOCALID" },
];

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
    /// # Errors
    /// A variable is missing or is not a number that makes sense, or nothing says where the ranks meet, or what their
    /// secret is ([`SECRET_VARIABLE`](super::SECRET_VARIABLE)).
    pub fn of(environment: &BTreeMap<String, String>) -> Result<Option<Launched>, RuntimeError> {
        let started = |l: &&Launcher| environment.contains_key(l.rank) && environment.contains_key(l.ranks);
        let Some(launcher) = LAUNCHERS.iter().find(started) else { return Ok(None) };
        let ranks = number(environment, launcher.ranks, 1..=RANKS)?;
        if ranks == 1 {
            return Ok(None);
        }
        let rank = number(environment, launcher.rank, 0..=ranks - 1)?;
        let local_rank = number(environment, launcher.local_rank, 0..=ranks - 1)?;
        let address = address(environment, launcher)?;
        let secret = Secret::of(environment, launcher.name)?;
        Ok(Some(Launched { launcher: launcher.name, rank, ranks, local_rank, address, secret }))
    }

    /// Whether the numbers are those of a rank: whoever fills in the fields may have miscounted.
    pub(in crate::runtime) fn check(&self) -> Result<(), RuntimeError> {
        let of = |field: &str, value: u32, range: std::ops::RangeInclusive<u32>| match range.contains(&value)
        {
            true => Ok(()),
            false => {
                let allowed = format!("a number from {} to {}", range.start(), range.end());
                Err(RuntimeError::invalid(field, value, allowed))
            }
        };
        of("ranks", self.ranks, 2..=RANKS)?;
        of("rank", self.rank, 0..=self.ranks - 1)
    }
}

/// Most ranks of a world.
const RANKS: u32 = 64;

fn number(
    environment: &BTreeMap<String, String>,
    name: &str,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, RuntimeError> {
    let value = environment.get(name).map_or("", String::as_str);
    let number = value.trim().parse().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| {
        RuntimeError::invalid(name, value, format!("a number from {} to {}", range.start(), range.end()))
    })
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
            Some(Launched { launcher, rank: 3, ranks: 8, local_rank: 1, address, secret })
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
    fn a_process_of_its_own_is_nobodys_rank() {
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
            said(&format!("{MEET} RANK=0 WORLD_SIZE=65 LOCAL_RANK=0")),
            "WORLD_SIZE = 65: a number from 1 to 64"
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
        assert_eq!(short, "PEERWARP_SECRET = (7 bytes): 32 to 4096 bytes that nobody can guess");
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
            address: String::new(),
            secret: secret.clone(),
        };
        let said = |rank, ranks| of(rank, ranks).check().unwrap_err().to_string();
        assert!(of(63, 64).check().is_ok());
        assert_eq!(said(2, 2), "rank = 2: a number from 0 to 1");
        assert_eq!(said(0, 0), "ranks = 0: a number from 2 to 64");
        assert_eq!(said(0, 65), "ranks = 65: a number from 2 to 64");
    }
}
