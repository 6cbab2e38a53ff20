//! Facts about a kernel that several views of it need: where operations stand, where values come from and go to,
//! which are constant, and which powers of two divide them.
//!
//! All of it expects a kernel that passes [`super::verify_structure`].

mod banks;
mod facts;
mod fold;

use super::*;

pub use banks::banks;
pub use facts::Facts;
pub(super) use fold::fold;

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Program order over the whole kernel: prologue first, then the roles; an operation comes before what it holds.
    pub order: u32,
    /// Index of the role, `None` in the prologue.
    pub role: Option<usize>,
    /// The operation that holds this one and which of its regions, `None` at the top of a role or the prologue.
    pub parent: Option<(OpId, usize)>,
    /// Index in its region.
    pub index: usize,
}

/// The tree that the structured regions of a kernel form.
#[derive(Debug)]
pub struct Tree {
    at: Vec<Option<Position>>,
    order: Vec<OpId>,
}

impl Tree {
    /// Positions of all reachable operations.
    pub fn of(kernel: &Kernel) -> Tree {
        let mut tree = Tree { at: vec![None; kernel.ops.len()], order: vec![] };
        tree.place(kernel, &kernel.prologue, None, None);
        for (i, role) in kernel.roles.iter().enumerate() {
            tree.place(kernel, &role.body, Some(i), None);
        }
        tree
    }

    fn place(
        &mut self,
        kernel: &Kernel,
        region: &Region,
        role: Option<usize>,
        parent: Option<(OpId, usize)>,
    ) {
        for (index, &id) in region.ops.iter().enumerate() {
            self.at[id.index()] = Some(Position { order: self.order.len() as u32, role, parent, index });
            self.order.push(id);
            for (i, nested) in kernel.op(id).kind.regions().into_iter().enumerate() {
                self.place(kernel, nested, role, Some((id, i)));
            }
        }
    }

    /// Position of an operation, `None` if nothing reaches it.
    pub fn position(&self, op: OpId) -> Option<Position> {
        self.at.get(op.index()).copied().flatten()
    }

    /// All reachable operations in program order.
    pub fn in_order(&self) -> &[OpId] {
        &self.order
    }

    /// The operations that hold this one, innermost first.
    pub fn enclosing(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        std::iter::successors(self.parent(op), |&o| self.parent(o))
    }

    /// The loop that a `Break` or `Continue` of this depth at `op` refers to; none if that would leave a split.
    pub fn target_loop(&self, kernel: &Kernel, op: OpId, depth: u32) -> Option<OpId> {
        self.enclosing(op)
            .take_while(|&o| !matches!(kernel.op(o).kind, OpKind::Control(ControlOp::Split { .. })))
            .filter(|&o| kernel.op(o).kind.is_loop())
            .nth(depth as usize)
    }

    /// Whether `a` runs before `b` on every path that reaches `b`: it stands earlier in a region that holds `b`.
    pub fn dominates(&self, a: OpId, b: OpId) -> bool {
        let Some(first) = self.position(a) else { return false };
        std::iter::once(b).chain(self.enclosing(b)).any(|o| {
            self.position(o)
                .is_some_and(|p| p.role == first.role && p.parent == first.parent && first.index < p.index)
        })
    }

    fn parent(&self, op: OpId) -> Option<OpId> {
        self.position(op)?.parent.map(|(p, _)| p)
    }
}

/// What defines a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Nothing that is reachable.
    Nothing,
    /// An operation.
    Op(OpId),
    /// A `For`, whose counter it is.
    Counter(OpId),
}

/// Definitions and uses of all values.
#[derive(Debug)]
pub struct DefUse {
    defs: Vec<Def>,
    uses: Vec<Vec<OpId>>,
}

impl DefUse {
    /// Collects them from the reachable operations. What sends uses its target.
    pub fn of(kernel: &Kernel, tree: &Tree) -> DefUse {
        let mut this =
            DefUse { defs: vec![Def::Nothing; kernel.values.len()], uses: vec![vec![]; kernel.values.len()] };
        for &id in tree.in_order() {
            let kind = &kernel.op(id).kind;
            for out in kind.outs() {
                this.defs[out.index()] = Def::Op(id);
            }
            if let Some(var) = kind.counter() {
                this.defs[var.index()] = Def::Counter(id);
            }
            for used in kind.operands().into_iter().chain(target(kernel, kind)) {
                if this.uses[used.index()].last() != Some(&id) {
                    this.uses[used.index()].push(id);
                }
            }
        }
        this
    }

    /// What defines a value.
    pub fn def(&self, v: ValueId) -> Def {
        self.defs[v.index()]
    }

    /// The operations that read a value, in program order.
    pub fn uses(&self, v: ValueId) -> &[OpId] {
        &self.uses[v.index()]
    }
}

/// The value that says where an operation of a parcel, packets or LL elements go.
pub fn target(kernel: &Kernel, kind: &OpKind) -> Option<ValueId> {
    let mut target = None;
    kind.parts(&mut |part| match part {
        Part::Target(t) => target = Some(t),
        Part::Parcel(p) => target = Some(kernel.parcels[p.index()].target),
        Part::Out(_)
        | Part::Counter(_)
        | Part::In(_)
        | Part::Region(_)
        | Part::Param(_)
        | Part::Shared(_)
        | Part::Var(_)
        | Part::Receipt(_) => {}
    });
    match target? {
        Target::Rank(v) | Target::Mask(v) => Some(v),
    }
}
