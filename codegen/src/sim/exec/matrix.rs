//! Matrices: made of rows in memory, multiplied, and stored there.

use super::interpreter::Flow;
use super::memory::Fault;
use crate::fp8;
use crate::ir::{
    COLUMN_BLOCK, Dtype, Lines, ParamId, Place, ReceiptId, ReduceOp, dot_columns, scale_words,
    scaled_elements, scales_word,
};
use crate::sim::flatten::{
    Reg,
    code::Access,
    insns::{Dot, MatrixInsn, PutMatrix, RowsReg},
};
use crate::sim::memory::{Cargo, Pending, Spot, wire::Payload};
use crate::sim::schedule::{Agent, World};
use crate::sim::values::{Tile, bulk::combine, convert::cast_tile};

/// A part of a matrix in memory, of which rows and columns may not be there.
pub(crate) struct Part {
    place: Place,
    dtype: Dtype,
    /// First row and first column.
    at: (u64, u64),
    /// The row from which on none is there, at most as many as the matrix has.
    end: u64,
    /// Whether those from there on are anything.
    loose: bool,
    /// Rows and columns.
    shape: (u32, u32),
    /// The rank whose window it is, if it is one's.
    rank: Option<Reg>,
    receipt: Option<ReceiptId>,
    /// The vector that names its rows, if they are scattered.
    list: Option<ParamId>,
    /// The vector with scales of its blocks.
    scales: Option<ParamId>,
}

impl Part {
    /// Rows of a matrix from a column on.
    pub fn new(agent: &Agent, of: RowsReg, column: u64, shape: (u32, u32)) -> Part {
        let RowsReg { place, rank, row, end, loose, receipt, list, scales } = of;
        let (at, end) = ((narrow(agent, row), column), end.map_or(u64::MAX, |end| narrow(agent, end)));
        let param = place.param().expect("the verifier lets matrices in memory be parameters");
        let dtype = agent.compiled.kernel().params[param.index()].dtype;
        Part { place, dtype, at, end, loose, shape, rank, receipt, list, scales }
    }

    /// The elements of a row that are there, from the first on, if the row is.
    fn row(&self, agent: &Agent, row: u32) -> Option<(u64, u64)> {
        let row = self.at.0 + u64::from(row);
        (row < self.end).then(|| self.elements(agent, row)).flatten()
    }

    /// The same of a row of the matrix.
    fn elements(&self, agent: &Agent, row: u64) -> Option<(u64, u64)> {
        let ((rows, columns), first) = (shape_of(agent, self.place), self.at.1);
        let there = columns.saturating_sub(first).min(self.shape.1.into());
        (row < rows && there > 0).then(|| (row * columns + first, row * columns + first + there))
    }
}

