//! A kernel with what is known about it: the analyses that printing asks again and again.

use super::{bounds, linear};
use crate::ir::{
    BinaryOp, CommOp, CompareOp, Const, ControlOp, Dtype, Kernel, MemoryOp, OpId, OpKind, ReceiveMessages,
    ValueId, ValueOp, VarId, VarUse,
    analysis::{self, Def, DefUse, Facts, Position, Tree},
};

/// The analysed kernel.
#[derive(Debug)]
pub(crate) struct Program<'k> {
    /// The kernel.
    pub kernel: &'k Kernel,
    tree: Tree,
    values: DefUse,
    facts: Facts,
    /// The largest value of each scalar.
    most: Vec<u128>,
    var_writes: Vec<Vec<OpId>>,
}

/// A mask of consecutive elements that decides for whole vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VectorMask {
    /// All elements or none, as a scalar says.
    Uniform(ValueId),
    /// The first ones, as many as a scalar says: all of a vector's, none, or, for one vector, some.
    First(ValueId),
}

impl<'k> Program<'k> {
    /// Analyses `kernel`.
    pub fn new(kernel: &'k Kernel) -> Program<'k> {
        let tree = Tree::of(kernel);
        let mut var_writes = vec![vec![]; kernel.vars.len()];
        for &id in tree.in_order() {
            match kernel.op(id).kind.var_use() {
                Some((var, VarUse::Declare(_) | VarUse::Set(_))) => var_writes[var.index()].push(id),
                Some((_, VarUse::Get(_))) | None => {}
            }
        }
        let values = DefUse::of(kernel, &tree);
        let facts = Facts::of(kernel, &tree);
        let most = bounds::largest(kernel, &tree, &facts);
        Program { kernel, tree, values, facts, most, var_writes }
    }

    /// The operations that can run, in program order.
    pub fn ops(&self) -> &[OpId] {
        self.tree.in_order()
    }

    /// The values that an operation reads, those of its parcel's target included.
    pub fn reads(&self, op: OpId) -> Vec<ValueId> {
        let kind = &self.kernel.op(op).kind;
        let mut v = kind.operands();
        v.extend(analysis::target(self.kernel, kind));
        v
    }

    /// The operation that defines a value (the `For` for its counter).
    pub fn def(&self, v: ValueId) -> Option<&'k OpKind> {
        self.def_id(v).map(|id| &self.kernel.op(id).kind)
    }

    /// Id of the operation that defines a value.
    pub fn def_id(&self, v: ValueId) -> Option<OpId> {
        match self.values.def(v) {
            Def::Nothing => None,
            Def::Op(id) | Def::Counter(id) => Some(id),
        }
    }

