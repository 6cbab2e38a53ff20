//! Sending and reading LL elements.

use crate::ir::{BinaryOp, CommOp, OpId, OpKind, ReadLl, SendLl, Target, ValueId, ValueOp};

use super::{
    PrintError,
    emitter::Emitter,
    expr::{Expr, Prec},
    inline::Form,
    layout::Layout,
    ops::type_name,
    prim::Prim,
    tiles::Step,
};

impl Emitter<'_, '_> {
    /// A tile to one rank or to each of a set, each element with its epoch.
    pub fn send_ll(&mut self, id: OpId, op: &SendLl) -> Result<(), PrintError> {
        self.flush()?;
        let loc = self.f.p.kernel.op(id).loc;
        let SendLl { ll, target, index, value, epoch, count } = *op;
        self.used.add(Prim::SendLl);
        let epoch = self.scalar(epoch)?;
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

    fn send_elements(
        &mut self,
        id: OpId,
        base: &Expr,
        (index, value, count): (ValueId, ValueId, Option<ValueId>),
        epoch: &Expr,
    ) -> Result<(), PrintError> {
        let layout = self.f.layouts.of(value);
        self.step_loop(Step::new(layout), true, self.f.p.kernel.op(id).loc, |me, step| {
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

    /// Elements that are polled for until all of a lane's have the epoch.
    pub fn read_ll(&mut self, id: OpId, op: &ReadLl) -> Result<(), PrintError> {
        self.flush()?;
        let loc = self.f.p.kernel.op(id).loc;
        let ReadLl { out, ll, index, from, mask, epoch } = *op;
        for &taking in self.f.ahead.get(&id).into_iter().flatten() {
            if let OpKind::Comm(CommOp::TakePackets(packets)) = &self.f.p.kernel.op(taking).kind {
                self.look_ahead(taking, packets)?;
            }
        }
        let param = &self.f.p.kernel.params[ll.index()];
        let layout = self.f.layouts.of(out);
        super::ops::use_dtype(self.used, param.dtype);
        let epoch = self.scalar(epoch)?;
        self.w.gap();
        let place = self.place(loc);
        self.w.comment(&format!(
            "Read {}: an element comes together with its epoch, by one access ({place})",
            param.name
        ));
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

    /// The call that reads, and the registers that it reads into.
    fn read_into(
        &mut self,
        id: OpId,
        &ReadLl { out, ll, .. }: &ReadLl,
        function: &str,
        arguments: &str,
        epoch: &Expr,
    ) -> Result<(), PrintError> {
        let steps = self.f.layouts.of(out).steps();
        let want = self.f.p.name(out).map_or_else(|| super::describe::value(&self.f.p, out), str::to_string);
        let name = self.names.fresh(&want);
        let dtype = self.f.p.kernel.params[ll.index()].dtype;
        self.w.line(&format!("{} {name}[{steps}];", type_name(dtype)));
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
        let mut first = Expr::atom("0");
        for (i, term) in terms.into_iter().enumerate() {
            let term = self.scalar(term)?;
            first = if i == 0 { term } else { Expr::binary("+", Prec::Sum, &first, &term) };
        }
        Ok(Some((first, self.scalar(from)?)))
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
