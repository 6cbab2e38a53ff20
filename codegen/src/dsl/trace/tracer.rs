//! The tracer: a thread-local stack of traces, each an [`ir::Builder`](crate::ir::Builder) with the open regions.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use super::error::{TraceError, from_payload, install_hook, raise};
use super::scope::{RegionKind, Scope, ScopeId};
use crate::dsl::channel::{ChannelState, MessageState, TakenOnce};
use crate::dsl::comm::protocol::ParcelState;
use crate::dsl::memory::args::{Binder, KernelArgs, check_inputs, check_rows};
use crate::ir::{
    Builder, Const, Dtype, FAR_RANKS, Kernel, Loc, ParamId, ReceiptId, Region, SharedId, ValueId, VarId,
};

/// What is known about a kernel before it is traced.
#[derive(Clone, Debug)]
pub struct TraceMeta {
    /// Name of the kernel function.
    pub name: String,
    /// First paragraph of its docs.
    pub doc: String,
    /// The rest of them: what the launching side should know.
    pub usage: String,
    /// Full variant name, an identifier; the entry point's name in emitted source.
    pub variant: String,
    /// Comptime facts worth printing in a banner, in order (`hidden`, `7168`).
    pub config: Vec<(String, String)>,
    /// World size: ranks of all nodes.
    pub ranks: u32,
    /// Computers that the ranks are on, as many on each. Near channels, parcels and windows reach the ranks of a node, far channels those
    /// of all.
    pub nodes: u32,
    /// Lanes a warp: 32 (CUDA) or 64 (CDNA).
    pub warp_size: u32,
    /// Warps a block, the same for all roles.
    pub block_warps: u32,
    /// Where the kernel function is.
    pub loc: Loc,
}

impl TraceMeta {
    /// A kernel of this name at the caller's line, with its name as the variant and no config.
    #[track_caller]
    pub fn new(name: &str, ranks: u32, warp_size: u32, block_warps: u32) -> TraceMeta {
        TraceMeta {
            name: name.into(),
            doc: String::new(),
            usage: String::new(),
            variant: name.into(),
            config: vec![],
            ranks,
            nodes: 1,
            warp_size,
            block_warps,
            loc: Loc::caller(),
        }
    }
}

/// Where a value, variable, parcel or receipt was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub scope: ScopeId,
    pub loc: Loc,
}

/// Something that `let` can name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nameable {
    Value(ValueId),
    Var(VarId),
    /// An operation without a result: a name that follows it is not for what came before it.
    Nothing,
}

/// Where a shared array was declared, and in which role.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedMade {
    pub made: Made,
    pub role: Option<ScopeId>,
}

/// A read of a symmetric buffer with a receipt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboxRead {
    pub receipt: ReceiptId,
    pub buffer: ParamId,
    pub loc: Loc,
}

/// A trace in progress.
#[derive(Debug)]
pub(crate) struct Trace {
    pub id: u32,
    pub builder: Builder,
    /// All regions so far, and the indices of the open ones from the prologue inwards.
    pub scopes: Vec<Scope>,
    pub open: Vec<ScopeId>,
    /// Parallel to the kernel's arenas.
    pub values: Vec<Made>,
    pub vars: Vec<Made>,
    pub shared: Vec<SharedMade>,
    pub receipts: Vec<Made>,
    pub parcels: Vec<ParcelState>,
    pub channels: Vec<ChannelState>,
    pub messages: Vec<MessageState>,
    /// Loads from messages that may be read once.
    pub taken: Vec<TakenOnce>,
    /// Parallel to the values: the constant that each is, or that a tile is full of.
    pub constants: Vec<Option<Const>>,
    /// Values and variables in the order in which expressions yielded them.
    pub yielded: Vec<Nameable>,
    pub reads: Vec<InboxRead>,
    pub epochs: Vec<(ParamId, Loc)>,
    /// Work counters that a loop draws from: the array, which of it, and the loop.
    pub drawn: Vec<(ParamId, u32, Loc)>,
    /// What the open role goes on as, where it says so, and how many operations it has had by then.
    pub goes_on: Option<(String, Loc, usize)>,
    /// An error found where it could not be raised.
    pub deferred: Option<TraceError>,
    /// The last place that was traced.
    pub last: Loc,
}

thread_local! {
    static STACK: RefCell<Vec<Trace>> = const { RefCell::new(vec![]) };
}
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// Whether this thread is tracing a kernel.
pub fn active() -> bool {
    STACK.try_with(|s| s.try_borrow().map_or(true, |s| !s.is_empty())).unwrap_or(false)
}

/// Runs `f` on the innermost trace, if there is one.
pub(crate) fn try_current<R>(f: impl FnOnce(&mut Trace) -> R) -> Option<R> {
    STACK.with(|s| s.borrow_mut().last_mut().map(f))
}

