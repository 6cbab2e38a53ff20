//! What a loader and the other warps of its block do: pieces of matrices are brought, multiplied and given back.

use crate::ir::{
    CommOp, ControlOp, Dot, Dtype, MatrixOp, MemoryOp, OpId, OpKind, ParamId, Place, ReceiptId, dot_columns,
    scale_words,
};
use crate::print::emit::{Emitter, PutOff};
use crate::print::facts::Side;
use crate::print::loader::{Loaders, plan::own_rows};
use crate::print::matrix::products::Fp8ProductsText;
use crate::print::text::{Prim, PrintError};

impl Emitter<'_, '_> {
    /// Declares the ring of a role with a loader.
    pub fn declare_ring(&mut self, role: usize) {
        let Some(ring) = self.loaders.and_then(|loaders| loaders.ring(role)) else { return };
        self.used.add(if ring.tensor { Prim::RingTensor } else { Prim::Ring });
        self.ring = self.names.fresh("ring");
        self.declare_drawn(ring);
        let room = &self.shared[&ring.room];
        self.w.line_with(
            &format!("{} {}({room});", ring.text(), self.ring),
            "and its barriers behind the room",
        );
        if ring.paired {
            self.used.add(Prim::Pair);
            let pair = self.names.fresh("in_pair");
            self.w.line_with(
                &format!("const InPair<{}> {pair}{{{}}};", ring.text(), self.ring),
                "until both blocks are done",
            );
        }
    }

    /// Lets warps of a role beside one that multiplies give registers to the multiplying ones.
    pub fn give_registers(&mut self, loaders: &Loaders) {
        if loaders.crew.registers.is_some() {
            self.used.add(Prim::Registers);
            self.w.line_with("give_registers();", "with the loader's warpgroup");
        }
    }

    /// Lets a loader give registers to the others, and its second warp multiply if it has one.
    pub fn share_registers(&mut self) {
        let (Some(side), Some(loaders)) = (self.f.side, self.loaders) else { return };
        if side == Side::Loads && self.in_tensor_memory() {
            self.w.line(&format!("if (loader.warp == 1) return multiply_pieces(loader, {});", self.ring));
        }
        if loaders.crew.registers.is_none() {
            return;
        }
        self.used.add(Prim::Registers);
        match side {
            Side::Loads => {
                self.w.line_with("give_registers();", "as a whole warpgroup, of which one warp goes on");
                self.w.line("if (loader.warp != 0) return;");
            }
            Side::Multiplies => self.w.line_with("take_registers();", "the loader's"),
        }
    }

