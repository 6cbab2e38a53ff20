//! Roles, groups and splits.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use crate::dsl::memory::args::is_identifier;
use crate::dsl::trace::{
    Made, Pure, ScopeId, Thing, TraceError,
    error::raise,
    rt,
    scope::{OpenRegion, RegionKind},
    tracer::{attempt, with},
};
use crate::dsl::values::{
    FromRaw, IntoVal, Val,
    element::{Element, Int},
    val::{binary, bit, host},
};
use crate::ir::{Beside, BinaryOp, CompareOp, ControlOp, Dtype, Loc, Role, verify::MAX_BLOCK_THREADS};

/// This rank's number, from 0, among the ranks of all nodes: those of the first node, then those of the next one.
#[track_caller]
pub fn rank() -> Val<u32> {
    rank_at(Loc::caller())
}

/// World size: ranks of all nodes.
#[track_caller]
pub fn ranks() -> u32 {
    with(Loc::caller(), |t| t.builder.kernel.all_ranks())
}

/// This rank's number, from 0, among the ranks of its node: what near channels, parcels and windows go by. With one node it is [`rank`].
#[track_caller]
pub fn local_rank() -> Val<u32> {
    local_rank_at(Loc::caller())
}

/// Ranks of a node.
#[track_caller]
pub fn local_ranks() -> u32 {
    with(Loc::caller(), |t| t.builder.kernel.ranks)
}

/// The number of this rank's node, from 0.
#[track_caller]
pub fn node() -> Val<u32> {
    node_at(Loc::caller())
}

/// Nodes of the world.
#[track_caller]
pub fn nodes() -> u32 {
    with(Loc::caller(), |t| t.builder.kernel.nodes)
}

pub(crate) fn rank_at(loc: Loc) -> Val<u32> {
    match with(loc, |t| (t.builder.kernel.nodes, t.builder.kernel.ranks)) {
        (1, _) => local_rank_at(loc),
        (_, 1) => node_at(loc),
        (_, ranks) => {
            let first =
                binary::<Val<u32>>(BinaryOp::Mul, node_at(loc).to_raw(), host(ranks, loc).to_raw(), loc);
            binary(BinaryOp::Add, first.to_raw(), local_rank_at(loc).to_raw(), loc)
        }
    }
}

pub(crate) fn local_rank_at(loc: Loc) -> Val<u32> {
    match with(loc, |t| (t.builder.kernel.ranks, t.builder.kernel.nodes)) {
        (1, _) => host(0, loc),
        (_, 1) => given(Pure::Rank, "rank", loc),
        _ => given(Pure::Rank, "local_rank", loc),
    }
}

pub(crate) fn node_at(loc: Loc) -> Val<u32> {
    match with(loc, |t| t.builder.kernel.nodes) {
        1 => host(0, loc),
        _ => given(Pure::Node, "node", loc),
    }
}

/// The active ranks of this node as a mask: bit `r` is that of [`local_rank`] `r`. All ranks are active unless the world goes on without
/// some. A wait for an inactive rank ends at once and yields zeros. The mask is the same for a whole launch.
///
/// A kernel asks for it where zeros are wrong for a missing rank: to leave the rank out of a maximum, or to do its part of the
/// work.
#[track_caller]
pub fn active_ranks() -> Val<u64> {
    given(Pure::Active, "active", Loc::caller())
}

/// Whether a rank of this node is active: see [`active_ranks`].
#[track_caller]
pub fn is_active(local_rank: Val<u32>) -> Val<bool> {
    (active_ranks() & bit(local_rank)).ne_to(0u64)
}

/// What a launch is given, for all of the kernel.
fn given<T: Element>(what: Pure, name: &str, loc: Loc) -> Val<T> {
    Val::from_raw(with(loc, |t| {
        let out = t.keep_at(0, what, Some(name), loc);
        t.raw(out)
    }))
}

