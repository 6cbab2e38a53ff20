//! Types of operations on matrices.

use super::*;

/// Most stages of a `Dot`: more than any target has shared memory for.
const MAX_STAGES: u32 = 16;

impl Check<'_, '_> {
    pub(super) fn matrix(&mut self, op: &MatrixOp) {
        match op {
            MatrixOp::Dot(dot) => self.dot(dot),
            MatrixOp::LoadMatrix(LoadMatrix { out, at, column }) => {
                self.rows(at);
                self.consecutive(at);
                self.element(at.place, *out);
                self.is_matrix("result", *out);
                self.operand("column", *column, U32);
            }
            MatrixOp::LoadRow(LoadRow { out, lines, place, index, list, .. }) => {
                self.readable(*place);
                self.each_by_itself(*place);
                self.element(*place, *out);
                self.is_matrix("result", *out);
                self.scalar_index(*index);
                if let Some(List { param, first }) = list {
                    self.list(*param);
                    self.operand("first element of the list", *first, U32);
                    self.operand("index", *index, U32);
                    if *lines == Lines::Rows {
                        self.add(Problem::ListOfColumns);
                    }
                }
            }
            MatrixOp::ReduceLines(ReduceLines { out, op, a, .. }) => {
                let ty = self.ty(*a);
                self.is_matrix("operand", *a);
                self.operand("operand", *a, ty.with_dtype(Dtype::F32));
                self.result(*out, ty);
                if matches!(op, ReduceOp::And | ReduceOp::Or) {
                    let value = self.report.typed(*a);
                    let expected = "sums, minima or maxima".into();
                    self.add(Problem::OperandType { op: self.name, what: "reduction", value, expected });
                }
            }
            MatrixOp::Deinterleave(Deinterleave { out, a, .. }) => {
                let ty = self.ty(*a);
                self.is_matrix("operand", *a);
                self.operand("operand", *a, ty.with_dtype(Dtype::F32));
                match ty.shape() {
                    Some((rows, columns)) if columns.is_multiple_of(2 * COLUMN_BLOCK) => {
                        self.result(*out, Type::matrix(Dtype::F32, rows, columns / 2));
                    }
                    _ => {
                        let (value, unit) = (self.report.typed(*a), 2 * COLUMN_BLOCK);
                        let expected = format!("a matrix with a multiple of {unit} columns");
                        self.add(Problem::OperandType { op: self.name, what: "operand", value, expected });
                    }
                }
            }
            MatrixOp::StoreMatrix(StoreMatrix { to, column, value }) => {
                self.rows(to);
                self.consecutive(to);
                self.writable(to.place);
                self.element(to.place, *value);
                self.is_matrix("value", *value);
                self.operand("column", *column, U32);
            }
        }
    }

    fn dot(&mut self, Dot { out, acc, a, b, from, count, stages, room, paired }: &Dot) {
        let ty = self.ty(*out);
        self.is_matrix("result", *out);
        self.result(*out, ty.with_dtype(Dtype::F32));
        acc.iter().for_each(|acc| self.operand("accumulator", *acc, ty));
        let columns = [a, b].map(|rows| self.rows(rows));
        a.list.iter().for_each(|list| self.list(*list));
        self.consecutive(b);
        self.scales([a, b], ty.shape());
        if let Some(rows) = [a, b].into_iter().find(|rows| self.columns(rows.place) == Some(1)) {
            let (param, unit) =
                (self.report.place_name(rows.place), PACKET_BYTES / self.dtype(rows.place).bytes());
            self.add(Problem::MatrixColumns { param, columns: 1, unit });
        }
        if let [Some(a_columns), Some(b_columns)] = columns
            && a_columns != b_columns
        {
            let (a, b) = (self.report.place_name(a.place), self.report.place_name(b.place));
            self.add(Problem::DotShapes { a, a_columns, b, b_columns });
        }
        let (dtype, other) = (self.dtype(a.place), self.dtype(b.place));
        let words = |dtype: &Dtype| *dtype == Dtype::U32 && a.scales.is_some();
        if let Some(dtype) = [dtype, other]
            .into_iter()
            .find(|d| !matches!(d, Dtype::Bf16 | Dtype::Fp16 | Dtype::Fp8) && !words(d))
        {
            self.add(Problem::DotDtype { dtype });
        } else if dtype != other {
            let (a, b) = (self.report.place_name(a.place), self.report.place_name(b.place));
            self.add(Problem::DotDtypes { a, dtype, b, other });
        }
        self.operand("first column", *from, U32);
        self.operand("number of columns", *count, U32);
        if !(2..=MAX_STAGES).contains(stages) {
            self.add(Problem::DotStages { stages: *stages, limit: MAX_STAGES });
        }
        if let Some((rows, columns)) = ty.shape() {
            let scales = if a.scales.is_some() { 4 * scale_words(dtype) } else { 0 };
            let rows = rows + if *paired { columns / 2 } else { columns };
            let needed = u64::from(*stages) * u64::from(rows) * u64::from(DOT_ROW_BYTES + scales);
            let room = &self.report.kernel.shared[room.index()];
            let there = u64::from(room.len) * u64::from(room.dtype.bytes());
            if there < needed {
                let room = room.name.clone();
                self.add(Problem::DotRoom { room, there, needed });
            }
        }
    }