    /// The loader's part of a product.
    pub fn bring(&mut self, id: OpId, dot: &Dot, loaders: &Loaders) -> Result<(), PrintError> {
        let Dot { out, a, b, from, paired, .. } = dot;
        let (left, right) = (self.matrix_name(a.place), self.matrix_name(b.place));
        let place = self.place(self.f.p.kernel.op(id).loc);
        let (rows, columns) = self.ty(*out).shape().expect("products are matrices");
        let boxes = [(a, rows), (b, own_rows(columns, *paired))].map(|(of, rows)| {
            let param = of.place.param().expect("operands of a loader are parameters");
            format!("args.{}", loaders.boxes(param, if of.list.is_some() { 1 } else { rows }))
        });
        if let (Some(x), Some(w)) = (a.scales, b.scales) {
            let scales = [x, w].map(|of| self.arg(of).plain().to_owned());
            return self.bring_scaled(dot, (scales, place), boxes);
        }
        if let Some(list) = a.list {
            return self.bring_gathered(dot, (list, place), boxes);
        }
        let (row, b, from) = (self.scalar(a.row)?, self.scalar(b.row)?, self.scalar(*from)?);
        let (ring, pieces) = (self.ring.clone(), self.pieces(dot));
        let [row, right_rows, from] =
            [row.plain(), &format!("{}, {}", boxes[1], b.plain()), from.plain()].map(str::to_owned);
        let rest = format!("{}, {row}, {right_rows}, {from}, {pieces}", boxes[0]);
        self.w.gap();
        let of_this = |put_off: &PutOff| match put_off {
            PutOff::Receipt(receipt) => a.receipt == Some(*receipt),
            PutOff::Product(product) => *product == id,
        };
        let mut put_off = self.put_off.iter().filter(|(what, _)| of_this(what));
        let Some(&(_, wait)) = put_off.next() else {
            self.w.comment(&format!("Bring rows of {left} and rows of {right} ({place})"));
            self.w.line(&format!("bring_pieces(loader, {ring}, {rest});"));
            return Ok(());
        };
        self.used.add(Prim::BringAhead);
        self.w.comment(&format!("Bring rows of {right} while those of {left} are awaited ({place})"));
        let ahead = self.names.fresh("ahead");
        self.w.line(&format!(
            "const u32 {ahead} = bring_right_ahead(loader, {ring}, {right_rows}, {from}, {pieces});"
        ));
        let f = self.f;
        match &f.p.kernel.op(wait).kind {
            OpKind::Comm(CommOp::Wait(op)) => self.wait(wait, op)?,
            OpKind::Comm(CommOp::WaitAll(op)) => self.wait_all(wait, op)?,
            OpKind::Comm(CommOp::BlockWait(op)) => self.block_wait(wait, op)?,
            other @ (OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_)) => {
                return Err(PrintError::Misplaced { loc: f.p.kernel.op(wait).loc, op: other.name() });
            }
        }
        self.w.gap();
        self.w.comment(&format!("Bring rows of {left}, and the other ones of {right} ({place})"));
        self.w.line(&format!("bring_rest(loader, {ring}, {ahead}, {rest});"));
        Ok(())
    }

    /// The loader's part of a product of rows that a list names.
    fn bring_gathered(
        &mut self,
        dot: &Dot,
        (list, place): (ParamId, String),
        boxes: [String; 2],
    ) -> Result<(), PrintError> {
        let Dot { a, b, from, .. } = dot;
        self.used.add(Prim::RingGathered);
        let (left, right) = (self.matrix_name(a.place), self.matrix_name(b.place));
        let by = self.matrix_name(Place::Param(list));
        let [list, row, end] = self.listed(list, a)?;
        let (b, from) = (self.scalar(b.row)?, self.scalar(*from)?);
        let ([x, w], ring, pieces) = (boxes, &self.ring, self.pieces(dot));
        self.w.gap();
        self.w.comment(&format!("Bring rows of {left} that {by} names and rows of {right} ({place})"));
        let (b, from) = (b.plain(), from.plain());
        self.w.line(&format!(
            "bring_gathered(loader, {ring}, {x}, {list}, {row}, {end}, {w}, {b}, {from}, {pieces});"
        ));
        Ok(())
    }

    /// The loader's part of a product of rows with scales of blocks.
    fn bring_scaled(
        &mut self,
        dot: &Dot,
        ([x_scales, w_scales], place): ([String; 2], String),
        [x, w]: [String; 2],
    ) -> Result<(), PrintError> {
        let Dot { a, b, from, .. } = dot;
        self.used.add(Prim::RingScaled);
        let (left, right) = (self.matrix_name(a.place), self.matrix_name(b.place));
        let (row, right_row, from) = (self.scalar(a.row)?, self.scalar(b.row)?, self.scalar(*from)?);
        let (ring, pieces, words) = (&self.ring, self.pieces(dot), self.scale_words(a.place));
        self.w.gap();
        self.w.comment(&format!("Bring rows of {left} and rows of {right} with their scales ({place})"));
        let (row, right_row, from) = (row.plain(), right_row.plain(), from.plain());
        self.w.line(&format!(
            "bring_scaled<{words}>(loader, {ring}, {x}, {row}, {x_scales}, {w}, {right_row}, {w_scales}, {from}, {pieces});"
        ));
        Ok(())
    }

    /// Puts a loader's wait off until what it is for is brought, if that is one product's left operand: the right one needs no wait.
    pub fn put_off(&mut self, id: OpId, receipt: ReceiptId) -> bool {
        if !self.f.loads() || self.put_off.iter().any(|(_, wait)| *wait == id) {
            return false;
        }
        let kernel = self.f.p.kernel;
        let mut products = self.f.p.ops().iter().filter_map(|&id| {
            let OpKind::Matrix(MatrixOp::Dot(dot)) = &kernel.op(id).kind else { return None };
            [&dot.a, &dot.b].iter().any(|rows| rows.receipt == Some(receipt)).then_some((id, dot))
        });
        let one = products.next().filter(|_| products.next().is_none());
        let off = one.is_some_and(|(product, dot)| {
            [dot.a.list, dot.a.scales] == [None; 2]
                && dot.b.receipt.is_none()
                && self.f.p.same_region(id, product)
        });
        if off {
            self.put_off.push((PutOff::Receipt(receipt), id));
        }
        off
    }

    /// The same of a wait for blocks, if a product follows whose right operand the kernel does not write, and nothing before it reads what
    /// the kernel writes.
    pub fn put_off_blocks(&mut self, id: OpId) -> bool {
        let Some(loaders) = self.loaders.filter(|_| self.f.loads()) else { return false };
        if self.put_off.iter().any(|(_, wait)| *wait == id) {
            return false;
        }
        let (kernel, p) = (self.f.p.kernel, &self.f.p);
        let later =
            p.ops().iter().copied().skip_while(|op| *op != id).skip(1).filter(|op| p.same_region(id, *op));
        let computes = |kind: &OpKind| match kind {
            OpKind::Memory(MemoryOp::Load { place, .. }) => {
                place.param().is_some_and(|from| !loaders.written.contains(&from))
            }
            OpKind::Value(_) | OpKind::Control(ControlOp::VarGet { .. }) => true,
            OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => false,
        };
        let next = later.map(|op| (op, &kernel.op(op).kind)).find(|(_, kind)| !computes(kind));
        let Some((product, OpKind::Matrix(MatrixOp::Dot(dot)))) = next else { return false };
        let plain = dot.a.scales.is_none();
        let off = plain && dot.b.place.param().is_some_and(|right| !loaders.written.contains(&right));
        if off {
            self.put_off.push((PutOff::Product(product), id));
        }
        off
    }

    /// The others' part of a product.
    pub fn dot_of_pieces(&mut self, id: OpId, dot: &Dot) -> Result<(), PrintError> {
        let Dot { out, acc, a, .. } = dot;
        let layout = self.f.layouts.of(*out);
        let place = self.place(self.f.p.kernel.op(id).loc);
        self.w.gap();
        let tensor = self.in_tensor_memory();
        let what = if tensor {
            "Take the products that the loader's warps make"
        } else {
            "Multiply what the loader brings"
        };
        self.w.comment(&format!("{what} ({place})"));
        let name = self.sums(id, *out, *acc, layout)?;
        let (ring, parts, pieces) = (&self.ring, self.part_name(layout.fragments), self.pieces(dot));
        if tensor {
            self.w.line(&format!("add_product<{parts}>(block, {ring}, {name});"));
            self.use_pieces(self.param_dtype(a.place));
            return Ok(());
        }
        if self.param_dtype(a.place) != Dtype::Fp8 {
            self.used.add(Prim::RingWgmma);
            self.w.line(&format!("dot_of_pieces<{parts}>(block, {ring}, {pieces}, {name});"));
        } else if pieces == 1 && acc.is_none() && Fp8ProductsText::has(self.ty(*out)) {
            self.used.add(Prim::RingFp8Piece);
            self.w.line(&format!("dot_of_fp8_piece<{parts}>(block, {ring}, {name});"));
        } else {
            self.used.add(Prim::RingFp8);
            self.w.line(&format!("dot_of_fp8_pieces<{parts}>(block, {ring}, {pieces}, {name});"));
        }
        Ok(())
    }

    /// Words of the scales of a row of a matrix.
    fn scale_words(&self, place: Place) -> u64 {
        let dtype = self.param_dtype(place);
        self.shape(place).1 / u64::from(dot_columns(dtype)) * u64::from(scale_words(dtype))
    }

    /// How many pieces a loader brings of a product's columns.
    fn pieces(&self, dot: &Dot) -> i128 {
        let columns = self.f.p.int(dot.count).expect("a loader knows how many columns there are");
        let each = i128::from(dot_columns(self.param_dtype(dot.a.place)));
        (columns + each - 1) / each
    }
}
