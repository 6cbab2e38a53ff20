//! Far channels: what arrives, which mistakes are found and where, and what is refused.

mod arrives;
mod mutants;
mod nodes;
mod planted;
mod refused;
mod told;
mod world;
