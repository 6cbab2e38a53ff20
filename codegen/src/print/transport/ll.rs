//! Sending and reading LL elements.

use crate::ir::{
    BinaryOp, CommOp, Loc, OpId, OpKind, ReceiveMessages, SendMessages, Taken, Target, ValueId, ValueOp,
};
use crate::print::analysis::VectorMask;
use crate::print::emit::{Emitter, Step};
use crate::print::facts::Form;
use crate::print::layout::Layout;
use crate::print::text::{Expr, Prec, Prim, PrintError, prim, type_name};

impl Emitter<'_, '_> {
    /// A tile to one rank or to each of a set, each element with its epoch.
    pub fn send_ll(&mut self, id: OpId, op: &SendMessages) -> Result<(), PrintError> {
        let loc = self.f.p.kernel.op(id).loc;
        let SendMessages { buffer: ll, target, index, value, epoch, count, .. } = *op;
        self.used.add(Prim::SendLl);
        let epoch = self.epoch(id, epoch)?;
        let send = |me: &mut Self, base: &Expr| me.send_elements(id, base, (index, value, count), &epoch);
        match target {
            Target::Mask(set) => self.for_each_rank(loc, set, ll, None, send),
            Target::Rank(rank) => {
                let rank = self.scalar(rank)?;
                let base = self.there(ll, &rank, None);
                send(self, &base)?;
                Ok(())
            }
        }
    }

    /// The epoch that words have.
    fn epoch(&mut self, id: OpId, epoch: Option<ValueId>) -> Result<Expr, PrintError> {
        let op = &self.f.p.kernel.op(id);
        match epoch {
            Some(epoch) => self.scalar(epoch),
            None => Err(PrintError::Misplaced { loc: op.loc, op: op.kind.name() }),
        }
    }

    fn send_elements(
        &mut self,
        id: OpId,
        base: &Expr,
        (index, value, count): (ValueId, ValueId, Option<ValueId>),
        epoch: &Expr,
    ) -> Result<(), PrintError> {
        let layout = self.f.layouts.of(value);
        let loc = self.f.p.kernel.op(id).loc;
        if self.ty(value).dtype.per_ll_word().is_some_and(|word| word > 1) {
            return self.step_loop(Step::new(layout), true, loc, |me, step| {
                let (word, values) = (me.word(base, index, step)?, me.vector(value, step)?);
                let condition = match count {
                    None => String::new(),
                    Some(count) => {
                        let (at, end) = (me.at(step), me.scalar(count)?);
                        format!("if ({}) ", Expr::binary("<", Prec::Relation, &at, &end).text)
                    }
                };
                me.w.line(&format!("{condition}send_ll({word}, {values}, {});", epoch.plain()));
                Ok(())
            });
        }
        self.step_loop(Step::new(layout), true, loc, |me, step| {
            me.each_element(layout.per_lane, |me, j| {
                let mut address = me.address(base, index, step)?;
                if layout.per_lane > 1 {
                    address = format!("{address} + {j}");
                }
                let element = me.element(value, step)?;
                let condition = match count {
                    None => String::new(),
                    Some(count) => {
                        let (at, end) = (me.element_at(step), me.scalar(count)?);
                        format!("if ({}) ", Expr::binary("<", Prec::Relation, &at, &end).text)
                    }
                };
                me.w.line(&format!("{condition}send_ll({address}, {}, {});", element.plain(), epoch.plain()));
                Ok(())
            })
        })
    }

    /// The address of the word of a lane's elements of a step, of which a word has several.
    fn word(&mut self, base: &Expr, index: ValueId, step: &mut Step) -> Result<String, PrintError> {
        let Layout { lanes, per_lane, .. } = step.layout;
        let first = self.halved(index, per_lane)?;
        let lane = Expr::atom(self.lane());
        let start = Expr::binary("+", Prec::Sum, &Expr::offset(base, &first), &lane).text;
        Ok(if step.layout.steps() == 1 { start } else { format!("{start} + {} * {lanes}", self.f.own.step) })
    }

