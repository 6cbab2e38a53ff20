//! Ranks on several nodes meet, put to each other over the network, and compare every byte.
//!
//! It needs no GPU. Run it to see whether the ranks of a cluster find each other, before kernels are in the way:
//!
//! ```sh
//! srun --nodes 2 --ntasks-per-node 8 far-puts
//! ```

mod rank;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use peerwarp::runtime::{Bootstrap, BootstrapOptions, Launched, Place};
use peerwarp_fabric::Provider;

use crate::rank::Opened;

/// Ranks on several nodes meet, put to each other over the network, and compare every byte
#[derive(Clone, Debug, Parser)]
pub struct Arguments {
    /// Rounds, in each of which every rank puts to all ranks of other nodes; with 0, ranks meet and need no libfabric
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    /// Bytes of a put
    #[arg(long, default_value_t = 7168)]
    bytes: u32,
    /// Provider of libfabric; without it, what FI_PROVIDER says, or the best one
    #[arg(long)]
    provider: Option<Provider>,
    /// Domain of the provider, such as a network card's name; the first one without it
    #[arg(long)]
    domain: Option<String>,
    /// Seconds in which a peer takes in a put
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    budget: u32,
}

impl Arguments {
    /// How long a peer may be silent.
    pub fn budget(&self) -> Duration {
        Duration::from_secs(self.budget.into())
    }
}

/// An error of any kind.
pub type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ran = Launched::here().map_err(Failure::from).and_then(|launched| {
        let launched =
            launched.ok_or("one process makes no world: start the ranks with torchrun, srun or mpirun")?;
        run(&arguments, &launched).map_err(|e| format!("rank {}: {e}", launched.rank).into())
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments, launched: &Launched) -> Result<(), Failure> {
    let mut bootstrap = Bootstrap::join(launched, &BootstrapOptions::default())?;
    let (rank, teams) = (bootstrap.rank(), bootstrap.teams().clone());
    let Place { node, local_rank } = teams.place(rank).ok_or("no place in the world")?;
    let (ranks, nodes, locals) = (teams.ranks(), teams.nodes(), teams.local_ranks());
    println!("rank {rank} of {ranks}: local rank {local_rank} of {locals}, node {node} of {nodes}");
    if arguments.rounds == 0 {
        return Ok(());
    }
    let opened = bootstrap.agree(Opened::new(arguments, rank, ranks))?;
    let cards = bootstrap.exchange(&opened.card())?;
    let others = teams.world().filter(|other| teams.place(*other).is_some_and(|place| place.node != node));
    let own = bootstrap.agree(opened.start(&cards, others.collect()))?;
    let ran = own.rounds(arguments.rounds);
    // Taking in other ranks' puts needs a running proxy, so that all ranks finish before one closes. A rank that is gone is
    // named here, also where this rank waits for a third one.
    let said = ran.err().map_or_else(String::new, |e| e.to_string());
    let short: Vec<u8> = said.bytes().take(bootstrap.room()).collect();
    match bootstrap.exchange(&short) {
        Ok(all) => {
            let failed = (0..).zip(&all).find(|(_, said)| !said.is_empty());
            failed.map_or(Ok(()), |(rank, said)| {
                Err(format!("rank {rank} failed: {}", String::from_utf8_lossy(said)))
            })?;
        }
        Err(e) if said.is_empty() => return Err(e.into()),
        Err(e) => return Err(format!("{said}; {e}").into()),
    }
    let summary = own.close()?;
    println!(
        "rank {rank}: {} puts delivered, {} arrived, every byte compared",
        summary.puts, summary.arrivals
    );
    Ok(())
}