/// Declares a named set of `blocks` blocks that run `body`. The blocks of the first role have the lowest block indices
/// and start first. The body is traced once, with the block as its group.
///
/// `name` is an identifier and the only one of its kind in the kernel, `blocks` at least 1; roles stand side by side.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
/// # let (x, y): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 4096), p.arg("y", 64));
/// # #[kernel]
/// # fn body(x: Ptr<f32>, y: Ptr<f32>) {
/// role("sum", 16, |block| {
///     block.split(2, |g| {                    // groups of 2 warps
///         for row in g.strided(64u32) {       // dealt to all groups of the 16 blocks
///             y.set(row, x.load(row * 64, 64).sum());
///         }
///     });
/// });
/// # }
/// # body(x, y);
/// # }).unwrap();
/// ```
///
/// # Errors
/// Ends the trace inside another role, for no blocks, and for a name that is taken or no identifier.
#[track_caller]
pub fn role(name: &str, blocks: u32, body: impl FnOnce(Group)) {
    role_at(name, blocks, Loc::caller(), body);
}

/// Declares a [`role`] that only these ranks have. The grid is the same on every rank: as many blocks as the roles of the rank with
/// most of them have. Blocks that no role of their rank has end at once.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 4, 32, 8), |p| {
/// # let (x, inbox): (Ptr<f32>, Sym<f32>) = (p.arg("x", 4096), p.arg("inbox", 4 * 4096));
/// # let (out, sent): (Ptr<f32>, Flags) = (p.arg("out", 4 * 4096), p.arg("sent", 4));
/// # let epoch = p.arg::<EpochWord>("epoch", 1).begin();
/// # #[kernel]
/// # fn body(x: Ptr<f32>, inbox: Sym<f32>, out: Ptr<f32>, sent: Flags, epoch: Epoch) {
/// role_on(1..4, "send", 1, |_| {              // block 0 of ranks 1 to 3
///     let mut parcel = send_to(Peers::rank(0));
///     parcel.put(&inbox, rank() * 4096, x.load(0, 4096));
///     parcel.signal(&sent, rank(), epoch);
/// });
/// role_on([0], "receive", 3, |b| {            // blocks 0 to 2 of rank 0
///     let from = b.index() + 1;
///     let receipt = sent.from(from).wait(from, epoch);
///     out.store(from * 4096, inbox.load(&receipt, from * 4096, 4096));
/// });
/// # }
/// # body(x, inbox, out, sent, epoch);
/// # }).unwrap();
/// ```
///
/// # Errors
/// As of [`role`], and for ranks that the world does not have, or none.
#[track_caller]
pub fn role_on(ranks: impl IntoIterator<Item = u32>, name: &str, blocks: u32, body: impl FnOnce(Group)) {
    let (loc, ranks) = (Loc::caller(), BTreeSet::from_iter(ranks));
    let world = with(loc, |t| t.builder.kernel.ranks);
    if let Some(rank) = ranks.last().filter(|&&rank| rank >= world) {
        let help = format!("name ranks of 0 to {}", world - 1);
        raise(TraceError::new(
            loc,
            format!("role `{name}` on rank {rank}, which the world does not have"),
            help,
        ));
    }
    if ranks.is_empty() {
        let help = "name at least one rank, or leave the role out with a host `if`";
        raise(TraceError::new(loc, format!("role `{name}` on no rank"), help));
    }
    let some = (ranks.len() < world as usize).then(|| ranks.into_iter().collect());
    declare(name, blocks, some, None, loc, body);
}

