//! Matrices: products by the matrix instructions of a target, and what moves matrices to and from memory.

use crate::family::{MatrixUnit, Target};
use crate::ir::{
    Dot, Dtype, Lines, List, LoadMatrix, LoadRow, Loc, MatrixOp, OpId, OpKind, ParamId, Place, PutMatrix,
    Region, Rows, StoreMatrix, Target as To, ValueId,
};
use crate::print::emit::{Emitter, Step};
use crate::print::facts::Side;
use crate::print::layout::{Fragments, Layout, Moved};
use crate::print::matrix::tensor;
use crate::print::text::{Expr, Prec, Prim, PrintError, prim};

impl Emitter<'_, '_> {
    /// Names how the warps share the matrices of a region.
    pub fn declare_parts(&mut self, region: &Region) {
        let kernel = self.f.p.kernel;
        let mut all = vec![];
        kernel.walk(region, &mut |_, op| {
            let matrices = op.kind.outs().into_iter().filter(|v| kernel.ty(*v).shape().is_some());
            all.extend(matrices.filter_map(|v| self.f.layouts.of(v).fragments));
        });
        for fragments in all {
            if !self.parts.contains_key(&fragments) {
                self.used.add(Prim::Fragments);
                let name = self.names.fresh("Part");
                self.w.line(&format!("using {name} = {};", fragments.text()));
                self.parts.insert(fragments, name);
            }
        }
    }

    /// The matrix over whose elements an operation loops, if it does.
    pub fn matrix_tile(&self, op: &MatrixOp) -> Option<ValueId> {
        match op {
            MatrixOp::LoadMatrix(LoadMatrix { out, at, .. }) => (!self.in_lane_order(at)).then_some(*out),
            MatrixOp::LoadRow(LoadRow { out, .. }) => Some(*out),
            MatrixOp::StoreMatrix(store) => {
                let StoreMatrix { to, column, value } = store;
                let moved = Moved { rows: to, column: *column, matrix: *value };
                (!self.in_lane_order(to) && !self.f.exchanges(moved)).then_some(*value)
            }
            // All lanes at once.
            MatrixOp::Dot(_) | MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => None,
        }
    }

    pub fn part_name(&self, fragments: Option<Fragments>) -> String {
        fragments.and_then(|f| self.parts.get(&f)).expect("a role's matrices are declared").clone()
    }

    /// An operation on matrices that is no part of a loop over one.
    pub fn matrix_op(&mut self, id: OpId, op: &MatrixOp) -> Result<(), PrintError> {
        match op {
            MatrixOp::Dot(dot) => self.dot(id, dot),
            MatrixOp::StoreMatrix(StoreMatrix { to, column, value }) => {
                self.flush()?;
                let base = self.base(to.place)?;
                self.store_at(id, &base, Moved { rows: to, column: *column, matrix: *value })
            }
            MatrixOp::ReduceLines(reduce) => self.reduce_lines(reduce),
            MatrixOp::Deinterleave(op) => self.deinterleave(op),
            MatrixOp::LoadMatrix(load) if self.in_lane_order(&load.at) => self.load_lanes(load),
            MatrixOp::LoadMatrix(_) | MatrixOp::LoadRow(_) => {
                let loc = self.f.p.kernel.op(id).loc;
                Err(PrintError::Misplaced { loc, op: OpKind::from(op.clone()).name() })
            }
        }
    }

