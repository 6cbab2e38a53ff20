//! The operations, in closed groups.
//!
//! Consumers (verifier, text form, simulator, printers) take [`OpKind`] apart by group, and are exhaustive within each group
//! that they handle: a new operation does not compile until all of them do. Operations that many consumers treat alike have a
//! name as a pattern; see `groups.rs`. What an operation defines, reads and refers to is
//! listed once, by the types of its fields; see `parts.rs`.

use serde::{Deserialize, Serialize};

use super::parts::{self, Part, PartMut, operation_structs, operations, part, part_mut};
use super::{
    BinaryOp, CompareOp, FarReach, ParamId, ParcelId, ReceiptId, Region, SharedId, Transport, UnaryOp,
    ValueId, VarId,
};

/// A value that an operation defines.
pub type Out = ValueId;
/// A value that an operation reads.
pub type In = ValueId;
/// A value that an operation reads, if it is there.
pub type OptIn = Option<ValueId>;
/// A value that a loop defines in its body alone.
pub type LoopCounter = ValueId;
/// The receipt that a read needs, if it is of what peers put.
pub type OptReceipt = Option<ReceiptId>;
/// What an `If` yields: each result with the value of either arm.
pub type Results = Vec<(ValueId, ValueId, ValueId)>;
/// Rows of a matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The matrix: a parameter of this rank, or to be read a peer's window.
    pub place: Place,
    /// The first of them (`U32`).
    pub row: ValueId,
    /// The row from which on none is there (`U32`), if that is not all that the matrix has.
    pub end: OptIn,
    /// The receipt that reading it needs.
    pub receipt: OptReceipt,
    /// Whether the rows from `end` on are anything, and not zeros: who multiplies may read them.
    #[serde(default)]
    pub loose: bool,
    /// The vector of `U32` that names them, if they are scattered: the first of them is row `list[row]`, and `end` is an element of it. Rows
    /// of zeros stand for elements that the list has not, and for rows that the matrix has not.
    #[serde(default)]
    pub list: Option<ParamId>,
    /// The vector of `U32` with the scales of an operand's elements of fp8 or e2m1, if they have scales of blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<ParamId>,
}
/// The tiles of a `ReceiveMessages`.
pub type Tiles = Vec<Taken>;

/// Elements of a vector of `U32` in this rank's memory, which say where something else is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The vector.
    pub param: ParamId,
    /// The first of the elements (`U32`).
    pub first: ValueId,
}
/// A list, if there is one.
pub type OptList = Option<List>;

/// A comptime constant. Floats are kept by bits so that constants compare and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Const {
    /// Truth value.
    Bool(bool),
    /// Signed 32-bit value.
    I32(i32),
    /// Unsigned 32-bit value.
    U32(u32),
    /// Unsigned 64-bit value.
    U64(u64),
    /// The bits of an `f32`.
    F32(u32),
}

/// Associative operation of a reduction, scan or atomic. Float sums follow a fixed tree that depends on the
/// group's size only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ReduceOp {
    Sum,
    Min,
    Max,
    And,
    Or,
}

/// Columns of a block of a matrix whose blocks are interleaved.
pub const COLUMN_BLOCK: u32 = 16;

/// What of a matrix a reduction goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Lines {
    /// Each row, over its columns.
    Rows,
    /// Each column, over its rows.
    Columns,
}

impl Lines {
    /// One word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Lines::Rows => "rows",
            Lines::Columns => "columns",
        }
    }

    /// How many a matrix has; one of what is no matrix.
    pub(crate) fn count(self, ty: super::Type) -> u64 {
        let (rows, columns) = ty.shape().unwrap_or((1, 1));
        u64::from(if self == Lines::Rows { rows } else { columns })
    }
}

/// Which memory an access goes to. The space decides the memory scope: shared is block, param is gpu, peer is system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// This rank's own instance of a buffer parameter (plain or symmetric).
    Param(ParamId),
    /// A shared-memory array of the group.
    Shared(SharedId),
    /// A rank's instance of a window, to be read only; the rank (`U32`) may be this one.
    Peer(ParamId, ValueId),
    /// All ranks' instances of a window at once, to be read only by a `Load` of a tile: each element is the reduction of theirs, which
    /// the switch between the GPUs computes. Reading it needs the receipt of a wait for all ranks. Tiles and indices are of
    /// whole 16 bytes; elements are floats, added in `F32` and rounded once, in no defined order. The simulator's is that of ranks.
    All(ParamId, ReduceOp),
}

