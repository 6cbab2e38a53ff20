//! The kernel: arenas of values and operations, parameters, and roles.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::device;

use super::{Const, Dtype, FarPart, Op, OpKind, Place, Target, Transport, Type, ValueOp};

macro_rules! id {
    ($(#[$m:meta])* $name:ident) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl $name {
            /// As an index into the arena.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
id!(/// Index of a value.
    ValueId);
id!(/// Index of an operation.
    OpId);
id!(/// Index of a kernel parameter.
    ParamId);
id!(/// Index of a shared-memory array.
    SharedId);
id!(/// Index of a mutable variable.
    VarId);
id!(/// Index of a parcel: the puts to one target that a signal publishes together.
    ParcelId);
id!(/// Index of a receipt: what a wait yields and reading an inbox requires.
    ReceiptId);

/// A place in the kernel author's source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Loc {
    /// File as the compiler names it.
    pub file: &'static str,
    /// Line, from 1; 0 after [`Kernel::forget_lines`].
    pub line: u32,
    /// Column, from 1.
    pub col: u32,
}

impl Loc {
    /// The caller's place; call it from `#[track_caller]` functions.
    #[track_caller]
    pub fn caller() -> Loc {
        let l = std::panic::Location::caller();
        Loc { file: l.file(), line: l.line(), col: l.column() }
    }

    /// The file shortened to start at its last `src`, `tests` or `examples` folder when it is an absolute path, so that
    /// emitted text does not depend on where a dependency was unpacked.
    pub fn short_file(&self) -> &'static str {
        if !self.file.starts_with('/') && !self.file.contains(":\\") {
            return self.file;
        }
        ["/src/", "/tests/", "/examples/"]
            .iter()
            .filter_map(|m| self.file.rfind(m))
            .max()
            .map_or(self.file, |at| &self.file[at + 1..])
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(self.short_file()),
            line => write!(f, "{}:{line}", self.short_file()),
        }
    }
}

/// File, line and column; the file as [`Loc::short_file`] has it.
impl Serialize for Loc {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.short_file(), self.line, self.col).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Loc {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Loc, D::Error> {
        let (file, line, col) = <(String, u32, u32)>::deserialize(from)?;
        Ok(Loc { file: interned(file), line, col })
    }
}

/// The one copy of a file's name, which lives as long as the process.
fn interned(file: String) -> &'static str {
    static FILES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.get(file.as_str()).copied().unwrap_or_else(|| {
        let kept: &'static str = file.leak();
        files.insert(kept);
        kept
    })
}

impl fmt::Debug for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.short_file(), self.line, self.col)
    }
}

/// An ordered list of operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// The operations, by arena index.
    pub ops: Vec<OpId>,
}

/// A value of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// The author's name for it, when it was bound with `let`. Not unique.
    pub name: Option<String>,
}

/// A mutable variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Var {
    /// Type of its values.
    pub ty: Type,
    /// The author's name for it.
    pub name: Option<String>,
    /// Where it is declared.
    pub loc: Loc,
}

/// What a parameter is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParamKind {
    /// A buffer in this rank's global memory.
    Local,
    /// A symmetric buffer: every rank has one of the same size at a handle known to all.
    Symmetric,
    /// A symmetric buffer whose owner stores to its own instance, and which peers read after the owner's signal, or put into.
    Window,
    /// A symmetric array of `U32` flags, zero before the first launch.
    Flags,
    /// A symmetric array of `U32` counts, zero before the first launch: a signal adds to one, and the wait for it sets it back to zero.
    Counts,
    /// A symmetric buffer of messages that say by themselves that they have arrived.
    Messages(Transport),
    /// A part of a far channel.
    Far(FarPart),
    /// A word of this rank's global memory that holds the epoch (`U32[1]`, zero before the first launch).
    EpochWord,
    /// `U32` counters of this rank's global memory, zero before the first launch.
    Counters,
    /// `U32` flags in this rank's global memory, which its blocks signal to each other; zero before the first launch.
    BlockFlags,
    /// A scalar passed by value.
    Scalar,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Param {
    /// Field name in the author's `KernelArgs` struct.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
    /// Element type.
    pub dtype: Dtype,
    /// Number of elements (1 for a scalar).
    pub len: u64,
    /// Elements of a row, of a matrix: its rows follow one another.
    pub columns: Option<u64>,
    /// Whether it is the operation's own: callers neither give nor read it.
    pub own: bool,
    /// First line of the field's doc comment.
    pub doc: String,
}