    fn dot(&mut self, id: OpId, dot: &Dot) -> Result<(), PrintError> {
        self.flush()?;
        match (self.f.side, self.loaders) {
            (Some(Side::Loads), Some(loaders)) => return self.bring(id, dot, loaders),
            (Some(Side::Multiplies), _) => return self.dot_of_pieces(id, dot),
            (Some(Side::Loads), None) | (None, _) => {}
        }
        let Dot { out, acc, a, b, from, count, stages, room, paired } = dot;
        let (layout, loc) = (self.f.layouts.of(*out), self.f.p.kernel.op(id).loc);
        let dtype = self.param_dtype(a.place);
        if a.scales.is_some() || *paired {
            return Err(tensor::without_loader(self.f, loc, *paired));
        }
        prim::use_dtype(self.used, dtype);
        let unit = layout.fragments.map(|f| f.unit(&self.f.p, id, self.f.target));
        let (multiply, memory) = match unit {
            Some(MatrixUnit::Warpgroup) => {
                self.used.add(Prim::DotWgmma);
                if dtype == Dtype::Fp8 {
                    self.used.add(Prim::MultiplyApart);
                }
                ("dot_by_warpgroups", String::new())
            }
            Some(MatrixUnit::TensorMemory) => {
                self.use_pieces(dtype);
                ("dot_in_tensor_memory", format!("{}, ", self.tensor))
            }
            Some(MatrixUnit::Warp) | None => {
                self.use_warps(dtype);
                ("dot", String::new())
            }
        };
        self.w.gap();
        let (left, right, place) = (self.matrix_name(a.place), self.matrix_name(b.place), self.place(loc));
        self.w.comment(&format!("Multiply rows of {left} with rows of {right} ({place})"));
        let name = self.sums(id, *out, *acc, layout)?;
        let room = self.shared[room].clone();
        let down = layout.fragments.map_or(0, |fragments| fragments.rows);
        let (a, b) = (self.left_rows(a, down)?, self.rows(b)?);
        let end = self.f.p.int(*from).zip(self.f.p.int(*count)).map(|(from, count)| from + count);
        let (from, count) = (self.scalar(*from)?, self.scalar(*count)?);
        let end = match end {
            Some(end) => Expr::atom(end.to_string()),
            None => Expr::binary("+", Prec::Sum, &from, &count),
        };
        let (group, parts) = (self.group.name, self.part_name(layout.fragments));
        let (from, end) = (from.plain(), end.plain());
        // AMD's GPUs wait for what they load in registers: shared memory holds one piece.
        let stages = match self.f.target {
            Target::Cuda(_) => format!("{stages}, "),
            Target::Hip(_) => String::new(),
        };
        self.w.line(&format!(
            "{multiply}<{stages}{parts}>({group}, {memory}{room}, {a}, {b}, {from}, {end}, {name});"
        ));
        Ok(())
    }

    /// What says how many columns pieces of operands have that may be of fp8.
    pub fn use_pieces(&mut self, dtype: Dtype) {
        if matches!(dtype, Dtype::Fp8 | Dtype::U32) {
            self.used.add(Prim::Pieces);
        }
    }

    /// Products by warps.
    fn use_warps(&mut self, dtype: Dtype) {
        let fp8 = dtype == Dtype::Fp8;
        // Where no instruction takes fp8, it becomes bf16.
        if dtype == Dtype::Fp16 {
            self.used.add(Prim::MultiplyFp16);
        } else if !fp8 || !self.f.target.has_fp8_products() {
            self.used.add(Prim::MultiplyBf16);
        }
        if fp8 {
            [Prim::Pieces, Prim::MultiplyFp8].into_iter().for_each(|prim| self.used.add(prim));
        }
        if matches!(self.f.target, Target::Cuda(_)) {
            self.used.add(Prim::BringRows);
        }
        self.used.add(Prim::Dot);
    }

    /// Stores a matrix to other ranks.
    pub fn put_matrix(&mut self, id: OpId, put: &PutMatrix) -> Result<(), PrintError> {
        self.flush()?;
        let PutMatrix { parcel, to, column, value } = put;
        let moved = Moved { rows: to, column: *column, matrix: *value };
        let buffer = to.place.param().expect("the verifier lets matrices that are put to be parameters");
        match self.f.p.kernel.parcels[parcel.index()].target {
            To::Rank(rank) => {
                let base = Expr::index(&self.arg(buffer), &self.scalar(rank)?);
                self.store_at(id, &base, moved)
            }
            To::Mask(set) => {
                let loc = self.f.p.kernel.op(id).loc;
                self.for_each_rank(loc, set, buffer, None, |me, base| me.store_at(id, base, moved))
            }
        }
    }