    /// The word of an element that begins one.
    fn halved(&mut self, index: ValueId, word: u32) -> Result<Expr, PrintError> {
        if let Some(known) = self.f.p.int(index) {
            return Ok(Expr::atom((known / i128::from(word)).to_string()));
        }
        Ok(Expr::binary("/", Prec::Product, &self.scalar(index)?, &Expr::atom(word.to_string())))
    }

    /// Elements that are polled for until all of a lane's have the epoch.
    pub fn read_ll(&mut self, id: OpId, op: &ReceiveMessages) -> Result<(), PrintError> {
        let loc = self.f.p.kernel.op(id).loc;
        let (&ReceiveMessages { buffer: ll, mask, epoch, .. }, Taken { out, index, from }) =
            (op, op.tiles[0]);
        for &taking in self.f.ahead.get(&id).into_iter().flatten() {
            if let OpKind::Comm(CommOp::ReceiveMessages(packets)) = &self.f.p.kernel.op(taking).kind {
                self.look_ahead(taking, packets)?;
            }
        }
        let param = &self.f.p.kernel.params[ll.index()];
        let layout = self.f.layouts.of(out);
        prim::use_dtype(self.used, param.dtype);
        let epoch = self.epoch(id, epoch)?;
        self.w.gap();
        let place = self.place(loc);
        self.w.comment(&format!(
            "Read {}: an element comes together with its epoch, by one access ({place})",
            param.name
        ));
        if layout.per_lane > 1 {
            return self.read_words(id, op, &epoch);
        }
        if let Some((first, from)) = self.row_of([index, from, mask], layout)? {
            self.used.add(Prim::ReadLlRow);
            let arguments = format!("{}, {}, {}", first.plain(), layout.len, from.plain());
            return self.read_into(id, op, "read_ll_row", &arguments, &epoch);
        }
        self.used.add(Prim::ReadLl);
        let steps = layout.steps();
        let whole = layout.len == layout.full_steps() * layout.lanes;
        let f = self.f;
        let plain = |v| f.forms.is_of_lane(&f.p, v);
        let arrays = [("index", "u32"), ("peer", "u32"), ("wanted", "bool")];
        let of_step = |me: &mut Self, step: &mut Step| -> Result<[Expr; 3], PrintError> {
            let read = [me.element(index, step)?, me.element(from, step)?, me.element(mask, step)?];
            if whole {
                return Ok(read);
            }
            // Lanes beyond the end take part without reading.
            let end = Expr::atom(layout.len.to_string());
            let inside = Expr::binary("<", Prec::Relation, &me.at(step), &end);
            let [at, peer, wanted] = read;
            let zero = Expr::atom("0u");
            let none = |v, e: Expr| if plain(v) { e } else { Expr::ternary(&inside, &e, &zero) };
            let wanted = if wanted.text == "true" {
                inside.clone()
            } else {
                Expr::binary("&&", Prec::And, &inside, &wanted)
            };
            Ok([none(index, at), none(from, peer), wanted])
        };
        let mut arguments = [String::new(), String::new(), String::new()];
        if steps == 1 {
            let args = &mut arguments;
            self.step_loop(Step::new(layout), false, loc, |me, step| {
                *args = of_step(me, step)?.map(|e| format!("{{{}}}", e.plain()));
                Ok(())
            })?;
        } else {
            arguments = arrays.map(|(name, ty)| {
                let name = self.names.fresh(&format!("{}_{name}", param.name));
                self.w.line(&format!("{ty} {name}[{steps}];"));
                name
            });
            self.step_loop(Step::new(layout), false, loc, |me, step| {
                for (name, e) in arguments.iter().zip(of_step(me, step)?) {
                    let to = me.registers(name, step);
                    me.w.line(&format!("{to} = {};", e.plain()));
                }
                Ok(())
            })?;
        }
        self.read_into(id, op, "read_ll", &arguments.join(", "), &epoch)
    }

