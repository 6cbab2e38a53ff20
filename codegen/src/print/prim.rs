//! The machine primitives: `__device__` functions and types that emitted sources include when they use them.

use std::collections::BTreeSet;

use crate::ir::{Dtype, ReduceOp};

/// What a primitive's template is rendered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// Nothing.
    Nothing,
    /// The shape of a block.
    Block,
    /// What the target can do.
    Target,
}

macro_rules! cuda_text {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/cuda/prim/", $file, ".hbs"))
    };
}
macro_rules! hip_text {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/hip/prim/", $file, ".hbs"))
    };
}
macro_rules! prims {
    ($($(#[$m:meta])* $name:ident = $file:literal, $context:ident, [$($needs:ident),*];)+) => {
        /// A primitive. The order is the order in emitted source: each comes after what it needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(super) enum Prim { $($(#[$m])* $name,)+ }

        impl Prim {
            /// Every primitive, in order of emission.
            pub const ALL: &[Prim] = &[$(Prim::$name),+];

            /// File name of its templates, without folder and extension.
            pub fn file(self) -> &'static str {
                match self { $(Prim::$name => $file,)+ }
            }

            /// What its template is rendered with.
            pub fn context(self) -> Context {
                match self { $(Prim::$name => Context::$context,)+ }
            }

            /// The primitives whose names its text uses.
            pub fn needs(self) -> &'static [Prim] {
                match self { $(Prim::$name => &[$(Prim::$needs),*],)+ }
            }

            /// Its text for CUDA.
            pub fn cuda(self) -> &'static str {
                match self { $(Prim::$name => cuda_text!($file),)+ }
            }

            /// Its text for HIP.
            pub fn hip(self) -> &'static str {
                match self { $(Prim::$name => hip_text!($file),)+ }
            }
        }
    };
}

