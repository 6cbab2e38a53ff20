//! Stores and loads of matrices in memory that lie as lanes hold them.

use crate::ir::{LoadMatrix, Rows, ValueId};
use crate::print::emit::{Emitter, Step};
use crate::print::text::{Expr, Prec, Prim, PrintError, prim};

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
        prim::use_dtype(self.used, dtype);
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