/// Runs `f` on the innermost trace; panics at the caller's line when there is none.
pub(crate) fn with<R>(loc: Loc, f: impl FnOnce(&mut Trace) -> R) -> R {
    let done = try_current(|t| {
        t.last = loc;
        f(t)
    });
    done.unwrap_or_else(|| {
        raise(TraceError::new(
            loc,
            "a device operation outside a kernel",
            "call it from a `#[kernel]` function that `trace` (or a family's `trace`) runs",
        ))
    })
}

/// As [`with`], for what can fail: the error is raised once the trace is no longer borrowed.
pub(crate) fn attempt<R>(loc: Loc, f: impl FnOnce(&mut Trace) -> Result<R, TraceError>) -> R {
    with(loc, f).unwrap_or_else(|e| raise(e))
}

/// The place that was traced last, for code that has no place of its own.
pub(crate) fn last() -> Loc {
    try_current(|t| t.last).unwrap_or_else(Loc::caller)
}

/// Runs `body` once and returns the kernel it describes. `body` declares the parameters it needs through the [`Binder`];
/// see [`trace_args`] for kernels whose parameters are a `#[derive(KernelArgs)]` struct, and
/// [`Family::trace`](crate::family::Family::trace) for those of a family.
///
/// Traces nest (a kernel may trace another one) and run on any number of threads; a value of one trace used in another
/// is an error. Needs `panic = "unwind"`: that is how an error in the middle of an expression gets out. The first trace
/// installs a panic hook that keeps quiet about panics inside of traces, whose text and place the error has, and hands
/// all others on to the hook that was there before.
///
/// # Errors
/// [`TraceError`] when the kernel function misuses the DSL, or panics.
pub fn trace(meta: TraceMeta, body: impl FnOnce(&mut Binder)) -> Result<Kernel, TraceError> {
    check_meta(&meta)?;
    install_hook();
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let loc = meta.loc;
    STACK.with(|s| s.borrow_mut().push(Trace::new(id, meta)));
    let ran = catch_unwind(AssertUnwindSafe(|| body(&mut Binder::new(id, loc))));
    // Nothing unwinds past here, so the innermost trace is this one.
    let mut trace = STACK.with(|s| s.borrow_mut().pop()).expect("pushed above");
    match (ran, trace.deferred.take()) {
        (_, Some(error)) => Err(error),
        (Err(payload), None) => Err(from_payload(payload, trace.last)),
        (Ok(()), None) => trace.finish(),
    }
}

/// Traces a kernel function that takes a config and a struct of parameters.
///
/// # Errors
/// As [`trace`].
pub fn trace_args<A: KernelArgs>(
    meta: TraceMeta,
    config: &A::Config,
    kernel: impl FnOnce(&A::Config, &A),
) -> Result<Kernel, TraceError> {
    let mut specs = vec![];
    let kernel = trace(meta, |binder| {
        specs = A::params(config);
        let loc = binder.loc();
        attempt(loc, |_| check_rows(&specs, loc));
        binder.declare(specs.clone());
        let args = A::bind(config, binder);
        kernel(config, &args);
    })?;
    check_inputs(&kernel, &specs)?;
    Ok(kernel)
}

fn check_meta(meta: &TraceMeta) -> Result<(), TraceError> {
    let wrong = |message: String, help: &str| Err(TraceError::new(meta.loc, message, help));
    let (ranks, nodes) = (meta.ranks, meta.nodes);
    if !(1..=FAR_RANKS).contains(&nodes) || !ranks.is_multiple_of(nodes) {
        let help = format!("each node has as many ranks: name 1 to {FAR_RANKS} nodes that divide {ranks}");
        return wrong(format!("a world of {ranks} ranks on {nodes} nodes"), &help);
    }
    if !(1..=64).contains(&(ranks / nodes)) {
        let message = match nodes {
            1 => format!("a world of {ranks} ranks"),
            _ => format!("a node of {} ranks", ranks / nodes),
        };
        return wrong(message, "ranks go from 1 to 64");
    }
    if ranks > FAR_RANKS {
        return wrong(format!("a world of {ranks} ranks"), &format!("all nodes have 1 to {FAR_RANKS} ranks"));
    }
    if ![32, 64].contains(&meta.warp_size) {
        return wrong(format!("warps of {} lanes", meta.warp_size), "a warp has 32 lanes (CUDA) or 64 (HIP)");
    }
    let most = 1024 / meta.warp_size;
    if !(1..=most).contains(&meta.block_warps) {
        let help = format!("a block has 1 to {most} warps of {} lanes", meta.warp_size);
        return wrong(format!("blocks of {} warps", meta.block_warps), &help);
    }
    Ok(())
}