impl Param {
    /// Bytes of memory that an element takes, its epoch included.
    pub const fn element_bytes(&self) -> u32 {
        self.kind.element_bytes(self.dtype)
    }

    /// Rows and columns, of a matrix.
    pub fn shape(&self) -> Option<(u64, u64)> {
        self.columns.and_then(|columns| Some((self.len.checked_div(columns)?, columns)))
    }

    /// What a caller has to agree with, in words: `x: Local of 64 F32`.
    pub fn signature(&self) -> String {
        signature(&self.name, self.kind, self.dtype, self.len)
    }
}

/// See [`Param::signature`].
pub(crate) fn signature(name: &str, kind: ParamKind, dtype: Dtype, len: u64) -> String {
    format!("{name}: {kind:?} of {len} {dtype:?}")
}

/// What stands between the words of a parameter and those of the order of its elements.
const ORDER: &str = ", in the order of ";

/// The words of a parameter whose elements an emitted kernel keeps in another order than that of their indices.
pub(crate) fn in_order(signature: &str, order: &str) -> String {
    format!("{signature}{ORDER}{order}")
}

/// Of the words of an emitted kernel's parameter, its [signature](Param::signature) and the order in which its elements lie in
/// memory; none where that is the order of their indices. Kernels that share a buffer must agree in both.
pub fn signature_and_order(words: &str) -> (&str, Option<&str>) {
    words.split_once(ORDER).map_or((words, None), |(signature, order)| (signature, Some(order)))
}

impl ParamKind {
    /// Whether every rank has one that every rank can reach.
    pub const fn is_symmetric(self) -> bool {
        match self {
            any!(symmetric) => true,
            any!(private) | ParamKind::Local | ParamKind::Far(_) => false,
        }
    }

    /// Bytes of memory that an element of a type takes in such a parameter.
    pub const fn element_bytes(self, dtype: Dtype) -> u32 {
        match self {
            ParamKind::Messages(transport) => transport.element_bytes(dtype),
            any!(private)
            | ParamKind::Local
            | ParamKind::Symmetric
            | ParamKind::Window
            | ParamKind::Flags
            | ParamKind::Counts
            | ParamKind::Far(_) => dtype.bytes(),
        }
    }
}

/// A shared-memory array. Every group that runs the declaring region has its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// The author's name for it.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Number of elements.
    pub len: u32,
    /// How many groups of a block have one each (1 when declared at block level, else block warps / split warps).
    pub copies: u32,
    /// Where it is declared.
    pub loc: Loc,
}

/// A parcel: puts to one target, published by one signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parcel {
    /// Where its puts and its signal go.
    pub target: Target,
    /// Whether it is a signal without data, which nothing is put for. Any other parcel has puts, or publishes windows.
    pub bare: bool,
    /// Whether its puts are stores to all ranks at once, each of which the switch between the GPUs multiplies. Its target is all
    /// ranks then, and tiles and indices are of whole 16 bytes.
    pub multicast: bool,
    /// The windows of this rank that its signal publishes, too: the target ranks may read them with a receipt of it.
    pub windows: Vec<ParamId>,
    /// Where it is opened.
    pub loc: Loc,
}

/// A receipt of a wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The flag array waited on.
    pub flag: ParamId,
    /// Where the wait stands.
    pub loc: Loc,
}

/// A named set of blocks with a body of its own. Blocks of the first role get the lowest block indices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// Name, an identifier.
    pub name: String,
    /// Number of blocks.
    pub blocks: u32,
    /// What each block runs.
    pub body: Region,
    /// Name of the role that its blocks go on as when they are done with the body. There they come after that role's own blocks.
    pub goes_on_as: Option<String>,
    /// The blocks that it runs in beside another role, with warps of its own; as many as that role has.
    pub beside: Option<Beside>,
    /// Where it is declared.
    pub loc: Loc,
    /// The ranks that have its blocks, in order; all ranks if there is no list. It stands last, as packs of older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Vec<u32>>,
}

impl Role {
    /// Whether a rank has its blocks.
    pub fn is_on(&self, rank: u32) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| ranks.contains(&rank))
    }
}

/// Warps of its own that a role has in each block of another role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// Name of the other role.
    pub role: String,
    /// Warps in each of its blocks.
    pub warps: u32,
}

