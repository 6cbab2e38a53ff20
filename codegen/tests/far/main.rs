//! Far channels: what arrives, what it takes on a machine, which mistakes are found and where, and what is refused.

mod arrives;
mod levels;
mod mutants;
mod nodes;
mod planted;
mod refused;
mod times;
mod told;
mod world;