/// Declares a role that has `warps` warps of its own in each block of role `host`. They run `body` beside that role: they move rows while
/// the others multiply, say. The body is traced once, with these warps as its group: [`Group::index`] is the number of the block.
///
/// Neither role waits for the other one by itself. They have no shared memory in common, and communicate as any two
/// blocks do, by [block flags](crate::dsl::BlockFlags) and tickets. `host` is declared before, with blocks of its own, and may go on as
/// another role. These warps do not: they neither go on nor split.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
/// # let (x, y, z): (Ptr<f32>, Ptr<f32>, Ptr<f32>) = (p.arg("x", 4096), p.arg("y", 64), p.arg("z", 4096));
/// # #[kernel]
/// # fn body(x: Ptr<f32>, y: Ptr<f32>, z: Ptr<f32>) {
/// role("sum", 16, |b| {
///     for row in b.strided(64u32) {
///         y.set(row, x.load(row * 64, 64).sum());
///     }
/// });
/// role_beside("sum", "copy", 1, |b| {         // a warp more in each of the 16 blocks
///     for row in b.strided(64u32) {
///         z.store(row * 64, x.load(row * 64, 64));
///     }
/// });
/// # }
/// # body(x, y, z);
/// # }).unwrap();
/// ```
///
/// # Errors
/// Ends the trace for a host that is not declared before, and where a block gets more warps than targets have.
#[track_caller]
pub fn role_beside(host: &str, name: &str, warps: u32, body: impl FnOnce(Group)) {
    let loc = Loc::caller();
    let (blocks, ranks) = attempt(loc, |t| {
        let kernel = &t.builder.kernel;
        let wrong = |message, help: &str| Err(TraceError::new(loc, message, help));
        if !(1..=kernel.block_warps).contains(&warps) {
            let help = format!("give it 1 to {}, which is what blocks have", kernel.block_warps);
            return wrong(format!("role `{name}` with {warps} warps beside `{host}`"), &help);
        }
        let Some(at) = kernel.roles.iter().position(|r| r.name == host) else {
            let help = "declare that role first: its blocks are there then";
            return wrong(format!("role `{name}` beside `{host}`, which is no role yet"), help);
        };
        let (found, all) = (&kernel.roles[at], kernel.block_warps + warps + kernel.companion_warps(at));
        let most = MAX_BLOCK_THREADS / kernel.warp_size;
        if all > most {
            let help = format!("blocks have at most {most} warps, of all roles together");
            return wrong(format!("role `{name}` makes blocks of `{host}` have {all} warps"), &help);
        }
        let reason = match found {
            Role { beside: Some(_), .. } => "itself runs beside another one",
            _ if kernel.roles.iter().any(|r| r.goes_on_as.as_deref() == Some(host)) => "others go on as",
            _ => return Ok((found.blocks, found.ranks.clone())),
        };
        let help = "roles run beside one that has blocks of its own, from the beginning to the end";
        Err(TraceError::new(loc, format!("role `{name}` beside `{host}`, which {reason}"), help)
            .note(found.loc, "it is declared here"))
    });
    declare(name, blocks, ranks, Some(Beside { role: host.into(), warps }), loc, body);
}

pub(crate) fn role_at(name: &str, blocks: u32, loc: Loc, body: impl FnOnce(Group)) {
    declare(name, blocks, None, None, loc, body);
}