impl Trace {
    fn new(id: u32, meta: TraceMeta) -> Trace {
        let near = meta.ranks / meta.nodes;
        let mut builder = Builder::new(&meta.name, near, meta.warp_size, meta.block_warps, meta.loc);
        builder.kernel.nodes = meta.nodes;
        builder.kernel.doc = meta.doc;
        builder.kernel.usage = meta.usage;
        builder.kernel.variant = meta.variant;
        builder.kernel.config = meta.config;
        let prologue = Scope {
            kind: RegionKind::Prologue,
            loc: meta.loc,
            parent: None,
            depth: 0,
            spliced: false,
            known: Default::default(),
        };
        Trace {
            id,
            builder,
            scopes: vec![prologue],
            open: vec![0],
            values: vec![],
            vars: vec![],
            shared: vec![],
            receipts: vec![],
            parcels: vec![],
            channels: vec![],
            messages: vec![],
            taken: vec![],
            constants: vec![],
            yielded: vec![],
            reads: vec![],
            epochs: vec![],
            drawn: vec![],
            goes_on: None,
            deferred: None,
            last: meta.loc,
        }
    }

    /// Ends the trace: the checks that need the whole kernel, then the removal of what nothing uses.
    fn finish(self) -> Result<Kernel, TraceError> {
        super::check::at_end(&self)?;
        let mut kernel = self.builder.finish();
        super::check::drop_unused(&mut kernel);
        Ok(kernel)
    }

    /// Remembers an error for the end of the trace; the first one counts.
    pub fn defer(&mut self, error: TraceError) {
        self.deferred.get_or_insert(error);
    }

    pub fn open_scope(&mut self, kind: RegionKind, loc: Loc) -> ScopeId {
        let id = self.scopes.len() as ScopeId;
        let parent = self.open.last().copied();
        self.scopes.push(Scope {
            kind,
            loc,
            parent,
            depth: self.open.len(),
            spliced: false,
            known: Default::default(),
        });
        self.open.push(id);
        self.builder.begin();
        id
    }

    /// Closes `scope`, which is the innermost one unless an inner one was left by an error that is deferred.
    pub fn close_scope(&mut self, scope: ScopeId) -> Region {
        if !self.open.contains(&scope) {
            return Region::default();
        }
        loop {
            let region = self.builder.end();
            if self.open.pop() == Some(scope) {
                return region;
            }
        }
    }

    /// Moves the operations of a closed region to the end of the innermost open one, which is around it.
    pub fn splice_scope(&mut self, scope: ScopeId, region: Region) {
        for op in region.ops {
            self.builder.append(op);
        }
        self.scopes[scope as usize].spliced = true;
        let known = std::mem::take(&mut self.scopes[scope as usize].known);
        let outer = *self.open.last().expect("the prologue is open");
        self.scopes[outer as usize].known.extend(known);
    }

    /// The region that things made in `scope` belong to.
    pub fn resolve(&self, mut scope: ScopeId) -> ScopeId {
        while let (true, Some(parent)) =
            (self.scopes[scope as usize].spliced, self.scopes[scope as usize].parent)
        {
            scope = parent;
        }
        scope
    }

    /// Whether things made in `scope` exist at the current place.
    pub fn is_open(&self, scope: ScopeId) -> bool {
        let scope = self.resolve(scope);
        self.open.get(self.scopes[scope as usize].depth) == Some(&scope)
    }

    /// Whether `scope` is the innermost open region, or in it.
    pub fn is_inside(&self, scope: ScopeId) -> bool {
        let here = self.open.last().copied();
        std::iter::successors(Some(scope), |&s| self.scopes[s as usize].parent)
            .any(|s| Some(self.resolve(s)) == here)
    }

    /// The open regions from the prologue inwards.
    pub fn open_scopes(&self) -> impl DoubleEndedIterator<Item = &Scope> {
        self.open.iter().map(|&s| &self.scopes[s as usize])
    }

    /// The split that is open, or was opened since `scope`: warps a group and where it begins.
    pub fn split_since(&self, scope: ScopeId) -> Option<(u32, Loc)> {
        let depth = self.scopes[self.resolve(scope) as usize].depth;
        self.open_scopes().skip(depth + 1).find_map(|s| Some((s.kind.split()?, s.loc)))
    }

    /// Groups of the block of which each has an array of its own that is declared now.
    pub fn groups(&self) -> u32 {
        let split = self.open_scopes().find_map(|s| s.kind.split());
        split.map_or(1, |warps| self.builder.kernel.block_warps / warps)
    }

    /// Declares a shared array of the current group.
    pub fn share(&mut self, name: &str, dtype: Dtype, len: u32, loc: Loc) -> SharedId {
        let (role, made) = (self.open.get(1).copied(), self.made(loc));
        let id = self.builder.shared(name, dtype, len, self.groups(), loc);
        self.shared.push(SharedMade { made, role });
        id
    }

    /// Place of birth of something made now.
    pub fn made(&self, loc: Loc) -> Made {
        Made { scope: *self.open.last().expect("the prologue is open"), loc }
    }
}
