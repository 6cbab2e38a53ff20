//! Matrices: in memory, and as tiles of two dimensions that a group makes of them.

use crate::dsl::comm::{Arrived, Parcel};
use crate::dsl::groups::group::Group;
use crate::dsl::memory::{
    Arg, Bound, Buf, Index, IntoIndex,
    args::MatrixArg,
    buffer::cast,
    mem::{AnyPtr, AnySym, Ptr, Sym, param_of},
};
use crate::dsl::trace::{Thing, Trace, TraceError, scope::require_role, tracer::attempt};
use crate::dsl::values::{
    AnyTile, Element, FromRaw, IntoTile, IntoVal, Raw, Tile, Val, tile::check_len, val::host,
};
use crate::ir::{
    COLUMN_BLOCK, CommOp, DOT_ROW_BYTES, Deinterleave, Dot, Dtype, Lines, List, LoadMatrix, LoadRow, Loc,
    MatrixOp, ParamId, ParamKind, PutMatrix, ReduceLines, ReduceOp, Rows, SharedId, StoreMatrix, Type,
    ValueId, scale_words,
};

/// A matrix in this rank's global memory, whose shape and element type the config chooses (`#[shape(|c| [rows, columns])]`, `#[dtype(|c|
/// ..)]`). Rows follow one another, each of whole 16 bytes. Or each is one element, which no product takes: a reduction of a row is
/// stored there as one number, `least.rows(row, 64).store_f32(0, x.row_min())`.
///
/// What a kernel reads beyond the last row or column is zero, and what it stores there is left out: tiles need not divide a
/// matrix.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # use peerwarp_codegen::ir::Dtype;
/// # trace(TraceMeta::new("demo", 2, 32, 8), |p| {
/// # let x: AnyMatrix = p.matrix("x", [300, 512], Dtype::Bf16);
/// # let w: AnyMatrix = p.matrix("w", [264, 512], Dtype::Bf16);
/// # let out: AnyMatrix = p.matrix("out", [300, 264], Dtype::Bf16);
/// # let bias: AnyPtr = p.erased("bias", 264, Dtype::Bf16);
/// # #[kernel]
/// # fn body(x: AnyMatrix, w: AnyMatrix, out: AnyMatrix, bias: AnyPtr) {
/// role("multiply", 9, |b| {
///     for tile in b.strided(9u32) {
///         let (row, column) = (tile / 3 * 128, tile % 3 * 128);
///         // 128 x 128 sums of products: out = x w^T, in f32.
///         let sums = b.dot(x.rows(row, 128), w.rows(column, 128), 3);
///         let sums = sums + bias.load_rows_f32(column, [128, 128]);
///         out.rows(row, 128).store_f32(column, sums.maximum(0.0));
///     }
/// });
/// # }
/// # body(x, w, out, bias);
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AnyMatrix {
    pub(crate) buf: Buf,
    columns: u64,
}

/// A matrix that every rank has and peers write to, whose shape and element type the config chooses. Its elements are
/// sent as those of [`AnySymMatrix::elements`], row after row; they are read with the receipt of a wait.
#[derive(Clone, Copy, Debug)]
pub struct AnySymMatrix {
    buf: Buf,
    columns: u64,
}

macro_rules! matrix {
    ($name:ident $kind:ident $elements:ident) => {
        impl Arg for $name {
            const KIND: ParamKind = ParamKind::$kind;
            fn bind(b: Bound) -> Self {
                $name { columns: b.columns.unwrap_or(b.len), buf: Buf::param(b) }
            }
        }
        impl MatrixArg for $name {}
        impl $name {
            /// Rows and columns.
            pub fn shape(&self) -> [u64; 2] {
                [self.buf.len / self.columns, self.columns]
            }

            /// Element type.
            pub fn dtype(&self) -> Dtype {
                self.buf.dtype
            }

            /// The same memory as a vector: element `row * columns + column`.
            pub fn elements(&self) -> $elements {
                $elements { buf: self.buf }
            }
        }
    };
}
matrix!(AnyMatrix Local AnyPtr);
matrix!(AnySymMatrix Symmetric AnySym);