fn declare(
    name: &str,
    blocks: u32,
    ranks: Option<Vec<u32>>,
    beside: Option<Beside>,
    loc: Loc,
    body: impl FnOnce(Group),
) {
    let joining = attempt(loc, |t| {
        let wrong = |message, help: &str| Err(TraceError::new(loc, message, help));
        if let Some(s) = t.open_scopes().nth(1) {
            let (message, help) = if let RegionKind::Role(outer) = &s.kind {
                (
                    format!("role `{name}` inside role `{outer}`"),
                    "roles stand side by side: close one before the next, or use `split` for groups of a block",
                )
            } else {
                (
                    format!("role `{name}` inside {}", s.kind.what()),
                    "which roles a kernel has is decided by the config: use a host condition around it",
                )
            };
            let begins = format!("{} begins here", s.kind.what());
            return Err(TraceError::new(loc, message, help).note(s.loc, begins));
        }
        if !is_identifier(name) {
            return wrong(
                format!("a role named `{name}`"),
                "use letters, digits and `_`, not starting with a digit",
            );
        }
        if blocks == 0 {
            return wrong(
                format!("role `{name}` with 0 blocks"),
                "give it at least one block, or leave it out with a host `if`",
            );
        }
        if let Some(first) = t.builder.kernel.roles.iter().find(|r| r.name == name) {
            let help = "give each role its own name";
            return Err(TraceError::new(loc, format!("two roles are named `{name}`"), help)
                .note(first.loc, "the other one is here"));
        }
        let joining = t.builder.kernel.roles.iter().filter(|r| r.goes_on_as.as_deref() == Some(name));
        Ok(joining.map(|r| r.blocks).sum::<u32>())
    });
    let region = OpenRegion::open(RegionKind::Role(name.into()), loc);
    let mut group = Group::current(blocks + joining, loc);
    if let Some(Beside { warps, .. }) = beside {
        (group.warps, group.beside) = (warps, true);
    }
    body(group);
    let region = region.close();
    attempt(loc, |t| {
        let goes_on = t.goes_on.take();
        if let Some((next, said, _)) = goes_on.as_ref().filter(|(.., ops)| *ops != region.ops.len()) {
            let message = format!("role `{name}` does something after it goes on as `{next}`");
            let help = "end the role's body with `goes_on_as`: what the blocks do then is the other role's";
            return Err(TraceError::new(*said, message, help).note(loc, "the role begins here"));
        }
        t.builder.role(name, blocks, region, loc);
        let role = t.builder.kernel.roles.last_mut().expect("just added");
        role.goes_on_as = goes_on.map(|(next, ..)| next);
        (role.beside, role.ranks) = (beside, ranks);
        Ok(())
    });
}

/// The lanes that run a body together: a block in a role, some of its warps in a split.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    trace: u32,
    scope: ScopeId,
    loc: Loc,
    /// Warps of one group.
    warps: u32,
    /// Groups of the whole role.
    count: u32,
    blocks: u32,
    /// Whether the role runs beside another one.
    beside: bool,
    _here: PhantomData<*const ()>,
}

impl Group {
    fn current(blocks: u32, loc: Loc) -> Group {
        with(loc, |t| Group {
            trace: t.id,
            scope: *t.open.last().expect("the prologue is open"),
            loc,
            warps: t.builder.kernel.block_warps,
            count: blocks,
            blocks,
            beside: false,
            _here: PhantomData,
        })
    }

    /// Number of groups of this kind in the role, over all its blocks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Warps of this group.
    pub fn warps(&self) -> u32 {
        self.warps
    }

    /// Lanes of this group. A warp has 32 in CUDA and 64 in HIP.
    #[track_caller]
    pub fn lanes(&self) -> u32 {
        self.warps * with(Loc::caller(), |t| t.builder.kernel.warp_size)
    }

    /// Whether its lanes reduce numbers of so many bits in one instruction: 32 lanes do, of up to 32 bits. Others take several steps.
    #[track_caller]
    pub fn reduces_at_once(&self, bits: u32) -> bool {
        self.lanes() == 32 && bits <= 32
    }

    /// Blocks of the role, those of roles that [go on](Group::goes_on_as) as it included.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of the block that this group is in, from 0, among the blocks of the role.
    #[track_caller]
    pub fn block(&self) -> Val<u32> {
        if self.count == self.blocks { self.index() } else { self.index() % self.blocks }
    }

    /// This group's number among the groups of its block, from 0.
    #[track_caller]
    pub fn in_block(&self) -> Val<u32> {
        if self.count == self.blocks { host(0u32, Loc::caller()) } else { self.index() / self.blocks }
    }

    /// This group's number among the [`count`](Group::count) groups of its role. Consecutive numbers go to different
    /// blocks first: group `i` is group `i / blocks` of block `i % blocks`.
    #[track_caller]
    pub fn index(&self) -> Val<u32> {
        let loc = Loc::caller();
        Val::from_raw(attempt(loc, |t| {
            self.check(t, loc)?;
            let depth = t.scopes[self.scope as usize].depth;
            let out = t.keep_at(depth, Pure::GroupIndex, Some("group"), loc);
            Ok(t.raw(out))
        }))
    }

