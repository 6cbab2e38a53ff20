//! Regions that are open while tracing, and the check that a thing is used only where it exists.

use std::collections::HashMap;
use std::thread::panicking;

use super::error::{TraceError, raise};
use super::fold::Pure;
use super::tracer::{Trace, try_current, with};
use crate::ir::{BinaryOp, Effect, Loc, OpId, OpKind, Region, ValueId, ValueOp};

/// What opened a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Code before the roles, run by every block.
    Prologue,
    /// Body of the role of this name.
    Role(String),
    /// Body of a split into groups of this many warps.
    Split(u32),
    /// First arm of a device `if`, or what stands for it (`&&`, `||`).
    Then,
    /// Second arm of a device `if`.
    Else,
    /// Body of a device `for`.
    For,
    /// Condition of a device `while`, or before it is known to be one.
    Condition,
    /// Body of a device `while`.
    While,
    /// Body of a loop over dynamically scheduled numbers.
    Dynamic,
}

impl RegionKind {
    /// Whether the region may run zero times or several times when it is reached.
    pub fn is_conditional(&self) -> bool {
        !matches!(self, RegionKind::Prologue | RegionKind::Role(_) | RegionKind::Split(_))
    }

    /// Warps a group, if it is a split.
    pub fn split(&self) -> Option<u32> {
        if let RegionKind::Split(warps) = self { Some(*warps) } else { None }
    }

    /// Whether the region is the body of a device loop, which `break` may leave.
    pub fn is_loop(&self) -> bool {
        matches!(self, RegionKind::For | RegionKind::While | RegionKind::Dynamic)
    }

    /// The control flow that opens it.
    fn construct(&self) -> &'static str {
        match self {
            RegionKind::Prologue => "the kernel",
            RegionKind::Role(_) => "a role",
            RegionKind::Split(_) => "a split",
            RegionKind::Then | RegionKind::Else => "a device `if`",
            RegionKind::For | RegionKind::Dynamic => "a device `for`",
            RegionKind::Condition | RegionKind::While => "a device `while`",
        }
    }

    /// As it reads in a message that has spoken of it.
    fn that(&self) -> String {
        match self {
            RegionKind::Split(_) => "the split".into(),
            RegionKind::Then | RegionKind::Else => "the branch".into(),
            RegionKind::For | RegionKind::Dynamic | RegionKind::Condition | RegionKind::While => {
                "the loop".into()
            }
            RegionKind::Prologue | RegionKind::Role(_) => self.what(),
        }
    }

    /// As it reads in a message.
    pub fn what(&self) -> String {
        match self {
            RegionKind::Prologue => "the code before the roles".into(),
            RegionKind::Role(name) => format!("role `{name}`"),
            RegionKind::Split(_) => "a split".into(),
            RegionKind::Then | RegionKind::Else => "its branch of a device `if`".into(),
            RegionKind::For | RegionKind::Dynamic => "a device `for`".into(),
            RegionKind::Condition => "the condition of a device `while`".into(),
            RegionKind::While => "a device `while`".into(),
        }
    }
}

/// A region, open or closed. Its number is its index in the trace's list.
#[derive(Debug)]
pub(crate) struct Scope {
    pub kind: RegionKind,
    pub loc: Loc,
    /// The region around it.
    pub parent: Option<ScopeId>,
    /// How many regions are around it.
    pub depth: usize,
    /// Set when its operations were moved into its parent: things made here belong there.
    pub spliced: bool,
    /// Pure operations of this region that may be used again.
    pub known: HashMap<Pure, ValueId>,
}

/// Index of a region in the order of opening.
pub(crate) type ScopeId = u32;

/// A place in the trace, taken by [`mark`](super::rt::mark).
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Trace and innermost open region; `None` when nothing is being traced.
    pub(crate) at: Option<(u32, ScopeId)>,
    /// How many values and variables had been made.
    pub(crate) made: usize,
}