/// Some rows of a matrix in memory, or some columns of these: nothing is read yet.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRows {
    buf: Buf,
    row: Val<u32>,
    /// How many.
    count: u32,
    /// The row from which on none is there, if not all are.
    end: Option<Val<u32>>,
    /// Whether those from there on may hold anything.
    loose: bool,
    /// The first column, and how many; all of them if not said.
    columns: Option<(Val<u32>, Val<u32>)>,
    receipt: Option<Arrived>,
    /// The vector that names them, if they are scattered.
    list: Option<Buf>,
    /// The vector with scales of their blocks.
    scales: Option<Buf>,
    /// Whether two neighbouring blocks multiply by them.
    paired: bool,
}

impl MatrixRows {
    pub(crate) fn new(buf: Buf, row: Val<u32>, count: u32, receipt: Option<Arrived>) -> MatrixRows {
        MatrixRows {
            buf,
            row,
            count,
            end: None,
            loose: false,
            columns: None,
            receipt,
            list: None,
            scales: None,
            paired: false,
        }
    }

    /// The `count` columns from column `from` on, for an operand of a product. Both are known to be multiples of 8, for fp8 of 16.
    /// Loads and stores name their first column themselves, and have as many columns as their tile.
    ///
    /// # Errors
    /// Ends the trace for loads and stores, and where both operands of a product have columns of their own.
    #[track_caller]
    pub fn columns(self, from: impl IntoVal<u32>, count: impl IntoVal<u32>) -> MatrixRows {
        MatrixRows { columns: Some((from.val(), count.val())), ..self }
    }

    /// As if the matrix ended before row `end`: the rows from there on are neither read nor written. Of gathered rows, as if the list
    /// ended before its element `end`.
    #[track_caller]
    pub fn below(self, end: impl IntoVal<u32>) -> MatrixRows {
        MatrixRows { end: Some(end.val()), loose: false, ..self }
    }

    /// Declares that rows from row `end` on may hold anything, also while other blocks write them. It is for operands of a product, whose
    /// rows from there on are undefined. It costs nothing where operands are loaded in whole boxes; [`MatrixRows::below`] cuts a box.
    ///
    /// # Errors
    /// Ends the trace for loads and stores.
    #[track_caller]
    pub fn known_below(self, end: impl IntoVal<u32>) -> MatrixRows {
        MatrixRows { end: Some(end.val()), loose: true, ..self }
    }

    /// The rows times scales of blocks: of an operand of a product, whose other operand has such, too. Each row has a scale of each 32
    /// columns of fp8, a power of two (e8m0); of words of eight e2m1 (`u32`), one of each 16 e2m1, an e4m3. `scales` has words of four, in the
    /// order `[row / 128][word][row % 32][row / 32 % 4]`, for as many rows as make a multiple of 128. Rows, the first one and how many there are,
    /// are multiples of 128, columns of whole pieces: 128, or 32 words. The kernel does not write the scales.
    ///
    /// Only `tcgen05` multiplies such (never run on hardware): printing refuses other targets, and roles without a loader.
    ///
    /// # Errors
    /// Ends the trace for loads and stores, and unless `scales` is a parameter of the kernel.
    #[track_caller]
    pub fn scaled_by(self, scales: &Ptr<u32>) -> MatrixRows {
        MatrixRows { scales: Some(scales.buf), ..self }
    }

    /// The rows as those of a pair: blocks 2i and 2i + 1 of the grid both multiply by them, each rows of its own. They are the right operand
    /// of a product. The n-th such product of either block has the right operand and the columns of the other one's; the simulator finds
    /// others.
    ///
    /// Either block then brings half of these rows, and one thread multiplies for both: `tcgen05` with `cta_group::2` (never run on
    /// hardware). Printing refuses other targets, roles without a loader, roles that read numbers which other blocks write, and kernels
    /// that wait but begin no epoch.
    ///
    /// # Errors
    /// Ends the trace for the left operand of a product.
    #[must_use]
    pub fn in_pairs(self) -> MatrixRows {
        MatrixRows { paired: true, ..self }
    }