impl Place {
    /// The parameter, if it is not shared memory.
    pub const fn param(self) -> Option<ParamId> {
        match self {
            Place::Param(param) | Place::Peer(param, _) | Place::All(param, _) => Some(param),
            Place::Shared(_) => None,
        }
    }

    /// The shared array, if it is one.
    pub const fn shared(self) -> Option<SharedId> {
        match self {
            Place::Param(_) | Place::Peer(..) | Place::All(..) => None,
            Place::Shared(shared) => Some(shared),
        }
    }

    /// The rank whose instance it is, if an operand says so.
    pub const fn rank(self) -> Option<ValueId> {
        match self {
            Place::Peer(_, rank) => Some(rank),
            Place::Param(_) | Place::Shared(_) | Place::All(..) => None,
        }
    }
}

/// Destination of a put or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// One rank; the value is a `U32` scalar.
    Rank(ValueId),
    /// Every rank whose bit is set; the value is a `U64` scalar. May include this rank, may be zero.
    Mask(ValueId),
}

/// A tile of a `ReceiveMessages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The tile.
    pub out: ValueId,
    /// Its first element in the buffer, or where its elements stand.
    pub index: ValueId,
    /// The rank that sends it (`U32`), or each of them, for the diagnosis.
    pub from: ValueId,
}

/// What an operation does, by group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OpKind {
    /// Computes values.
    Value(ValueOp),
    /// Accesses memory.
    Memory(MemoryOp),
    /// Works on matrices.
    Matrix(MatrixOp),
    /// Communicates.
    Comm(CommOp),
    /// Controls what runs.
    Control(ControlOp),
}

operations! {
    /// What computes values of values. Elementwise operations (`Binary`, `Unary`, `Compare`, `Select`, `Cast`, `Fma`) take operands
    /// of one shape; the tracer inserts `Splat` where an author mixes scalars and tiles.
    ValueOp {
        /// A comptime constant.
        Const = "constant", { out: Out, value: Const }
        /// This rank's number among those of its machine, `U32`.
        Rank = "rank", { out: Out }
        /// The number of this rank's machine, `U32`.
        Node = "node", { out: Out }
        /// The active ranks of this machine as a mask, `U64`: bit `r` is rank `r`'s. All of them, unless the world has gone on without
        /// some. It stays the same for the whole launch.
        Active = "active ranks", { out: Out }
        /// The value of a scalar parameter.
        ScalarParam = "scalar parameter", { out: Out, param: ParamId }
        /// The epoch that this launch works in, `U32`: the successor of the word at `word[0]` (never 0; after the largest
        /// value comes 2, so that parity keeps alternating). With `advance`, the last block to begin stores it back.
        /// Only in the prologue, at most once a parameter.
        Epoch = "epoch", { out: Out, word: ParamId, advance: bool }
        /// Index of the current group among the groups of its role, `U32`. Consecutive indices go to different blocks
        /// first: group `i` is group `i / blocks` of block `i % blocks`.
        GroupIndex = "group_index", { out: Out }
        /// Two-operand arithmetic.
        Binary = op.symbol(), { out: Out, op: BinaryOp, a: In, b: In }
        /// One-operand arithmetic.
        Unary = op.name(), { out: Out, op: UnaryOp, a: In }
        /// Comparison.
        Compare = op.symbol(), { out: Out, op: CompareOp, a: In, b: In }
        /// `cond ? a : b`, elementwise; `cond` is `Bool` of the same shape.
        Select = "select", { out: Out, cond: In, a: In, b: In }
        /// Conversion to the element type of `out`. Float to narrower float rounds to nearest even (fp8 saturates);
        /// float to integer truncates and saturates; integers wrap or extend.
        Cast = "cast", { out: Out, a: In }
        /// `a * b + c` with one rounding, `F32`.
        Fma = "fma", { out: Out, a: In, b: In, c: In }
        /// Same bits as another type of the same width (`F32`/`U32`/`I32`).
        Bitcast = "bitcast", { out: Out, a: In }
        /// A tile with every element equal to a scalar.
        Splat = "splat", { out: Out, a: In }
        /// The `U32` tile 0, 1, 2, ...
        Arange = "arange", { out: Out }
        /// Reduction of a tile to a scalar that every lane of the group has.
        Reduce = op.pick(["reduce_sum", "reduce_min", "reduce_max", "reduce_and", "reduce_or"]), { out: Out, op: ReduceOp, a: In }
        /// Prefix reduction of a tile.
        Scan = op.pick(["scan_sum", "scan_min", "scan_max", "scan_and", "scan_or"]), { out: Out, op: ReduceOp, a: In, exclusive: bool }
    }
}

