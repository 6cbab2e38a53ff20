//! Matrices in memory that lie as lanes hold them.
//!
//! A group's product is spread over its lanes as the matrix instruction leaves it: two or four neighbours of a row here, two of
//! another row there. Rows of a matrix in memory take many small accesses, then. But a matrix that a kernel writes and reads again by
//! whole tiles of one shape, each held by lanes in the same way, need not lie in rows. Every lane stores 16 bytes of such a tile in
//! turn, next to those of its neighbours. A lane that reads it, on this rank or another one, gets the elements of the lane with the
//! same number. The order is a part of the parameter's words: an operation refuses launches that share a matrix in different orders.

use std::collections::{HashMap, HashSet};

use crate::ir::{self, Kernel, LoadMatrix, OpId, Param, ParamId, ParamKind, Rows, ValueId};

use super::matrices::Moved;
use crate::print::{
    PrintError,
    analysis::{program::Program, reach::Reach},
    emit::{emitter::Emitter, ops, tiles::Step},
    layout::spread::{Layout, Layouts, WIDEST},
    text::{
        expr::{Expr, Prec},
        prim::Prim,
    },
};

/// What is known of a matrix in memory, from one access to the next.
struct Seen {
    tile: Layout,
    stored: bool,
    loaded: bool,
}

/// The matrices of a kernel that lie as lanes hold them, and how lanes hold a tile.
pub(crate) fn matrices(p: &Program, layouts: &Layouts) -> HashMap<ParamId, Layout> {
    let mut found: HashMap<ParamId, Seen> = HashMap::new();
    let mut others = HashSet::new();
    for &id in p.ops() {
        let kind = &p.kernel.op(id).kind;
        let access = Moved::of(kind).and_then(|moved| {
            let param = moved.rows.place.param().filter(|param| is_own(p.kernel, *param))?;
            whole_tile(p, layouts, id, moved).map(|tile| (param, tile))
        });
        match access {
            Some((param, tile)) => {
                let seen = found.entry(param).or_insert(Seen { tile, stored: false, loaded: false });
                match Moved::stored(kind) {
                    Some(_) => seen.stored = true,
                    None => seen.loaded = true,
                }
                if seen.tile != tile {
                    others.insert(param);
                }
            }
            None => others.extend(kind.accesses().into_iter().filter_map(|a| a.place.param())),
        }
    }
    let both = found.into_iter().filter(|(_, seen)| seen.stored && seen.loaded);
    both.map(|(param, seen)| (param, seen.tile)).filter(|(param, _)| !others.contains(param)).collect()
}

/// The words of a kernel's parameters: what a caller allocates, and in which order the elements of a matrix lie.
pub(crate) fn words(kernel: &Kernel, lane_order: &HashMap<ParamId, Layout>) -> Vec<String> {
    let order = |&Layout { len, lanes, per_lane, fragments }: &Layout| {
        let parts =
            fragments.map(|f| format!(" in {}x{} parts of {}x{}", f.down, f.across, f.rows, f.columns));
        format!("{lanes} lanes with {per_lane} each of {len}{}", parts.unwrap_or_default())
    };
    let param = |(at, param): (usize, &Param)| match lane_order.get(&ParamId(at as u32)) {
        Some(layout) => ir::in_order(&param.signature(), &order(layout)),
        None => param.signature(),
    };
    kernel.params.iter().enumerate().map(param).collect()
}

/// Whether a matrix is the operation's own. Its launches compare the order in which its elements lie.
fn is_own(kernel: &Kernel, param: ParamId) -> bool {
    let param = &kernel.params[param.index()];
    let own = match param.kind {
        ParamKind::Window | ParamKind::Symmetric | ParamKind::Local => param.own,
        any!(private) | ParamKind::Flags | ParamKind::Counts | ParamKind::Messages(_) => false,
    };
    param.columns.is_some() && own
}

