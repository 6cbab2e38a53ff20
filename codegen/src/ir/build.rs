//! Builds a [`Kernel`] operation by operation. The tracer sits on top of it; tests use it directly.

use super::*;

/// A kernel under construction, with a stack of open regions.
#[derive(Debug)]
pub struct Builder {
    /// What has been built so far.
    pub kernel: Kernel,
    open: Vec<Region>,
}

impl Builder {
    /// An empty kernel; operations go to the prologue until a role is begun.
    pub fn new(name: &str, ranks: u32, warp_size: u32, block_warps: u32, loc: Loc) -> Builder {
        let kernel = Kernel {
            name: name.into(),
            doc: String::new(),
            usage: String::new(),
            variant: name.into(),
            config: vec![],
            ranks,
            warp_size,
            block_warps,
            params: vec![],
            shared: vec![],
            values: vec![],
            vars: vec![],
            parcels: vec![],
            receipts: vec![],
            ops: vec![],
            begins_early: false,
            prologue: Region::default(),
            roles: vec![],
            loc,
            nodes: 1,
        };
        Builder { kernel, open: vec![Region::default()] }
    }

    /// Adds a parameter.
    pub fn param(&mut self, name: &str, kind: ParamKind, dtype: Dtype, len: u64) -> ParamId {
        let (name, doc) = (name.into(), String::new());
        self.kernel.params.push(Param { name, kind, dtype, len, columns: None, own: false, doc });
        ParamId(self.kernel.params.len() as u32 - 1)
    }

    /// Adds a parameter that is a matrix of rows that follow one another.
    pub fn matrix(&mut self, name: &str, kind: ParamKind, dtype: Dtype, rows: u64, columns: u64) -> ParamId {
        let param = self.param(name, kind, dtype, rows * columns);
        self.kernel.params[param.index()].columns = Some(columns);
        param
    }

    /// Adds a shared-memory array that `copies` groups of a block have one each of.
    pub fn shared(&mut self, name: &str, dtype: Dtype, len: u32, copies: u32, loc: Loc) -> SharedId {
        self.kernel.shared.push(Shared { name: name.into(), dtype, len, copies, loc });
        SharedId(self.kernel.shared.len() as u32 - 1)
    }

    /// Adds a variable (its declaration is an operation of its own).
    pub fn var(&mut self, ty: Type, loc: Loc) -> VarId {
        self.kernel.vars.push(Var { ty, name: None, loc });
        VarId(self.kernel.vars.len() as u32 - 1)
    }

    /// Adds a parcel.
    pub fn parcel(&mut self, target: Target, loc: Loc) -> ParcelId {
        self.kernel.parcels.push(Parcel { target, bare: false, multicast: false, windows: vec![], loc });
        ParcelId(self.kernel.parcels.len() as u32 - 1)
    }

    /// Adds a parcel that is a signal without data.
    pub fn bare_parcel(&mut self, target: Target, loc: Loc) -> ParcelId {
        self.kernel.parcels.push(Parcel { target, bare: true, multicast: false, windows: vec![], loc });
        ParcelId(self.kernel.parcels.len() as u32 - 1)
    }

    /// Adds a receipt.
    pub fn receipt(&mut self, flag: ParamId, loc: Loc) -> ReceiptId {
        self.kernel.receipts.push(Receipt { flag, loc });
        ReceiptId(self.kernel.receipts.len() as u32 - 1)
    }

    /// Appends an operation to the innermost open region.
    pub fn push(&mut self, kind: impl Into<OpKind>, loc: Loc) -> OpId {
        let id = self.kernel.add_op(kind, loc);
        self.open.last_mut().expect("a region is open until finish").ops.push(id);
        id
    }

    /// Appends an operation to the open region at this depth (0 is the prologue).
    pub fn push_at(&mut self, depth: usize, kind: impl Into<OpKind>, loc: Loc) -> OpId {
        let id = self.kernel.add_op(kind, loc);
        self.open[depth].ops.push(id);
        id
    }

    /// Appends an operation that exists already (of a region that was closed) to the innermost open region.
    pub fn append(&mut self, op: OpId) {
        self.open.last_mut().expect("a region is open until finish").ops.push(op);
    }

    /// The operations so far of the open region at this depth (0 is the prologue).
    pub fn open_ops(&self, depth: usize) -> &[OpId] {
        &self.open[depth].ops
    }

    /// Appends an operation that defines one value of type `ty`, and returns the value.
    pub fn emit<K: Into<OpKind>>(&mut self, ty: Type, loc: Loc, kind: impl FnOnce(ValueId) -> K) -> ValueId {
        let out = self.kernel.add_value(ty, None);
        self.push(kind(out), loc);
        out
    }

    /// Appends a constant.
    pub fn constant(&mut self, value: Const, loc: Loc) -> ValueId {
        self.emit(Type::scalar(value.dtype()), loc, |out| ValueOp::Const { out, value })
    }

    /// Opens a nested region; operations go there until [`Builder::end`].
    pub fn begin(&mut self) {
        self.open.push(Region::default());
    }

    /// Closes the innermost nested region and returns it, to be put into an operation or [`Builder::role`].
    pub fn end(&mut self) -> Region {
        assert!(self.open.len() > 1, "no nested region is open");
        self.open.pop().expect("checked above")
    }

    /// How many regions are open; 1 in the prologue.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// Adds a role whose body was built between [`Builder::begin`] and [`Builder::end`].
    pub fn role(&mut self, name: &str, blocks: u32, body: Region, loc: Loc) {
        self.kernel.roles.push(Role {
            name: name.into(),
            blocks,
            ranks: None,
            body,
            goes_on_as: None,
            beside: None,
            loc,
        });
    }

    /// Closes the prologue and returns the kernel.
    pub fn finish(mut self) -> Kernel {
        assert_eq!(self.open.len(), 1, "a nested region is still open");
        self.kernel.prologue = self.open.pop().expect("checked above");
        self.kernel
    }
}