operations! {
    /// What accesses this rank's memory.
    MemoryOp {
        /// Reads one element (scalar `out`) or consecutive elements (tile `out`) from element `index` on.
        /// Reading a symmetric parameter needs the receipt of a wait that covers what peers put there, reading a peer's window
        /// that of a wait for the peer's signal that publishes it.
        Load = "load", { out: Out, place: Place, index: In, receipt: OptReceipt }
        /// As `Load` of a tile, but only where `mask` (`Bool` tile) holds; elsewhere `other` (same type as `out`), and
        /// memory is not touched.
        LoadMasked = "load_where", {
            out: Out,
            place: Place,
            index: In,
            mask: In,
            other: In,
            receipt: OptReceipt,
        }
        /// Reads element `index[i]` for each `i` (a `U32` tile), where `mask` holds; elsewhere `other`.
        Gather = "gather", {
            out: Out,
            place: Place,
            index: In,
            mask: In,
            other: In,
            receipt: OptReceipt,
        }
        /// Writes a scalar or consecutive elements from element `index` on, where `mask` holds.
        Store = "store", { place: Place, index: In, value: In, mask: OptIn }
        /// Writes `value[i]` to element `index[i]` where `mask` holds. Indices must be distinct. With `adds`, relaxed atomic additions
        /// instead, of integers or `F32`, in no order: indices may be equal.
        Scatter = if *adds { "scatter_add" } else { "scatter" }, { place: Place, index: In, value: In, mask: OptIn, adds: bool }
        /// Relaxed atomic on one element, done once by the group; `out` is the old value, had by every lane.
        Atomic = op.pick(["atomic_sum", "atomic_min", "atomic_max", "atomic_and", "atomic_or"]), { out: Out, op: ReduceOp, place: Place, index: In, value: In }
        /// Counts in order: for each `i` where `mask` (`Bool` tile) holds, one after the other, `out[i]` is element `index[i]`
        /// (`U32` tiles) of a `U32` place, which then grows by one. Elsewhere `out[i]` is 0. No other group may touch the place
        /// meanwhile.
        Tally = "tally", { out: Out, place: Place, index: In, mask: In }
        /// Adds one to a counter, once for the group: release of all that every lane of it did before, and acquire of what
        /// the groups that came before had released, at gpu scope. `out` (`Bool`, had by every lane) is whether this is the
        /// `count`-th (`U32`) to come, which sets the counter back to zero. It has then acquired what all of them released.
        Ticket = "ticket", { out: Out, counter: ParamId, index: In, count: In, order: SignalOrder }
    }
}

operation_structs! {
    /// What makes matrices of memory and stores them there. What lies beyond the last row or column of a matrix in memory reads as
    /// zero and is not written. Elementwise operations and reductions take matrices as they take vectors.
    MatrixOp {
        /// `out[i][j]` is `acc[i][j]`, or zero without `acc`, plus the sum of `a[i][x] * b[j][x]` over the `count` (`U32`) columns `x`
        /// from column `from` (`U32`) on. The elements of both are of one float type of 8 or 16 bits, `out` is `F32`; products are added in
        /// `F32`, in an order of the target's own. Both have as many columns, in whole 16 bytes, and so are `from` and `count`. Pieces of
        /// [`dot_columns`](crate::ir::dot_columns) columns go through `room`, a shared array of the group with space for `stages` of them.
        ///
        /// Operands of fp8 may have scales, both of them then: a power of two (e8m0) for each row and 32 columns, four to a word, and words
        /// in the order `[row / 128][word][row % 32][row / 32 % 4]`. Operands of `U32`, words of eight e2m1, have a scale of e4m3 for each
        /// 16 elements. Elements are multiplied by them first.
        ///
        /// With `paired` blocks 2i and 2i + 1 of the grid multiply by the same rows of `b`: the n-th such product of either block has the
        /// `b`, `from` and `count` of the other one's, so that either block may bring half of them.
        Dot = "dot", {
            out: Out,
            acc: OptIn,
            a: Rows,
            b: Rows,
            from: In,
            count: In,
            stages: u32,
            room: SharedId,
            paired: bool,
        }
        /// Reads rows of a matrix in memory, from `column` (`U32`) on.
        LoadMatrix = "load_matrix", { out: Out, at: Rows, column: In }
        /// A matrix each of whose rows, or each of whose columns, is elements `index` on of a vector in memory. With `list` element `i` of
        /// a column is element `index` (`U32`) + `list[i]` of the vector: zero where the vector or the list has none.
        LoadRow = if matches!(lines, Lines::Rows) { "load_row" } else { "load_column" }, { out: Out, lines: Lines, place: Place, index: In, receipt: OptReceipt, list: OptList }
        /// Reduction of each row, or each column, of a matrix of `F32` by itself: `out`, of the same shape, has it in each element of that
        /// row or column. Only sums, minima and maxima; in which order elements are added is the target's own.
        ReduceLines = op.along(*lines), { out: Out, op: ReduceOp, lines: Lines, a: In }
        /// Every other [`COLUMN_BLOCK`] columns of a matrix of `F32`, from the first block on, or with `odd` from the second one on. `out` has
        /// as many rows and half of the columns.
        Deinterleave = "deinterleave", { out: Out, a: In, odd: bool }
        /// Writes a matrix to rows of a matrix in memory of this rank, from `column` (`U32`) on.
        StoreMatrix = "store_matrix", { to: Rows, column: In, value: In }
    }
}