    /// The same where a word has several elements, and a lane a word of each step.
    fn read_words(&mut self, id: OpId, op: &ReceiveMessages, epoch: &Expr) -> Result<(), PrintError> {
        let (&ReceiveMessages { buffer: ll, mask, .. }, Taken { out, index, from }) = (op, op.tiles[0]);
        let (layout, loc) = (self.f.layouts.of(out), self.f.p.kernel.op(id).loc);
        let each = layout.per_lane;
        if let (Some(terms), Some(from), Some(mask)) =
            (self.consecutive(index), self.splat_of(from), self.f.p.vector_mask(mask))
            && terms.iter().all(|&term| self.f.p.divisor(term, each) == each)
        {
            let first = self.sum_of(terms)?;
            let first = Expr::binary("/", Prec::Product, &first, &Expr::atom(each.to_string()));
            let words = Expr::atom((layout.len / each).to_string());
            let words = match mask {
                VectorMask::Uniform(test) if self.f.p.int(test) == Some(1) => words,
                VectorMask::Uniform(test) => Expr::ternary(&self.scalar(test)?, &words, &Expr::atom("0")),
                VectorMask::First(count) => {
                    self.used.add(Prim::MinMax);
                    let count = self.scalar(count)?;
                    let up = Expr::binary("+", Prec::Sum, &count, &Expr::atom((each - 1).to_string()));
                    let up = Expr::binary("/", Prec::Product, &up, &Expr::atom(each.to_string()));
                    Expr::call("min_of", [&up, &words])
                }
            };
            self.used.add(Prim::ReadLlRow);
            let from = self.scalar(from)?;
            let arguments = format!("{}, {}, {}", first.plain(), words.plain(), from.plain());
            self.read_into(id, op, "read_ll_row", &arguments, epoch)?;
            return match mask {
                VectorMask::First(count) if self.f.p.divisor(count, each) < each => {
                    self.drop_beyond(out, count, loc)
                }
                VectorMask::First(_) | VectorMask::Uniform(_) => Ok(()),
            };
        }
        self.used.add(Prim::ReadLlElements);
        let name = &self.f.p.kernel.params[ll.index()].name;
        let steps = layout.steps();
        let arrays = [("index", "u32"), ("peer", "u32"), ("wanted", "bool")].map(|(of, ty)| {
            let name = self.names.fresh(&format!("{name}_{of}"));
            self.w.line(&format!("{ty} {name}[{}];", steps * each));
            name
        });
        let whole = layout.is_whole();
        self.step_loop(Step::new(layout), false, loc, |me, step| {
            me.each_element(each, |me, j| {
                let place =
                    if steps == 1 { j.to_owned() } else { format!("{} * {each} + {j}", me.f.own.step) };
                step.indexes = steps > 1;
                let end = Expr::atom(layout.len.to_string());
                let inside = Expr::binary("<", Prec::Relation, &me.element_at(step), &end);
                let zero = Expr::atom("0u");
                for (array, v) in arrays.iter().zip([index, from, mask]) {
                    let e = me.element(v, step)?;
                    let e = match (whole, v == mask) {
                        (true, _) => e,
                        // Lanes beyond the end take part without reading.
                        (false, false) => Expr::ternary(&inside, &e, &zero),
                        (false, true) => Expr::binary("&&", Prec::And, &inside, &e),
                    };
                    me.w.line(&format!("{array}[{place}] = {};", e.plain()));
                }
                Ok(())
            })
        })?;
        self.read_into(id, op, "read_ll_elements", &arrays.join(", "), epoch)
    }