    /// The matrix of these rows and `columns` columns from column `from` on, as `f32`.
    #[track_caller]
    pub fn load_f32(self, from: impl IntoVal<u32>, columns: u32) -> Tile<f32> {
        let (loc, column) = (Loc::caller(), from.val());
        Tile::from_raw(cast(self.load_raw(column, columns, loc), Dtype::F32, loc))
    }

    /// The same, of the element type: it takes fewer registers, until [`AnyTile::to_f32`].
    #[track_caller]
    pub fn load(self, from: impl IntoVal<u32>, columns: u32) -> AnyTile {
        let (loc, column) = (Loc::caller(), from.val());
        AnyTile::from_raw(self.load_raw(column, columns, loc))
    }

    fn load_raw(self, column: Val<u32>, columns: u32, loc: Loc) -> Raw {
        require_role(loc, "a load");
        attempt(loc, |t| {
            self.picks_no_columns("load", loc)?;
            let ty = matrix_type(self.buf.dtype, [self.count, columns], loc)?;
            let (at, column) = (self.consecutive(t, "load", loc)?, used(t, column, loc)?);
            let out = t.emit(ty, loc, |out| MatrixOp::LoadMatrix(LoadMatrix { out, at, column }));
            Ok(t.raw(out))
        })
    }

    /// Writes a matrix of as many rows from column `from` on, rounded to the element type.
    #[track_caller]
    pub fn store_f32(self, from: impl IntoVal<u32>, tile: impl IntoTile<f32>) {
        let (loc, column) = (Loc::caller(), from.val());
        require_role(loc, "a store");
        let value = cast(tile.tile().to_raw(), self.buf.dtype, loc);
        attempt(loc, |t| {
            self.picks_no_columns("store", loc)?;
            let value = t.use_value(value.trace, value.id, loc)?;
            self.takes(t.ty(value), loc)?;
            let (to, column) = (self.consecutive(t, "store", loc)?, used(t, column, loc)?);
            t.push(MatrixOp::StoreMatrix(StoreMatrix { to, column, value }), loc);
            Ok(())
        });
    }

    /// A load or a store moves all columns of its tile; to pick fewer would be ignored.
    fn picks_no_columns(&self, what: &str, loc: Loc) -> Result<(), TraceError> {
        if self.loose {
            let message = format!("a {what} of rows that may hold anything");
            return Err(TraceError::new(
                loc,
                message,
                "say `.below(..)`: only operands of a product are `.known_below(..)`",
            ));
        }
        let Some(_) = self.columns else { return Ok(()) };
        let message = format!("a {what} of picked columns, which would move all columns of its tile");
        let help = format!(
            "leave `.columns(..)` out: the {what} begins at its own first column, and a tile of fewer columns moves fewer"
        );
        Err(TraceError::new(loc, message, help))
    }

    fn takes(&self, ty: Type, loc: Loc) -> Result<(), TraceError> {
        let help = "matrices come of `dot`, and of loads that are given rows and columns";
        match ty.shape() {
            Some((rows, _)) if rows == self.count => Ok(()),
            Some((rows, _)) => {
                let message = format!("a matrix of {rows} rows for {} rows", self.count);
                Err(TraceError::new(loc, message, "take as many rows of the one as the other has"))
            }
            None => {
                let message = format!("{} elements for rows of a matrix", ty.len.unwrap_or(1));
                Err(TraceError::new(loc, message, help))
            }
        }
    }