prims! {
    /// Names of the plain types.
    Types = "types", Nothing, [];
    /// A record of the timeline.
    TimelineEvent = "timeline_event", Nothing, [Types];
    /// Thread and block index.
    Index = "index", Nothing, [];
    /// Same bits, other type.
    Bits = "bits", Nothing, [];
    /// Several elements of one access.
    Vec = "vec", Nothing, [];
    /// 16-bit IEEE floats.
    Fp16 = "fp16", Nothing, [];
    /// bfloat16.
    Bf16 = "bf16", Nothing, [Bits];
    /// OCP e4m3fn.
    Fp8 = "fp8", Nothing, [Bits];
    /// Vector of one value.
    Fill = "fill", Nothing, [Vec];
    /// Vector of consecutive integers.
    Iota = "iota", Nothing, [Vec];
    /// Vector load.
    Load = "load", Nothing, [Vec];
    /// Vector store to global memory.
    Store = "store", Nothing, [Bits, Vec];
    /// Vector store to shared memory.
    StoreShared = "store_shared", Nothing, [Vec];
    /// Shared-memory arrays.
    Shared = "shared", Nothing, [];
    /// Signed arithmetic that wraps.
    Wrapping = "wrapping", Nothing, [];
    /// Minimum and maximum of two.
    MinMax = "minmax", Nothing, [];
    /// Functions of floats.
    Math = "math", Nothing, [];
    /// Population count and trailing zeros.
    BitCount = "bitcount", Nothing, [];
    /// Saturating float to integer.
    ToInt = "to_int", Nothing, [];
    /// Smallest and largest value of a type.
    Limits = "limits", Nothing, [];
    /// A block as a group.
    Block = "block", Block, [Index];
    /// A warp as a group.
    Warp = "warp", Block, [Index];
    /// Several warps as a group.
    Warps = "warps", Block, [Index];
    /// Values of other lanes.
    Shuffle = "shuffle", Block, [Index, Bits];
    /// Sums.
    OpSum = "op_sum", Nothing, [];
    /// Minima.
    OpMin = "op_min", Nothing, [MinMax, Limits];
    /// Maxima.
    OpMax = "op_max", Nothing, [MinMax, Limits];
    /// Conjunctions.
    OpAnd = "op_and", Nothing, [];
    /// Disjunctions.
    OpOr = "op_or", Nothing, [];
    /// Reduction over a group.
    Reduce = "reduce", Block, [Shuffle];
    /// Prefix reduction over a group.
    Scan = "scan", Block, [Shuffle, Vec];
    /// Counting in order.
    Tally = "tally", Block, [Shuffle, BitCount];
    /// One lane works, all get the result.
    Once = "once", Block, [Shuffle];
    /// Atomic sum.
    AtomicSum = "atomic_sum", Nothing, [];
    /// Atomic minimum.
    AtomicMin = "atomic_min", Nothing, [];
    /// Atomic maximum.
    AtomicMax = "atomic_max", Nothing, [];
    /// Atomic conjunction.
    AtomicAnd = "atomic_and", Nothing, [];
    /// Atomic disjunction.
    AtomicOr = "atomic_or", Nothing, [];
    /// Flag accesses at system scope.
    System = "system", Target, [];
    /// Signal one rank.
    Signal = "signal", Nothing, [System];
    /// Signal a set of ranks.
    SignalRanks = "signal_ranks", Nothing, [System];
    /// The wall clock.
    Clock = "clock", Nothing, [];
    /// What records the timeline.
    Timeline = "timeline", Block, [Index, Clock, TimelineEvent];
    /// Bounded polling, and what happens when it fails.
    Poll = "poll", Nothing, [Index, System, Clock];
    /// Wait for one flag.
    Wait = "wait", Nothing, [Poll];
    /// Wait for many flags.
    WaitAll = "wait_all", Nothing, [Poll];
    /// Wait for those of a few flags that a mask picks.
    WaitSome = "wait_some", Nothing, [Poll];
    /// Packets and their atomic accesses.
    Packet = "packet", Nothing, [];
    /// Send a packet.
    SendPacket = "send_packet", Nothing, [Bits, Vec, Packet];
    /// Send several packets.
    SendPackets = "send_packets", Nothing, [Vec, SendPacket];
    /// Take packets.
    TakePackets = "take_packets", Nothing, [Bits, Vec, Poll, Packet];
    /// Send elements with a stamp.
    SendStamped = "send_stamped", Nothing, [Bits];
    /// Read elements with a stamp.
    ReadStamped = "read_stamped", Nothing, [Bits, Poll];
    /// Successor of an epoch.
    Epoch = "epoch", Nothing, [];
    /// The last block advances the epoch.
    Finish = "finish", Nothing, [Index];
}

impl Prim {
    /// Whether it defines an element type, which the argument struct may need.
    pub fn is_type(self) -> bool {
        matches!(self, Prim::Types | Prim::TimelineEvent | Prim::Bits | Prim::Fp16 | Prim::Bf16 | Prim::Fp8)
    }

    /// The conversions and the type that an element type needs, if any.
    pub fn of_dtype(dtype: Dtype) -> Option<Prim> {
        match dtype {
            Dtype::Fp16 => Some(Prim::Fp16),
            Dtype::Bf16 => Some(Prim::Bf16),
            Dtype::Fp8 => Some(Prim::Fp8),
            Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 => None,
        }
    }

    /// The combiner of a reduction.
    pub fn of_reduce(op: ReduceOp) -> Prim {
        match op {
            ReduceOp::Sum => Prim::OpSum,
            ReduceOp::Min => Prim::OpMin,
            ReduceOp::Max => Prim::OpMax,
            ReduceOp::And => Prim::OpAnd,
            ReduceOp::Or => Prim::OpOr,
        }
    }

    /// The atomic of a reduction.
    pub fn of_atomic(op: ReduceOp) -> Prim {
        match op {
            ReduceOp::Sum => Prim::AtomicSum,
            ReduceOp::Min => Prim::AtomicMin,
            ReduceOp::Max => Prim::AtomicMax,
            ReduceOp::And => Prim::AtomicAnd,
            ReduceOp::Or => Prim::AtomicOr,
        }
    }
}