/// How lanes hold what is moved, if that is all columns of rows that are there, which begin where a tile does, and lanes have
/// whole 16 bytes of it.
fn whole_tile(
    p: &Program,
    layouts: &Layouts,
    id: OpId,
    Moved { rows, column, matrix: tile }: Moved<'_>,
) -> Option<Layout> {
    let param = &p.kernel.params[rows.place.param()?.index()];
    let (all, columns) = param.shape()?;
    let (down, across) = p.kernel.ty(tile).shape()?;
    let begins = down.is_power_of_two() && p.divisor(rows.row, down) == down;
    let inside = Reach::of(p, rows.row).most() + u128::from(down) <= u128::from(all);
    let layout = layouts.of(tile);
    let vector = layout.per_lane * param.dtype.bytes();
    let lane = layout.steps() * vector;
    let fits = lane.is_multiple_of(WIDEST) && vector <= WIDEST && layout.steps() > 1 && p.split(id).is_none();
    let whole = u64::from(across) == columns && p.int(column) == Some(0) && rows.end.is_none();
    (begins && inside && fits && whole).then_some(layout)
}

impl Emitter<'_, '_> {
    /// Whether a matrix in memory lies as lanes hold it.
    pub fn in_lane_order(&self, rows: &Rows) -> bool {
        rows.place.param().is_some_and(|param| self.f.lane_order.contains_key(&param))
    }

    /// Stores a tile of a matrix that lies as lanes hold it.
    pub fn store_lanes(&mut self, base: &Expr, to: &Rows, value: ValueId) -> Result<(), PrintError> {
        self.used.add(Prim::StoreLanes);
        let (lanes, at) = (self.group.lanes, self.first_of_row(base, to)?);
        let name = match self.values.get(&value) {
            Some(name) => name.clone(),
            // A variable's registers go by its name, equal elements have none.
            None => self.copied(value)?,
        };
        let lane = self.lane();
        self.w.line(&format!("store_lanes<{lanes}>({}, {lane}, {name});", at.plain()));
        Ok(())
    }

    /// Loads one.
    pub fn load_lanes(&mut self, load: &LoadMatrix) -> Result<(), PrintError> {
        self.flush()?;
        let LoadMatrix { out, at, .. } = load;
        self.used.add(Prim::LoadLanes);
        let base = self.base(at.place)?;
        let (lanes, from) = (self.group.lanes, self.first_of_row(&base, at)?);
        let (layout, dtype) = (self.f.layouts.of(*out), self.ty(*out).dtype);
        let name = self.declare(*out);
        self.declare_registers(&name, dtype, layout);
        let lane = self.lane();
        self.w.line(&format!("load_lanes<{lanes}>({}, {lane}, {name});", from.plain()));
        Ok(())
    }

    /// A pointer to the first element of a row.
    fn first_of_row(&mut self, base: &Expr, rows: &Rows) -> Result<Expr, PrintError> {
        let columns = self.shape(rows.place).1;
        let row = self.scalar(rows.row)?;
        let wide = Expr::call("u64", [&row]);
        let offset = Expr::binary("*", Prec::Product, &wide, &Expr::atom(columns.to_string()));
        Ok(Expr::binary("+", Prec::Sum, base, &offset))
    }

    /// New registers with a matrix.
    fn copied(&mut self, value: ValueId) -> Result<String, PrintError> {
        let (layout, dtype) = (self.f.layouts.of(value), self.ty(value).dtype);
        ops::use_dtype(self.used, dtype);
        let name = self.names.fresh("stored");
        self.declare_registers(&name, dtype, layout);
        let loc = self.f.p.def_id(value).map(|id| self.f.p.kernel.op(id).loc);
        let loc = loc.expect("a verified kernel defines what it uses");
        self.step_loop(Step::new(layout), false, loc, |me, step| {
            let from = me.vector(value, step)?;
            let to = me.registers(&name, step);
            me.w.line(&format!("{to} = {from};"));
            Ok(())
        })?;
        Ok(name)
    }
}