impl World<'_> {
    pub fn matrix(&mut self, agent: &mut Agent, insn: &MatrixInsn) -> Flow {
        let done = match *insn {
            MatrixInsn::Dot(ref dot) if self.stages() => return self.staged_dot(agent, dot),
            MatrixInsn::Dot(ref dot) => self.dot(agent, dot),
            MatrixInsn::Load { at, column, shape, out } => self.fill_tile(agent, out, |world, agent, out| {
                world.load_part(agent, &Part::new(agent, at, narrow(agent, column), shape), out)
            }),
            MatrixInsn::Row { from, shape, out, receipt, list: Some(list), .. } => {
                self.fill_tile(agent, out, |world, agent, out| {
                    world.load_listed(agent, from, shape, (receipt, list), out)
                })
            }
            MatrixInsn::Row { from, lines, shape, out, receipt, list: None } => {
                self.fill_tile(agent, out, |world, agent, out| {
                    world.load_line(agent, from, (lines, shape), receipt, out)
                })
            }
            MatrixInsn::Lines { op, lines, shape, out, a } => self.fill_tile(agent, out, |_, agent, out| {
                let of = out.fresh_copy::<f32>(agent.tile(a));
                match lines {
                    Lines::Rows => reduce_lines(op, of, (shape.0, shape.1), (shape.1, 1)),
                    Lines::Columns => reduce_lines(op, of, (shape.1, shape.0), (1, shape.1)),
                }
                Ok(())
            }),
            MatrixInsn::Deinterleave { columns, odd, out, a } => {
                self.fill_tile(agent, out, |_, agent, out| {
                    let all = agent.tile(a).view::<f32>();
                    let blocks = all
                        .chunks_exact(columns as usize)
                        .flat_map(|row| row.chunks_exact(COLUMN_BLOCK as usize));
                    let taken = blocks.skip(usize::from(odd)).step_by(2).flatten();
                    out.fresh::<f32>(all.len() / 2).iter_mut().zip(taken).for_each(|(to, from)| *to = *from);
                    Ok(())
                })
            }
            MatrixInsn::Store { to, column, shape, value } => {
                self.store_part(agent, &Part::new(agent, to, narrow(agent, column), shape), value)
            }
        };
        match done {
            Ok(()) => Flow::Next,
            Err(fault) => fault.into(),
        }
    }

    /// Rows of zeros stand for what is not there.
    pub(crate) fn load_part(&mut self, agent: &Agent, part: &Part, out: &mut Tile) -> Result<(), Fault> {
        let size = part.dtype.bytes() as usize;
        let wide = part.shape.1 as usize * size;
        let bytes = out.fresh::<u8>(part.shape.0 as usize * wide);
        // All ones are no number, of any type of matrices.
        bytes.fill(if part.loose { 0xff } else { 0 });
        let peers = part.place.param().zip(part.rank);
        let peers =
            peers.map(|(window, rank)| self.instance(agent, window, rank, part.receipt)).transpose()?;
        for (row, to) in (0..).zip(bytes.chunks_exact_mut(wide)) {
            let elements = match part.list {
                Some(list) if part.at.0 + u64::from(row) < part.end => {
                    let number = self.listed(agent, list, part.at.0 + u64::from(row))?;
                    number.and_then(|number| part.elements(agent, number.into()))
                }
                Some(_) => None,
                None => part.row(agent, row),
            };
            if let Some((first, end)) = elements {
                let there = match peers {
                    Some(of) => self.window_elements(agent, of, first, end)?,
                    None => self.read_elements(agent, part.place, (first, end), size, part.receipt)?,
                };
                to[..there.len()].copy_from_slice(there);
            }
        }
        Ok(())
    }

    /// The elements of loaded rows as `f32`: those of rows that are there times the scales of their blocks, if they have any.
    pub(crate) fn widened(&mut self, agent: &Agent, part: &Part, rows: &Tile) -> Result<Tile, Fault> {
        let mut wide = Tile::default();
        let Some(scales) = part.scales.filter(|_| part.shape.1 > 0) else {
            cast_tile(part.dtype, Dtype::F32, rows, &mut wide);
            return Ok(wide);
        };
        let ((each, block), words) = (scaled_elements(part.dtype), scale_words(part.dtype));
        let mut all: Vec<f32> = match each {
            1 => rows.view::<u8>().iter().map(|&x| fp8::to_f32(x)).collect(),
            _ => rows.view::<u8>().iter().flat_map(|&two| [two, two >> 4].map(fp8::e2m1_to_f32)).collect(),
        };
        let piece = u64::from(dot_columns(part.dtype));
        let (first, (_, columns)) = (part.at.0, shape_of(agent, part.place));
        let [of, from] = [columns, part.at.1].map(|columns| columns / piece * u64::from(words));
        for (row, part_row) in (0..part.shape.0).zip(all.chunks_exact_mut((part.shape.1 * each) as usize)) {
            if part.row(agent, row).is_none() {
                continue;
            }
            for (word, elements) in (from..).zip(part_row.chunks_mut(4 * block as usize)) {
                let at = scales_word(first + u64::from(row), word, of);
                let there = self.read_elements(agent, Place::Param(scales), (at, at + 1), 4, None)?;
                for (elements, &scale) in elements.chunks_mut(block as usize).zip(there) {
                    let by = if each == 1 { fp8::e8m0_to_f32(scale) } else { fp8::to_f32(scale) };
                    elements.iter_mut().for_each(|x| *x *= by);
                }
            }
        }
        wide.fresh::<f32>(all.len()).copy_from_slice(&all);
        Ok(wide)
    }

    /// An element of a list, if it has it.
    fn listed(&mut self, agent: &Agent, list: ParamId, at: u64) -> Result<Option<u32>, Fault> {
        let place = Place::Param(list);
        if at >= self.place_len(agent, place) {
            return Ok(None);
        }
        let bytes = self.read_elements(agent, place, (at, at + 1), 4, None)?;
        Ok(Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }

    /// Makes equal columns of those elements of a vector that a list names: zeros for what either has not.
    fn load_listed(
        &mut self,
        agent: &Agent,
        from: Access,
        (rows, columns): (u32, u32),
        (receipt, (list, first)): (Option<ReceiptId>, (ParamId, Reg)),
        out: &mut Tile,
    ) -> Result<(), Fault> {
        let (size, len) = (from.dtype.bytes() as usize, self.place_len(agent, from.place));
        let (index, first) = (agent.get(from.index) as u32, narrow(agent, first));
        let line = columns as usize * size;
        let bytes = out.fresh::<u8>(rows as usize * line);
        bytes.fill(0);
        for (row, to) in (0..).zip(bytes.chunks_exact_mut(line)) {
            let Some(number) = self.listed(agent, list, first + row)? else { continue };
            let at = u64::from(index.wrapping_add(number));
            if at < len {
                let one = self.read_elements(agent, from.place, (at, at + 1), size, receipt)?;
                to.copy_from_slice(&one.repeat(columns as usize));
            }
        }
        Ok(())
    }

    /// Makes equal rows, or equal columns, of a vector: zeros from its end on.
    fn load_line(
        &mut self,
        agent: &Agent,
        from: Access,
        (lines, (rows, columns)): (Lines, (u32, u32)),
        receipt: Option<ReceiptId>,
        out: &mut Tile,
    ) -> Result<(), Fault> {
        let size = from.dtype.bytes() as usize;
        let (first, len) = (agent.get(from.index), self.place_len(agent, from.place));
        let long = if lines == Lines::Rows { columns } else { rows };
        let mut line = vec![0; long as usize * size];
        let end = first.saturating_add(long.into()).min(len);
        if first < end {
            let there = self.read_elements(agent, from.place, (first, end), size, receipt)?;
            line[..there.len()].copy_from_slice(there);
        }
        let all = match lines {
            Lines::Rows => line.repeat(rows as usize),
            Lines::Columns => line.chunks_exact(size).flat_map(|one| one.repeat(columns as usize)).collect(),
        };
        out.fresh::<u8>(all.len()).copy_from_slice(&all);
        Ok(())
    }

    fn store_part(&mut self, agent: &Agent, part: &Part, value: u32) -> Result<(), Fault> {
        let size = part.dtype.bytes() as usize;
        let tile = agent.tile(value);
        for (row, from) in (0..).zip(tile.view::<u8>().chunks_exact(part.shape.1 as usize * size)) {
            if let Some((first, end)) = part.row(agent, row) {
                self.note_write(agent, part.place, first, end, size as u64);
                let there = (end - first) as usize * size;
                self.write(agent, part.place, first * size as u64, &from[..there]);
            }
        }
        Ok(())
    }

    /// Rows that are there, each of which is on its way by itself, unless the next one follows it.
    pub(crate) fn put_matrix(&mut self, agent: &mut Agent, insn: &PutMatrix) -> Result<(), Fault> {
        let PutMatrix { target, to, column, shape, value, epoch } = *insn;
        let part = Part::new(agent, to, narrow(agent, column), shape);
        let param = part.place.param().expect("the verifier lets matrices in memory be parameters");
        let size = u64::from(part.dtype.bytes());
        let (buffer, data_epoch) = (agent.buffer(param), Self::data_epoch(agent, epoch));
        let mut runs: Vec<((u64, u64), Vec<u8>)> = vec![];
        let tile = agent.tile(value);
        for (row, from) in (0..).zip(tile.view::<u8>().chunks_exact(shape.1 as usize * size as usize)) {
            let Some((first, end)) = part.row(agent, row) else { continue };
            let there = &from[..((end - first) * size) as usize];
            match runs.last_mut().filter(|(range, _)| range.1 == first) {
                Some((range, bytes)) => {
                    range.1 = end;
                    bytes.extend_from_slice(there);
                }
                None => runs.push(((first, end), there.to_vec())),
            }
        }
        for rank in self.targets(agent, target)? {
            self.counts[agent.kernel].puts += 1;
            for ((first, end), bytes) in &runs {
                let (from, to) = (first * size, end * size);
                self.counts[agent.kernel].bytes[agent.rank as usize][rank] += to - from;
                self.note_put(agent, part.place, rank, (from, to), size, data_epoch);
                let by = agent.event(&self.sites);
                let mut data = Tile::default();
                data.fresh::<u8>(bytes.len()).copy_from_slice(bytes);
                let cargo = Cargo::Data { buffer, at: from, payload: Payload::Tile(data) };
                let spot = Spot::Bytes { buffer, from, to };
                self.send(agent, rank, Pending { by, spot, cargo });
            }
        }
        Ok(())
    }

    /// Each sum is of products in the order of columns, added to what was there before.
    fn dot(&mut self, agent: &mut Agent, dot: &Dot) -> Result<(), Fault> {
        self.pair(agent, dot);
        let Dot { acc, a, b, from, count, shape: (rows, columns), out, .. } = *dot;
        let each = dot.elements() as usize;
        self.fill_tile(agent, out, |world, agent, out| {
            let (first, count) = (narrow(agent, from), narrow(agent, count));
            let [a, b] = [(a, rows), (b, columns)].map(|(of, rows)| {
                world.columns_exist(agent, of.place, first, count)?;
                let part = Part::new(agent, of, first, (rows, count as u32));
                let mut rows = Tile::default();
                if count > 0 {
                    world.load_part(agent, &part, &mut rows)?;
                }
                world.widened(agent, &part, &rows)
            });
            let (a, b) = (a?, b?);
            let sums = match acc {
                Some(acc) => out.fresh_copy::<f32>(agent.tile(acc)),
                None => {
                    let sums = out.fresh::<f32>((rows * columns) as usize);
                    sums.fill(0.0);
                    sums
                }
            };
            multiply(a.view(), b.view(), count as usize * each, columns as usize, sums);
            Ok(())
        })
    }

    /// Columns of a matrix from one on.
    pub(crate) fn columns_exist(
        &mut self,
        agent: &Agent,
        place: Place,
        first: u64,
        count: u64,
    ) -> Result<(), Fault> {
        let (_, columns) = shape_of(agent, place);
        match first.checked_add(count).is_some_and(|end| end <= columns) {
            true => Ok(()),
            false => Err(self.out_of_bounds(agent, place, (first, first.saturating_add(count)), columns)),
        }
    }
}