impl Mark {
    /// The outermost branch of a device `if` or device loop that was opened since the mark and is still open: what
    /// makes plain Rust assignment to a variable that lives since the mark wrong.
    pub fn conditional_since(&self) -> Option<(RegionKind, Loc)> {
        let (trace, scope) = self.at?;
        try_current(|t| {
            if t.id != trace {
                return None;
            }
            let since = t.scopes[t.resolve(scope) as usize].depth + 1;
            let opened = t.open.get(since..)?.iter().map(|&s| &t.scopes[s as usize]);
            opened.into_iter().find(|s| s.kind.is_conditional()).map(|s| (s.kind.clone(), s.loc))
        })?
    }
}

/// An open region. It must be closed; when `?` or `return` leaves it instead, the trace fails at the line that opened
/// it.
#[must_use = "close the region"]
#[derive(Debug)]
pub struct OpenRegion {
    trace: u32,
    scope: ScopeId,
    open: bool,
}

impl OpenRegion {
    /// Opens a region in the current trace: operations go there until it is closed.
    pub fn open(kind: RegionKind, loc: Loc) -> OpenRegion {
        with(loc, |t| OpenRegion { trace: t.id, scope: t.open_scope(kind, loc), open: true })
    }

    /// Which region it is.
    pub(crate) fn scope(&self) -> ScopeId {
        self.scope
    }

    /// Closes the region and returns its operations, to be put into an operation.
    ///
    /// Before the roles there is no device control flow: closing a branch or a loop there is an error.
    pub fn close(mut self) -> Region {
        self.open = false;
        let (region, outside) = try_current(|t| {
            let s = &t.scopes[self.scope as usize];
            let outside = (s.depth == 1 && s.kind.is_conditional()).then_some((s.loc, s.kind.construct()));
            (t.close_scope(self.scope), outside)
        })
        .unwrap_or_default();
        if let Some((loc, what)) = outside {
            raise(outside_role(loc, what));
        }
        region
    }

    /// Closes the region and appends what is in it to the region around it, as if it had never been opened.
    pub fn splice(mut self) {
        self.open = false;
        try_current(|t| {
            let region = t.close_scope(self.scope);
            t.splice_scope(self.scope, region);
        });
    }

    /// Whether everything in the region so far can be computed where it is not needed: no memory access, no protocol
    /// operation, no assignment, no control flow, and nothing that could divide by zero.
    pub fn is_pure(&self) -> bool {
        try_current(|t| {
            let depth = t.scopes[self.scope as usize].depth;
            t.builder.open_ops(depth).iter().all(|&op| is_pure(t, op))
        })
        .unwrap_or(true)
    }
}

fn is_pure(t: &Trace, op: OpId) -> bool {
    let kind = &t.builder.kernel.op(op).kind;
    if let OpKind::Value(ValueOp::Binary { op: BinaryOp::Div | BinaryOp::Rem, b, .. }) = kind {
        return t.constant(*b).is_some();
    }
    match kind.effect() {
        Effect::None | Effect::ReadsVar => true,
        Effect::ReadsMemory | Effect::Acts => false,
    }
}

impl Drop for OpenRegion {
    fn drop(&mut self) {
        if !self.open || panicking() {
            return;
        }
        // Not raised here: unwinding out of a destructor aborts when another one does it too. `trace` reports it.
        try_current(|t| {
            if t.id == self.trace {
                let (loc, what) = {
                    let s = &t.scopes[self.scope as usize];
                    (s.loc, s.kind.what())
                };
                t.defer(TraceError::new(
                    loc,
                    format!("`return` or `?` leaves {what}"),
                    "device code cannot leave a region early: put the rest into an `else`, or use `break` in a loop",
                ));
                t.close_scope(self.scope);
            }
        });
    }
}

/// Something that exists only in the region that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Value,
    Tile,
    Variable,
    Buffer,
    Shared,
    Group,
    Parcel,
    Receipt,
    Message,
}