    /// The author's name for a value. Names that the tracer gives to what it computes by itself (`rank`, the group's
    /// index, a parameter's own) say nothing that the expression does not.
    pub fn name(&self, v: ValueId) -> Option<&'k str> {
        let name = self.kernel.values[v.index()].name.as_deref()?;
        let own = match self.def(v)? {
            OpKind::Value(op) => self.own_name(op),
            OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => None,
        };
        (own != Some(name)).then_some(name)
    }

    /// The name that the tracer gives to a value by itself.
    fn own_name(&self, op: &ValueOp) -> Option<&'k str> {
        match op {
            ValueOp::Rank { .. } => Some("rank"),
            ValueOp::Node { .. } => Some("node"),
            ValueOp::Active { .. } => Some("active"),
            ValueOp::GroupIndex { .. } => Some("group"),
            ValueOp::ScalarParam { param, .. } => Some(&self.kernel.params[param.index()].name),
            any!(by_element, spreads, reductions) | ValueOp::Const { .. } | ValueOp::Epoch { .. } => None,
        }
    }

    /// The operations that read a value.
    pub fn users(&self, v: ValueId) -> &[OpId] {
        self.values.uses(v)
    }

    /// The value of a scalar that is the same in every launch.
    pub fn constant(&self, v: ValueId) -> Option<Const> {
        self.facts.constant(v).or_else(|| self.zero(v)).or_else(|| self.decided(v).map(Const::Bool))
    }

    /// The value of an integer that is the same in every launch.
    pub fn int(&self, v: ValueId) -> Option<i128> {
        self.constant(v)?.as_int()
    }

    /// The zero that an unsigned scalar cannot exceed, such as `i / 8` of eight numbers.
    fn zero(&self, v: ValueId) -> Option<Const> {
        let ty = self.kernel.ty(v);
        match ty.dtype {
            _ if ty.is_tile() || self.most(v) > 0 => None,
            Dtype::U32 => Some(Const::U32(0)),
            Dtype::U64 => Some(Const::U64(0)),
            Dtype::Bool | Dtype::I32 | Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => None,
        }
    }

    /// What a comparison of unsigned scalars yields, if that is known.
    fn decided(&self, v: ValueId) -> Option<bool> {
        let Some(OpKind::Value(ValueOp::Compare { op, a, b, .. })) = self.def(v) else { return None };
        if self.kernel.ty(v).is_tile() || !bounds::is_unsigned(self.kernel, *a) {
            return None;
        }
        let (x, y) = (self.int(*a), self.int(*b));
        let below = y.and_then(|y| u128::try_from(y).ok()).is_some_and(|y| self.most(*a) < y);
        match op {
            CompareOp::Lt if below => Some(true),
            CompareOp::Ge if below => Some(false),
            CompareOp::Eq => Some(x? == y?),
            CompareOp::Ne => Some(x? != y?),
            CompareOp::Lt | CompareOp::Ge | CompareOp::Le | CompareOp::Gt => None,
        }
    }

    /// The largest value that an unsigned scalar can have.
    pub fn most(&self, v: ValueId) -> u128 {
        self.most[v.index()]
    }

    /// The operand that an unsigned scalar always equals, such as that of `x + 0`, and of `x % 8` where `x` is less than that.
    pub fn same_as(&self, v: ValueId) -> Option<ValueId> {
        let Some(OpKind::Value(ValueOp::Binary { op, a, b, .. })) = self.def(v) else { return None };
        let ty = self.kernel.ty(v);
        if ty.is_tile() || !matches!(ty.dtype, Dtype::U32 | Dtype::U64) {
            return None;
        }
        let is = |v: ValueId, n: i128| self.int(v) == Some(n);
        let within = |v: ValueId, most: i128| u128::try_from(most).is_ok_and(|most| self.most(v) <= most);
        match op {
            BinaryOp::Add | BinaryOp::Max | BinaryOp::Or if is(*a, 0) => Some(*b),
            BinaryOp::Mul if is(*a, 1) => Some(*b),
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Max | BinaryOp::Or | BinaryOp::Shl | BinaryOp::Shr
                if is(*b, 0) =>
            {
                Some(*a)
            }
            BinaryOp::Mul | BinaryOp::Div if is(*b, 1) => Some(*a),
            BinaryOp::Rem => self.int(*b).is_some_and(|n| within(*a, n - 1)).then_some(*a),
            BinaryOp::Min => self.int(*b).is_some_and(|n| within(*a, n)).then_some(*a),
            any!(sums, bits, shifts) | BinaryOp::Div | BinaryOp::Max => None,
        }
    }

    /// What decides for whole vectors of a masked access to consecutive elements, if anything does.
    pub fn vector_mask(&self, mask: ValueId) -> Option<VectorMask> {
        let splat = |v: ValueId| match self.def(v) {
            Some(OpKind::Value(ValueOp::Splat { a, .. })) => Some(*a),
            Some(
                OpKind::Value(_)
                | OpKind::Memory(_)
                | OpKind::Matrix(_)
                | OpKind::Comm(_)
                | OpKind::Control(_),
            )
            | None => None,
        };
        if let Some(test) = splat(mask) {
            return Some(VectorMask::Uniform(test));
        }
        // An end that is known masks the same lanes in every launch: few of them, or the tile would end there.
        if let Some(OpKind::Value(ValueOp::Compare { op: CompareOp::Lt, a, b, .. })) = self.def(mask)
            && let Some(OpKind::Value(ValueOp::Arange { .. })) = self.def(*a)
            && let Some(end) = splat(*b)
            && self.constant(end).is_none()
        {
            return Some(VectorMask::First(end));
        }
        None
    }

    /// Whether a masked load has zeros where it does not load, and its mask decides for vectors: it can be done by them.
    pub fn loads_by_vectors(&self, op: OpId) -> bool {
        self.other(op).is_some_and(|(mask, other)| self.vector_mask(mask).is_some() && self.is_zero(other))
    }

    /// Whether `v` is what such a load has where it does not load, which then needs no value.
    pub fn needs_no_other(&self, op: OpId, v: ValueId) -> bool {
        self.other(op).is_some_and(|(_, other)| other == v) && self.loads_by_vectors(op)
    }

    /// Whether the text of an operation says nothing of an operand of it.
    pub fn leaves_out(&self, op: OpId, v: ValueId) -> bool {
        self.needs_no_other(op, v) || self.is_in_series(op, v)
    }

    /// Whether an operand of taken packets follows from the first tile's, and is no other operand.
    fn is_in_series(&self, op: OpId, v: ValueId) -> bool {
        let OpKind::Comm(CommOp::ReceiveMessages(op)) = &self.kernel.op(op).kind else { return false };
        let ReceiveMessages { tiles, mask, epoch, count, .. } = op;
        let written = |values: Vec<ValueId>| match linear::distance(self, &values) {
            Some(_) => values[0] == v,
            None => values.contains(&v),
        };
        let index = written(tiles.iter().map(|tile| tile.index).collect());
        let from = written(tiles.iter().map(|tile| tile.from).collect());
        !(index || from || *mask == v || [*epoch, *count].contains(&Some(v)))
    }

    /// Mask of a load of consecutive elements, and what it has where the mask does not hold.
    fn other(&self, op: OpId) -> Option<(ValueId, ValueId)> {
        let OpKind::Memory(op) = &self.kernel.op(op).kind else { return None };
        match *op {
            MemoryOp::LoadMasked { mask, other, .. } => Some((mask, other)),
            any!(stores, counts) | MemoryOp::Load { .. } | MemoryOp::Gather { .. } => None,
        }
    }

    fn is_zero(&self, v: ValueId) -> bool {
        let Some(OpKind::Value(op)) = self.def(v) else { return false };
        match op {
            ValueOp::Const { value, .. } => {
                matches!(value, Const::F32(0) | Const::U32(0) | Const::I32(0) | Const::U64(0))
            }
            ValueOp::Splat { a, .. } | ValueOp::Cast { a, .. } => self.is_zero(*a),
            any!(of_launch, pointwise, reductions)
            | ValueOp::Binary { .. }
            | ValueOp::Select { .. }
            | ValueOp::Bitcast { .. }
            | ValueOp::Arange { .. } => false,
        }
    }

    /// The largest power of two known to divide an integer, at most `limit` (a power of two).
    pub fn divisor(&self, v: ValueId, limit: u32) -> u32 {
        self.facts.multiple_of(v).min(limit.into()) as u32
    }

    /// The operations that declare or assign a variable.
    pub fn var_writes(&self, var: VarId) -> &[OpId] {
        &self.var_writes[var.index()]
    }

    /// Where an operation stands. Operations outside of every region are nowhere and are never asked for.
    pub fn position(&self, op: OpId) -> Position {
        self.tree.position(op).expect("the operation was reached through a region")
    }

    /// Whether two operations stand in one region.
    pub fn same_region(&self, a: OpId, b: OpId) -> bool {
        let (a, b) = (self.position(a), self.position(b));
        (a.role, a.parent) == (b.role, b.parent)
    }

    /// The operation whose region an operation stands in.
    pub fn owner(&self, op: OpId) -> Option<OpId> {
        self.position(op).parent.map(|p| p.0)
    }

    /// The split that an operation is inside of, and its warps a group.
    pub fn split(&self, op: OpId) -> Option<u32> {
        self.tree.enclosing(op).find_map(|o| {
            if let OpKind::Control(ControlOp::Split { warps, .. }) = self.kernel.op(o).kind {
                Some(warps)
            } else {
                None
            }
        })
    }

    /// What stands in the region of `beside` and is `op` or has it somewhere inside.
    pub fn ancestor_beside(&self, op: OpId, beside: OpId) -> Option<OpId> {
        std::iter::once(op).chain(self.tree.enclosing(op)).find(|&o| self.same_region(o, beside))
    }

    /// Whether an operation is the last of its role.
    pub fn ends_role(&self, op: OpId) -> bool {
        let at = self.position(op);
        let body = at.role.map(|r| &self.kernel.roles[r].body);
        at.parent.is_none() && body.is_some_and(|b| b.ops.last() == Some(&op))
    }

    /// Whether `op` is `outer` or stands somewhere inside of it.
    pub fn inside(&self, op: OpId, outer: OpId) -> bool {
        op == outer || self.tree.enclosing(op).any(|o| o == outer)
    }

    /// Lanes of the group that runs an operation.
    pub fn lanes(&self, op: OpId) -> u32 {
        let of_role =
            || self.position(op).role.map_or(self.kernel.block_warps, |r| self.kernel.role_warps(r));
        self.split(op).unwrap_or_else(of_role) * self.kernel.warp_size
    }
}
