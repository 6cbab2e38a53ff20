//! The machine primitives: `__device__` functions and types that emitted sources include when they use them.

use std::collections::BTreeSet;

use super::template::{Template, template};
use crate::family::Target;
use crate::ir::{Dtype, ReduceOp, UnaryOp};

/// What a primitive's template is rendered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// Nothing.
    Nothing,
    /// The shape of a block.
    Block,
    /// What the target can do.
    Target,
    /// Pieces of the operands of products.
    Pieces,
    /// The products of matrices.
    Products,
    /// Those of fp8.
    Fp8Products,
    /// Those in tensor memory.
    TensorProducts,
}

/// The templates of a primitive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Templates {
    /// One that all targets share, in `templates/prim`.
    Common(Template),
    /// One for each backend, in its own folder.
    Own { cuda: Template, hip: Template },
    /// One of CUDA's, for what only its GPUs can.
    Cuda(Template),
}

impl Templates {
    /// The one for a target.
    pub fn of(self, target: Target) -> Template {
        match (self, target) {
            (Templates::Common(t) | Templates::Cuda(t), _) => t,
            (Templates::Own { cuda, .. }, Target::Cuda(_)) => cuda,
            (Templates::Own { hip, .. }, Target::Hip(_)) => hip,
        }
    }

    /// Each of them, once.
    pub fn each(self) -> impl Iterator<Item = Template> {
        let each = match self {
            Templates::Common(t) | Templates::Cuda(t) => [Some(t), None],
            Templates::Own { cuda, hip } => [Some(cuda), Some(hip)],
        };
        each.into_iter().flatten()
    }
}

