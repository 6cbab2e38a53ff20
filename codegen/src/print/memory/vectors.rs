//! Accesses of a step: a lane's vector, or one of its elements, in memory.

use crate::ir::{Dtype, ParamId, ParcelId, Place, ReduceOp, Target, ValueId};
use crate::print::analysis::VectorMask;
use crate::print::emit::{Emitter, Step};
use crate::print::layout::{Layout, Layouts};
use crate::print::text::{Expr, Prec, Prim, PrintError};

/// What decides whether a vector is accessed.
enum VectorTest {
    /// Whether all of it is.
    Whole(Expr),
    /// The end of the elements that are; some of a vector's may be.
    Below(String),
}

impl Emitter<'_, '_> {
    /// `base + index + at`.
    pub fn address(&mut self, base: &Expr, index: ValueId, step: &mut Step) -> Result<String, PrintError> {
        let l = step.layout;
        if step.from_lane {
            let apart = format!("{} * {}", self.f.own.step, l.lanes * l.per_lane);
            return Ok(if l.steps() == 1 { base.text.clone() } else { format!("{} + {apart}", base.text) });
        }
        let index = self.scalar(index)?;
        let start = Expr::offset(base, &index);
        if l.steps() == 1 {
            return Ok(Expr::binary("+", Prec::Sum, &start, &self.at(step)).text);
        }
        // The lane's first address, and fixed distances from there: which a compiler keeps apart only if they are written so.
        let first = self.at(&mut Step { flat: true, ..Step::new(Layout { len: l.lanes * l.per_lane, ..l }) });
        let first = Expr::binary("+", Prec::Sum, &start, &first);
        Ok(format!("{} + {} * {}", first.text, self.f.own.step, l.lanes * l.per_lane))
    }

    /// The element of memory that belongs to element `j` of the step.
    pub fn cell(&mut self, base: &Expr, index: ValueId, step: &mut Step) -> Result<Expr, PrintError> {
        let index = self.scalar(index)?;
        let at = self.element_at(step);
        let sum = if index.is_zero() { at } else { Expr::binary("+", Prec::Sum, &index, &at) };
        Ok(Expr::index(base, &sum))
    }

    /// Template arguments that say how wide an access may be, if not as wide as can be.
    fn width(&self, index: ValueId, dtype: Dtype, layout: Layout) -> Option<u32> {
        let w = Layouts::access(&self.f.p, index, dtype, layout.per_lane);
        (w < layout.per_lane.min(16 / dtype.bytes())).then_some(w)
    }

    /// `load<..>(..)`; `early` if it is not to be put off.
    pub fn load_vector(
        &mut self,
        place: Place,
        index: ValueId,
        dtype: Dtype,
        early: bool,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        if let Place::All(_, how) = place {
            return self.load_reduced(place, how, index, dtype, step);
        }
        let e = step.layout.per_lane;
        let width = self.width(index, dtype, step.layout);
        let whole = width.is_none() && (e * dtype.bytes()).is_multiple_of(16);
        let in_global = matches!(place, Place::Param(_));
        let early = early && whole && in_global && self.f.target.backend() == "cuda";
        let (prim, function) = if early { (Prim::LoadEarly, "load_early") } else { (Prim::Load, "load") };
        self.used.add(prim);
        let arguments = width.map_or(format!("<{e}>"), |w| format!("<{e}, {w}>"));
        let base = self.base(place)?;
        let address = self.address(&base, index, step)?;
        Ok(format!("{function}{arguments}({address})"))
    }

    /// A lane's 16 bytes of a tile that the switch reduces.
    pub fn load_reduced(
        &mut self,
        place: Place,
        how: ReduceOp,
        index: ValueId,
        dtype: Dtype,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        let prim = match dtype {
            Dtype::Fp16 => Prim::MultimemFp16,
            Dtype::Bf16 => Prim::MultimemBf16,
            Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 | Dtype::Fp8 => Prim::MultimemF32,
        };
        self.used.add(prim);
        let base = self.base(place)?;
        let address = self.address(&base, index, step)?;
        let ty = self.vector_type(dtype, step.layout.per_lane);
        Ok(format!("bits_as<{ty}>(multimem_{}_{}({address}))", how.name(), dtype.name()))
    }

    /// `load<..>(..)` where the mask holds, else zeros.
    pub fn load_masked_vector(
        &mut self,
        place: Place,
        index: ValueId,
        mask: ValueId,
        ty: &str,
        dtype: Dtype,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        match self.vector_test(mask, step)? {
            VectorTest::Whole(test) => {
                let load = self.load_vector(place, index, dtype, false, step)?;
                Ok(format!("{} ? {load} : {ty}{{}}", test.text))
            }
            VectorTest::Below(end) => {
                self.used.add(Prim::LoadBelow);
                let e = step.layout.per_lane;
                let arguments = match self.width(index, dtype, step.layout) {
                    Some(w) => format!("<{e}, {w}>"),
                    None => format!("<{e}>"),
                };
                let base = self.base(place)?;
                let (start, at) = self.start(&base, index, step)?;
                Ok(format!("load_below{arguments}({start}, {at}, {end})"))
            }
        }
    }