    fn of(&self, t: &mut Trace, loc: Loc) -> Result<Rows, TraceError> {
        self.buf.check(t, loc)?;
        let receipt = self.buf.receipt(t, self.receipt.as_ref(), loc)?;
        let (row, end) = (used(t, self.row, loc)?, self.end.map(|end| used(t, end, loc)).transpose()?);
        let list = self.list.map(|list| list_of(t, &list, loc)).transpose()?;
        let scales = self.scales.map(|scales| scales_of(t, &scales, loc)).transpose()?;
        Ok(Rows { place: self.buf.place, row, end, loose: self.loose, receipt, list, scales })
    }

    /// Rows of what only takes such that follow one another.
    fn consecutive(&self, t: &mut Trace, what: &str, loc: Loc) -> Result<Rows, TraceError> {
        if self.scales.is_some() {
            let message = format!("a {what} of rows with scales of blocks");
            let help = "such are operands of a product: `b.dot(x.rows(..).scaled_by(..), w.rows(..).scaled_by(..), ..)`";
            return Err(TraceError::new(loc, message, help));
        }
        if self.list.is_none() {
            return self.of(t, loc);
        }
        let message = format!("a {what} of gathered rows");
        Err(TraceError::new(
            loc,
            message,
            "gathered rows are the left operand of a product: `b.dot(x.gather_rows(..), w, ..)`",
        ))
    }
}

fn used(t: &Trace, v: Val<u32>, loc: Loc) -> Result<ValueId, TraceError> {
    let raw = v.to_raw();
    t.use_value(raw.trace, raw.id, loc)
}

/// The parameter that a list is.
fn list_of(t: &Trace, list: &Buf, loc: Loc) -> Result<ParamId, TraceError> {
    list.check(t, loc)?;
    list.place.param().ok_or_else(|| {
        let message = format!("`{}` as a list", list.name(t));
        TraceError::new(loc, message, "a list is a parameter of the kernel, in this rank's memory")
    })
}

/// The parameter that scales of blocks are.
fn scales_of(t: &Trace, scales: &Buf, loc: Loc) -> Result<ParamId, TraceError> {
    scales.check(t, loc)?;
    scales.place.param().ok_or_else(|| {
        let message = format!("`{}` as scales of blocks", scales.name(t));
        TraceError::new(loc, message, "such scales are a parameter of the kernel, in this rank's memory")
    })
}

impl AnyMatrix {
    /// The `count` rows from row `row` on.
    #[track_caller]
    pub fn rows(&self, row: impl IntoVal<u32>, count: u32) -> MatrixRows {
        MatrixRows::new(self.buf, row.val(), count, None)
    }

    /// The `count` rows that the elements of `list` from element `first` on name: the left operand of a product. Elements that the list has
    /// not, and numbers of rows that the matrix has not, stand for rows of zeros.
    #[track_caller]
    pub fn gather_rows(&self, list: &Ptr<u32>, first: impl IntoVal<u32>, count: u32) -> MatrixRows {
        MatrixRows { list: Some(list.buf), ..MatrixRows::new(self.buf, first.val(), count, None) }
    }
}

impl AnySymMatrix {
    /// The `count` rows from row `row` on of this rank's own instance, covered by the receipt of a wait.
    #[track_caller]
    pub fn rows(&self, receipt: &Arrived, row: impl IntoVal<u32>, count: u32) -> MatrixRows {
        MatrixRows::new(self.buf, row.val(), count, Some(*receipt))
    }
}