/// The primitives that a kernel uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Used(BTreeSet<Prim>);

impl Used {
    /// Adds a primitive and what it needs.
    pub fn add(&mut self, prim: Prim) {
        if self.0.insert(prim) {
            prim.needs().iter().for_each(|&p| self.add(p));
        }
    }

    /// In order of emission.
    pub fn iter(&self) -> impl Iterator<Item = Prim> + '_ {
        self.0.iter().copied()
    }

    /// Whether a primitive is among them.
    pub fn contains(&self, prim: Prim) -> bool {
        self.0.contains(&prim)
    }
}

/// Every identifier that the primitives define, for names to keep clear of. Tested against the templates.
pub(super) const DEFINED: &[&str] = &[
    "abs_of",
    "acquire_system",
    "bits_as",
    "block_in_grid",
    "broadcast",
    "exp_of",
    "fetch_and",
    "fetch_and_shared",
    "fetch_max",
    "fetch_max_shared",
    "fetch_min",
    "fetch_min_shared",
    "fetch_or",
    "fetch_or_shared",
    "fetch_sum",
    "fetch_sum_shared",
    "fill",
    "fma_of",
    "give_up",
    "group_reduce",
    "group_scan",
    "group_tally",
    "has_arrived",
    "iota",
    "kernel_id",
    "lane_in_warp",
    "last_block",
    "least",
    "load",
    "load_packet",
    "load_relaxed_system",
    "load_stamped",
    "max_of",
    "min_of",
    "most",
    "mul_rn",
    "next_epoch",
    "no_packet",
    "now_ns",
    "once",
    "poll",
    "popcount",
    "ranks",
    "read_stamped",
    "send_packet",
    "send_packets",
    "send_stamped",
    "shared_array",
    "shuffle_from",
    "shuffle_up",
    "shuffle_xor",
    "signal_rank",
    "signal_ranks",
    "sqrt_of",
    "store",
    "store_packet",
    "store_release_system",
    "store_shared",
    "store_words",
    "stores_done",
    "take_packets",
    "thread_in_block",
    "to_bf16",
    "to_f32",
    "to_fp16",
    "to_fp8",
    "to_i32",
    "to_u32",
    "to_u64",
    "trailing_zeros",
    "wait_flag",
    "wait_flags",
    "wait_some_flags",
    "wrap_abs",
    "wrap_add",
    "wrap_mul",
    "wrap_neg",
    "wrap_shl",
    "wrap_sub",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primitive_has_text_for_both_targets() {
        for &p in Prim::ALL {
            assert!(!p.cuda().is_empty() && !p.hip().is_empty(), "{p:?}");
        }
    }

    #[test]
    fn primitives_come_after_what_they_need() {
        for &p in Prim::ALL {
            assert!(p.needs().iter().all(|n| *n < p), "{p:?} comes before something it needs");
        }
    }

    /// Names of the functions that a template defines at its top level.
    fn defined(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter(|l| l.contains("__device__ ") && !l.starts_with("    ")).filter_map(|line| {
            let head = line.split_once('(')?.0;
            let head = if head.ends_with('>') { head.rsplit_once('<')?.0 } else { head };
            head.rsplit(' ').next()
        })
    }

    #[test]
    fn names_keep_clear_of_what_primitives_define() {
        for &p in Prim::ALL {
            for name in [p.cuda(), p.hip()].iter().flat_map(|t| defined(t)) {
                assert!(DEFINED.contains(&name), "{p:?} defines `{name}`, which DEFINED does not list");
            }
        }
    }

    #[test]
    fn using_one_brings_what_it_needs() {
        let mut used = Used::default();
        used.add(Prim::Wait);
        let all: Vec<Prim> = used.iter().collect();
        assert_eq!(all, [Prim::Index, Prim::System, Prim::Clock, Prim::Poll, Prim::Wait]);
    }
}