/// A `U32`, as it is after it has wrapped.
pub(crate) fn narrow(agent: &Agent, r: Reg) -> u64 {
    u64::from(agent.get(r) as u32)
}

fn shape_of(agent: &Agent, place: Place) -> (u64, u64) {
    let param = place.param().expect("the verifier lets matrices in memory be parameters");
    agent.compiled.kernel().params[param.index()].shape().unwrap_or_default()
}

/// Gives all elements of a line what these come to, one after the other from the first on. `apart` says how far lines are, and the
/// elements of one.
fn reduce_lines(op: ReduceOp, of: &mut [f32], (lines, long): (u32, u32), apart: (u32, u32)) {
    let combine = combine::<f32>(op);
    for line in 0..lines {
        let at = |i: u32| (line * apart.0 + i * apart.1) as usize;
        let all = (1..long).fold(of[at(0)], |sofar, i| combine(sofar, of[at(i)]));
        (0..long).for_each(|i| of[at(i)] = all);
    }
}

/// Adds to `sums`, rows of `columns`, the products of the rows of `a` and of `b`, of `k` elements each. Eight columns of the result at
/// a time, each in the order of `k`.
pub(crate) fn multiply(a: &[f32], b: &[f32], k: usize, columns: usize, sums: &mut [f32]) {
    if k == 0 {
        return;
    }
    // Rows of `b` next to each other, so that the inner loop is over lanes of a vector.
    let mut turned = vec![0f32; b.len()];
    for (j, row) in b.chunks_exact(k).enumerate() {
        row.iter().enumerate().for_each(|(x, &v)| turned[x * columns + j] = v);
    }
    for (row, sums) in a.chunks_exact(k).zip(sums.chunks_exact_mut(columns)) {
        for (&x, others) in row.iter().zip(turned.chunks_exact(columns)) {
            sums.iter_mut().zip(others).for_each(|(sum, &y)| *sum += x * y);
        }
    }
}