    /// The work of this group when the numbers `0..n` are dealt to the groups of the role in turn: `index()`,
    /// `index() + count()`, and so on below `n`. Use it in `for` in a `#[kernel]` function.
    #[track_caller]
    pub fn strided(&self, n: impl IntoVal<u32>) -> DevRange<u32> {
        let loc = Loc::caller();
        DevRange { start: self.index(), end: n.val(), step: host(self.count, loc) }
    }

    /// Lets the blocks of this role go on as another one, at the end of the role's body: each meets here and then runs the other's
    /// body, too. There they are further blocks, numbered after the other role's own: its [`Group::count`], and so
    /// [`Group::strided`], [`Group::dynamic`] and [`Group::last`], deal with all of them.
    ///
    /// The other role is declared after this one, and goes on as none itself. Where this role waits, the work of the other one
    /// that its blocks have waits with it.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
    /// # let (x, y, z): (Ptr<f32>, Ptr<f32>, Ptr<f32>) = (p.arg("x", 64), p.arg("y", 64), p.arg("z", 64));
    /// # #[kernel]
    /// # fn body(x: Ptr<f32>, y: Ptr<f32>, z: Ptr<f32>) {
    /// role("double", 4, |b| {
    ///     for i in b.strided(64u32) {
    ///         y.set(i, x.get(i) * 2.0);
    ///     }
    ///     b.goes_on_as("negate");
    /// });
    /// role("negate", 2, |b| {
    ///     assert_eq!(b.count(), 6);
    ///     for i in b.strided(64u32) {         // dealt to all six blocks
    ///         z.set(i, -x.get(i));
    ///     }
    /// });
    /// # }
    /// # body(x, y, z);
    /// # }).unwrap();
    /// ```
    ///
    /// # Orders
    /// What the block did in this role comes before what it does in the other one.
    ///
    /// # Errors
    /// Ends the trace where the role does more afterwards, and where the other role is declared before this one.
    #[track_caller]
    pub fn goes_on_as(&self, name: &str) {
        let loc = Loc::caller();
        attempt(loc, |t| {
            self.check(t, loc)?;
            if self.beside {
                let message = format!("a role beside another one goes on as `{name}`");
                let help = "only whole blocks go on: give the other role's work to this one as well";
                return Err(TraceError::new(loc, message, help));
            }
            let inner = t.open_scopes().next_back().expect("the prologue is open");
            let RegionKind::Role(own) = inner.kind.clone() else {
                let message = format!("a role that goes on as `{name}` inside {}", inner.kind.what());
                let help = "say so at the end of the role's body: its blocks go on as a whole, and always";
                let begins = format!("{} begins here", inner.kind.what());
                return Err(TraceError::new(loc, message, help).note(inner.loc, begins));
            };
            if let Some((before, said, _)) = &t.goes_on {
                let message = format!("role `{own}` goes on as `{name}` and as `{before}`");
                return Err(
                    TraceError::new(loc, message, "blocks go on once").note(*said, "it has been said here")
                );
            }
            let roles = &t.builder.kernel.roles;
            if let Some(other) = roles.iter().find(|r| r.name == name) {
                let message = format!("role `{own}` goes on as role `{name}`, which is declared already");
                let help = "declare this role before that one, whose work is dealt to the blocks of both";
                return Err(TraceError::new(loc, message, help).note(other.loc, "it is declared here"));
            }
            if let Some(before) = roles.iter().find(|r| r.goes_on_as.as_ref() == Some(&own)) {
                let message = format!("role `{own}` goes on as `{name}`, and `{}` as `{own}`", before.name);
                let help = "let both go on as the same role: blocks go on once";
                return Err(TraceError::new(loc, message, help).note(before.loc, "the other role is here"));
            }
            let done = t.builder.open_ops(t.builder.depth() - 1).len();
            t.goes_on = Some((name.into(), loc, done));
            Ok(())
        });
    }