impl Parcel {
    /// Stores a matrix to as many rows from row `row` on of the targets' instance of a matrix, from column `from` on, rounded to its
    /// element type.
    ///
    /// # Orders
    /// Nothing by itself: the parcel's signal says that the data is there.
    #[track_caller]
    pub fn put_rows_f32(
        &mut self,
        buffer: &AnySymMatrix,
        row: impl IntoVal<u32>,
        from: impl IntoVal<u32>,
        tile: impl IntoTile<f32>,
    ) {
        let (loc, row, column) = (Loc::caller(), row.val(), from.val());
        let value = cast(tile.tile().to_raw(), buffer.buf.dtype, loc);
        attempt(loc, |t| {
            self.check(t, loc)?;
            let value = t.use_value(value.trace, value.id, loc)?;
            let count = t.ty(value).shape().map_or(0, |(rows, _)| rows);
            let rows = MatrixRows::new(buffer.buf, row, count, None);
            rows.takes(t.ty(value), loc)?;
            let (to, column) = (rows.consecutive(t, "put", loc)?, used(t, column, loc)?);
            self.note(t, param_of(&buffer.buf).expect("symmetric memory is a parameter"), loc);
            t.push(CommOp::PutMatrix(PutMatrix { parcel: self.id(), to, column, value }), loc);
            Ok(())
        });
    }
}

/// A matrix of equal rows or of equal columns, as `f32`.
fn equal_lines(
    buf: &Buf,
    lines: Lines,
    i: Index,
    shape: [u32; 2],
    (receipt, list): (Option<&Arrived>, Option<(Buf, Val<u32>)>),
    loc: Loc,
) -> Tile<f32> {
    require_role(loc, "a load");
    let raw = attempt(loc, |t| {
        let ty = matrix_type(buf.dtype, shape, loc)?;
        let (long, what) = match lines {
            Lines::Rows => (shape[1], "a matrix of equal rows"),
            Lines::Columns => (shape[0], "a matrix of equal columns"),
        };
        i.part.all(t, long, what, loc)?;
        let (place, index) = (buf.place, buf.at(t, i, 0, loc)?);
        let receipt = buf.receipt(t, receipt, loc)?;
        let list = list
            .map(|(list, first)| Ok(List { param: list_of(t, &list, loc)?, first: used(t, first, loc)? }));
        let list = list.transpose()?;
        let load = |out| LoadRow { out, lines, place, index, receipt, list };
        let out = t.emit(ty, loc, |out| MatrixOp::LoadRow(load(out)));
        Ok(t.raw(out))
    });
    Tile::from_raw(cast(raw, Dtype::F32, loc))
}

macro_rules! load_rows {
    ($([$($generic:tt)*] $own:ty, $symmetric:ty;)+) => { $(
        impl $($generic)* $own {
            /// A matrix of `shape` rows and columns each of whose rows is the elements from element `i` on, as `f32`; zeros from the
            /// buffer's end on.
            #[track_caller]
            pub fn load_rows_f32(&self, i: impl IntoIndex, shape: [u32; 2]) -> Tile<f32> {
                equal_lines(&self.buf, Lines::Rows, i.index(), shape, (None, None), Loc::caller())
            }

            /// A matrix of `shape` rows and columns each of whose columns is the elements from element `i` on, as `f32`; zeros from
            /// the buffer's end on.
            #[track_caller]
            pub fn load_columns_f32(&self, i: impl IntoIndex, shape: [u32; 2]) -> Tile<f32> {
                equal_lines(&self.buf, Lines::Columns, i.index(), shape, (None, None), Loc::caller())
            }

            /// A matrix of `shape` rows and columns whose row `n` has element `i + list[first + n]` in each column, as `f32`: zero if the
            /// list or the buffer has no such element. It goes with [`AnyMatrix::gather_rows`].
            #[track_caller]
            pub fn gather_columns_f32(
                &self,
                i: impl IntoIndex,
                list: &Ptr<u32>,
                first: impl IntoVal<u32>,
                shape: [u32; 2],
            ) -> Tile<f32> {
                let list = Some((list.buf, first.val()));
                equal_lines(&self.buf, Lines::Columns, i.index(), shape, (None, list), Loc::caller())
            }
        }
        impl $($generic)* $symmetric {
            /// The same of this rank's own instance, covered by the receipt of a wait.
            #[track_caller]
            pub fn load_rows_f32(&self, receipt: &Arrived, i: impl IntoIndex, shape: [u32; 2]) -> Tile<f32> {
                equal_lines(&self.buf, Lines::Rows, i.index(), shape, (Some(receipt), None), Loc::caller())
            }

            /// The same of this rank's own instance, covered by the receipt of a wait.
            #[track_caller]
            pub fn load_columns_f32(&self, receipt: &Arrived, i: impl IntoIndex, shape: [u32; 2]) -> Tile<f32> {
                equal_lines(&self.buf, Lines::Columns, i.index(), shape, (Some(receipt), None), Loc::caller())
            }
        }
    )+ };
}
load_rows! {
    [<T: Element>] Ptr<T>, Sym<T>;
    [] AnyPtr, AnySym;
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $op:ident of $lines:ident;)+) => {
        $($(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Tile<f32> {
            self.reduce_lines(ReduceOp::$op, Lines::$lines, Loc::caller())
        })+
    };
}

