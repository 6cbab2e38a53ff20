//! Where things are in a kernel: who defines a value, who uses it, which region an operation stands in.

use crate::ir::{Kernel, OpId, OpKind, ParcelId, Region, Target, ValueId, VarId};

/// Index of a region in [`Program::regions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RegionIx(pub u32);

/// What surrounds a region.
#[derive(Clone, Debug)]
pub(super) struct RegionInfo {
    /// The operation it belongs to; none for the prologue and role bodies.
    pub owner: Option<OpId>,
    /// The split it is inside of, if any.
    pub split: Option<SplitInfo>,
    /// Index of its role; none in the prologue.
    pub role: Option<usize>,
}

/// The split that an operation is inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitInfo {
    /// The operation.
    pub op: OpId,
    /// Warps a group.
    pub warps: u32,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// Its region.
    pub region: RegionIx,
    /// Its position there.
    pub at: usize,
}

/// The indexed kernel.
#[derive(Debug)]
pub(super) struct Program<'k> {
    /// The kernel.
    pub kernel: &'k Kernel,
    /// Every region.
    pub regions: Vec<RegionInfo>,
    spots: Vec<Option<Spot>>,
    defs: Vec<Option<OpId>>,
    users: Vec<Vec<OpId>>,
    var_writes: Vec<Vec<OpId>>,
}

impl<'k> Program<'k> {
    /// Indexes `kernel`.
    pub fn new(kernel: &'k Kernel) -> Program<'k> {
        let mut p = Program {
            kernel,
            regions: vec![],
            spots: vec![None; kernel.ops.len()],
            defs: vec![None; kernel.values.len()],
            users: vec![vec![]; kernel.values.len()],
            var_writes: vec![vec![]; kernel.vars.len()],
        };
        p.region(&kernel.prologue, RegionInfo { owner: None, split: None, role: None });
        for (i, role) in kernel.roles.iter().enumerate() {
            p.region(&role.body, RegionInfo { owner: None, split: None, role: Some(i) });
        }
        p
    }

    fn region(&mut self, region: &Region, info: RegionInfo) {
        let ix = RegionIx(self.regions.len() as u32);
        self.regions.push(info.clone());
        for (at, &id) in region.ops.iter().enumerate() {
            let kernel = self.kernel;
            let op = kernel.op(id);
            self.spots[id.index()] = Some(Spot { region: ix, at });
            for out in op.kind.outs() {
                self.defs[out.index()] = Some(id);
            }
            if let OpKind::For { var, .. } = op.kind {
                self.defs[var.index()] = Some(id);
            }
            for v in self.reads(id) {
                self.users[v.index()].push(id);
            }
            if let OpKind::VarSet { var, .. } | OpKind::VarDecl { var, .. } = op.kind {
                self.var_writes[var.index()].push(id);
            }
            let split = match op.kind {
                OpKind::Split { warps, .. } => Some(SplitInfo { op: id, warps }),
                _ => info.split,
            };
            for inner in op.kind.regions() {
                self.region(inner, RegionInfo { owner: Some(id), split, role: info.role });
            }
        }
    }

    /// The values that an operation reads, those of its parcel's target included.
    pub fn reads(&self, op: OpId) -> Vec<ValueId> {
        let kind = &self.kernel.op(op).kind;
        let mut v = kind.operands();
        if let OpKind::Put { parcel, .. } | OpKind::Signal { parcel, .. } = kind {
            v.push(self.target(*parcel));
        }
        v
    }

    /// The value that says where a parcel goes.
    pub fn target(&self, parcel: ParcelId) -> ValueId {
        match self.kernel.parcels[parcel.index()].target {
            Target::Rank(v) | Target::Mask(v) => v,
        }
    }

    /// The operation that defines a value (the `For` for its counter).
    pub fn def(&self, v: ValueId) -> Option<&'k OpKind> {
        self.defs[v.index()].map(|id| &self.kernel.op(id).kind)
    }

    /// Id of the operation that defines a value.
    pub fn def_id(&self, v: ValueId) -> Option<OpId> {
        self.defs[v.index()]
    }

    /// The author's name for a value. Names that the tracer gives to what it computes by itself (`rank`, the group's
    /// index, a parameter's own) say nothing that the expression does not.
    pub fn name(&self, v: ValueId) -> Option<&'k str> {
        let name = self.kernel.values[v.index()].name.as_deref()?;
        let told = match self.def(v)? {
            OpKind::Rank { .. } => name == "rank",
            OpKind::GroupIndex { .. } => name == "group",
            OpKind::ScalarParam { param, .. } => name == self.kernel.params[param.index()].name,
            _ => false,
        };
        (!told).then_some(name)
    }

    /// The operations that read a value, one entry for each operand.
    pub fn users(&self, v: ValueId) -> &[OpId] {
        &self.users[v.index()]
    }

    /// The operations that declare or assign a variable.
    pub fn var_writes(&self, var: VarId) -> &[OpId] {
        &self.var_writes[var.index()]
    }

    /// Where an operation stands. Operations outside of every region are nowhere and are never asked for.
    pub fn spot(&self, op: OpId) -> Spot {
        self.spots[op.index()].expect("the operation was reached through a region")
    }

    /// The region an operation stands in.
    pub fn info(&self, op: OpId) -> &RegionInfo {
        &self.regions[self.spot(op).region.0 as usize]
    }

    /// The operation of `region` that is `op` or has it somewhere inside.
    pub fn ancestor_in(&self, op: OpId, region: RegionIx) -> Option<OpId> {
        let mut op = op;
        loop {
            let spot = self.spot(op);
            if spot.region == region {
                return Some(op);
            }
            op = self.regions[spot.region.0 as usize].owner?;
        }
    }

    /// Whether an operation is the last of its role.
    pub fn ends_role(&self, op: OpId) -> bool {
        let info = self.info(op);
        let body = info.role.map(|r| &self.kernel.roles[r].body);
        info.owner.is_none() && body.is_some_and(|b| b.ops.last() == Some(&op))
    }

    /// Whether `op` is `outer` or stands somewhere inside of it.
    pub fn inside(&self, op: OpId, outer: OpId) -> bool {
        self.ancestor_in(op, self.spot(outer).region) == Some(outer)
    }

    /// Lanes of the group that runs an operation.
    pub fn lanes(&self, op: OpId) -> u32 {
        let warps = self.info(op).split.map_or(self.kernel.block_warps, |s| s.warps);
        warps * self.kernel.warp_size
    }
}