/// A traced kernel. All arenas are append-only; ids index them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Name of the author's function.
    pub name: String,
    /// First paragraph of its docs.
    pub doc: String,
    /// The rest of them, line by line: what the launching side should know. Emitted headers say it.
    pub usage: String,
    /// Full variant name; the entry point's name in emitted source.
    pub variant: String,
    /// Comptime facts worth printing in a banner, in order (`hidden = 7168`).
    pub config: Vec<(String, String)>,
    /// Ranks of a node, which reach each other's memory.
    pub ranks: u32,
    /// Lanes a warp: 32 (CUDA) or 64 (CDNA).
    pub warp_size: u32,
    /// Warps a block, the same for all roles but those that run [beside](Role::beside) another one.
    pub block_warps: u32,
    /// Parameters, in order.
    pub params: Vec<Param>,
    /// Shared-memory arrays.
    pub shared: Vec<Shared>,
    /// Values.
    pub values: Vec<Value>,
    /// Variables.
    pub vars: Vec<Var>,
    /// Parcels.
    pub parcels: Vec<Parcel>,
    /// Receipts.
    pub receipts: Vec<Receipt>,
    /// Operations.
    pub ops: Vec<Op>,
    /// Whether the launch begins its epoch while the launch before it may still run, and lets the next one do so: see
    /// [`EpochWord::begin_early`](crate::dsl::EpochWord::begin_early). It has one epoch then, and advances it.
    pub begins_early: bool,
    /// Run by every block before its role: constants, rank, epochs, scalar arithmetic.
    pub prologue: Region,
    /// Roles, in order of block index.
    pub roles: Vec<Role>,
    /// Where the kernel function is.
    pub loc: Loc,
    /// Computers that it runs on, each with `ranks` ranks. What is not far reaches the ranks of the own one only, by their numbers there.
    #[serde(default = "one_node")]
    pub nodes: u32,
}

const fn one_node() -> u32 {
    1
}

/// Bytes that a lane sends and takes at once, and that a packet buffer's tiles and indices are multiples of.
pub const PACKET_BYTES: u32 = 16;

/// In place of a block that signals flags between blocks: whichever has drawn the work that the flags are for. No launch has so many blocks.
pub const ANY_BLOCK: u32 = 0xffff;

/// Bytes that a piece of a `Dot` has of each row in shared memory.
pub const DOT_ROW_BYTES: u32 = 128;

/// Columns of the pieces that a `Dot` brings to shared memory: 64 of a 16-bit type, 128 of fp8.
pub const fn dot_columns(dtype: Dtype) -> u32 {
    DOT_ROW_BYTES / dtype.bytes()
}

/// Rows of a tile of scales, where both operands of a `Dot` have scales of blocks: 128 words of four.
pub const SCALES_TILE: u32 = 128;

/// Elements of a column of operands that have scales of blocks, and elements of a block: words are of eight e2m1.
pub const fn scaled_elements(dtype: Dtype) -> (u32, u32) {
    if matches!(dtype, Dtype::U32) { (8, 16) } else { (1, 32) }
}

/// Words of four scales that a row has in a piece.
pub const fn scale_words(dtype: Dtype) -> u32 {
    let (elements, block) = scaled_elements(dtype);
    dot_columns(dtype) * elements / (4 * block)
}

/// Where the word with the scales of a row and 128 columns is, `of` the words of a row.
pub const fn scales_word(row: u64, word: u64, of: u64) -> u64 {
    let tile = SCALES_TILE as u64;
    (row / tile * of + word) * tile + row % 32 * 4 + row / 32 % 4
}

impl Kernel {
    /// Ranks of all machines, which far channels reach: `node * ranks + rank` each.
    pub const fn all_ranks(&self) -> u32 {
        self.nodes * self.ranks
    }

    /// The number of a rank of all machines among those of its own.
    pub fn near(&self, rank: u32) -> u32 {
        rank % self.ranks.max(1)
    }

    /// Forgets the lines of the author's source. Files stay, and different places stay different: columns number them. What is
    /// emitted differs in comments only.
    pub fn forget_lines(&mut self) {
        let mut places: HashMap<Loc, u32> = HashMap::new();
        let mut forget = |loc: &mut Loc| {
            let next = places.len() as u32 + 1;
            *loc = Loc { line: 0, col: *places.entry(*loc).or_insert(next), ..*loc };
        };
        forget(&mut self.loc);
        self.ops.iter_mut().for_each(|op| forget(&mut op.loc));
        self.vars.iter_mut().for_each(|var| forget(&mut var.loc));
        self.shared.iter_mut().for_each(|shared| forget(&mut shared.loc));
        self.parcels.iter_mut().for_each(|parcel| forget(&mut parcel.loc));
        self.receipts.iter_mut().for_each(|receipt| forget(&mut receipt.loc));
        self.roles.iter_mut().for_each(|role| forget(&mut role.loc));
    }

