//! How the warps of a group share a matrix, and how lanes hold their parts.

use crate::family::{MatrixUnit, Target};
use crate::ir::{
    COLUMN_BLOCK, CommOp, LoadMatrix, MatrixOp, OpId, OpKind, PutMatrix, Rows, StoreMatrix, ValueId,
};
use crate::print::analysis::Program;
use crate::print::text::PrintError;

/// Rows and columns of what a warp multiplies at once.
const PART: u32 = 16;

/// Rows of a warp's matrix in tensor memory, and of an instruction's.
const TENSOR_LANES: [u32; 2] = [32, 128];

/// Most columns of tensor memory that sums take: those of the next product have as many.
const MOST_TENSOR_COLUMNS: u32 = 256;

/// Columns of a result that instructions have which read shared memory, as far as they are used.
pub(crate) const WGMMA_COLUMNS: [u32; 3] = [64, 128, 256];

/// How the warps of a group share a matrix: each has one of `down` times `across` equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fragments {
    pub rows: u32,
    pub columns: u32,
    pub down: u32,
    pub across: u32,
}

impl Fragments {
    /// The parts of a matrix that the group of an operation has.
    pub fn of(
        p: &Program,
        id: OpId,
        target: Target,
        (rows, columns): (u32, u32),
    ) -> Result<Fragments, PrintError> {
        let warps = p.lanes(id) / p.kernel.warp_size;
        let by_rows = Fragments { rows, columns, down: warps, across: 1 };
        let by_unit = match target.matrix_unit() {
            MatrixUnit::Warp => None,
            MatrixUnit::Warpgroup => Some(by_rows).filter(|f| f.by_warpgroups()),
            MatrixUnit::TensorMemory => Fragments::in_tensor_memory(p, id, (rows, columns)),
        };
        if let Some(parts) = by_unit {
            return Ok(parts);
        }
        let fits =
            |f: &Fragments| rows.is_multiple_of(PART * f.down) && columns.is_multiple_of(PART * f.across);
        let every = (1..=warps).filter(|down| warps.is_multiple_of(*down));
        let every = every.map(|down| Fragments { rows, columns, down, across: warps / down }).filter(fits);
        // Nearly square parts read the fewest rows of both matrices.
        every.min_by_key(|f| rows / f.down + columns / f.across).ok_or_else(|| {
            let loc = p.kernel.op(id).loc;
            PrintError::MatrixShape { loc, rows, columns, warps }
        })
    }

    /// What multiplies a matrix that the group of an operation shares so.
    pub fn unit(self, p: &Program, id: OpId, target: Target) -> MatrixUnit {
        let unit = target.matrix_unit();
        let by_unit = match unit {
            MatrixUnit::Warp => true,
            MatrixUnit::Warpgroup => self.by_warpgroups(),
            MatrixUnit::TensorMemory => {
                Fragments::in_tensor_memory(p, id, (self.rows, self.columns)) == Some(self)
            }
        };
        if by_unit { unit } else { MatrixUnit::Warp }
    }

    /// Whether warpgroups multiply them, four warps 64 rows each.
    fn by_warpgroups(self) -> bool {
        let whole = self.across == 1 && self.rows == PART * self.down && self.down.is_multiple_of(4);
        whole && WGMMA_COLUMNS.contains(&self.columns)
    }

    /// The parts of a matrix whose sums are made in tensor memory. A warp of a block reads a quarter of its lanes, by its number among
    /// four; other warps of that number read other columns, or other rows behind.
    fn in_tensor_memory(p: &Program, id: OpId, (rows, columns): (u32, u32)) -> Option<Fragments> {
        let [of_warp, of_instruction] = TENSOR_LANES;
        let warps = p.lanes(id) / p.kernel.warp_size;
        let beside = p.position(id).role.is_some_and(|role| p.kernel.roles[role].beside.is_some());
        let instructions = rows.div_ceil(of_instruction);
        let down = instructions * of_instruction / of_warp;
        let across = warps / down;
        let fits = [64, 128, 256].contains(&rows)
            && WGMMA_COLUMNS.contains(&columns)
            && instructions * columns <= MOST_TENSOR_COLUMNS
            && across > 0
            && warps.is_multiple_of(down)
            && columns.is_multiple_of(across * of_warp);
        let whole = p.split(id).is_none() && !beside;
        (fits && whole).then_some(Fragments { rows, columns, down, across })
    }

    /// The parts of the matrix of every other block of columns, if each warp has whole pairs of blocks.
    pub fn every_other_block(self) -> Option<Fragments> {
        let Fragments { columns, across, .. } = self;
        columns
            .is_multiple_of(2 * COLUMN_BLOCK * across)
            .then_some(Fragments { columns: columns / 2, ..self })
    }

    /// Columns of tensor memory that its sums take.
    pub fn tensor_columns(self) -> u32 {
        self.rows.div_ceil(TENSOR_LANES[1]) * self.columns
    }

    /// The type that says which elements a lane has.
    pub fn text(self) -> String {
        let Fragments { rows, columns, down, across } = self;
        format!("Fragments<{rows}, {columns}, {down}, {across}>")
    }
}

/// A matrix that goes to rows of one in memory, or comes from there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved<'k> {
    pub rows: &'k Rows,
    /// The first column there.
    pub column: ValueId,
    pub matrix: ValueId,
}

impl<'k> Moved<'k> {
    /// What an operation moves.
    pub fn of(kind: &'k OpKind) -> Option<Moved<'k>> {
        let OpKind::Matrix(MatrixOp::LoadMatrix(LoadMatrix { out, at, column })) = kind else {
            return Moved::stored(kind);
        };
        Some(Moved { rows: at, column: *column, matrix: *out })
    }

    /// What it stores, on this rank or another one.
    pub fn stored(kind: &'k OpKind) -> Option<Moved<'k>> {
        match kind {
            OpKind::Matrix(MatrixOp::StoreMatrix(StoreMatrix { to, column, value }))
            | OpKind::Comm(CommOp::PutMatrix(PutMatrix { to, column, value, .. })) => {
                Some(Moved { rows: to, column: *column, matrix: *value })
            }
            OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Control(_) => None,
        }
    }
}