    /// Stores a matrix to rows of one in memory that begins at `base`: as lanes hold it, or after lanes have exchanged what they
    /// hold of it, or piece by piece.
    fn store_at(&mut self, id: OpId, base: &Expr, moved: Moved<'_>) -> Result<(), PrintError> {
        let Moved { rows: to, column, matrix: value } = moved;
        if self.in_lane_order(to) {
            return self.store_lanes(base, to, value);
        }
        let (layout, loc) = (self.f.layouts.of(value), self.f.p.kernel.op(id).loc);
        let name = self.values.get(&value).filter(|_| self.f.exchanges(moved)).cloned();
        let Some(name) = name else {
            // Equal elements have no registers.
            return self
                .step_loop(Step::new(layout), false, loc, |me, step| me.store_step(base, moved, step));
        };
        let (prim, store) = match self.param_dtype(to.place).bytes() {
            1 => (Prim::StoreBytes, "store_bytes"),
            _ => (Prim::StoreRows, "store_rows"),
        };
        self.used.add(prim);
        let columns = self.shape(to.place).1;
        let end = self.end_of(to)?;
        let (row, column) = (self.scalar(to.row)?, self.scalar(column)?);
        let (part, lane) = (self.part_name(layout.fragments), self.lane());
        self.w.line(&format!(
            "{store}<{part}, {columns}>({}, {}, {}, {}, {lane}, {name});",
            base.plain(),
            end.plain(),
            row.plain(),
            column.plain()
        ));
        Ok(())
    }

    /// The registers of sums: new ones, or those of a product that nothing else needs.
    pub fn sums(
        &mut self,
        id: OpId,
        out: ValueId,
        acc: Option<ValueId>,
        layout: Layout,
    ) -> Result<String, PrintError> {
        let p = &self.f.p;
        let handed_on = acc.and_then(|acc| {
            let of = p
                .def_id(acc)
                .filter(|of| matches!(p.kernel.op(*of).kind, OpKind::Matrix(MatrixOp::Dot(_))))?;
            (p.users(acc) == [id] && p.same_region(of, id)).then(|| self.values.get(&acc).cloned()).flatten()
        });
        let one = layout.steps() == 1;
        if let Some(name) = handed_on {
            self.values.insert(out, name.clone());
            return Ok(name.strip_suffix("[0]").map_or(name.clone(), str::to_owned));
        }
        let (name, ty) = (self.declare(out), self.vector_type(Dtype::F32, layout.per_lane));
        if one {
            self.values.insert(out, format!("{name}[0]"));
        }
        let zero = if acc.is_none() { " = {}" } else { "" };
        self.w.line(&format!("{ty} {name}[{}]{zero};", layout.steps()));
        if let Some(acc) = acc {
            let loc = self.f.p.kernel.op(id).loc;
            self.step_loop(Step::new(layout), false, loc, |me, step| {
                let from = me.vector(acc, step)?;
                let to = if one { format!("{name}[0]") } else { me.registers(&name, step) };
                me.w.line(&format!("{to} = {from};"));
                Ok(())
            })?;
        }
        Ok(name)
    }

    /// `rows_of<columns>(matrix, row, rows)`.
    fn rows(&mut self, rows: &Rows) -> Result<String, PrintError> {
        let columns = self.shape(rows.place).1;
        let (base, row, end) = (self.base(rows.place)?, self.scalar(rows.row)?, self.end_of(rows)?);
        Ok(format!("rows_of<{columns}>({}, {}, {})", base.plain(), row.plain(), end.plain()))
    }

    /// The same, or `gathered_rows<columns, rows>(group, matrix, all, list, row, end)`.
    fn left_rows(&mut self, rows: &Rows, down: u32) -> Result<String, PrintError> {
        let Some(list) = rows.list else { return self.rows(rows) };
        self.used.add(Prim::BringGathered);
        let (all, columns) = self.shape(rows.place);
        let (base, group) = (self.base(rows.place)?, self.group.name);
        let [list, row, end] = self.listed(list, rows)?;
        let base = base.plain();
        Ok(format!("gathered_rows<{columns}, {down}>({group}, {base}, {all}u, {list}, {row}, {end})"))
    }

    /// A list of rows, the first element of it, and the one from which on none is there.
    pub fn listed(&mut self, list: ParamId, rows: &Rows) -> Result<[String; 3], PrintError> {
        let (all, row) = (self.f.p.kernel.params[list.index()].len, self.scalar(rows.row)?);
        let end = match rows.end {
            Some(end) => {
                self.used.add(Prim::MinMax);
                Expr::call("min_of", [&self.scalar(end)?, &Expr::atom(format!("{all}u"))])
            }
            None => Expr::atom(format!("{all}u")),
        };
        Ok([self.arg(list).plain(), row.plain(), end.plain()].map(str::to_owned))
    }

