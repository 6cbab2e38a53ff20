//! Puts to sets of ranks, signals and waits.

use crate::ir::{Const, Loc, OpId, ParamId, Place, Put, Signal, SignalOrder, Target, ValueId, Wait, WaitAll};
use crate::print::emit::{Emitter, Step};
use crate::print::layout::{Layout, wide};
use crate::print::text::{Expr, Prec, Prim, PrintError, prim};

impl Emitter<'_, '_> {
    /// A put that is not part of a loop over a tile: of a scalar, or of a tile to a set of ranks.
    pub fn put(&mut self, id: OpId, op: &Put) -> Result<(), PrintError> {
        self.flush()?;
        let Put { parcel, buffer, index, value, mask } = *op;
        if self.f.p.kernel.parcels[parcel.index()].multicast {
            return self.multicast(id, buffer, index, value);
        }
        match self.f.p.kernel.parcels[parcel.index()].target {
            Target::Rank(rank) => self.put_scalar_to_rank(rank, buffer, index, value, mask),
            Target::Mask(set) if self.ty(value).is_tile() => {
                self.put_tile_to_ranks(id, set, buffer, index, value, mask)
            }
            Target::Mask(set) => self.put_scalar_to_ranks(set, buffer, index, value, mask),
        }
    }

    fn put_scalar_to_rank(
        &mut self,
        rank: ValueId,
        buffer: ParamId,
        index: ValueId,
        value: ValueId,
        mask: Option<ValueId>,
    ) -> Result<(), PrintError> {
        let base = Expr::index(&self.arg(buffer), &self.scalar(rank)?);
        let cell = self.cell_at(&base, index)?;
        let e = self.scalar(value)?;
        let mut test = Expr::binary("==", Prec::Equality, &Expr::atom(self.lane()), &Expr::atom("0"));
        if let Some(m) = mask {
            test = Expr::binary("&&", Prec::And, &test, &self.scalar(m)?);
        }
        self.w.line(&format!("if ({}) {} = {};", test.text, cell.text, e.plain()));
        Ok(())
    }

    /// One lane for each destination.
    fn put_scalar_to_ranks(
        &mut self,
        set: ValueId,
        buffer: ParamId,
        index: ValueId,
        value: ValueId,
        mask: Option<ValueId>,
    ) -> Result<(), PrintError> {
        let everyone = self.is_everyone(set);
        let set = self.scalar(set)?;
        let lane = self.lane();
        let lanes = self.group.lanes;
        let test = mask.map(|m| self.scalar(m)).transpose()?;
        if let Some(test) = &test {
            self.w.line(&format!("if ({}) {{", test.text));
            self.w.deeper();
        }
        self.w.line(&format!(
            "for (u32 turn = {lane}; turn < ranks; turn += {lanes}) {{  // a lane for each rank"
        ));
        self.w.deeper();
        self.names.enter();
        let peer = self.destination();
        let base = Expr::index(&self.arg(buffer), &Expr::atom(peer.clone()));
        let cell = self.cell_at(&base, index)?;
        let e = self.scalar(value)?;
        let chosen = if everyone { String::new() } else { format!("if ({}) ", is_in(&set, &peer)) };
        self.w.line(&format!("{chosen}{} = {};", cell.text, e.plain()));
        self.names.leave();
        self.w.shallower();
        self.w.line("}");
        if test.is_some() {
            self.w.shallower();
            self.w.line("}");
        }
        Ok(())
    }

    /// Whether a set of ranks is known to hold all of them.
    fn is_everyone(&self, set: ValueId) -> bool {
        let all = u64::MAX >> (64 - self.f.p.kernel.ranks.clamp(1, 64));
        matches!(self.f.p.constant(set), Some(Const::U64(s)) if s & all == all)
    }

    /// The rank whose turn it is. Every rank starts with itself, so that they do not all send to the same one at once.
    fn destination(&mut self) -> String {
        let peer = self.names.fresh("peer");
        self.w.line(&format!("const u32 {peer} = (args.rank + {}) % ranks;", self.f.own.turn));
        peer
    }

    /// What was loaded once is stored to each rank in turn.
    fn put_tile_to_ranks(
        &mut self,
        id: OpId,
        set: ValueId,
        buffer: ParamId,
        index: ValueId,
        value: ValueId,
        mask: Option<ValueId>,
    ) -> Result<(), PrintError> {
        let loc = self.f.p.kernel.op(id).loc;
        let (layout, place) = (self.f.layouts.of(value), Place::Param(buffer));
        if wide(&self.f.p, id).is_some() && mask.is_none() && layout.per_lane > 1 && layout.is_whole() {
            let offset = self.lane_offset(buffer, index, layout)?;
            return self.for_each_rank(loc, set, buffer, Some(&offset), |me, base| {
                me.step_loop(Step::from_lane(layout), true, loc, |me, step| {
                    me.store_all(base, place, index, value, None, step)
                })
            });
        }
        self.for_each_rank(loc, set, buffer, None, |me, base| {
            me.step_loop(Step::new(layout), true, loc, |me, step| {
                if wide(&me.f.p, id).is_some() {
                    return me.store_all(base, place, index, value, mask, step);
                }
                me.each_element(layout.per_lane, |me, _| me.store_all(base, place, index, value, mask, step))
            })
        })
    }

