//! The emitter: the state of a function body that is being written, names in it, and scalars as expressions.

use std::collections::HashMap;

use super::{Item, Step, ops};
use crate::ir::{
    ControlOp, Loc, OpId, OpKind, ParamId, ParamKind, ParcelId, Place, ReceiptId, ReduceOp, Region, SharedId,
    Type, ValueId, ValueOp, VarId,
};
use crate::print::analysis::signals::{begun, is_paired};
use crate::print::facts::{Facts, Form, Sites};
use crate::print::layout::{
    Fragments,
    shared::{shared_len, shared_of},
};
use crate::print::loader::Loaders;
use crate::print::text::{Expr, Names, Prim, PrintError, Used, Writer, prim, type_name};

/// The group that runs the statements being written.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Name of its variable.
    pub name: &'static str,
    /// Number of lanes.
    pub lanes: u32,
}

/// What a wait that is put off is for: what a receipt lets be read, or the left operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOff {
    Receipt(ReceiptId),
    Product(OpId),
}

/// A loop being written: labels that a `break` or `continue` of an outer loop needs.
#[derive(Debug, Default)]
pub(crate) struct LoopLabels {
    pub after: Option<String>,
    pub next: Option<String>,
}

/// A reduction that a loop over a tile computes: its result, the name of a lane's part, and how parts are combined.
pub(crate) type Partial = (ValueId, String, ReduceOp);

/// Writes one operation of a step. Whatever writes statements may have to write the tile operations that wait first, and these can be
/// of any kind: so the emitter is given what writes them.
pub(crate) type WriteStep<'f, 'k> =
    fn(&mut Emitter<'f, 'k>, &Item, &mut Step, &[Partial]) -> Result<(), PrintError>;

/// Writes one function body.
#[derive(Debug)]
pub(crate) struct Emitter<'f, 'k> {
    pub f: &'f Facts<'k>,
    /// The kernel's loaders, if this is a function of a role that has one.
    pub loaders: Option<&'f Loaders>,
    /// How a step of a tile operation is written.
    pub write_step: WriteStep<'f, 'k>,
    pub w: Writer,
    pub names: Names,
    pub used: &'f mut Used,
    pub group: Group,
    /// Names of the types that say how the warps share matrices.
    pub parts: HashMap<Fragments, String>,
    /// Names of values that have a variable of their own.
    pub values: HashMap<ValueId, String>,
    pub vars: HashMap<VarId, String>,
    pub shared: HashMap<SharedId, String>,
    /// Name of the ring by which a loader and the others meet.
    pub ring: String,
    /// Name of what a loader draws for the others.
    pub drawn: String,
    /// The columns of tensor memory that products of a role without a loader have.
    pub tensor: String,
    /// Waits of a loader that are written where what they are for is brought.
    pub put_off: Vec<(PutOff, OpId)>,
    /// With a timeline: the variables that say when parcels were opened.
    pub opened: HashMap<ParcelId, String>,
    /// Of takings that have been looked ahead for: the packets that were seen.
    pub seen: HashMap<OpId, String>,
    /// First byte of each shared array.
    pub offsets: &'f HashMap<SharedId, u32>,
    /// Tile operations that wait to be written as one loop.
    pub pending: Vec<Item>,
    /// Whether what is written runs inside a function of its own, whose groups vote on having met all others.
    pub votes: bool,
    /// The loops around the statement being written, outermost first.
    pub loops: Vec<LoopLabels>,
    /// How many labels there are.
    pub labels: u32,
}

impl<'f, 'k> Emitter<'f, 'k> {
    /// An emitter for a function body, one level deep.
    pub fn new(
        f: &'f Facts<'k>,
        loaders: Option<&'f Loaders>,
        used: &'f mut Used,
        offsets: &'f HashMap<SharedId, u32>,
        write_step: WriteStep<'f, 'k>,
    ) -> Emitter<'f, 'k> {
        let timeline = f.timeline.iter().flat_map(Sites::taken);
        let taken = crate::print::text::defined::DEFINED
            .iter()
            .map(ToString::to_string)
            .chain(f.own.all())
            .chain(timeline);
        Emitter {
            f,
            loaders,
            write_step,
            w: Writer::new(1),
            names: Names::new(taken),
            used,
            group: match f.loads() {
                true => Group { name: "loader", lanes: f.p.kernel.warp_size },
                false => Group { name: "block", lanes: f.p.kernel.block_threads() },
            },
            parts: HashMap::new(),
            values: HashMap::new(),
            vars: HashMap::new(),
            shared: HashMap::new(),
            ring: String::new(),
            drawn: String::new(),
            tensor: String::new(),
            put_off: vec![],
            opened: HashMap::new(),
            seen: HashMap::new(),
            offsets,
            pending: vec![],
            votes: false,
            loops: vec![],
            labels: 0,
        }
    }