    /// The row from which on none is there.
    fn end_of(&mut self, rows: &Rows) -> Result<Expr, PrintError> {
        let all = self.shape(rows.place).0;
        let Some(end) = rows.end else { return Ok(Expr::atom(all.to_string())) };
        let known = self.f.p.int(end).is_some_and(|end| end <= all.into());
        let end = self.scalar(end)?;
        if known {
            return Ok(end);
        }
        self.used.add(Prim::MinMax);
        Ok(Expr::call("min_of", [&end, &Expr::atom(format!("{all}u"))]))
    }

    pub fn shape(&self, place: Place) -> (u64, u64) {
        let param = place.param().map(|p| &self.f.p.kernel.params[p.index()]);
        param.and_then(|p| p.shape()).expect("the verifier lets matrices in memory have a shape")
    }

    pub fn param_dtype(&self, place: Place) -> Dtype {
        place.param().map_or(Dtype::F32, |p| self.f.p.kernel.params[p.index()].dtype)
    }

    pub fn matrix_name(&self, place: Place) -> String {
        place.param().map_or(String::new(), |p| self.f.p.kernel.params[p.index()].name.clone())
    }

    /// Writes one operation of a step of a loop over a matrix.
    pub fn matrix_step(&mut self, loc: Loc, op: &MatrixOp, step: &mut Step) -> Result<(), PrintError> {
        match op {
            MatrixOp::LoadMatrix(LoadMatrix { out, at, column }) => {
                self.used.add(Prim::LoadInside);
                let (base, moved) = (self.base(at.place)?, Moved { rows: at, column: *column, matrix: *out });
                let (template, part) = self.part(&base, moved, Some(step.layout.per_lane), step)?;
                let load = format!("load_inside<{template}>({part})");
                self.keep_vector(*out, &load, step);
            }
            MatrixOp::LoadRow(LoadRow { out, lines, place, index, list, .. }) => {
                let load = match (lines, list) {
                    (Lines::Rows, _) => self.load_row(*out, *place, *index, step)?,
                    (Lines::Columns, None) => self.load_column(*place, *index, step)?,
                    (Lines::Columns, Some(list)) => self.load_listed(*place, *index, *list, step)?,
                };
                self.keep_vector(*out, &load, step);
            }
            MatrixOp::StoreMatrix(StoreMatrix { to, column, value }) => {
                let base = self.base(to.place)?;
                self.store_step(&base, Moved { rows: to, column: *column, matrix: *value }, step)?;
            }
            MatrixOp::Dot(_) | MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => {
                return Err(PrintError::Misplaced { loc, op: OpKind::from(op.clone()).name() });
            }
        }
        Ok(())
    }

    /// A step of storing a matrix to rows of one in memory that begins at `base`.
    fn store_step(&mut self, base: &Expr, moved: Moved<'_>, step: &mut Step) -> Result<(), PrintError> {
        let (template, part) = self.part(base, moved, None, step)?;
        let value = self.vector(moved.matrix, step)?;
        // A vector that never fits a row would keep the compiler from holding it in registers.
        let (prim, store) = match self.shape(moved.rows.place).1 {
            1 => (Prim::StoreNumber, "store_number".to_owned()),
            _ => (Prim::StoreInside, format!("store_inside<{template}>")),
        };
        self.used.add(prim);
        self.w.line(&format!("{store}({part}, {value});"));
        Ok(())
    }

    /// A step of a matrix whose rows all are the elements of a buffer from `index` on, zeros from its end on.
    fn load_row(
        &mut self,
        out: ValueId,
        place: Place,
        index: ValueId,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        let (len, ty, all) = (self.place_len(place), self.ty(out), step.layout.per_lane);
        let width = self.width_of(&[index], step);
        let columns = ty.shape().map_or(all, |(_, columns)| columns);
        let whole = |n: u32| len.is_multiple_of(n.into()) && self.f.p.divisor(index, n) == n;
        let (tiles, vectors) = (whole(columns), whole(all));
        let (base, index) = (self.base(place)?, self.scalar(index)?);
        let at = Expr::binary("+", Prec::Sum, &index, &self.across(step));
        if !vectors {
            self.used.add(Prim::LoadBelow);
            return Ok(format!("load_below<{width}>({}, {}, {len})", base.plain(), at.plain()));
        }
        // All of a vector is there or none of it: a load under a condition is begun early, as none behind a branch is.
        self.used.add(Prim::Load);
        let first = if tiles { &index } else { &at };
        let there = Expr::binary("<", Prec::Relation, first, &Expr::atom(len.to_string()));
        let address = Expr::binary("+", Prec::Sum, &base, &at);
        let vector = self.vector_type(ty.dtype, all);
        Ok(format!("{} ? load<{width}>({}) : {vector}{{}}", there.text, address.plain()))
    }