/// The templates of a primitive by where its row of the table says they are, and their name there.
macro_rules! templates {
    (common $file:literal) => {
        Templates::Common(template!("prim/", $file))
    };
    (cuda $file:literal) => {
        Templates::Cuda(template!("cuda/prim/", $file))
    };
    (own $file:literal) => {
        Templates::Own { cuda: template!("cuda/prim/", $file), hip: template!("hip/prim/", $file) }
    };
}
macro_rules! prims {
    ($($(#[$m:meta])* $name:ident = $place:ident $file:literal, $context:ident, [$($needs:ident),*];)+) => {
        /// A primitive. The order is the order in emitted source: each comes after what it needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Prim { $($(#[$m])* $name,)+ }

        impl Prim {
            /// Every primitive, in order of emission.
            pub const ALL: &[Prim] = &[$(Prim::$name),+];

            /// What its template is rendered with.
            pub fn context(self) -> Context {
                match self { $(Prim::$name => Context::$context,)+ }
            }

            /// The primitives whose names its text uses.
            pub fn needs(self) -> &'static [Prim] {
                match self { $(Prim::$name => &[$(Prim::$needs),*],)+ }
            }

            /// Its templates.
            pub fn templates(self) -> Templates {
                match self { $(Prim::$name => templates!($place $file),)+ }
            }
        }
    };
}

prims! {
    /// Names of the plain types.
    Types = common "types", Nothing, [];
    /// A record of the timeline.
    TimelineEvent = common "timeline_event", Nothing, [Types];
    /// Boxes of a matrix in memory.
    TensorMap = cuda "tensor_map", Nothing, [Types];
    /// What carries messages to far ranks.
    Far = common "far", Nothing, [Types];
    /// The same for NCCL's GIN.
    Gin = common "gin", Nothing, [Types];
    /// Thread and block index.
    Index = own "index", Nothing, [];
    /// Same bits, other type.
    Bits = own "bits", Nothing, [];
    /// Several elements of one access.
    Vec = common "vec", Nothing, [];
    /// 16-bit IEEE floats.
    Fp16 = own "fp16", Nothing, [];
    /// bfloat16.
    Bf16 = own "bf16", Nothing, [Bits];
    /// `f32` rounded to bfloat16.
    RoundedBf16 = own "rounded_bf16", Nothing, [Bits, Bf16];
    /// OCP e4m3fn.
    Fp8 = own "fp8", Nothing, [Bits];
    /// Vector of one value.
    Fill = common "fill", Nothing, [Vec];
    /// Vector of consecutive integers.
    Iota = common "iota", Nothing, [Vec];
    /// Several numbers.
    List = common "list", Nothing, [];
    /// Several numbers at equal distances.
    Series = common "series", Nothing, [List];
    /// Vector load.
    Load = common "load", Nothing, [Vec];
    /// Vector load that is not put off.
    LoadEarly = cuda "load_early", Nothing, [Bits, Vec];
    /// Vector store to global memory.
    Store = own "store", Nothing, [Bits, Vec];
    /// Vector store to shared memory.
    StoreShared = common "store_shared", Nothing, [Vec];
    /// Vector load of what lies below an end.
    LoadBelow = common "load_below", Nothing, [Vec, Load];
    /// Vector store to global memory of what lies below an end.
    StoreBelow = common "store_below", Nothing, [Vec, Store];
    /// Vector store to shared memory of what lies below an end.
    StoreSharedBelow = common "store_shared_below", Nothing, [Vec, StoreShared];
    /// Shared-memory arrays.
    Shared = own "shared", Block, [];
    /// Signed arithmetic that wraps.
    Wrapping = common "wrapping", Nothing, [];
    /// Minimum and maximum of two.
    MinMax = own "minmax", Nothing, [];
    /// Load an element that may not be there.
    LoadOrZero = common "load_or_zero", Nothing, [MinMax];
    /// Read an element that a list names.
    LoadListed = common "load_listed", Nothing, [LoadOrZero];
    /// Functions of floats.
    Math = own "math", Nothing, [];
    /// The hyperbolic tangent.
    Tanh = common "tanh", Target, [];
    /// Reciprocal square root.
    Rsqrt = own "rsqrt", Nothing, [Bits];
    /// The natural logarithm.
    Log = common "log", Nothing, [Bits, Math];
    /// The error function.
    Erf = common "erf", Nothing, [Bits, Math];
    /// Sine and cosine.
    Trig = common "trig", Nothing, [Bits, Math];
    /// Population count and trailing zeros.
    BitCount = own "bitcount", Nothing, [];
    /// Saturating float to integer.
    ToInt = own "to_int", Nothing, [];
    /// Smallest and largest value of a type.
    Limits = own "limits", Nothing, [];
    /// Where warps meet.
    Meeting = own "meeting", Block, [Index];
    /// A block as a group.
    Block = own "block", Block, [Index];
    /// A vote of a warp.
    WarpAll = own "warp_all", Block, [];
    /// A warp as a group.
    Warp = own "warp", Block, [Index, WarpAll];
    /// Several warps as a group.
    Warps = own "warps", Block, [Meeting];
    /// Warps of a role beside another one as a group.
    Beside = own "beside", Block, [Meeting];
    /// Values of other lanes.
    Shuffle = own "shuffle", Block, [Index, Bits];
    /// Sums.
    OpSum = common "op_sum", Nothing, [];
    /// Minima.
    OpMin = common "op_min", Nothing, [MinMax, Limits];
    /// Maxima.
    OpMax = common "op_max", Nothing, [MinMax, Limits];
    /// Conjunctions.
    OpAnd = common "op_and", Nothing, [];
    /// Disjunctions.
    OpOr = common "op_or", Nothing, [];
    /// Reduction over a group.
    Reduce = common "reduce", Block, [Shuffle];
    /// Disjunction over a warp.
    WarpOr = cuda "warp_or", Nothing, [];
    /// Prefix reduction over a group.
    Scan = common "scan", Block, [Shuffle, Vec];
    /// Counting in order.
    Tally = own "tally", Block, [Shuffle, BitCount];
    /// One lane works, all get the result.
    Once = common "once", Block, [Shuffle];
    /// Atomic sum.
    AtomicSum = own "atomic_sum", Nothing, [];
    /// Atomic minimum.
    AtomicMin = own "atomic_min", Nothing, [];
    /// Atomic maximum.
    AtomicMax = own "atomic_max", Nothing, [];
    /// Atomic conjunction.
    AtomicAnd = own "atomic_and", Nothing, [];
    /// Atomic disjunction.
    AtomicOr = own "atomic_or", Nothing, [];
    /// Flag accesses at system scope.
    System = own "system", Target, [];
    /// Flag accesses at gpu scope.
    Device = own "device", Target, [System];
    /// Take a ticket.
    Ticket = own "ticket", Nothing, [Device];
    /// Signal the blocks of this rank.
    BlockSignal = own "block_signal", Nothing, [Device];
    /// `f32` of all ranks as one.
    MultimemF32 = cuda "multimem_f32", Nothing, [Bits, Vec];
    /// 16-bit IEEE floats of all ranks as one.
    MultimemFp16 = cuda "multimem_fp16", Nothing, [Bits, Vec];
    /// bfloat16 of all ranks as one.
    MultimemBf16 = cuda "multimem_bf16", Nothing, [Bits, Vec];
    /// Order between the pointers to the same memory.
    MultimemFence = cuda "multimem_fence", Nothing, [];
    /// A store to all ranks.
    MultimemStore = cuda "multimem_store", Nothing, [Bits, Vec];
    /// Bring what is to be copied in bulk to shared memory.
    Stage = cuda "stage", Nothing, [];
    /// Copy it to one rank.
    CopyBulk = cuda "copy_bulk", Nothing, [];
    /// Copy it to a set of ranks.
    CopyBulkRanks = cuda "copy_bulk_ranks", Nothing, [];
    /// Wait until it is there.
    BulkDone = cuda "bulk_done", Nothing, [];
    /// Copy without shared memory.
    CopyVectors = common "copy_vectors", Nothing, [Bits, Vec, Load, Store];
    /// Signal one rank.
    Signal = own "signal", Nothing, [System];
    /// Signal a set of ranks.
    SignalRanks = own "signal_ranks", Nothing, [System];
    /// Count up on one rank.
    Count = own "count", Nothing, [System];
    /// Count up on a set of ranks.
    CountRanks = own "count_ranks", Nothing, [Count];
    /// Signal a set of ranks what earlier launches did.
    SignalReleased = cuda "signal_released", Nothing, [Block, System];
    /// Rows of a matrix in memory.
    Rows = common "rows", Nothing, [];
    /// Rows that a list names.
    GatheredRows = common "gathered_rows", Nothing, [];
    /// Which elements of a matrix a lane has.
    Fragments = own "fragments", Target, [];
    /// Rows and columns of matrices, as lanes have parts of them.
    Lines = own "lines", Target, [Fragments];
    /// Reduction along them.
    ReduceLines = common "reduce_lines", Block, [Lines, Shuffle, Vec];
    /// Every other block of columns of a matrix.
    Deinterleave = common "deinterleave", Nothing, [Fragments, Vec];
    /// Read a part of a row of a matrix.
    LoadInside = common "load_inside", Nothing, [Vec, LoadBelow];
    /// Write a part of a row of a matrix.
    StoreInside = common "store_inside", Nothing, [Vec, StoreBelow];
    /// A row of a matrix of one column.
    StoreNumber = common "store_number", Nothing, [Vec];
    /// Write a matrix as lanes hold it.
    StoreLanes = common "store_lanes", Nothing, [Vec, Store];
    /// Read it.
    LoadLanes = common "load_lanes", Nothing, [Vec, Load];
    /// Write a matrix, 16 bytes a lane at a time.
    StoreRows = cuda "store_rows", Nothing, [Bits, Vec, Shuffle, StoreInside];
    /// The same of 8-bit elements.
    StoreBytes = cuda "store_bytes", Nothing, [Bits, Vec, Shuffle, StoreInside];
    /// A product of small matrices of bf16, by a warp.
    MultiplyBf16 = own "multiply_bf16", Target, [Bits, Bf16, Vec];
    /// The same of fp16.
    MultiplyFp16 = own "multiply_fp16", Target, [Bits, Fp16, Vec];
    /// The same of fp8: as bf16 where a target has no instruction for it.
    MultiplyFp8 = own "multiply_fp8", Target, [Bits, Fp8, Vec];
    /// Columns of pieces of operands, if some are of fp8.
    Pieces = common "pieces", Nothing, [];
    /// Bring rows of a matrix to shared memory.
    BringRows = cuda "bring_rows", Pieces, [Rows];
    /// Bring rows that a list names, or read them.
    BringGathered = own "bring_gathered", Pieces, [Vec, GatheredRows];
    /// A product of matrices, by a group.
    Dot = own "dot", Pieces, [Vec, Rows, Fragments];
    /// A product of small matrices, by a warpgroup.
    Wgmma = cuda "wgmma", Products, [Vec];
    /// The same of fp8.
    WgmmaFp8 = cuda "wgmma_fp8", Fp8Products, [Vec, Fp8, Wgmma, Pieces];
    /// Those of a piece, made apart from other sums and added to them.
    MultiplyApart = cuda "multiply_apart", Nothing, [WgmmaFp8];
    /// A product of matrices, by a group's warpgroups.
    DotWgmma = cuda "dot_wgmma", Pieces, [Vec, BringRows, Fragments, Wgmma];
    /// Registers that a loader has no need of.
    Registers = cuda "registers", Block, [];
    /// A loader's warps as a group.
    Loader = cuda "loader", Block, [Block];
    /// Where arrivals are counted.
    Mbarrier = cuda "mbarrier", Pieces, [];
    /// Two neighbouring blocks that multiply together.
    Pair = cuda "pair", Nothing, [Block];
    /// Sums of products in tensor memory.
    Tensor = cuda "tensor", TensorProducts, [Vec, Fragments];
    /// A product of matrices in tensor memory, by a block.
    DotTensor = cuda "dot_tensor", Pieces, [Vec, BringRows, Fragments, Block, Mbarrier, Tensor];
    /// A ring of pieces of matrices, which a warp brings for all others.
    Ring = cuda "ring", Block, [Vec, TensorMap, Fragments, Loader, Mbarrier];
    /// The product of a piece, by a warpgroup.
    MultiplyPiece = cuda "multiply_piece", Block, [Ring, Wgmma];
    /// The products of what it has, by warpgroups.
    RingWgmma = cuda "ring_wgmma", Nothing, [MultiplyPiece];
    /// The same in tensor memory.
    RingTensor = cuda "ring_tensor", Block, [Ring, Tensor];
    /// The products of what it has of fp8.
    RingFp8 = cuda "ring_fp8", Nothing, [Ring, MultiplyApart];
    /// The product of one piece of fp8.
    RingFp8Piece = cuda "ring_fp8_piece", Nothing, [MultiplyPiece, WgmmaFp8];
    /// Numbers that a loader draws for all warps.
    Drawn = cuda "drawn", Nothing, [Ring, Shared, Shuffle];
    /// Bring pieces whose left rows a list names.
    RingGathered = cuda "ring_gathered", Pieces, [Ring];
    /// Bring pieces with their scales.
    RingScaled = cuda "ring_scaled", Pieces, [RingTensor];
    /// Bring what needs no wait before the rest of a piece.
    BringAhead = cuda "bring_ahead", Pieces, [Ring, MinMax];
    /// The wall clock.
    Clock = own "clock", Target, [];
    /// What records the timeline.
    Timeline = common "timeline", Block, [Index, Clock, TimelineEvent];
    /// Which ranks are active.
    Active = common "active", Nothing, [];
    /// Bounded polling, and what happens when it fails.
    Poll = own "poll", Block, [Index, System, Clock, Active];
    /// Wait for one flag.
    Wait = common "wait", Nothing, [Poll];
    /// Take what is counted.
    TakeCount = own "take_count", Nothing, [Poll];
    /// Wait for many flags.
    WaitAll = common "wait_all", Nothing, [Poll];
    /// Wait for those of a few flags that a mask picks.
    WaitSome = common "wait_some", Nothing, [Poll];
    /// Wait for many flags, with an epoch or a later one.
    WaitLater = own "wait_later", Nothing, [Poll];
    /// Wait for blocks of this rank.
    BlockWait = own "block_wait", Nothing, [Poll, Device];
    /// Flags that whichever block sets.
    AnyBlock = common "any_block", Nothing, [BlockWait];
    /// Words that a proxy shares.
    FarWords = own "far_words", Target, [System];
    /// Bounded polling of what a proxy counts.
    FarPoll = common "far_poll", Nothing, [Far, Poll, FarWords];
    /// Give a proxy a command.
    FarSend = common "far_send", Nothing, [FarPoll];
    /// Put a message to far ranks.
    FarPut = common "far_put", Nothing, [FarSend];
    /// Count up at far ranks.
    FarCount = common "far_count", Nothing, [FarSend];
    /// Take what has arrived from far ranks.
    FarTake = common "far_take", Nothing, [FarPoll];
    /// Wait until what was put is delivered.
    FarSettle = common "far_settle", Nothing, [FarPoll];
    /// How many puts there are, for GIN.
    GinWords = own "gin_words", Nothing, [System];
    /// Bounded polling of what NCCL counts.
    GinPoll = common "gin_poll", Nothing, [Gin, Poll, GinWords];
    /// Wait for room in its queues.
    GinRoom = common "gin_room", Nothing, [GinPoll];
    /// Put a message to far ranks by it.
    GinPut = common "gin_put", Nothing, [GinRoom];
    /// Count up at far ranks by it.
    GinCount = common "gin_count", Nothing, [GinRoom];
    /// Take what it brought from far ranks.
    GinTake = common "gin_take", Nothing, [GinPoll];
    /// Wait until what was put by it has been read.
    GinSettle = common "gin_settle", Nothing, [GinPoll];
    /// Packets and their atomic accesses.
    Packet = own "packet", Nothing, [];
    /// Send a packet.
    SendPacket = own "send_packet", Nothing, [Bits, Vec, Packet];
    /// Send several packets.
    SendPackets = common "send_packets", Nothing, [Vec, SendPacket];
    /// Send those of several packets that begin below an end.
    SendPacketsBelow = common "send_packets_below", Nothing, [Vec, SendPacket];
    /// Take packets that have been looked at.
    TakeSeenPackets = own "take_seen_packets", Nothing, [WarpAll, Bits, Vec, List, Poll, Packet];
    /// Take packets.
    TakePackets = common "take_packets", Nothing, [TakeSeenPackets];
    /// Send LL elements.
    SendLl = own "send_ll", Nothing, [Bits];
    /// Read LL elements.
    ReadLl = own "read_ll", Nothing, [WarpAll, Bits, Poll];
    /// Read LL elements of which a word has two.
    ReadLlElements = common "read_ll_elements", Nothing, [Vec, ReadLl];
    /// Read consecutive LL elements.
    ReadLlRow = common "read_ll_row", Nothing, [ReadLl];
    /// Successor of an epoch.
    Epoch = common "epoch", Nothing, [];
    /// Every block gets the epoch, the last one to do so advances it.
    BeginEpoch = own "begin_epoch", Nothing, [Index, System, Epoch];
    /// The same for two neighbouring blocks, by the first one's word.
    BeginEpochInPair = cuda "begin_epoch_in_pair", Nothing, [Pair, BeginEpoch];
}

impl Prim {
    /// Whether it defines an element type, which the argument struct may need.
    pub fn is_type(self) -> bool {
        use Prim::{Bf16, Bits, Far, Fp8, Fp16, Gin, TensorMap, TimelineEvent, Types};
        matches!(self, Types | TimelineEvent | TensorMap | Far | Gin | Bits | Fp16 | Bf16 | Fp8)
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

    /// How one-operand arithmetic is written.
    pub fn of_unary(op: UnaryOp, dtype: Dtype) -> Spelled {
        use Spelled::{Call, Operator};
        match op {
            UnaryOp::Neg if dtype == Dtype::I32 => Call(Prim::Wrapping, "wrap_neg"),
            UnaryOp::Neg => Operator("-"),
            UnaryOp::Not if dtype == Dtype::Bool => Operator("!"),
            UnaryOp::Not => Operator("~"),
            UnaryOp::Abs if dtype == Dtype::I32 => Call(Prim::Wrapping, "wrap_abs"),
            UnaryOp::Abs => Call(Prim::Math, "abs_of"),
            UnaryOp::Exp => Call(Prim::Math, "exp_of"),
            UnaryOp::Sqrt => Call(Prim::Math, "sqrt_of"),
            UnaryOp::Tanh => Call(Prim::Tanh, "tanh_of"),
            UnaryOp::Rsqrt => Call(Prim::Rsqrt, "rsqrt_of"),
            UnaryOp::Log => Call(Prim::Log, "log_of"),
            UnaryOp::Erf => Call(Prim::Erf, "erf_of"),
            UnaryOp::Sin => Call(Prim::Trig, "sin_of"),
            UnaryOp::Cos => Call(Prim::Trig, "cos_of"),
            UnaryOp::PopCount => Call(Prim::BitCount, "popcount"),
            UnaryOp::TrailingZeros => Call(Prim::BitCount, "trailing_zeros"),
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

/// How an operation is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelled {
    /// An operator of the language, before its operand.
    Operator(&'static str),
    /// A function that a primitive defines.
    Call(Prim, &'static str),
}

/// The C++ name of an element type.
pub(crate) fn type_name(dtype: Dtype) -> &'static str {
    dtype.name()
}

/// Notes that an element type appears.
pub(crate) fn use_dtype(used: &mut Used, dtype: Dtype) {
    if let Some(prim) = Prim::of_dtype(dtype) {
        used.add(prim);
    }
}

/// The primitives that a kernel uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used(BTreeSet<Prim>);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primitives_come_after_what_they_need() {
        for &p in Prim::ALL {
            assert!(p.needs().iter().all(|n| *n < p), "{p:?} comes before something it needs");
        }
    }

    #[test]
    fn using_one_brings_what_it_needs() {
        let mut used = Used::default();
        used.add(Prim::Wait);
        let all: Vec<Prim> = used.iter().collect();
        assert_eq!(all, [Prim::Index, Prim::System, Prim::Clock, Prim::Active, Prim::Poll, Prim::Wait]);
    }
}
