//! Why a kernel cannot be printed for a target.

use crate::family::Target;
use crate::ir::Loc;

/// Why a kernel cannot be printed for a target. A kernel that passes the verifier fails with one of these or prints.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PrintError {
    /// The kernel was traced for another warp size.
    #[error(
        "`{kernel}` was traced for warps of {traced} lanes but {target} has {target_lanes}; trace it for this target"
    )]
    WarpSize {
        /// Variant name.
        kernel: String,
        /// Lanes a warp it was traced for.
        traced: u32,
        /// Where it should have been printed for.
        target: Target,
        /// Lanes a warp there.
        target_lanes: u32,
    },
    /// More threads a block than a target has.
    #[error(
        "`{kernel}` has blocks of {threads} threads and {target} allows 1024; use at most {} warps a block",
        1024 / .target.warp_size()
    )]
    BlockTooLarge {
        /// Variant name.
        kernel: String,
        /// Threads a block.
        threads: u32,
        /// The target.
        target: Target,
    },
    /// AMD's GPUs have one barrier a block, which meets all of it.
    #[error(
        "{loc}: a block that has warps of another role beside it splits into groups of {warps} warps, which AMD's GPUs have no \
         barrier for; use single warps"
    )]
    SplitBeside {
        /// Where the split stands.
        loc: Loc,
        /// Warps a group.
        warps: u32,
    },
    /// CUDA has 16 named barriers a block, and the block itself needs one.
    #[error(
        "{loc}: a block splits into {groups} groups of {warps} warps, and only 15 can have a named barrier; use single \
         warps or groups of at least {} warps", .warps * 2
    )]
    TooManyNamedBarriers {
        /// Where the split stands.
        loc: Loc,
        /// Groups a block.
        groups: u32,
        /// Warps a group.
        warps: u32,
    },
    /// A copy that may begin or end within 16 bytes.
    #[error(
        "{loc}: {len} elements are copied in bulk here, which go 16 bytes at a time: lengths and indices must be multiples \
         of {unit} elements, and be known to be; multiply by a constant"
    )]
    CopyAlignment {
        /// Where they are copied.
        loc: Loc,
        /// Elements of the copy.
        len: u32,
        /// Elements of 16 bytes.
        unit: u32,
    },
    /// Tiles of which a lane would have to hold two numbers of elements at once.
    #[error(
        "{loc}: a tile of which each lane holds {per_lane} elements here, as packets, LL elements and counting in order want it, \
         meets one of {other}; store one of them to memory in between"
    )]
    LaneWidths {
        /// Where the second one is sent, taken or counted.
        loc: Loc,
        /// Elements a lane holds of it.
        per_lane: u32,
        /// Elements a lane holds of the first.
        other: u32,
    },
    /// A matrix that a group's warps cannot share.
    #[error(
        "{loc}: a matrix of {rows} x {columns} for {warps} warps, which work on parts of 16 x 16; let the warps be as many as rows and \
         columns have such parts, or divide that"
    )]
    MatrixShape {
        /// Where it is made or used.
        loc: Loc,
        /// Its rows.
        rows: u32,
        /// Its columns.
        columns: u32,
        /// Warps of the group.
        warps: u32,
    },
    /// A timeline without room for records, or with room for too many.
    #[error("timeline slots = {slots}: a warp has room for 1 to {most} records")]
    TimelineSlots {
        /// What was asked for.
        slots: u32,
        /// The most there can be.
        most: u32,
    },
    /// More shared memory than a block can have.
    #[error(
        "`{kernel}` needs {bytes} bytes of shared memory a block and {target} has {limit}; shrink its shared arrays"
    )]
    SharedTooLarge {
        /// Variant name.
        kernel: String,
        /// Bytes a block needs.
        bytes: u64,
        /// Bytes a block can have.
        limit: u64,
        /// The target.
        target: Target,
    },
    /// More bytes of arguments than a launch can pass.
    #[error(
        "`{kernel}` passes {bytes} bytes of arguments (each symmetric buffer takes 8 bytes a rank) and {target} takes \
         {limit}; merge symmetric buffers or use fewer ranks"
    )]
    TooManyArguments {
        /// Variant name.
        kernel: String,
        /// Bytes of the argument struct.
        bytes: u64,
        /// Bytes a launch can pass.
        limit: u64,
        /// The target.
        target: Target,
    },
    /// A kernel that reaches all ranks at once, for GPUs that cannot.
    #[error(
        "`{kernel}` reaches `{buffer}` of all ranks at once, and {target} has no multimem: CUDA targets from sm_90 on have; use a \
         variant without"
    )]
    NoMultimem {
        /// Variant name.
        kernel: String,
        /// The first parameter that it reaches so.
        buffer: String,
        /// The target.
        target: Target,
    },
    /// A product whose operands have scales of blocks, for GPUs that multiply no such.
    #[error(
        "{loc}: rows of `{operand}` are multiplied with scales of blocks, and {target} has no instruction for that: cuda:sm_100a, \
         cuda:sm_103a and cuda:sm_110a have; multiply the sums by scales of your own"
    )]
    NoBlockScales {
        /// Where they are multiplied.
        loc: Loc,
        /// The left operand.
        operand: String,
        /// The target.
        target: Target,
    },
    /// A product whose operands have scales of blocks, which no loader can bring.
    #[error("{loc}: only a loader brings operands with scales of blocks, and this role has none: {why}")]
    ScalesWithoutLoader {
        /// The line that keeps the role from having one.
        loc: Loc,
        /// Why it does.
        why: &'static str,
    },
    /// A product of pairs of blocks, for GPUs whose instructions are of one block.
    #[error(
        "{loc}: pairs of blocks multiply by rows of `{operand}`, and {target} has no instruction for that: cuda:sm_100a, cuda:sm_103a \
         and cuda:sm_110a have; leave `pair` at false"
    )]
    NoPairs {
        /// Where they are multiplied.
        loc: Loc,
        /// The right operand.
        operand: String,
        /// The target.
        target: Target,
    },
    /// A product of pairs of blocks, which a kernel or a role keeps from being one.
    #[error("{loc}: no pairs of blocks multiply here: {why}; leave `pair` at false")]
    PairsHindered {
        /// The line that keeps them from it.
        loc: Loc,
        /// Why it does.
        why: &'static str,
    },
    /// A tile crosses from the block into the groups of a split.
    #[error(
        "{loc}: a tile of the whole block is used inside a split, whose groups hold other elements of it; store it to \
         shared memory before the split and load it inside"
    )]
    TileAcrossSplit {
        /// Where the tile is used.
        loc: Loc,
    },
    /// A kernel without far channels for an engine that carries nothing else.
    #[error(
        "`{kernel}` has no far channels, so there is nothing for NCCL's GIN to carry; leave it out, or take a family over several nodes"
    )]
    NothingFar {
        /// Variant name.
        kernel: String,
    },
    /// More puts at once than a queue of GIN has room for.
    #[error(
        "{loc}: a group puts {each} messages at once to each of {ranks} ranks, counted in `{counts}`: {puts} puts, and NCCL's GIN has \
         queues for {depth}; put to fewer ranks at once (`.rail(..)`), merge the fields of the message, or print for `--far ring`"
    )]
    FarDepth {
        /// Where the first of them stands.
        loc: Loc,
        /// The counters of their channel.
        counts: String,
        /// Ranks that they go to.
        ranks: u32,
        /// Puts to each.
        each: u32,
        /// All of them.
        puts: u64,
        /// Puts that queues have room for.
        depth: u32,
    },
    /// A signal that publishes nothing.
    #[error(
        "{loc}: a relaxed signal does not publish the puts before it; it exists to test the checker and is never emitted"
    )]
    RelaxedSignal {
        /// Where the signal stands.
        loc: Loc,
    },
    /// An operation on an element type that it has no meaning for.
    #[error("{loc}: {what} has no meaning on {dtype}; cast to f32 or to an integer first")]
    Dtype {
        /// Where the operation stands.
        loc: Loc,
        /// The operation.
        what: &'static str,
        /// The element type.
        dtype: crate::ir::Dtype,
    },
    /// A mistake of the printer.
    #[error("{loc}: `{op}` is not written where the printer looked for it; this is a mistake of the printer")]
    Misplaced {
        /// Where the operation stands.
        loc: Loc,
        /// The operation.
        op: &'static str,
    },
    /// A name that C++ cannot have.
    #[error(
        "`{name}` (a {what}) is not a C identifier; use letters, digits and underscores, and start with a letter"
    )]
    Name {
        /// What is named.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A kernel's name that emitted source uses for something else.
    #[error(
        "a kernel cannot be called `{name}`, as emitted source has something else of that name; choose another one"
    )]
    TakenName {
        /// Variant name.
        name: String,
    },
    /// A template failed to render.
    #[error("template `{template}` failed to render: {message}")]
    Template {
        /// Its name.
        template: &'static str,
        /// What handlebars said.
        message: String,
    },
}