    /// How far into any rank's instance of a buffer a lane's first element of a tile is, in a variable: so that one address is worked
    /// out for each rank, and all of the tile is at fixed distances from there.
    pub fn lane_offset(
        &mut self,
        buffer: ParamId,
        index: ValueId,
        layout: Layout,
    ) -> Result<Expr, PrintError> {
        let one = Layout { len: layout.lanes * layout.per_lane, ..layout };
        let first = self.at(&mut Step { flat: true, ..Step::new(one) });
        let index = self.scalar(index)?;
        let sum = if index.is_zero() { first } else { Expr::binary("+", Prec::Sum, &index, &first) };
        let name = self.names.fresh(&format!("{}_offset", self.f.p.kernel.params[buffer.index()].name));
        self.w.line(&format!("const u64 {name} = {};", sum.text));
        Ok(Expr::atom(name))
    }

    /// Writes something for each rank of a set in turn, which is given the rank's instance of a buffer, from an offset on.
    pub fn for_each_rank(
        &mut self,
        loc: Loc,
        set: ValueId,
        buffer: ParamId,
        offset: Option<&Expr>,
        each: impl FnOnce(&mut Self, &Expr) -> Result<(), PrintError>,
    ) -> Result<(), PrintError> {
        let everyone = self.is_everyone(set);
        let set = self.scalar(set)?;
        let place = self.place(loc);
        let turn = &self.f.own.turn;
        let head = format!("for (u32 {turn} = 0; {turn} < ranks; ++{turn}) {{");
        self.w.line_with(&head, &format!("to each rank of the set ({place})"));
        self.w.deeper();
        self.names.enter();
        let peer = self.destination();
        if !everyone {
            self.w.line(&format!("if ({}) {{", is_in(&set, &peer)));
            self.w.deeper();
            self.names.enter();
        }
        let base = self.there(buffer, &Expr::atom(peer), offset);
        each(self, &base)?;
        for _ in 0..2 - u32::from(everyone) {
            self.names.leave();
            self.w.shallower();
            self.w.line("}");
        }
        Ok(())
    }

    /// A name for a rank's instance of a buffer, from an offset on.
    pub fn there(&mut self, buffer: ParamId, rank: &Expr, offset: Option<&Expr>) -> Expr {
        let param = &self.f.p.kernel.params[buffer.index()];
        let to = self.names.fresh(&format!("{}_there", param.name));
        let start = Expr::index(&self.arg(buffer), rank);
        let target = offset.map_or(start.clone(), |offset| Expr::offset(&start, offset));
        let word = param.kind.transport().and_then(|t| t.traits().word);
        let ty = prim::type_name(word.unwrap_or(param.dtype));
        self.w.line(&format!("{ty}* const {to} = {};", target.text));
        Expr::atom(to)
    }

    /// A signal: the group's puts, then the flag.
    pub fn signal(&mut self, id: OpId, op: &Signal) -> Result<(), PrintError> {
        self.flush()?;
        let loc = self.f.p.kernel.op(id).loc;
        let Signal { parcel, flag, index, value, order } = *op;
        if order == SignalOrder::Relaxed {
            return Err(PrintError::RelaxedSignal { loc });
        }
        let name = self.f.p.kernel.params[flag.index()].name.clone();
        let group = self.group.name;
        let (index, value) = (self.scalar(index)?, self.scalar(value)?);
        self.w.gap();
        let place = self.place(loc);
        let sent = &self.f.p.kernel.parcels[parcel.index()];
        let windows: Vec<&str> =
            sent.windows.iter().map(|w| &*self.f.p.kernel.params[w.index()].name).collect();
        let released = self.f.released.contains(&id);
        let what = match windows.is_empty() {
            true if released => "what earlier launches did comes before it".into(),
            true if sent.bare => "what every lane did before comes before it".into(),
            true => "every lane's puts are there before it is".into(),
            false => format!("what every lane has stored to {} is there before it is", windows.join(", ")),
        };
        let counts = self.f.p.kernel.counts(flag);
        let verb = if counts { "Count up" } else { "Signal" };
        self.w.comment(&format!("{verb} {name}: {what} ({place})"));
        self.await_copies(id, parcel);
        match self.f.p.kernel.parcels[parcel.index()].target {
            Target::Rank(rank) => {
                let (prim, function) =
                    if counts { (Prim::Count, "count_rank") } else { (Prim::Signal, "signal_rank") };
                self.used.add(prim);
                let flags = Expr::index(&self.arg(flag), &self.scalar(rank)?);
                let at = Expr::offset(&flags, &index);
                self.w.line(&format!("{function}({group}, {}, {});", at.text, value.plain()));
            }
            Target::Mask(set) => {
                let (prim, call) = match released {
                    true => (Prim::SignalReleased, "signal_released(".to_owned()),
                    false if counts => (Prim::CountRanks, format!("count_ranks({group}, ")),
                    false => (Prim::SignalRanks, format!("signal_ranks({group}, ")),
                };
                self.used.add(prim);
                let set = self.scalar(set)?;
                self.w.line(&format!(
                    "{call}args, {}, {}, {}, {});",
                    self.arg(flag).text,
                    index.plain(),
                    set.plain(),
                    value.plain()
                ));
            }
        }
        Ok(())
    }