    /// Bytes that arrive together: what devices with warps of this size store whole, or wait for as a whole. Each ends in a word
    /// of all ones while it is empty.
    pub fn packet_bytes(&self) -> u32 {
        device::packet_bytes(self.warp_size).unwrap_or(PACKET_BYTES)
    }

    /// Threads of a block, those of roles beside others not counted.
    pub fn block_threads(&self) -> u32 {
        self.block_warps * self.warp_size
    }

    /// Whether a parameter's signals add, and waits take what they wait for.
    pub fn counts(&self, flag: ParamId) -> bool {
        self.params.get(flag.index()).is_some_and(|p| p.kind == ParamKind::Counts)
    }

    /// Blocks of a launch, the same on every rank: as many as the roles of the rank with most of them have.
    pub fn grid_blocks(&self) -> u32 {
        self.kinds_of_ranks().iter().map(|ranks| self.blocks_of(ranks[0])).max().unwrap_or(0)
    }

    /// Blocks of all roles that a rank has. Further blocks of a launch do nothing there.
    pub fn blocks_of(&self, rank: u32) -> u32 {
        self.blocks_before(self.roles.len(), rank)
    }

    /// Blocks of a rank's roles that stand before a role.
    fn blocks_before(&self, role: usize, rank: u32) -> u32 {
        let own = self.roles[..role].iter().filter(|r| r.beside.is_none() && r.is_on(rank));
        own.map(|r| r.blocks).sum()
    }

    /// The ranks, those that have the same roles together, in order of the first.
    pub fn kinds_of_ranks(&self) -> Vec<Vec<u32>> {
        let limited: Vec<&Role> = self.roles.iter().filter(|r| r.ranks.is_some()).collect();
        if limited.is_empty() {
            return vec![(0..self.ranks).collect()];
        }
        let mut kinds: Vec<(Vec<bool>, Vec<u32>)> = vec![];
        for rank in 0..self.ranks {
            let has: Vec<bool> = limited.iter().map(|r| r.is_on(rank)).collect();
            match kinds.iter_mut().find(|kind| kind.0 == has) {
                Some(kind) => kind.1.push(rank),
                None => kinds.push((has, vec![rank])),
            }
        }
        kinds.into_iter().map(|kind| kind.1).collect()
    }