    /// Splits the block into groups of `warps` warps, each of which runs `body`; all meet again at its end. `warps`
    /// must divide the block's warps. Splits do not nest.
    ///
    /// Scalars of the block can be used in it. Tiles and parcels cannot: they belong to the group that makes them.
    /// Nothing leaves it but through memory.
    ///
    /// # Orders
    /// What the block did before the split comes before its groups' bodies, and these before what follows it. Its
    /// groups are not ordered with each other.
    ///
    /// # Errors
    /// Ends the trace inside another split, and where `warps` does not divide the block's warps.
    #[track_caller]
    pub fn split(&self, warps: u32, body: impl FnOnce(Group)) {
        let loc = Loc::caller();
        let block_warps = attempt(loc, |t| {
            self.check(t, loc)?;
            if self.beside {
                let help = "it is one group: declare several such roles for several groups";
                return Err(TraceError::new(loc, "a split in a role that runs beside another one", help));
            }
            let block_warps = t.builder.kernel.block_warps;
            let outer = t.open_scopes().find(|s| matches!(s.kind, RegionKind::Split(_)));
            if let Some(outer) = outer {
                return Err(TraceError::new(
                    loc,
                    "a split inside a split",
                    "split the block once, into the smallest groups that are needed",
                )
                .note(outer.loc, "the outer split begins here"));
            }
            if warps == 0 || !block_warps.is_multiple_of(warps) {
                return Err(TraceError::new(
                    loc,
                    format!("groups of {warps} warps in a block of {block_warps}"),
                    format!(
                        "the warps of a group must divide the block's: one of {:?}",
                        (1..=block_warps).filter(|w| block_warps.is_multiple_of(*w)).collect::<Vec<_>>()
                    ),
                ));
            }
            Ok(block_warps)
        });
        let region = OpenRegion::open(RegionKind::Split(warps), loc);
        let mut group = Group::current(self.blocks, loc);
        group.warps = warps;
        group.count = self.blocks * (block_warps / warps);
        body(group);
        let body = region.close();
        with(loc, |t| t.push(ControlOp::Split { warps, body }, loc));
    }

    pub(crate) fn check(&self, t: &crate::dsl::trace::tracer::Trace, loc: Loc) -> Result<(), TraceError> {
        t.same_trace(self.trace, Thing::Group, loc)?;
        t.reachable(Made { scope: self.scope, loc: self.loc }, Thing::Group, loc)
    }
}

/// A range of the device, to be used in `for`: `start`, `start + step`, .. below `end`.
#[derive(Clone, Copy, Debug)]
pub struct DevRange<T: Int> {
    /// First value.
    pub start: Val<T>,
    /// Where it ends, not included.
    pub end: Val<T>,
    /// Distance of two values, above zero.
    pub step: Val<T>,
}

impl<T: Int> DevRange<T> {
    /// Every `step`-th value of it.
    ///
    /// # Errors
    /// Ends the trace for a step that is known to be zero.
    #[track_caller]
    pub fn step_by(self, step: impl IntoVal<T>) -> DevRange<T> {
        let step = step.val();
        let loc = Loc::caller();
        let zero = with(loc, |t| t.constant_of(step.to_raw()).is_some_and(crate::dsl::trace::fold::is_zero));
        if zero {
            raise(TraceError::new(loc, "a range with a step of zero", "step by at least 1"));
        }
        DevRange { step: self.step * step, ..self }
    }

    /// Whether it is empty, as far as that is known while tracing.
    pub(crate) fn is_empty(&self, loc: Loc) -> bool {
        let [start, end] = [self.start, self.end].map(|value| rt::constant(value.to_raw(), loc));
        let none_below = end.is_some_and(crate::dsl::trace::fold::is_zero) && T::DTYPE != Dtype::I32;
        let meet = start.zip(end).and_then(|(start, end)| CompareOp::Ge.of_constants(start, end));
        none_below || meet == Some(true)
    }
}
