//! Mistakes in setting a simulation up, and in the memory accesses of its host steps.

use crate::ir::Dtype;

/// Why a simulation cannot be set up, or a host step cannot access memory.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// No such buffer.
    #[error("there is no buffer `{name}`; there are: {known}")]
    UnknownBuffer {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The buffer was declared before as something else.
    #[error("buffer `{name}` is declared as {old} already, and now as {new}")]
    KindConflict {
        /// The buffer.
        name: String,
        /// What it is.
        old: &'static str,
        /// What it is to be.
        new: &'static str,
    },
    /// More memory than the simulator can hold addresses for.
    #[error(
        "buffer `{name}` of {bytes} bytes on each of {ranks} ranks is too large: all buffers of all ranks together may \
         have {most} bytes"
    )]
    TooLarge {
        /// The buffer.
        name: String,
        /// Its size on one rank.
        bytes: u64,
        /// Number of ranks.
        ranks: u32,
        /// What is possible.
        most: u64,
    },
    /// The rank is not of this world.
    #[error("rank {rank} does not exist: the machine has {ranks} ranks")]
    UnknownRank {
        /// The rank asked for.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// The kernel is specialised for another number of computers.
    #[error("kernel `{kernel}` is specialised for {wants} nodes, the machine has {has}")]
    Nodes {
        /// The kernel's variant name.
        kernel: String,
        /// Its number of nodes.
        wants: u32,
        /// The machine's number of nodes.
        has: u32,
    },
    /// The kernel is specialised for another world size.
    #[error("kernel `{kernel}` is specialised for {wants} ranks, the machine has {has}")]
    WorldSize {
        /// The kernel's variant name.
        kernel: String,
        /// Its world size.
        wants: u32,
        /// The machine's.
        has: u32,
    },
    /// A buffer is smaller than the parameter bound to it.
    #[error("parameter `{param}` of `{kernel}` needs {need} bytes, buffer `{buffer}` has {have}")]
    TooSmall {
        /// The kernel's variant name.
        kernel: String,
        /// The parameter.
        param: String,
        /// The buffer bound to it.
        buffer: String,
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
    /// A flag array is bound to plain memory, or the other way round.
    #[error("parameter `{param}` of `{kernel}` is {wants}, buffer `{buffer}` is {has}")]
    WrongKind {
        /// The kernel's variant name.
        kernel: String,
        /// The parameter.
        param: String,
        /// The buffer bound to it.
        buffer: String,
        /// What the parameter is.
        wants: &'static str,
        /// What the buffer is.
        has: &'static str,
    },
    /// A scalar parameter without a value.
    #[error("scalar parameter `{param}` ({dtype}) of `{kernel}` has no value")]
    MissingScalar {
        /// The kernel's variant name.
        kernel: String,
        /// The parameter.
        param: String,
        /// Its type.
        dtype: Dtype,
    },
    /// A scalar of another type than its parameter.
    #[error("scalar parameter `{param}` of `{kernel}` is {dtype}, its value is {given}")]
    ScalarType {
        /// The kernel's variant name.
        kernel: String,
        /// The parameter.
        param: String,
        /// Its type.
        dtype: Dtype,
        /// The value's type.
        given: Dtype,
    },
    /// A binding for a parameter that the kernel does not have.
    #[error("`{kernel}` has no parameter `{param}`")]
    UnknownParam {
        /// The kernel's variant name.
        kernel: String,
        /// The name bound.
        param: String,
    },
    /// A launch has more groups at once than clocks can number.
    #[error("a launch of `{kernel}` has {agents} groups; the simulator numbers at most {most} on a rank")]
    TooManyAgents {
        /// The kernel's variant name.
        kernel: String,
        /// How many groups.
        agents: u64,
        /// How many are possible.
        most: u32,
    },
    /// A rank that cannot be left out.
    #[error(
        "rank {rank} of {ranks} ranks on {nodes} machines cannot be left out: another one has to stay, on one machine of at most 64"
    )]
    Inactive {
        /// The rank.
        rank: u32,
        /// Ranks of all machines.
        ranks: u32,
        /// Machines.
        nodes: u32,
    },
    /// A host access outside a buffer.
    #[error("bytes {from}..{to} are outside of buffer `{name}`, which has {bytes}")]
    OutOfBounds {
        /// The buffer.
        name: String,
        /// First byte.
        from: u64,
        /// Byte after the last.
        to: u64,
        /// Size of the buffer.
        bytes: u64,
    },
    /// A host access to a flag array or epoch word as if it were plain memory.
    #[error("buffer `{name}` is {kind}: only kernels write it")]
    NotPlain {
        /// The buffer.
        name: String,
        /// What it is.
        kind: &'static str,
    },
}

impl From<SimError> for String {
    fn from(e: SimError) -> String {
        e.to_string()
    }
}
