//! Sending and reading LL elements.

use crate::ir::{CommOp, OpId, OpKind, ReadLl, SendLl, Target, ValueId};

use super::{
    PrintError,
    emitter::Emitter,
    expr::{Expr, Prec},
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
            Target::Mask(set) => self.for_each_rank(loc, set, ll, send),
            Target::Rank(rank) => {
                self.w.line("{");
                self.w.deeper();
                self.names.enter();
                let rank = self.scalar(rank)?;
                let base = self.there(ll, &rank);
                send(self, &base)?;
                self.names.leave();
                self.w.shallower();
                self.w.line("}");
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
        self.used.add(Prim::ReadLl);
        let param = &self.f.p.kernel.params[ll.index()];
        let layout = self.f.layouts.of(out);
        super::ops::use_dtype(self.used, param.dtype);
        let epoch = self.scalar(epoch)?;
        self.w.gap();
        let place = self.place(loc);
        self.w.comment(&format!("Read {} once they have arrived ({place})", param.name));
        let steps = layout.steps();
        let whole = layout.len == layout.full_steps() * layout.lanes;
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
            let wanted = if wanted.text == "true" {
                inside.clone()
            } else {
                Expr::binary("&&", Prec::And, &inside, &wanted)
            };
            Ok([Expr::ternary(&inside, &at, &zero), Expr::ternary(&inside, &peer, &zero), wanted])
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
        let name = self.names.fresh(&super::describe::value(&self.f.p, out));
        self.w.line(&format!("{} {name}[{steps}];", type_name(param.dtype)));
        self.values.insert(out, if steps == 1 { format!("{name}[0]") } else { name.clone() });
        let base = self.own(ll);
        let [index, from, wanted] = arguments;
        self.leave_unless(&format!(
            "read_ll({}, args, {}, {index}, {from}, {wanted}, {}, {name}, {})",
            self.group.name,
            base.text,
            epoch.plain(),
            self.site(id, ll)
        ));
        Ok(())
    }
}