    /// The roles that run beside a role, in order.
    pub fn companions(&self, role: usize) -> impl Iterator<Item = usize> + '_ {
        let name = &self.roles[role].name;
        let beside = move |r: &usize| self.roles[*r].beside.as_ref().is_some_and(|b| b.role == *name);
        (0..self.roles.len()).filter(beside)
    }

    /// Warps that all roles beside a role have together in a block.
    pub fn companion_warps(&self, role: usize) -> u32 {
        self.companions(role).map(|r| self.role_warps(r)).sum()
    }

    /// Warps that blocks have for roles beside others: as many as the role with most of them needs.
    pub fn beside_warps(&self) -> u32 {
        (0..self.roles.len()).map(|role| self.companion_warps(role)).max().unwrap_or(0)
    }

    /// Warps that a role has in a block.
    pub fn role_warps(&self, role: usize) -> u32 {
        self.roles[role].beside.as_ref().map_or(self.block_warps, |beside| beside.warps)
    }

    /// The first block of a role in the grid of a rank that has it.
    pub fn first_block(&self, role: usize, rank: u32) -> u32 {
        if let Some(beside) = &self.roles[role].beside {
            let host = self.roles.iter().position(|r| r.name == beside.role && r.beside.is_none());
            return host.map_or(0, |host| self.first_block(host, rank));
        }
        self.blocks_before(role, rank)
    }

    /// Where a role's blocks are: ranks, and its first block on each of them. One row where it is the same block on all ranks that have
    /// the role.
    pub fn places(&self, role: usize) -> Vec<(Vec<u32>, u32)> {
        let mut places: Vec<(Vec<u32>, u32)> = vec![];
        for ranks in self.kinds_of_ranks().into_iter().filter(|ranks| self.roles[role].is_on(ranks[0])) {
            let first = self.first_block(role, ranks[0]);
            match places.iter_mut().find(|place| place.1 == first) {
                Some(place) => place.0.extend(ranks),
                None => places.push((ranks, first)),
            }
        }
        places.iter_mut().for_each(|place| place.0.sort_unstable());
        places
    }

    /// Whether a role's blocks are not the same on every rank.
    pub fn differs_by_rank(&self, role: usize) -> bool {
        self.roles[role].ranks.is_some() || self.places(role).len() > 1
    }

    /// The roles whose blocks go on as a role, in order.
    pub fn joining(&self, role: usize) -> impl Iterator<Item = usize> + '_ {
        let name = &self.roles[role].name;
        (0..self.roles.len()).filter(move |&r| self.roles[r].goes_on_as.as_ref() == Some(name))
    }

    /// Blocks that run a role's body: its own, then those of the roles that go on as it.
    pub fn role_blocks(&self, role: usize) -> u32 {
        self.roles[role].blocks + self.joining(role).map(|r| self.roles[r].blocks).sum::<u32>()
    }

    /// The role that a role's blocks go on as, and which of its blocks the first of them is.
    pub fn goes_on(&self, role: usize) -> Option<(usize, u32)> {
        let name = self.roles[role].goes_on_as.as_ref()?;
        let to = self.roles.iter().position(|r| r.name == *name)?;
        let before = self.joining(to).take_while(|&r| r != role).map(|r| self.roles[r].blocks);
        Some((to, self.roles[to].blocks + before.sum::<u32>()))
    }

    /// Whether blocks wait: for a rank, for a block, or in a `while` loop that accesses memory. Blocks of other kernels may run
    /// one after the other.
    pub fn waits(&self) -> bool {
        let mut waits = false;
        for role in &self.roles {
            self.walk(&role.body, &mut |_, op| {
                waits |= op.kind.accesses().iter().any(|a| a.access.waits());
                if let OpKind::Control(super::ControlOp::While { .. }) = op.kind {
                    for region in op.kind.regions() {
                        self.walk(region, &mut |_, op| waits |= !op.kind.accesses().is_empty());
                    }
                }
            });
        }
        waits
    }

    /// Bytes of shared memory a block declares, each array rounded up to 16 bytes.
    pub fn shared_bytes(&self) -> u64 {
        self.shared
            .iter()
            .map(|s| {
                (u64::from(s.len) * u64::from(s.dtype.bytes())).next_multiple_of(16) * u64::from(s.copies)
            })
            .sum()
    }

    /// The parameters that are reached by all ranks' instances at once: read through [`Place::All`](super::Place), or put to by
    /// a multicast parcel. A launch passes one more pointer of each, to all instances at once.
    pub fn multicast(&self) -> BTreeSet<ParamId> {
        let mut found = BTreeSet::new();
        for op in &self.ops {
            if let Some((parcel, buffer)) = op.kind.puts()
                && self.parcels.get(parcel.index()).is_some_and(|p| p.multicast)
            {
                found.insert(buffer);
            }
            let all = op.kind.accesses().into_iter().filter_map(|a| match a.place {
                Place::All(window, _) => Some(window),
                Place::Param(_) | Place::Peer(..) | Place::Shared(_) => None,
            });
            found.extend(all);
        }
        found
    }

    /// The operation with this id.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> Type {
        self.values[v.index()].ty
    }

    /// Adds a value.
    pub fn add_value(&mut self, ty: Type, name: Option<String>) -> ValueId {
        self.values.push(Value { ty, name });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Adds an operation to the arena (not to a region).
    pub fn add_op(&mut self, kind: impl Into<OpKind>, loc: Loc) -> OpId {
        self.ops.push(Op { kind: kind.into(), loc });
        OpId(self.ops.len() as u32 - 1)
    }

    /// Which constant each value is, for values defined by a `Const` operation.
    pub fn constants(&self) -> Vec<Option<Const>> {
        let mut c = vec![None; self.values.len()];
        for op in &self.ops {
            if let OpKind::Value(ValueOp::Const { out, value }) = op.kind {
                c[out.index()] = Some(value);
            }
        }
        c
    }

    /// Visits every operation reachable from a region, depth first, in program order.
    pub fn walk<'a>(&'a self, region: &'a Region, visit: &mut dyn FnMut(OpId, &'a Op)) {
        for &id in &region.ops {
            let op = self.op(id);
            visit(id, op);
            for r in op.kind.regions() {
                self.walk(r, visit);
            }
        }
    }
}