operation_structs! {
    /// What goes to other ranks or other blocks, or waits for them.
    CommOp {
        /// Stores a tile or scalar to the target ranks' instance of a symmetric buffer, as part of a parcel (whose target
        /// it has). Not ordered before the parcel is signalled.
        Put = "put", { parcel: ParcelId, buffer: ParamId, index: In, value: In, mask: OptIn }
        /// Stores a matrix to rows of the target ranks' instance of a symmetric matrix, from `column` (`U32`) on, as part of a parcel.
        /// What lies beyond its last row or column is left out.
        PutMatrix = "put_matrix", { parcel: ParcelId, to: Rows, column: In, value: In }
        /// As a `Put` of the `len` elements of this rank's own buffer `source` (of `Local` memory) from element `from` on. Where
        /// the target can, they are copied in bulk by way of `room`, a shared array of the group with space for all of them.
        BulkCopy = "copy", {
            parcel: ParcelId,
            buffer: ParamId,
            index: In,
            source: ParamId,
            from: In,
            len: u32,
            room: SharedId,
        }
        /// Store-release of `value` to element `index` of a symmetric `U32` flag array on the parcel's target ranks, after
        /// all that every lane of the group did before: the puts of the parcel, and also its other stores (those to windows
        /// among them), loads, takings and waits, and whatever those came after (such as earlier launches of this rank). A bare
        /// parcel has no puts. To an element of `Counts` the value is added.
        Signal = "signal", { parcel: ParcelId, flag: ParamId, index: In, value: In, order: SignalOrder }
        /// Polls this rank's own `flag[index]` until it equals `value`, then acquires. Bounded; on expiry the world aborts.
        /// `from` (`U32`) is the rank that signals, for the diagnosis. An element of `Counts` is then zero again.
        Wait = "wait", { receipt: ReceiptId, flag: ParamId, index: In, from: In, value: In }
        /// `Wait` on the `count` (`U32`) flags from `index` on, all against `value`; flag `index + i` is signalled by rank
        /// `(index + i) / per_rank % ranks`. With `only` (`U64`, then `count` is 64 at most), just tiles with their bit set. With
        /// `or_later`, a flag also does that has an epoch after `value`; 0 comes before all epochs. Flags that are so waited for may
        /// be signalled again before anybody has seen them.
        WaitAll = "wait_all", {
            receipt: ReceiptId,
            flag: ParamId,
            index: In,
            count: In,
            value: In,
            only: OptIn,
            per_rank: u32,
            or_later: bool,
        }
        /// Store-release of `value` to element `index` of this rank's flags between blocks, at gpu scope, after all that every
        /// lane of the group did before.
        BlockSignal = "block_signal", { flag: ParamId, index: In, value: In, order: SignalOrder }
        /// Polls the `count` (`U32`) flags between blocks from `index` on until each equals `value`, then acquires at gpu scope.
        /// Bounded like a wait. Flag `index + i` is signalled by block `from + i / per_block` (`U32`) of its role, or by any one if
        /// `from` is `ANY_BLOCK`, for the diagnosis.
        BlockWait = "block_wait", { flag: ParamId, index: In, count: In, from: In, value: In, per_block: u32 }
        /// Stores a tile to the target ranks' instance of a buffer of messages. Each message arrives at once and by itself, with `epoch`
        /// (`U32`) where the transport has one, and orders nothing else. With `count` (`U32`), only those messages that hold any of so many
        /// first elements. The next send to a place must come after all receives from it in the order that waits and signals make.
        SendMessages = transport.traits().send, {
            transport: Transport,
            buffer: ParamId,
            target: Target,
            index: In,
            value: In,
            epoch: OptIn,
            count: OptIn,
        }
        /// Polls this rank's own messages until all of them have arrived, with `epoch` where the transport has one, and reads them. Bounded
        /// like a wait; it orders nothing but the messages' own data. What is not received is zero.
        ///
        /// Packets: tile `i` begins at `index` and comes from rank `from` (`U32`), if bit `i` of `mask` (`U64`) is set. It is left empty.
        /// With `count` (`U32`), only those packets of each tile that hold any of so many first elements.
        /// LL: one tile, whose elements stand at `index` and come from ranks `from` (`U32` tiles), where `mask` (`Bool` tile) holds.
        ReceiveMessages = transport.traits().receive, {
            transport: Transport,
            buffer: ParamId,
            mask: In,
            tiles: Tiles,
            epoch: OptIn,
            count: OptIn,
        }
        /// Puts `len` elements of this rank's `outbox` from element `from` on to those of the target's `inbox` from element `index` on,
        /// asynchronously: `peer` (`U32`) is the target, and without it every rank of `reach` is. The source is read at any time until the
        /// put is locally complete, the message arrives in pieces in any order, and no other operation is ordered with it. Its arrival belongs to
        /// `counts[counter]` at the target; with `counted` it adds one there after its own bytes. The end of a kernel completes nothing.
        FarPut = "far_put", {
            peer: OptIn,
            outbox: ParamId,
            from: In,
            inbox: ParamId,
            index: In,
            len: u32,
            counts: ParamId,
            counter: In,
            counted: bool,
            reach: FarReach,
        }
        /// Adds `adds` (`U32`) to `counts[counter]` of rank `peer` (`U32`), or without it of every rank of `reach`. Behind the puts that the group has put
        /// for this counter in this launch it is the end of a batch: what the group did before the last of them comes before it. Without such
        /// puts it is a credit, after all that the group did.
        FarPublish = "far_publish", { peer: OptIn, counts: ParamId, counter: In, adds: In, reach: FarReach }
        /// Polls the `count` (`U32`) counters of this rank from `counter` on until each has `value` (`U32`) more than what waits have taken
        /// from it, and takes them. Bounded like a wait. Counter `counter + i` counts puts of rank `from + i` (`U32`); on a rail
        /// it is `i` times the ranks of a node. The own rank's is left out where `reach` says so. Nothing may be
        /// concluded of a part of the puts of a launch: reads need a receipt of all that the source puts for the counter in its launch.
        FarWait = "far_wait", {
            receipt: ReceiptId,
            counts: ParamId,
            counter: In,
            count: In,
            from: In,
            value: In,
            reach: FarReach,
        }
        /// Waits for local completion of the puts from an outbox that come before it: of this group, and of all groups and launches that waits,
        /// signals and the order of launches place before it. Their sources may be written again after it. Bounded like a wait.
        FarSettle = "far_settle", { outbox: ParamId }
    }
}