    pub fn ty(&self, v: ValueId) -> Type {
        self.f.p.kernel.ty(v)
    }

    pub fn form(&self, v: ValueId) -> Form {
        self.f.forms.of(v)
    }

    /// The group's number of this lane.
    pub fn lane(&self) -> String {
        format!("{}.lane", self.group.name)
    }

    /// Declares a fresh name for a value: the author's, or one that says what it is.
    pub fn declare(&mut self, v: ValueId) -> String {
        let want = match self.f.p.name(v) {
            Some(n) => n.to_string(),
            None => crate::print::analysis::describe::value(&self.f.p, v),
        };
        let name = self.names.fresh(&want);
        self.values.insert(v, name.clone());
        name
    }

    /// The expression of a scalar.
    pub fn scalar(&mut self, v: ValueId) -> Result<Expr, PrintError> {
        if let Some(name) = self.values.get(&v) {
            return Ok(Expr::atom(name.clone()));
        }
        if let Some(value) = self.f.p.constant(v) {
            return Ok(Expr::literal(value));
        }
        let f = self.f;
        let id = f.p.def_id(v).expect("a verified kernel defines what it uses");
        if let (Form::Everywhere, Some(same)) = (self.form(v), f.p.same_as(v)) {
            return self.scalar(same);
        }
        let op = f.p.kernel.op(id);
        match (&op.kind, self.form(v)) {
            (OpKind::Value(ValueOp::Rank { .. }), Form::Everywhere) => Ok(Expr::atom("args.rank")),
            (OpKind::Value(ValueOp::Node { .. }), Form::Everywhere) => Ok(Expr::atom("args.far.node")),
            (OpKind::Value(ValueOp::ScalarParam { param, .. }), Form::Everywhere) => Ok(self.arg(*param)),
            (_, Form::Alias(var)) => Ok(Expr::atom(self.vars[&var].clone())),
            (_, Form::Everywhere | Form::Dead | Form::Once | Form::Named) => self.compute(id),
        }
    }

    /// The expression that a scalar operation computes.
    pub fn compute(&mut self, id: OpId) -> Result<Expr, PrintError> {
        let f = self.f;
        let op = f.p.kernel.op(id);
        match &op.kind {
            OpKind::Value(kind) => self.compute_value(id, kind, op.loc),
            OpKind::Control(ControlOp::VarGet { var, .. }) => Ok(Expr::atom(self.vars[var].clone())),
            other @ (OpKind::Control(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_)) => {
                Err(PrintError::Misplaced { loc: op.loc, op: other.name() })
            }
        }
    }

    fn compute_value(&mut self, id: OpId, op: &ValueOp, loc: Loc) -> Result<Expr, PrintError> {
        match *op {
            ValueOp::ScalarParam { param, .. } => Ok(self.arg(param)),
            ValueOp::GroupIndex { .. } => Ok(self.group_index(id)),
            ValueOp::Epoch { word, advance: false, .. } => {
                self.used.add(Prim::Epoch);
                Ok(Expr::atom(format!("next_epoch({}->value)", self.arg(word).text)))
            }
            ValueOp::Epoch { word, advance: true, .. } => Ok(self.begin_epoch(id, word)),
            any!(by_element, spreads, reductions)
            | ValueOp::Const { .. }
            | ValueOp::Rank { .. }
            | ValueOp::Node { .. }
            | ValueOp::Active { .. } => {
                let mut used = std::mem::take(self.used);
                let e = ops::expression(&self.f.p, &mut used, op, loc, &mut |u, v| {
                    std::mem::swap(u, self.used);
                    let e = self.scalar(v);
                    std::mem::swap(u, self.used);
                    e
                });
                *self.used = used;
                e
            }
        }
    }

