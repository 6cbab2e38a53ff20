//! What can be wrong with a kernel.

use thiserror::Error;

use super::super::{Dtype, FarPart, Loc, ParamKind, Transport, Type};

/// Something wrong with a kernel, at the author's line.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{loc}: {problem}")]
pub struct VerifyError {
    /// Where.
    pub loc: Loc,
    /// What.
    pub problem: Problem,
}

/// What is wrong. Values and buffers are named as in the text form.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say what the variants mean and which names they carry
pub enum Problem {
    // The arenas.
    #[error("{what} {id} does not exist; there are {count}")]
    NoSuchId { what: &'static str, id: u32, count: usize },
    #[error("operation {op} stands in two places; each operation belongs to one region")]
    ReachedTwice { op: u32 },
    #[error("regions are nested more than {limit} deep")]
    NestedTooDeep { limit: usize },

    // Declarations.
    #[error("a kernel for {found} ranks; 1 to {limit} are possible")]
    Ranks { found: u32, limit: u32 },
    #[error("a kernel for {nodes} nodes with {ranks} ranks each; 1 to {limit} ranks in all are possible")]
    Nodes { nodes: u32, ranks: u32, limit: u32 },
    #[error("a kernel for {nodes} nodes without a far channel: nothing else reaches other nodes")]
    NodesApart { nodes: u32 },
    #[error("warps of {found} lanes; targets have 32 or 64")]
    WarpSize { found: u32 },
    #[error(
        "{warps} warps of {lanes} lanes a block; a block has at least one warp and at most {limit} threads"
    )]
    BlockWarps { warps: u32, lanes: u32, limit: u32 },
    #[error("the kernel has no role; declare at least one with `role(name, blocks, ..)`")]
    NoRoles,
    #[error("role `{role}` has no blocks; give it at least one or leave the role out")]
    NoBlocks { role: String },
    #[error(
        "role `{role}` goes on as `{to}`; it can go on as another role of the kernel that itself goes on as none"
    )]
    GoesOnNowhere { role: String, to: String },
    #[error(
        "role `{role}` has {warps} warps beside `{beside}`; it can have 1 to {limit} beside a role of as many blocks that runs \
         beside none and that no other goes on as, and goes on as none itself"
    )]
    Beside { role: String, beside: String, warps: u32, limit: u32 },
    #[error(
        "role `{role}` multiplies in pairs, and has {blocks} blocks from {first} on in a grid of {grid}; all three are even, no role runs \
         beside another, and none goes on as another"
    )]
    Pairs { role: String, blocks: u32, first: u32, grid: u32 },
    #[error(
        "role `{role}` is on ranks {ranks:?}; name ranks of 0 to {last}, at least one, each once and in order"
    )]
    RoleRanks { role: String, ranks: Vec<u32>, last: u32 },
    #[error("role `{role}` shares blocks with `{other}`, which is on other ranks")]
    OtherRanks { role: String, other: String },
    #[error("a split in role `{role}`, which runs beside another: it is one group")]
    SplitBeside { role: String },
    #[error("the roles have {blocks} blocks together; a grid has at most {limit}")]
    GridTooLarge { blocks: u64, limit: u64 },
    #[error(
        "shared arrays that a block has at once take {found} bytes: {arrays}; the device with the most, {device}, has {limit}: let \
         arrays be smaller"
    )]
    SharedBytes { found: u64, arrays: String, device: &'static str, limit: u32 },
    #[error(
        "{blocks} blocks of {threads} threads and {shared_bytes} bytes of shared memory wait and must be resident at once; the \
         device that holds the most, {device}, holds {limit}: let roles have fewer or smaller blocks"
    )]
    ResidentBlocks { blocks: u32, threads: u32, shared_bytes: u64, device: &'static str, limit: u32 },
    #[error("the {what} name `{name}` is no identifier; use ASCII letters, digits and `_`")]
    BadName { what: &'static str, name: String },
    #[error("two {what}s are named `{name}`")]
    DuplicateName { what: &'static str, name: String },
    #[error("parameter `{param}` is {kind} of {found}; {allowed}")]
    ParamDtype { param: String, kind: &'static str, found: Dtype, allowed: &'static str },
    #[error("parameter `{param}` is {kind} with {len} elements; it has exactly one")]
    ParamLength { param: String, kind: &'static str, len: u64 },
    #[error(
        "{} `{param}` of {len} elements is no whole number of {}",
        transport.noun().split_once(' ').map_or("", |(_, noun)| noun),
        transport.messages(*unit)
    )]
    MessageBufferLength { transport: Transport, param: String, len: u64, unit: u32 },
    #[error("buffer `{param}` of {len} elements is larger than any address space")]
    BufferTooLarge { param: String, len: u64 },
    #[error("shared array `{shared}` of bool: truth values live in registers only; use u32")]
    SharedDtype { shared: String },
    #[error("shared array `{shared}` has no elements")]
    SharedEmpty { shared: String },
    #[error(
        "shared array `{shared}` has {copies} copies a block, which is no number of groups of {warps} warps"
    )]
    SharedCopies { shared: String, copies: u32, warps: u32 },
    #[error("{value} has {len} elements; a tile has 1 to {limit}")]
    TileLength { value: String, len: u32, limit: u32 },

    // Scopes.
    #[error("{value} is defined here and at {first}; a value is defined once")]
    DefinedTwice { value: String, first: Loc },
    #[error("{value} is not defined here{}", elsewhere(.defined))]
    NotVisible { value: String, defined: Option<Loc> },
    #[error("variable {var} is declared here and at {first}")]
    VarDeclaredTwice { var: String, first: Loc },
    #[error("variable {var} is not declared here{}", elsewhere(.declared))]
    VarNotVisible { var: String, declared: Option<Loc> },
    #[error(
        "variable {var} is declared outside this `split` and assigned in it; each group would have its own value"
    )]
    VarSetInSplit { var: String },
    #[error(
        "tile {value} is spread over the block and used by a group inside `split`; \
         store it to shared memory, or load it inside"
    )]
    TileCrossesSplit { value: String },
    #[error(
        "`{op}` in the prologue; only constants, rank, scalar parameters, epochs and scalar arithmetic go there"
    )]
    NotInPrologue { op: &'static str },
    #[error("an epoch is read inside a role; read it once, before the roles")]
    EpochInRole,
    #[error("the kernel begins early and has {found} epochs; it has one then, which it advances")]
    EarlyEpochs { found: usize },
    #[error(
        "`{op}` takes {what} from `{from}`, read at {at}, without a bound; the kernel begins early, and a launch before that gave up \
         may have left anything there: let `<` a bound that fits decide whether it runs, or take `min` or `%`"
    )]
    EarlyIndex { op: &'static str, what: &'static str, from: String, at: Loc },
    #[error("epoch word `{param}` is read here and at {first}; read it once")]
    EpochTwice { param: String, first: Loc },
    #[error(
        "`{op}` leaves loop {}, counting outwards; there are {loops} up to its role, split or loop condition",
        .depth + 1
    )]
    BadBreak { op: &'static str, depth: u32, loops: usize },
    #[error("`split` inside `split`")]
    NestedSplit,
    #[error("`split({warps})`: groups of {warps} warps do not divide a block of {block}")]
    SplitNotDividing { warps: u32, block: u32 },
    #[error(
        "shared array `{shared}` is one a group of a split into {copies}; here {groups} groups share a block"
    )]
    SharedScope { shared: String, copies: u32, groups: u32 },

    // Types.
    #[error("`{op}`: {what} {value} should be {expected}")]
    OperandType { op: &'static str, what: &'static str, value: String, expected: String },
    #[error("`{op}`: the result {value} should be {expected}")]
    ResultType { op: &'static str, value: String, expected: String },
    #[error("`{op}` does not work on {dtype}{}", storage(*.dtype))]
    NoArithmetic { op: &'static str, dtype: Dtype },
    #[error("no conversion from {from} to {to}; {advice}")]
    BadCast { from: Type, to: Type, advice: &'static str },
    #[error("`{op}` on parameter `{param}`, which is {}; it works on {needed}", .kind.noun())]
    WrongParamKind { op: &'static str, param: String, kind: ParamKind, needed: &'static str },
    #[error("`{param}` is symmetric memory that peers write: send to it with a put, do not store to it")]
    StoreToSymmetric { param: String },
    #[error("`{param}` of a peer is read only: store to this rank's own, and publish that with a signal")]
    StoreToPeer { param: String },
    #[error("`{param}` is a flag array: it is set by `signal` and read by `wait`, nothing else")]
    FlagAccess { param: String },
    #[error("`{op}`: {value} does not have the element type of `{buffer}`, {dtype}")]
    BufferDtype { op: &'static str, value: String, buffer: String, dtype: Dtype },
    #[error("`wait_all` with 0 flags a rank")]
    NoFlagsPerRank,
    #[error("a wait for zero flags of each block; it must be at least 1")]
    NoFlagsPerBlock,
    #[error("`wait_all` picks among {count} flags by a mask, which has 64 bits")]
    MaskedFlags { count: i128 },
    #[error("`wait_all` for an epoch or a later one picks flags by a mask: it waits for all of them")]
    LaterOfSome,
    #[error("`{source_name}` of {from} is copied to `{buffer}` of {to}")]
    CopyDtype { source_name: String, from: Dtype, buffer: String, to: Dtype },
    #[error("a copy of {bytes} bytes goes through `{room}`, which has {there}")]
    CopyRoom { room: String, there: u64, bytes: u64 },
    #[error("`{param}` is {}: {}", transport.noun(), transport.traits().purpose)]
    MessageAccess { transport: Transport, param: String },
    #[error("`{op}`: {}", transport.broken(value, *bytes, *unit))]
    BrokenMessage { op: &'static str, transport: Transport, value: String, bytes: u64, unit: u32 },
    #[error("`{op}` has an epoch where its transport has none, or none where it has one")]
    MessageEpoch { op: &'static str },
    #[error(
        "`{op}` reduces {dtype} of all ranks by {how}, which no switch does: f32 are added; f16 and bf16 are added, or the smallest or \
         largest taken"
    )]
    NoMultimem { op: &'static str, dtype: Dtype, how: &'static str },
    #[error("`{op}` reads `{buffer}` of all ranks at once: only a load of a tile without a mask does")]
    MultimemAccess { op: &'static str, buffer: String },
    #[error(
        "a put to `{buffer}` of all ranks at once is of a tile of f32, f16 or bf16 without a mask, in a parcel to all ranks"
    )]
    MultimemPut { buffer: String },
    #[error("`{op}`: {value} has {bytes} bytes; all ranks at once are read and put to by whole 16")]
    MultimemTile { op: &'static str, value: String, bytes: u64 },
    #[error(
        "`{op}`: index {value} of `{buffer}` of all ranks is not known to be a multiple of {unit} elements, which are 16 bytes; \
         compute it as a multiple of that"
    )]
    MultimemIndex { op: &'static str, buffer: String, value: String, unit: u32 },
    #[error(
        "`{op}` of `{param}`, which is no matrix of this rank's; give it a shape, `#[shape(|c| [rows, columns])]`"
    )]
    NoMatrix { op: &'static str, param: String },
    #[error("`{param}` has rows of {columns} elements, which are no whole 16 bytes; let {unit} divide them")]
    MatrixColumns { param: String, columns: u64, unit: u32 },
    #[error(
        "`dot` of rows of `{a}`, which have {a_columns} elements, with rows of `{b}`, which have {b_columns}"
    )]
    DotShapes { a: String, a_columns: u64, b: String, b_columns: u64 },
    #[error("`{op}` of rows of `{param}` that a list names; only the left operand of a product has such")]
    ListedRows { op: &'static str, param: String },
    #[error("`dot` of `{param}` without scales, and the other operand has some; give both scales, or none")]
    ScalesOfOne { param: String },
    #[error(
        "`dot` reads `{scales}` as scales of blocks; these are a vector of at least {words} u32 in this rank's own memory"
    )]
    NoScales { scales: String, words: u64 },
    #[error(
        "rows of `{param}` with the scales `{scales}`; `dot` takes such of fp8 or words of e2m1, 128 at once or a multiple, that no list \
         names, of a matrix with whole pieces: a multiple of 128 columns, of words of 32"
    )]
    ScaledRows { param: String, scales: String },
    #[error(
        "`dot` with scales of blocks and {what} {value}, which is not known to be a multiple of {unit}; multiply by a \
         constant"
    )]
    ScaledTile { what: &'static str, value: String, unit: u32 },
    #[error("`{op}` reads `{list}` as a list; lists are vectors of u32 in this rank's own memory")]
    NoList { op: &'static str, list: String },
    #[error("`load_row` of a list; columns alone are gathered")]
    ListOfColumns,
    #[error("`dot` of {dtype}; it multiplies bf16, fp16 or fp8")]
    DotDtype { dtype: Dtype },
    #[error("`dot` of `{a}`, which is of {dtype}, with `{b}`, which is of {other}")]
    DotDtypes { a: String, dtype: Dtype, b: String, other: Dtype },
    #[error("`dot` with {stages} stages; 2 to {limit} are possible")]
    DotStages { stages: u32, limit: u32 },
    #[error("`dot` goes through `{room}`, which has {there} bytes; {needed} are needed")]
    DotRoom { room: String, there: u64, needed: u64 },
    #[error(
        "`dot`: {what} {value} is not known to be a multiple of {unit} columns; compute it as a multiple of that"
    )]
    DotColumns { what: &'static str, value: String, unit: u32 },
    #[error("`{op}` of row {row} of `{param}`, which has {rows}")]
    NoSuchRow { op: &'static str, param: String, row: i128, rows: u64 },
    #[error("{value} has {len} elements, which are no whole rows of {columns}")]
    BrokenRows { value: String, len: u32, columns: u32 },
    #[error("`take_packets` of {count} tiles; 1 to 64 are possible")]
    TakenTiles { count: usize },
    #[error(
        "`{op}` on `{param}`, which is {} of a far channel: {}; LL words, packets, loads from peers, windows and switches reach the \
         ranks of one machine only", kind.noun(), part.purpose()
    )]
    NearOnFar { op: &'static str, param: String, kind: ParamKind, part: FarPart },
    #[error(
        "`far_put` of `{outbox}`, which is of {from}, to `{inbox}`, which is of {to}; a put moves elements as they are"
    )]
    FarDtype { outbox: String, from: Dtype, inbox: String, to: Dtype },
    #[error("`far_put` of no elements of `{outbox}` to `{inbox}`; a message has at least 1")]
    FarEmpty { outbox: String, inbox: String },
    #[error("`far_put` of {bytes} bytes of `{outbox}` to `{inbox}`; a message has at most {limit}")]
    FarLong { outbox: String, inbox: String, bytes: u64, limit: u64 },

    #[error(
        "the far channels need {channels} channels of an engine, one for each lane of a bank and one for credits: {arrays}; it has {limit}: let \
         channels be fewer, or have fewer lanes or one bank, and send what belongs together through one channel"
    )]
    FarChannels { channels: u64, arrays: String, limit: u64 },
    #[error(
        "the outboxes and inboxes of far channels have {bytes} bytes, with the unit that is for credits; an engine reaches {limit}: let \
         messages be fewer or shorter"
    )]
    FarMemory { bytes: u64, limit: u64 },
    #[error(
        "the far counters `{counts}` are {len}, which {ranks} ranks do not divide: each bank has one a rank"
    )]
    FarBanks { counts: String, len: u64, ranks: u32 },

    // Constant operands.
    #[error("`{op}` of elements {first}..{end} of `{buffer}`, which has {len}")]
    OutOfBounds { op: &'static str, buffer: String, first: i128, end: i128, len: u64 },
    #[error(
        "`{op}` indexes `{buffer}` of {len} elements with u32 {value}, which cannot reach all; use `.to_u64()`"
    )]
    NarrowIndex { op: &'static str, buffer: String, len: u64, value: String },
    #[error("{}", transport.inside(op, buffer, value, *unit))]
    InsideMessage { op: &'static str, transport: Transport, buffer: String, value: String, unit: u32 },
    #[error(
        "`far_put` at element {value} of `{buffer}`, which may be no multiple of {unit}: an engine moves 16 bytes at a time, so messages \
         begin at multiples of them"
    )]
    FarInsideUnit { buffer: String, value: String, unit: u32 },
    #[error("shift of {dtype} by {by}")]
    ShiftTooFar { dtype: Dtype, by: i128 },
    #[error("`{op}` by zero")]
    DivisionByZero { op: &'static str },
    #[error("`for` with step {step}; a step is above zero")]
    BadStep { step: i128 },
    #[error("rank {rank} of {ranks}")]
    NoSuchRank { rank: i128, ranks: u32 },

    // The protocol.
    #[error(
        "`{buffer}` is read without a receipt; peers write it: wait for their flag and pass what `wait` returned"
    )]
    ReceiptMissing { buffer: String },
    #[error("`{buffer}` is read with a receipt whose wait{} does not come before it on every path", at(.wait))]
    ReceiptNotVisible { buffer: String, wait: Option<Loc> },
    #[error("the receipt of this wait is also that of the wait at {first}")]
    ReceiptTwice { first: Loc },
    #[error("the receipt of this wait on `{waited}` names `{named}`")]
    ReceiptFlag { waited: String, named: String },
    #[error(
        "`{buffer}` is read after a wait on `{flag}`, but no parcel that signals `{flag}` puts into `{buffer}`"
    )]
    ReceiptCoversNothing { buffer: String, flag: String },
    #[error("puts to `{buffer}` that no signal publishes; signal the parcel")]
    NeverSignalled { buffer: String },
    #[error("this parcel is signalled here and at {first}; signal it once")]
    SignalledTwice { first: Loc },
    #[error("`{flag}` is signalled for a parcel into which nothing was put; signalling what was not sent")]
    EmptyParcel { flag: String },
    #[error("put to `{buffer}` in a parcel that is a signal without data; open a parcel for the put")]
    PutIntoBare { buffer: String },
    #[error("put to `{buffer}` after the parcel's signal at {signal}; put before signalling")]
    PutAfterSignal { buffer: String, signal: Loc },
    #[error(
        "the signal of `{flag}` stands in a branch or loop that the put at {put} is not in: \
         on some path the put is not signalled, or signalled twice"
    )]
    SignalElsewhere { flag: String, put: Loc },
    #[error("`{op}` leaves between the put at {put} and the parcel's signal at {signal}")]
    SignalSkipped { op: &'static str, put: Loc, signal: Loc },
    #[error(
        "puts to `{inbox}` are a batch that no `far_publish` of `{counts}` ends; publish them after the last of them, or let each put \
         count itself, `Publish::Each`"
    )]
    FarUnpublished { inbox: String, counts: String },
    #[error(
        "`far_publish` of `{counts}`, whose puts count themselves; leave it out, or let the channel publish batches, `Publish::Batch`"
    )]
    FarPublishedTwice { counts: String },
    #[error("relaxed {name} of `{flag}`: it does not order what is done before it")]
    Relaxed { name: &'static str, flag: String },
}

fn elsewhere(loc: &Option<Loc>) -> String {
    match loc {
        Some(loc) => format!(
            "; that is done at {loc}, which does not come before this on every path, or is in another branch, \
             loop, split or role"
        ),
        None => ", or anywhere".into(),
    }
}

fn storage(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => "; cast to f32 first",
        Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 => "",
    }
}

fn at(loc: &Option<Loc>) -> String {
    loc.map(|l| format!(" at {l}")).unwrap_or_default()
}