operations! {
    /// What decides which operations run, and variables, whose values depend on it.
    ControlOp {
        /// Both arms are regions; result `i` is `then.1` or `else.2` of its entry.
        If = "if", { cond: In, then: Region, otherwise: Region, results: Results }
        /// Counts `var` from `start` while below `end` by `step` (all of one integer type; `step` above zero).
        For = "for", { var: LoopCounter, start: In, end: In, step: In, body: Region }
        /// Runs `header`, stops unless `cond` (defined in it), runs `body`, and again.
        While = "while", { header: Region, cond: In, body: Region }
        /// Leaves the `depth`-th enclosing loop (0 is the innermost).
        Break = "break", { depth: u32 }
        /// Next round of the `depth`-th enclosing loop.
        Continue = "continue", { depth: u32 }
        /// Declares a mutable variable with its first value.
        VarDecl = "var", { var: VarId, init: In }
        /// Current value of a variable.
        VarGet = "variable", { out: Out, var: VarId }
        /// Assigns a variable.
        VarSet = "assignment", { var: VarId, value: In }
        /// Splits the block into groups of `warps` warps, each of which runs `body`; all meet again at its end. Not nested.
        Split = "split", { warps: u32, body: Region }
    }
}

/// Memory order of a signal. The DSL emits `Release` only; `Relaxed` exists so that tests can plant the bug that the
/// checker must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SignalOrder {
    /// Orders what every lane of the group did, its puts among it, before the flag.
    Release,
    /// Orders nothing.
    Relaxed,
}

/// An operation with the place in the author's source that it came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// The author's line.
    pub loc: super::Loc,
}