impl Thing {
    /// As it reads in a message.
    pub fn what(self) -> &'static str {
        match self {
            Thing::Value => "a value",
            Thing::Tile => "a tile",
            Thing::Variable => "a variable",
            Thing::Buffer => "a parameter",
            Thing::Shared => "a shared array",
            Thing::Group => "a group",
            Thing::Parcel => "a parcel",
            Thing::Receipt => "a receipt",
            Thing::Message => "a message",
        }
    }

    /// What to do about one that is used outside the region it was made in.
    fn help(self, region: &RegionKind) -> &'static str {
        use RegionKind::*;
        match (self, region) {
            (_, Prologue) => "make it in the kernel that uses it",
            (Thing::Value | Thing::Tile, Role(_)) => {
                "roles run in different blocks: compute it in each role (or before the roles, when it is made of \
                 constants and scalar parameters), or hand it over in memory with a flag"
            }
            (Thing::Receipt, Role(_)) => "roles run in different blocks: wait in the role that reads",
            (Thing::Parcel, Role(_)) => {
                "roles run in different blocks: open, fill and signal a parcel in one role"
            }
            (Thing::Message, Role(_)) => {
                "roles run in different blocks: send or receive a message in one role"
            }
            (Thing::Shared, Role(_)) => "roles run in different blocks: declare the array in each role",
            (Thing::Variable, Role(_)) => "roles run in different blocks: declare the variable in each role",
            (Thing::Value | Thing::Tile, Split(_)) => {
                "every group of a split has its own values: store it to `shared` memory declared before the split, and \
                 read it after the split"
            }
            (Thing::Value | Thing::Tile, Then | Else) => {
                "let the `if` yield it (`let v = if c { a } else { b };`), or declare `let mut v = var(..)` before the \
                 `if` and assign it in the branch"
            }
            (Thing::Value | Thing::Tile, For | Dynamic | While | Condition) => {
                "declare `let mut v = var(..)` before the loop and assign it in the body"
            }
            (Thing::Buffer, _) => "use the parameters that this kernel is given",
            (Thing::Variable, _) => "declare it with `var(..)` before that",
            (Thing::Shared, _) => "declare it with `shared(..)` before that",
            (Thing::Group, _) => "use the group that the current closure is given",
            (Thing::Parcel, _) => "signal it where it is opened, or open it with `send_to` where it is used",
            (Thing::Message, _) => "use it where it begins, or begin it with `slot(..)` where it is used",
            (Thing::Receipt, _) => {
                "read the inbox there, where the wait is known to have happened, or wait before that"
            }
        }
    }
}

/// The error of using, at `loc`, a thing made at `made` in scope `s`, which is closed: names the outermost region that
/// it escapes.
pub(crate) fn escape(t: &Trace, thing: Thing, loc: Loc, made: Loc, s: ScopeId) -> TraceError {
    let mut out = &t.scopes[s as usize];
    while let Some(parent) = out.parent.filter(|&p| !t.is_open(p)) {
        out = &t.scopes[parent as usize];
    }
    let region = out.kind.what();
    TraceError::new(loc, format!("{} that escapes {region}", thing.what()), thing.help(&out.kind))
        .note(made, "it is made here")
        .note(out.loc, format!("{} begins here", out.kind.that()))
}

/// Fails unless a role is being traced: `what` reads like "a load".
pub(crate) fn require_role(loc: Loc, what: &str) {
    if with(loc, |t| t.open.len() < 2) {
        raise(outside_role(loc, what));
    }
}

pub(crate) fn outside_role(loc: Loc, what: &str) -> TraceError {
    TraceError::new(
        loc,
        format!("{what} outside a role"),
        "move it into `role(\"name\", blocks, |b| ..)`; before the roles stand only constants, `rank()`, epochs and \
         scalar arithmetic (with `.select(..)` for choices)",
    )
}
