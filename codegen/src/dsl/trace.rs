//! The tracer: a thread-local stack of traces, each an [`ir::Builder`](crate::ir::Builder) with the open regions.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use super::args::{Binder, KernelArgs};
use super::error::{TraceError, from_payload, install_hook, raise};
use super::fold::{self, Folded, Pure};
use super::protocol::ParcelState;
use super::scope::{RegionKind, Scope, ScopeId, escape};
use super::val::Raw;
use crate::ir::{Builder, Const, Kernel, Loc, OpKind, ParamId, ReceiptId, Region, Type, ValueId, VarId};

/// What is known about a kernel before it is traced.
#[derive(Clone, Debug)]
pub struct TraceMeta {
    /// Name of the kernel function.
    pub name: String,
    /// First paragraph of its docs.
    pub doc: String,
    /// Full variant name, an identifier; the entry point's name in emitted source.
    pub variant: String,
    /// Comptime facts worth printing in a banner, in order (`hidden`, `7168`).
    pub config: Vec<(String, String)>,
    /// World size.
    pub ranks: u32,
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
            variant: name.into(),
            config: vec![],
            ranks,
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
    /// Parallel to the values: the constant that each is, or that a tile is full of.
    pub constants: Vec<Option<Const>>,
    /// Values and variables in the order in which expressions yielded them.
    pub yielded: Vec<Nameable>,
    pub reads: Vec<InboxRead>,
    pub epochs: Vec<(ParamId, Loc)>,
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

/// Runs `body` once and returns the kernel it describes. `body` declares the parameters it needs through the
/// [`Binder`]; see [`trace_args`] for kernels whose parameters are a `#[derive(KernelArgs)]` struct.
///
/// Traces nest (a kernel may trace another one) and run on any number of threads; a value of one trace used in another
/// is an error. Needs `panic = "unwind"`: that is how an error in the middle of an expression gets out.
///
/// # Errors
/// [`TraceError`] when the kernel function misuses the DSL, or panics.
pub fn trace(meta: TraceMeta, body: impl FnOnce(&mut Binder)) -> Result<Kernel, TraceError> {
    check_meta(&meta)?;
    install_hook();
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let loc = meta.loc;
    let started = Started::new(id, meta);
    let ran = catch_unwind(AssertUnwindSafe(|| body(&mut Binder::new(id, loc))));
    let trace = started.finish();
    ran.map_err(|payload| from_payload(payload, trace.last))?;
    trace.finish()
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
    trace(meta, |binder| {
        binder.declare(A::params(config));
        let args = A::bind(binder);
        kernel(config, &args);
    })
}

fn check_meta(meta: &TraceMeta) -> Result<(), TraceError> {
    let wrong = |message: String, help: &str| Err(TraceError::new(meta.loc, message, help));
    if !(1..=64).contains(&meta.ranks) {
        return wrong(format!("a world of {} ranks", meta.ranks), "ranks go from 1 to 64");
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

/// A trace on the stack; taken off by `finish`, or by the destructor when something unwinds past it.
struct Started {
    id: u32,
    on_stack: bool,
    _here: PhantomData<*const ()>,
}

impl Started {
    fn new(id: u32, meta: TraceMeta) -> Started {
        STACK.with(|s| s.borrow_mut().push(Trace::new(id, meta)));
        Started { id, on_stack: true, _here: PhantomData }
    }

    fn finish(mut self) -> Trace {
        self.on_stack = false;
        let top = STACK.with(|s| s.borrow_mut().pop()).expect("pushed in new");
        assert_eq!(top.id, self.id, "traces end in the reverse order of their begin");
        top
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.on_stack {
            STACK.with(|s| s.borrow_mut().retain(|t| t.id != self.id));
        }
    }
}

impl Trace {
    fn new(id: u32, meta: TraceMeta) -> Trace {
        let mut builder = Builder::new(&meta.name, meta.ranks, meta.warp_size, meta.block_warps, meta.loc);
        builder.kernel.doc = meta.doc;
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
            constants: vec![],
            yielded: vec![],
            reads: vec![],
            epochs: vec![],
            deferred: None,
            last: meta.loc,
        }
    }

    /// Ends the trace: the checks that need the whole kernel, then the removal of what nothing uses.
    fn finish(mut self) -> Result<Kernel, TraceError> {
        if let Some(error) = self.deferred.take() {
            return Err(error);
        }
        super::check::at_end(&self)?;
        let mut kernel = self.builder.finish();
        super::check::drop_unused(&mut kernel);
        Ok(kernel)
    }

    /// Remembers an error for the end of the trace; the first one counts.
    pub fn defer(&mut self, error: TraceError) {
        self.deferred.get_or_insert(error);
    }

    // ---- regions

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

    /// The open regions from the prologue inwards.
    pub fn open_scopes(&self) -> impl DoubleEndedIterator<Item = &Scope> {
        self.open.iter().map(|&s| &self.scopes[s as usize])
    }

    /// The split that is open, or was opened since `scope`: warps a group and where it begins.
    pub fn split_since(&self, scope: ScopeId) -> Option<(u32, Loc)> {
        let depth = self.scopes[self.resolve(scope) as usize].depth;
        self.open_scopes().skip(depth + 1).find_map(|s| match s.kind {
            RegionKind::Split(warps) => Some((warps, s.loc)),
            _ => None,
        })
    }

    /// Place of birth of something made now.
    pub fn made(&self, loc: Loc) -> Made {
        Made { scope: *self.open.last().expect("the prologue is open"), loc }
    }

    // ---- values

    /// A new value of the innermost open region, to be defined by an operation.
    pub fn fresh(&mut self, ty: Type, loc: Loc) -> ValueId {
        let made = self.made(loc);
        self.fresh_in(ty, made)
    }

    fn fresh_in(&mut self, ty: Type, made: Made) -> ValueId {
        let v = self.builder.kernel.add_value(ty, None);
        self.values.push(made);
        self.constants.push(None);
        self.yielded.push(Nameable::Value(v));
        v
    }

    /// Appends an operation that defines one value.
    pub fn emit(&mut self, ty: Type, loc: Loc, kind: impl FnOnce(ValueId) -> OpKind) -> ValueId {
        let out = self.fresh(ty, loc);
        self.builder.push(kind(out), loc);
        out
    }

    /// As [`Trace::emit`], in the open region at this depth.
    pub fn emit_at(
        &mut self,
        depth: usize,
        ty: Type,
        loc: Loc,
        kind: impl FnOnce(ValueId) -> OpKind,
    ) -> ValueId {
        let out = self.fresh_in(ty, Made { scope: self.open[depth], loc });
        self.builder.push_at(depth, kind(out), loc);
        out
    }

    /// A pure operation: folded when its operands are constants, and the earlier value when it was computed before.
    pub fn pure(&mut self, op: Pure, loc: Loc) -> Result<ValueId, TraceError> {
        match fold::fold(self, op) {
            Ok(Folded::Constant(c)) => return Ok(self.keep(Pure::Const(c), loc)),
            Ok(Folded::Value(v)) => {
                self.yielded.push(Nameable::Value(v));
                return Ok(v);
            }
            Ok(Folded::No) => {}
            Err(why) => return Err(TraceError::new(loc, why.0, why.1)),
        }
        Ok(self.keep(op, loc))
    }

    /// A pure operation without operands, in the open region at this depth, where the whole of it can use it.
    pub fn keep_at(&mut self, depth: usize, op: Pure, name: Option<&str>, loc: Loc) -> ValueId {
        let scope = self.open[depth] as usize;
        if let Some(&v) = self.scopes[scope].known.get(&op) {
            self.yielded.push(Nameable::Value(v));
            return v;
        }
        let ty = op.ty(&self.builder.kernel);
        let v = self.emit_at(depth, ty, loc, |out| op.kind(out));
        self.builder.kernel.values[v.index()].name = name.map(Into::into);
        self.scopes[scope].known.insert(op, v);
        v
    }

    /// A value as an untyped handle.
    pub fn raw(&self, id: ValueId) -> Raw {
        Raw { id, trace: self.id, len: self.ty(id).len, _here: PhantomData }
    }

    /// The value of a constant.
    pub fn host(&mut self, c: Const, loc: Loc) -> ValueId {
        self.keep(Pure::Const(c), loc)
    }

    fn keep(&mut self, op: Pure, loc: Loc) -> ValueId {
        let known = self.open_scopes().rev().find_map(|s| s.known.get(&op).copied());
        if let Some(v) = known {
            self.yielded.push(Nameable::Value(v));
            return v;
        }
        let ty = op.ty(&self.builder.kernel);
        let v = self.emit(ty, loc, |out| op.kind(out));
        self.constants[v.index()] = match op {
            Pure::Const(c) => Some(c),
            Pure::Splat(a, _) => self.constants[a.index()],
            _ => None,
        };
        let scope = *self.open.last().expect("the prologue is open");
        self.scopes[scope as usize].known.insert(op, v);
        v
    }

    /// The constant that a scalar is.
    pub fn constant(&self, v: ValueId) -> Option<Const> {
        self.uniform(v).filter(|_| !self.ty(v).is_tile())
    }

    /// The constant that a scalar, or every element of a tile, is.
    pub fn uniform(&self, v: ValueId) -> Option<Const> {
        self.constants[v.index()]
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> Type {
        self.builder.kernel.ty(v)
    }

    /// Checks that a value of trace `trace` may be used here.
    pub fn use_value(&self, trace: u32, v: ValueId, loc: Loc) -> Result<ValueId, TraceError> {
        self.same_trace(trace, "a value", loc)?;
        let made = self.values[v.index()];
        let tile = self.ty(v).is_tile();
        self.reachable(made, if tile { "a tile" } else { "a value" }, loc)?;
        if tile {
            self.same_group(made, "a tile", loc)?;
        }
        Ok(v)
    }

    /// Fails when something belongs to another trace.
    pub fn same_trace(&self, trace: u32, what: &str, loc: Loc) -> Result<(), TraceError> {
        if trace == self.id {
            return Ok(());
        }
        Err(TraceError::new(
            loc,
            format!("{what} of another kernel"),
            "each trace has its own values and parameters: compute it again here, or pass host values between kernels",
        ))
    }

    /// Fails when the region that something was made in is closed.
    pub fn reachable(&self, made: Made, what: &str, loc: Loc) -> Result<(), TraceError> {
        if self.is_open(made.scope) {
            return Ok(());
        }
        Err(escape(self, what, loc, made.loc, self.resolve(made.scope)))
    }

    /// Fails when a split stands between something that is spread over its group's lanes and its use.
    pub fn same_group(&self, made: Made, what: &str, loc: Loc) -> Result<(), TraceError> {
        match self.split_since(made.scope) {
            None => Ok(()),
            Some((_, split)) => Err(TraceError::new(
                loc,
                format!("{what} of the block used inside a split"),
                "it is spread over the lanes of the group that made it: load it inside the split, or store it to \
                 `shared` memory before the split and load it from there",
            )
            .note(made.loc, "it is made here")
            .note(split, "the split begins here")),
        }
    }
}