    /// Rows of a matrix; how many columns they have.
    pub(super) fn rows(&mut self, rows: &Rows) -> Option<u64> {
        self.readable(rows.place);
        self.operand("row", rows.row, U32);
        rows.end.iter().for_each(|end| self.operand("end of rows", *end, U32));
        if !matches!(rows.place, Place::Param(_) | Place::Peer(..)) {
            let param = self.report.place_name(rows.place);
            self.add(Problem::NoMatrix { op: self.name, param });
            return None;
        }
        self.has_shape(rows.place)
    }

    /// Rows that no list names.
    pub(super) fn consecutive(&mut self, rows: &Rows) {
        if let Some(scales) = rows.scales.filter(|_| self.name != "dot") {
            let (param, scales) =
                (self.report.place_name(rows.place), self.report.param(scales).name.clone());
            self.add(Problem::ScaledRows { param, scales });
        }
        if rows.list.is_some() {
            let (op, param) = (self.name, self.report.place_name(rows.place));
            self.add(Problem::ListedRows { op, param });
        }
    }

    /// Scales of blocks: of both operands, for whole tiles of fp8 or of words of e2m1.
    fn scales(&mut self, operands: [&Rows; 2], shape: Option<(u32, u32)>) {
        for (rows, count) in operands.into_iter().zip(<[u32; 2]>::from(shape.unwrap_or_default())) {
            let param = self.report.place_name(rows.place);
            let Some(scales) = rows.scales else {
                if operands.iter().any(|other| other.scales.is_some()) {
                    self.add(Problem::ScalesOfOne { param });
                }
                continue;
            };
            let (scales, dtype) = (self.report.param(scales), self.dtype(rows.place));
            let of = rows.place.param().and_then(|p| self.report.param(p).shape()).unwrap_or_default();
            let (tile, piece) = (u64::from(SCALES_TILE), u64::from(dot_columns(dtype)));
            let words = of.0.next_multiple_of(tile) * of.1 / piece * u64::from(scale_words(dtype));
            let name = scales.name.clone();
            let is_vector =
                scales.kind == ParamKind::Local && scales.dtype == U32.dtype && scales.columns.is_none();
            let whole = of.1.is_multiple_of(piece) && u64::from(count).is_multiple_of(tile);
            if !is_vector || scales.len < words {
                self.add(Problem::NoScales { scales: name, words });
            } else if !matches!(dtype, Dtype::Fp8 | Dtype::U32) || rows.list.is_some() || !whole {
                self.add(Problem::ScaledRows { param, scales: name });
            }
        }
    }

    /// What says where rows or elements are.
    fn list(&mut self, list: ParamId) {
        let param = self.report.param(list);
        let fits = param.kind == ParamKind::Local && param.dtype == U32.dtype && param.columns.is_none();
        if !fits {
            let (op, list) = (self.name, param.name.clone());
            self.add(Problem::NoList { op, list });
        }
    }

    fn columns(&self, place: Place) -> Option<u64> {
        place.param().and_then(|p| self.report.param(p).columns)
    }

    /// Columns of a parameter, which has to have whole 16 bytes or one element a row.
    fn has_shape(&mut self, place: Place) -> Option<u64> {
        let columns = self.columns(place);
        let param = self.report.place_name(place);
        match columns {
            None => self.add(Problem::NoMatrix { op: self.name, param }),
            Some(columns) => {
                let unit = PACKET_BYTES / self.dtype(place).bytes();
                if columns != 1 && !columns.is_multiple_of(unit.into()) {
                    self.add(Problem::MatrixColumns { param, columns, unit });
                }
            }
        }
        columns
    }

    pub(super) fn is_matrix(&mut self, what: &'static str, v: ValueId) {
        if self.ty(v).shape().is_none() {
            let value = self.report.typed(v);
            self.add(Problem::OperandType { op: self.name, what, value, expected: "a matrix".into() });
        }
    }
}