    /// The epoch that this launch begins. The kernel's words are numbered, as each needs room of its own.
    fn begin_epoch(&mut self, id: OpId, word: ParamId) -> Expr {
        let kernel = self.f.p.kernel;
        let (prim, function) = match is_paired(kernel) {
            true => (Prim::BeginEpochInPair, "begin_epoch_in_pair"),
            false => (Prim::BeginEpoch, "begin_epoch"),
        };
        self.used.add(prim);
        let before = kernel.prologue.ops.iter().take_while(|&&op| op != id);
        let nth = match before.filter_map(|&op| begun(kernel, op)).count() {
            0 => String::new(),
            n => format!("<{n}>"),
        };
        Expr::atom(format!("{function}{nth}(args, {}, {})", self.arg(word).text, kernel.grid_blocks()))
    }

    fn group_index(&self, id: OpId) -> Expr {
        let role = self.f.p.position(id).role;
        let blocks = role.map_or(1, |r| self.f.p.kernel.role_blocks(r));
        match self.f.p.split(id) {
            // A block's groups see its index too.
            None => match self.group.name {
                "group" => Expr::atom("block.index"),
                own => Expr::atom(format!("{own}.index")),
            },
            Some(_) if blocks == 1 => Expr::atom("group.number"),
            Some(_) => {
                let by_block = Expr::binary(
                    "*",
                    crate::print::text::expr::Prec::Product,
                    &Expr::atom("group.number"),
                    &Expr::atom(blocks.to_string()),
                );
                Expr::binary("+", crate::print::text::expr::Prec::Sum, &by_block, &Expr::atom("block.index"))
            }
        }
    }

    /// A member of the argument struct.
    pub fn arg(&self, param: ParamId) -> Expr {
        Expr::atom(format!("args.{}", self.f.args.of(param)))
    }

    /// The first element of a buffer: of this rank's own instance, or of a peer's window.
    pub fn base(&mut self, place: Place) -> Result<Expr, PrintError> {
        Ok(match place {
            Place::Shared(id) => Expr::atom(self.shared[&id].clone()),
            Place::Peer(window, rank) => Expr::index(&self.arg(window), &self.scalar(rank)?),
            Place::All(window, _) => self.all_ranks(window),
            Place::Param(id) => self.own(id),
        })
    }

    /// The first element of all ranks' instances at once: their pointer comes after those of the ranks.
    pub fn all_ranks(&self, param: ParamId) -> Expr {
        Expr::index(&self.arg(param), &Expr::atom("ranks"))
    }

    /// The first element of this rank's own instance of a parameter.
    pub fn own(&self, id: ParamId) -> Expr {
        match self.f.p.kernel.params[id.index()].kind {
            any!(symmetric) => Expr::atom(format!("{}[args.rank]", self.arg(id).text)),
            ParamKind::EpochWord => Expr::atom(format!("&{}->value", self.arg(id).text)),
            ParamKind::Local
            | ParamKind::Counters
            | ParamKind::BlockFlags
            | ParamKind::Far(_)
            | ParamKind::Scalar => self.arg(id),
        }
    }

    /// Comment with the author's place.
    pub fn place(&self, loc: Loc) -> String {
        let place = loc.to_string();
        place.rsplit(['/', '\\']).next().unwrap_or(&place).to_owned()
    }

    /// Declares the shared arrays that a region uses and that `copies` groups of a block have one each of.
    pub fn declare_shared(&mut self, region: &Region, copies: u32) {
        let (k, target) = (self.f.p.kernel, self.f.target);
        for id in shared_of(k, region, target) {
            if self.shared.contains_key(&id) {
                continue;
            }
            let s = &k.shared[id.index()];
            if s.copies != copies && s.copies != 1 {
                continue;
            }
            self.used.add(Prim::Shared);
            prim::use_dtype(self.used, s.dtype);
            let name = self.names.fresh(&s.name);
            let ty = type_name(s.dtype);
            let len = shared_len(k, id, target);
            let stride = (len * s.dtype.bytes()).next_multiple_of(16);
            let at = match s.copies {
                1 => format!("{}", self.offsets[&id]),
                _ if self.offsets[&id] == 0 => format!("group.number * {stride}"),
                _ => format!("{} + group.number * {stride}", self.offsets[&id]),
            };
            self.w.line_with(
                &format!("{ty}* const {name} = shared_array<{ty}>({at});"),
                &format!("{ty}[{len}]"),
            );
            self.shared.insert(id, name);
        }
    }
}