    /// Makes those elements of the tile zero that came as neighbours of the last one of `count`.
    fn drop_beyond(&mut self, out: ValueId, count: ValueId, loc: Loc) -> Result<(), PrintError> {
        let layout = self.f.layouts.of(out);
        self.step_loop(Step::new(layout), false, loc, |me, step| {
            let name = me.values[&out].trim_end_matches("[0]").to_owned();
            let registers =
                if layout.steps() == 1 { format!("{name}[0]") } else { me.registers(&name, step) };
            let (at, count) = (me.at(step), me.scalar(count)?);
            let next = Expr::binary("+", Prec::Sum, &at, &Expr::atom("1"));
            let last = Expr::binary("==", Prec::Relation, &next, &count);
            let none = format!("{}{{}}", type_name(me.ty(out).dtype));
            me.w.line(&format!("if ({}) {registers}[1] = {none};", last.text));
            Ok(())
        })
    }

    /// The call that reads, and the registers that it reads into.
    fn read_into(
        &mut self,
        id: OpId,
        op: &ReceiveMessages,
        function: &str,
        arguments: &str,
        epoch: &Expr,
    ) -> Result<(), PrintError> {
        let (ll, out) = (op.buffer, op.tiles[0].out);
        let layout = self.f.layouts.of(out);
        let steps = layout.steps();
        let want = self
            .f
            .p
            .name(out)
            .map_or_else(|| crate::print::analysis::describe::value(&self.f.p, out), str::to_string);
        let name = self.names.fresh(&want);
        let dtype = self.f.p.kernel.params[ll.index()].dtype;
        let ty = self.vector_type(dtype, layout.per_lane);
        self.w.line(&format!("{ty} {name}[{steps}];"));
        self.values.insert(out, if steps == 1 { format!("{name}[0]") } else { name.clone() });
        let (group, base, site) = (self.group.name, self.own(ll).text, self.site(id, ll));
        let epoch = epoch.plain();
        self.leave_unless(&format!(
            "{function}({group}, args, {base}, {arguments}, {epoch}, {name}, {site})"
        ));
        Ok(())
    }

    /// The first element and the sender, where all elements of a tile are read from there on, each lane's next to its neighbours'.
    fn row_of(
        &mut self,
        [index, from, mask]: [ValueId; 3],
        layout: Layout,
    ) -> Result<Option<(Expr, Expr)>, PrintError> {
        let (Some(terms), Some(from)) = (self.consecutive(index), self.splat_of(from)) else {
            return Ok(None);
        };
        if layout.per_lane > 1 || !self.always(mask) {
            return Ok(None);
        }
        Ok(Some((self.sum_of(terms)?, self.scalar(from)?)))
    }

    fn sum_of(&mut self, terms: Vec<ValueId>) -> Result<Expr, PrintError> {
        let mut sum = Expr::atom("0");
        for (i, term) in terms.into_iter().enumerate() {
            let term = self.scalar(term)?;
            sum = if i == 0 { term } else { Expr::binary("+", Prec::Sum, &sum, &term) };
        }
        Ok(sum)
    }

    /// The scalars whose sum is the first of consecutive numbers, if a tile is written out as such.
    fn consecutive(&self, tile: ValueId) -> Option<Vec<ValueId>> {
        let Some(OpKind::Value(op)) = self.f.p.def(tile) else { return None };
        if let ValueOp::Arange { .. } = op {
            return Some(vec![]);
        }
        let ValueOp::Binary { op: BinaryOp::Add, a, b, .. } = *op else { return None };
        let ((Some(mut terms), Some(more)), Form::Once) = (
            match self.splat_of(b) {
                Some(more) => (self.consecutive(a), Some(more)),
                None => (self.consecutive(b), self.splat_of(a)),
            },
            self.form(tile),
        ) else {
            return None;
        };
        terms.push(more);
        Some(terms)
    }

    /// The scalar that all elements of a tile are.
    fn splat_of(&self, tile: ValueId) -> Option<ValueId> {
        if let Some(OpKind::Value(ValueOp::Splat { a, .. })) = self.f.p.def(tile) { Some(*a) } else { None }
    }
}