/// Reductions along rows and columns of a matrix that a group holds. Each gives a vector, as a matrix of the same shape that has the
/// reduction of a row in each element of that row, or of a column in each element of that column: so elementwise operations take it
/// as it is, and stores to one column or one row of a matrix in memory write each number once. A matrix is of one tile: the parts
/// of a row in several tiles are added up in memory.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # use peerwarp_codegen::ir::Dtype;
/// # trace(TraceMeta::new("demo", 2, 32, 4), |p| {
/// # let x: AnyMatrix = p.matrix("x", [64, 128], Dtype::Bf16);
/// # let w: AnyMatrix = p.matrix("w", [64, 128], Dtype::Bf16);
/// # let out: AnyMatrix = p.matrix("out", [64, 64], Dtype::Bf16);
/// role("softmax", 1, |b| {
///     let scores = b.dot(x.rows(0, 64), w.rows(0, 64), 2);
///     let weights = (scores - scores.row_max()).exp();
///     out.rows(0, 64).store_f32(0, weights / weights.row_sum());
/// });
/// # }).unwrap();
/// ```
impl Tile<f32> {
    reductions! {
        /// The sum of each row, in each element of it. In which order elements are added is the target's own, and always the same.
        ///
        /// # Errors
        /// Ends the trace of a tile that is no matrix.
        row_sum, Sum of Rows;
        /// The largest element of each row, in each element of it.
        row_max, Max of Rows;
        /// The smallest element of each row, in each element of it.
        row_min, Min of Rows;
        /// The sum of each column, in each element of it. In which order elements are added is the target's own, and always the same.
        ///
        /// # Errors
        /// Ends the trace of a tile that is no matrix.
        column_sum, Sum of Columns;
        /// The largest element of each column, in each element of it.
        column_max, Max of Columns;
        /// The smallest element of each column, in each element of it.
        column_min, Min of Columns;
    }

    fn reduce_lines(self, op: ReduceOp, lines: Lines, loc: Loc) -> Tile<f32> {
        let name = lines.name();
        require_role(loc, "a reduction along rows or columns");
        let raw = self.to_raw();
        Tile::from_raw(attempt(loc, |t| {
            let a = t.use_value(raw.trace, raw.id, loc)?;
            let ty = t.ty(a);
            if ty.shape().is_none() {
                let message = format!("{name} of a tile of {} elements, which has none", ty.len.unwrap_or(1));
                let help = "`.sum()`, `.max()` and `.min()` are over all elements of such a tile";
                return Err(TraceError::new(loc, message, help));
            }
            let out = t.emit(ty, loc, |out| MatrixOp::ReduceLines(ReduceLines { out, op, lines, a }));
            Ok(t.raw(out))
        }))
    }
}