    /// What decides whether a vector is accessed under a mask.
    fn vector_test(&mut self, mask: ValueId, step: &mut Step) -> Result<VectorTest, PrintError> {
        let p = &self.f.p;
        match p.vector_mask(mask).expect("vectors are accessed under masks that decide for them") {
            VectorMask::Uniform(test) => Ok(VectorTest::Whole(self.scalar(test)?)),
            VectorMask::First(count) => {
                let whole_vectors = p.divisor(count, step.layout.per_lane) == step.layout.per_lane;
                let count = self.scalar(count)?;
                if !whole_vectors {
                    return Ok(VectorTest::Below(count.text));
                }
                let at = self.at(step);
                Ok(VectorTest::Whole(Expr::binary("<", Prec::Relation, &at, &count)))
            }
        }
    }

    /// `base + index` and the step's `at`.
    pub fn start(
        &mut self,
        base: &Expr,
        index: ValueId,
        step: &mut Step,
    ) -> Result<(String, String), PrintError> {
        let index = self.scalar(index)?;
        Ok((Expr::offset(base, &index).text, self.at(step).text))
    }

    /// `store<..>(..);` of a tile's vector where the mask holds, to a buffer that starts at `base`.
    pub fn store_vector(
        &mut self,
        base: &Expr,
        place: Place,
        index: ValueId,
        value: ValueId,
        mask: Option<ValueId>,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        let dtype = self.ty(value).dtype;
        if step.layout.per_lane == 1 {
            let cell = self.cell(base, index, step)?;
            let e = self.element(value, step)?;
            return Ok(format!("{} = {};", cell.text, e.plain()));
        }
        let arguments = match self.width(index, dtype, step.layout) {
            Some(w) => format!("<{w}>"),
            None => String::new(),
        };
        let shared = matches!(place, Place::Shared(_));
        let (prim, name) = if shared { (Prim::StoreShared, "store_shared") } else { (Prim::Store, "store") };
        let mut condition = String::new();
        match mask.map(|mask| self.vector_test(mask, step)).transpose()? {
            None => {}
            Some(VectorTest::Whole(test)) if test.text == "true" => {}
            Some(VectorTest::Whole(test)) => condition = format!("if ({}) ", test.text),
            Some(VectorTest::Below(end)) => {
                self.used.add(if shared { Prim::StoreSharedBelow } else { Prim::StoreBelow });
                let (start, at) = self.start(base, index, step)?;
                let value = self.vector(value, step)?;
                return Ok(format!("{name}_below{arguments}({start}, {at}, {end}, {value});"));
            }
        }
        self.used.add(prim);
        let address = self.address(base, index, step)?;
        let value = self.vector(value, step)?;
        Ok(format!("{condition}{name}{arguments}({address}, {value});"))
    }

    /// The rank that a put to one rank goes to.
    pub fn put_base(&mut self, parcel: ParcelId, buffer: ParamId) -> Result<Expr, PrintError> {
        let (Target::Rank(rank) | Target::Mask(rank)) = self.f.p.kernel.parcels[parcel.index()].target;
        let rank = self.scalar(rank)?;
        Ok(Expr::index(&self.arg(buffer), &rank))
    }

    /// Stores a tile's elements of one step, those that the mask selects.
    pub fn store_all(
        &mut self,
        base: &Expr,
        place: Place,
        index: ValueId,
        value: ValueId,
        mask: Option<ValueId>,
        step: &mut Step,
    ) -> Result<(), PrintError> {
        let by_vectors = |m: ValueId| step.layout.per_lane > 1 && self.f.p.vector_mask(m).is_some();
        if mask.is_none_or(by_vectors) {
            let line = self.store_vector(base, place, index, value, mask, step)?;
            self.w.line(&line);
            return Ok(());
        }
        let condition = self.condition(mask, step)?;
        let cell = self.cell(base, index, step)?;
        let e = self.element(value, step)?;
        self.w.line(&format!("{condition}{} = {};", cell.text, e.plain()));
        Ok(())
    }

    /// `if (mask) `, or nothing where the mask is known to hold.
    pub fn condition(&mut self, mask: Option<ValueId>, step: &mut Step) -> Result<String, PrintError> {
        match mask {
            Some(m) if !self.always(m) => Ok(format!("if ({}) ", self.element(m, step)?.text)),
            _ => Ok(String::new()),
        }
    }
}
