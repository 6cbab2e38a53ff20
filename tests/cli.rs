//! The `peerwarp` command as its users meet it.

#[path = "cli/bad_input.rs"]
mod bad_input;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/driver.rs"]
mod driver;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/generate.rs"]
mod generate;
#[path = "cli/kill.rs"]
mod kill;
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/nodes.rs"]
mod nodes;
#[path = "cli/pack.rs"]
mod pack;
#[path = "cli/round_trip.rs"]
mod round_trip;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/show.rs"]
mod show;
#[path = "cli/support.rs"]
mod support;
#[path = "cli/threads.rs"]
mod threads;
#[path = "cli/toolchain.rs"]
mod toolchain;
#[path = "cli/topo.rs"]
mod topo;
#[path = "cli/tune.rs"]
mod tune;