impl Tile<f32> {
    /// The matrices of the even and of the odd blocks of 16 columns of a matrix, whose blocks are interleaved. Both have as many rows and half
    /// of the columns. A lane that has an element keeps it, so that nothing moves. Gates meet the values that they open
    /// if a right matrix has 16 rows for gates, 16 for values, and so on.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # use peerwarp_codegen::ir::Dtype;
    /// # trace(TraceMeta::new("demo", 2, 32, 4), |p| {
    /// # let x: AnyMatrix = p.matrix("x", [64, 128], Dtype::Bf16);
    /// # let w: AnyMatrix = p.matrix("w", [128, 128], Dtype::Bf16);
    /// # let out: AnyMatrix = p.matrix("out", [64, 64], Dtype::Bf16);
    /// role("gated", 1, |b| {
    ///     let (gate, up) = b.dot(x.rows(0, 64), w.rows(0, 128), 2).deinterleave();
    ///     out.rows(0, 64).store_f32(0, gate / ((-gate).exp() + 1.0) * up);
    /// });
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Ends the trace of a tile that is no matrix, or whose columns are no multiple of 32.
    #[track_caller]
    pub fn deinterleave(self) -> (Tile<f32>, Tile<f32>) {
        let loc = Loc::caller();
        require_role(loc, "taking a matrix apart");
        let raw = self.to_raw();
        let [even, odd] = [false, true].map(|odd| {
            Tile::from_raw(attempt(loc, |t| {
                let a = t.use_value(raw.trace, raw.id, loc)?;
                let ty = t.ty(a);
                let half = ty.shape().filter(|(_, columns)| columns.is_multiple_of(2 * COLUMN_BLOCK));
                let Some((rows, columns)) = half else {
                    let message = format!("a tile of {ty} is taken apart");
                    let help = "blocks of 16 columns are taken in turn: a matrix with a multiple of 32 columns has them";
                    return Err(TraceError::new(loc, message, help));
                };
                let half = Type::matrix(Dtype::F32, rows, columns / 2);
                let out = t.emit(half, loc, |out| MatrixOp::Deinterleave(Deinterleave { out, a, odd }));
                Ok(t.raw(out))
            }))
        });
        (even, odd)
    }
}

fn matrix_type(dtype: Dtype, [rows, columns]: [u32; 2], loc: Loc) -> Result<Type, TraceError> {
    let Some(len) = rows.checked_mul(columns) else {
        let message = format!("a matrix of {rows} x {columns}");
        return Err(TraceError::new(loc, message, "work on parts of it, one after the other"));
    };
    check_len(loc, len);
    Ok(Type::matrix(dtype, rows, columns))
}

impl Group {
    /// The product of rows of one matrix and rows of another. Element `[i][j]` is the sum of the products of row `i` of `a` and row `j`
    /// of `b`, column by column, in `f32`. The elements of both are bf16, fp16, or fp8 (e4m3). In which order products are added is the
    /// target's own.
    ///
    /// `stages` pieces of 64 columns, of fp8 of 128, are in shared memory at once, 2 or more: while one is multiplied, those after it are
    /// on their way. Targets without an instruction for fp8 multiply its elements as bf16, which has all their values.
    ///
    /// # Errors
    /// Ends the trace when the two have different numbers of columns or different element types.
    #[track_caller]
    pub fn dot(&self, a: MatrixRows, b: MatrixRows, stages: u32) -> Tile<f32> {
        self.multiply(None, (a, b), stages, Loc::caller())
    }

    /// [`Group::dot`] added to sums.
    #[track_caller]
    pub fn dot_add(&self, sums: impl IntoTile<f32>, a: MatrixRows, b: MatrixRows, stages: u32) -> Tile<f32> {
        self.multiply(Some(sums.tile()), (a, b), stages, Loc::caller())
    }