    /// A step of a matrix whose columns all are the elements of a buffer from `index` on: one element, for all that a lane has of a row.
    fn load_column(&mut self, place: Place, index: ValueId, step: &mut Step) -> Result<String, PrintError> {
        [Prim::LoadOrZero, Prim::Fill].into_iter().for_each(|prim| self.used.add(prim));
        let (base, index, len) = (self.base(place)?, self.scalar(index)?, self.place_len(place));
        let down = Expr::atom(self.fragment("row", step));
        let at = Expr::binary("+", Prec::Sum, &index, &down);
        let one = format!("load_or_zero({}, {}, {len})", base.plain(), at.plain());
        Ok(format!("fill<{}>({one})", step.layout.per_lane))
    }

    /// The same of elements that a list names.
    fn load_listed(
        &mut self,
        place: Place,
        index: ValueId,
        List { param, first }: List,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        [Prim::LoadListed, Prim::Fill].into_iter().for_each(|prim| self.used.add(prim));
        let (base, index, len) = (self.base(place)?, self.scalar(index)?, self.place_len(place));
        let (list, all) = (self.arg(param), self.f.p.kernel.params[param.index()].len);
        let down = Expr::atom(self.fragment("row", step));
        let at = Expr::binary("+", Prec::Sum, &self.scalar(first)?, &down);
        let [base, index, list, at] = [&base, &index, &list, &at].map(Expr::plain);
        let one = format!("load_listed({base}, {index}, {len}, {list}, {at}, {all})");
        Ok(format!("fill<{}>({one})", step.layout.per_lane))
    }

    fn place_len(&self, place: Place) -> u64 {
        place.param().map_or(0, |p| self.f.p.kernel.params[p.index()].len)
    }

    fn keep_vector(&mut self, out: ValueId, text: &str, step: &mut Step) {
        let dtype = self.ty(out).dtype;
        prim::use_dtype(self.used, dtype);
        let ty = self.vector_type(dtype, step.layout.per_lane);
        self.keep(out, &ty, text, step, false);
    }

    /// Template arguments and arguments that say which part of a matrix in memory the step's elements are.
    fn part(
        &mut self,
        base: &Expr,
        Moved { rows, column, .. }: Moved<'_>,
        count: Option<u32>,
        step: &mut Step,
    ) -> Result<(String, String), PrintError> {
        let columns = self.shape(rows.place).1;
        let width = self.width_of(&[column], step);
        let end = self.end_of(rows)?;
        let down = Expr::atom(self.fragment("row", step));
        let row = Expr::binary("+", Prec::Sum, &self.scalar(rows.row)?, &down);
        let column = Expr::binary("+", Prec::Sum, &self.scalar(column)?, &self.across(step));
        let width = width.split_once(", ").map(|(_, narrower)| narrower.to_owned());
        let template = [Some(columns.to_string()), count.map(|n| n.to_string()), width];
        let template = template.into_iter().flatten().collect::<Vec<_>>().join(", ");
        Ok((template, format!("{}, {}, {}, {}", base.plain(), end.plain(), row.plain(), column.plain())))
    }

    /// The column of a lane's first element of the step.
    fn across(&mut self, step: &mut Step) -> Expr {
        Expr::atom(self.fragment("column", step))
    }

    fn fragment(&mut self, what: &str, step: &mut Step) -> String {
        let fragments = self.part_name(step.layout.fragments);
        let number = if step.layout.steps() > 1 {
            step.indexes = true;
            self.f.own.step.clone()
        } else {
            "0".into()
        };
        format!("{fragments}::{what}({}, {number})", self.lane())
    }

    /// Elements of a lane, and how many of them an access may move at once if that is fewer.
    fn width_of(&self, columns: &[ValueId], step: &Step) -> String {
        let all = step.layout.per_lane;
        match columns.iter().map(|&v| self.f.p.divisor(v, all)).min() {
            Some(fewer) if fewer < all => format!("{all}, {fewer}"),
            _ => all.to_string(),
        }
    }
}