    /// `{role, flag, number}` of a wait.
    pub fn site(&self, id: OpId, flag: ParamId) -> String {
        let k = self.f.p.kernel;
        let role = self.f.p.position(id).role.map_or("", |r| k.roles[r].name.as_str());
        let flag = &k.params[flag.index()].name;
        format!("{{role_{role}, flag_{flag}, {}}}", self.f.waits.number(k.op(id).loc))
    }

    /// A wait for one flag.
    pub fn wait(&mut self, id: OpId, op: &Wait) -> Result<(), PrintError> {
        self.flush()?;
        let loc = self.f.p.kernel.op(id).loc;
        let Wait { receipt, flag, index, from, value } = *op;
        let counts = self.f.p.kernel.counts(flag);
        let (prim, function) =
            if counts { (Prim::TakeCount, "take_count") } else { (Prim::Wait, "wait_flag") };
        self.used.add(prim);
        let name = self.f.p.kernel.params[flag.index()].name.clone();
        let (index, mut from, value) = (self.scalar(index)?, self.scalar(from)?, self.scalar(value)?);
        self.w.gap();
        let what = match counts {
            true => format!(
                "Take {name}, which is zero again then: what the rank put before it counted can be read"
            ),
            false => format!("Wait for {name}: what the rank put before setting it can be read"),
        };
        self.w.comment(&format!("{what} from here on ({})", self.place(loc)));
        if from.prec < Prec::Product {
            let peer = self.names.fresh("peer");
            self.w.line(&format!("const u32 {peer} = {};", from.plain()));
            from = Expr::atom(peer);
        }
        self.leave_unless(&format!(
            "{function}({}, args, {}[args.rank], {}, {}, {}, {})",
            self.group.name,
            self.arg(flag).text,
            index.plain(),
            from.plain(),
            value.plain(),
            self.site(id, flag)
        ));
        self.before_all_ranks(receipt);
        Ok(())
    }

    /// Writes a call that says whether what it waits for is here: if not, the group leaves.
    ///
    /// A loader stays: the others wait for what it brings, whatever that is then. So do these: it waits for them to take it. Once
    /// the world is aborted, waits end at once.
    pub fn leave_unless(&mut self, call: &str) {
        if self.f.side.is_some() {
            return self.w.line(&format!("{call};"));
        }
        let leave = if self.votes { "return false" } else { "return" };
        self.w.line(&format!("if (!{call}) {leave};"));
    }

    /// A wait for several flags.
    pub fn wait_all(&mut self, id: OpId, op: &WaitAll) -> Result<(), PrintError> {
        self.flush()?;
        let loc = self.f.p.kernel.op(id).loc;
        let WaitAll { receipt, flag, index, count, only, per_rank, value, or_later } = *op;
        self.used.add(match only {
            _ if or_later => Prim::WaitLater,
            Some(_) => Prim::WaitSome,
            None => Prim::WaitAll,
        });
        let name = self.f.p.kernel.params[flag.index()].name.clone();
        let (index, count, value) = (self.scalar(index)?, self.scalar(count)?, self.scalar(value)?);
        self.w.gap();
        self.w.comment(&format!(
            "Wait for {}{} of {name}{}: what was put before setting them can be read from here on ({})",
            if only.is_some() { "some of " } else { "" },
            count.plain(),
            if or_later { ", or later ones" } else { "" },
            self.place(loc)
        ));
        let (function, only) = match only {
            Some(mask) => ("wait_some_flags", format!(", {}", self.scalar(mask)?.plain())),
            None if or_later => ("wait_later_flags", String::new()),
            None => ("wait_flags", String::new()),
        };
        self.leave_unless(&format!(
            "{function}({}, args, {}[args.rank], {}, {}{only}, {per_rank}, {}, {})",
            self.group.name,
            self.arg(flag).text,
            index.plain(),
            count.plain(),
            value.plain(),
            self.site(id, flag)
        ));
        self.before_all_ranks(receipt);
        Ok(())
    }
}

/// `(set >> peer) & 1`.
fn is_in(set: &Expr, peer: &str) -> String {
    let shifted = Expr::binary(">>", Prec::Shift, set, &Expr::atom(peer));
    Expr::binary("&", Prec::BitAnd, &shifted, &Expr::atom("1")).text
}