    fn multiply(
        &self,
        sums: Option<Tile<f32>>,
        (a, b): (MatrixRows, MatrixRows),
        stages: u32,
        loc: Loc,
    ) -> Tile<f32> {
        require_role(loc, "a product of matrices");
        let all = a.buf.columns_of(loc);
        let (from, count) = a.columns.or(b.columns).unwrap_or_else(|| (host(0u32, loc), host(all, loc)));
        Tile::from_raw(attempt(loc, |t| {
            self.check(t, loc)?;
            let ty = matrix_type(Dtype::F32, [a.count, b.count], loc)?;
            let (left, right) = (a.of(t, loc)?, b.of(t, loc)?);
            agree(t, &a, &b, loc)?;
            let acc = sums.map(|sums| {
                let raw = sums.to_raw();
                t.use_value(raw.trace, raw.id, loc)
            });
            let acc = acc.transpose()?;
            if let Some(acc) = acc.filter(|acc| t.ty(*acc) != ty) {
                let message = format!("sums of {} for a product of {ty}", t.ty(acc));
                return Err(TraceError::new(loc, message, "start with those of another product"));
            }
            let (from, count) = (used(t, from, loc)?, used(t, count, loc)?);
            let rows = a.count + if b.paired { b.count / 2 } else { b.count };
            let room = room(t, a.buf.dtype, stages.saturating_mul(rows), left.scales.is_some(), loc);
            let paired = b.paired;
            let dot = |out| Dot { out, acc, a: left, b: right, from, count, stages, room, paired };
            let out = t.emit(ty, loc, |out| MatrixOp::Dot(dot(out)));
            Ok(t.raw(out))
        }))
    }
}

/// Whether rows of two matrices can be multiplied.
fn agree(t: &Trace, a: &MatrixRows, b: &MatrixRows, loc: Loc) -> Result<(), TraceError> {
    let (left, right) = (a.buf.name(t), b.buf.name(t));
    let wrong = |message: String, help: &str| Err(TraceError::new(loc, message, help));
    if let [Some(_), None] | [None, Some(_)] = [a.scales, b.scales] {
        let message = format!("rows of `{left}` times rows of `{right}`, of which one has scales of blocks");
        return wrong(message, "give both operands their scales: `.scaled_by(..)`");
    }
    if a.paired {
        let message = format!("rows of `{left}`, the left operand, as those of two blocks");
        return wrong(message, "blocks of a pair have the same rows of the right one");
    }
    if b.list.is_some() {
        return wrong(
            format!("gathered rows of `{right}` as the right operand"),
            "gather rows of the left one",
        );
    }
    if let (Some(_), Some(_)) = (a.columns, b.columns) {
        let message = format!("columns of `{left}` and of `{right}` are picked");
        return wrong(message, "pick them of one: the product is over the same columns of both");
    }
    let [x, y] = [a, b].map(|rows| rows.buf.columns(t));
    if x != y {
        let count = |n: Option<u64>| n.map_or("no".to_owned(), |n| n.to_string());
        let message =
            format!("rows of `{left}`, of {} elements, times rows of `{right}`, of {}", count(x), count(y));
        return wrong(message, "both have as many columns: the product is over these");
    }
    if a.buf.dtype != b.buf.dtype {
        let message = format!(
            "rows of `{left}`, which is of {}, times rows of `{right}`, of {}",
            a.buf.dtype, b.buf.dtype
        );
        return wrong(message, "give both the same `#[dtype(..)]`");
    }
    Ok(())
}

impl Buf {
    /// Elements of a row, if it is a matrix.
    fn columns(&self, t: &Trace) -> Option<u64> {
        self.place.param().and_then(|p| t.builder.kernel.params[p.index()].columns)
    }

    fn columns_of(&self, loc: Loc) -> u32 {
        attempt(loc, |t| {
            t.same_trace(self.trace, Thing::Buffer, loc)?;
            Ok(self.columns(t).and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX))
        })
    }
}

/// The shared array by way of which the products of a role go, one after the other: pieces of so many rows in all, and their scales.
fn room(t: &mut Trace, dtype: Dtype, rows: u32, scaled: bool, loc: Loc) -> SharedId {
    let bytes = DOT_ROW_BYTES + if scaled { 4 * scale_words(dtype) } else { 0 };
    let len = rows.saturating_mul(bytes / dtype.bytes());
    crate::dsl::memory::copy::room(t, &format!("{dtype}_room"), dtype, len, loc)
}
