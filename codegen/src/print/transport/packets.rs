//! Sending and taking packets.

use crate::ir::{Const, Loc, OpId, PACKET_BYTES, ParamId, ReceiveMessages, SendMessages, Target, ValueId};
use crate::print::analysis::linear;
use crate::print::emit::{Emitter, Step};
use crate::print::text::{Expr, Prec, Prim, PrintError, prim, type_name};

impl Emitter<'_, '_> {
    /// A tile as packets to one rank or to each of a set.
    pub fn send_packets(&mut self, id: OpId, op: &SendMessages) -> Result<(), PrintError> {
        let SendMessages { buffer: packets, target, index, value, count, .. } = *op;
        let several = self.packets_of(value) > 1;
        self.used.add(if several { Prim::SendPackets } else { Prim::SendPacket });
        let loc = self.f.p.kernel.op(id).loc;
        match target {
            Target::Mask(set) if !several && count.is_none() && self.f.layouts.of(value).is_whole() => {
                self.send_to_set(loc, set, packets, index, value)
            }
            Target::Mask(set) => self.for_each_rank(loc, set, packets, None, |me, base| {
                me.send_tile(id, base, index, value, count)
            }),
            Target::Rank(rank) => {
                let rank = self.scalar(rank)?;
                let base = self.there(packets, &rank, None);
                self.send_tile(id, &base, index, value, count)?;
                Ok(())
            }
        }
    }

    /// A tile to each rank of a set: made packets once, and with one address for each rank.
    fn send_to_set(
        &mut self,
        loc: Loc,
        set: ValueId,
        packets: ParamId,
        index: ValueId,
        value: ValueId,
    ) -> Result<(), PrintError> {
        let layout = self.f.layouts.of(value);
        let want = self.f.p.name(value).map_or("packets".into(), |name| format!("{name}_packets"));
        let made = self.names.fresh(&want);
        let steps = if layout.steps() == 1 { String::new() } else { format!("[{}]", layout.steps()) };
        self.w.line(&format!("Packet {made}{steps};"));
        self.step_loop(Step::new(layout), true, loc, |me, step| {
            let (packet, values) = (me.registers(&made, step), me.vector(value, step)?);
            me.w.line(&format!("{packet} = packet_of({values});"));
            Ok(())
        })?;
        let offset = self.lane_offset(packets, index, layout)?;
        self.for_each_rank(loc, set, packets, Some(&offset), |me, base| {
            me.step_loop(Step::from_lane(layout), true, loc, |me, step| {
                let (address, packet) = (me.address(base, index, step)?, me.registers(&made, step));
                me.w.line(&format!("store_packet({address}, {packet});"));
                Ok(())
            })
        })
    }

    fn send_tile(
        &mut self,
        id: OpId,
        base: &Expr,
        index: ValueId,
        value: ValueId,
        count: Option<ValueId>,
    ) -> Result<(), PrintError> {
        let layout = self.f.layouts.of(value);
        self.step_loop(Step::new(layout), true, self.f.p.kernel.op(id).loc, |me, step| {
            let line = me.packet_line(base, index, value, count, step)?;
            me.w.line(&line);
            Ok(())
        })
    }

    /// Tiles of packets, all polled for together.
    pub fn take_packets(&mut self, id: OpId, op: &ReceiveMessages) -> Result<(), PrintError> {
        let f = self.f;
        let loc = self.f.p.kernel.op(id).loc;
        let ReceiveMessages { buffer: packets, tiles, mask, count, .. } = op;
        let seen = self.seen.remove(&id);
        self.used.add(if seen.is_some() { Prim::TakeSeenPackets } else { Prim::TakePackets });
        let param = &f.p.kernel.params[packets.index()];
        let layout = f.layouts.of(tiles[0].out);
        let (ty, n) = (type_name(param.dtype), tiles.len());
        self.w.gap();
        let place = self.place(loc);
        let what = if n == 1 { "packets of".into() } else { format!("{n} tiles of packets of") };
        self.w.comment(&format!(
            "Take {what} {}: one is here, and as a whole, when it does not end in all ones ({place})",
            param.name
        ));
        let want = match tiles.as_slice() {
            [tile] => f.p.name(tile.out).map(str::to_string),
            _ => None,
        };
        let name = self.names.fresh(&want.unwrap_or_else(|| format!("{}_taken", param.name)));
        prim::use_dtype(self.used, param.dtype);
        self.w.line(&format!("Vec<{ty}, {}> {name}[{n}][{}];", layout.per_lane, layout.steps()));
        for (i, tile) in tiles.iter().enumerate() {
            let step = if layout.steps() == 1 { "[0]" } else { "" };
            self.values.insert(tile.out, format!("{name}[{i}]{step}"));
        }
        let first = self.list("u64", tiles.iter().map(|t| t.index))?;
        let from = self.list("u32", tiles.iter().map(|t| t.from))?;
        let mask = self.scalar(*mask)?;
        let len = match count {
            None => layout.len.to_string(),
            Some(count) => {
                self.used.add(Prim::MinMax);
                let len = Expr::literal(Const::U32(layout.len));
                Expr::call("min_of", [&self.scalar(*count)?, &len]).text
            }
        };
        let base = self.own(*packets);
        let (function, seen) = match seen {
            Some(seen) => ("take_seen_packets", format!("{seen}, ")),
            None => ("take_packets", String::new()),
        };
        self.leave_unless(&format!(
            "{function}({}, args, {}, {first}, {from}, {len}, {}, {seen}{name}, {})",
            self.group.name,
            base.text,
            mask.plain(),
            self.site(id, *packets)
        ));
        Ok(())
    }

    /// The first loads of packets that are taken later, if they are.
    pub fn look_ahead(&mut self, id: OpId, op: &ReceiveMessages) -> Result<(), PrintError> {
        let ReceiveMessages { buffer: packets, tiles, mask, .. } = op;
        self.used.add(Prim::TakeSeenPackets);
        let param = &self.f.p.kernel.params[packets.index()];
        let layout = self.f.layouts.of(tiles[0].out);
        let place = self.place(self.f.p.kernel.op(id).loc);
        self.w.gap();
        self.w.comment(&format!(
            "Look at packets of {} before it is known whether they are wanted ({place})",
            param.name
        ));
        let name = self.names.fresh(&format!("{}_seen", param.name));
        self.w.line(&format!("Packet {name}[{}][{}] = {{}};", tiles.len(), layout.steps()));
        let first = self.list("u64", tiles.iter().map(|t| t.index))?;
        let (base, mask) = (self.own(*packets), self.scalar(*mask)?);
        let (group, base, mask, len) = (self.group.name, base.text, mask.plain().to_string(), layout.len);
        self.w.line(&format!("look_at_packets({group}, {base}, {first}, {len}, {mask}, {name});"));
        self.seen.insert(id, name);
        Ok(())
    }

    /// Scalars in braces, or as what they are: numbers at equal distances.
    fn list(&mut self, ty: &str, values: impl Iterator<Item = ValueId>) -> Result<String, PrintError> {
        let values: Vec<ValueId> = values.collect();
        if let Some(apart) = linear::distance(&self.f.p, &values) {
            self.used.add(Prim::Series);
            let first = self.scalar(values[0])?;
            return Ok(format!("series<{}, {ty}>({}, {apart})", values.len(), first.plain()));
        }
        let values = values.into_iter();
        let texts: Result<Vec<String>, PrintError> =
            values.map(|v| Ok(self.scalar(v)?.plain().to_string())).collect();
        Ok(format!("{{{}}}", texts?.join(", ")))
    }

    /// Packets of a tile that a lane holds in a step.
    fn packets_of(&self, value: ValueId) -> u32 {
        let bytes = self.f.p.kernel.ty(value).dtype.bytes() * self.f.layouts.of(value).per_lane;
        bytes / PACKET_BYTES
    }

    /// `send_packet(base + index + at, values)`, if the packet holds any of `count` elements.
    fn packet_line(
        &mut self,
        base: &Expr,
        index: ValueId,
        value: ValueId,
        count: Option<ValueId>,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        let address = self.address(base, index, step)?;
        let values = self.vector(value, step)?;
        let Some(count) = count else {
            let send = if self.packets_of(value) > 1 { "send_packets" } else { "send_packet" };
            return Ok(format!("{send}({address}, {values});"));
        };
        let (at, end) = (self.at(step), self.scalar(count)?);
        if self.packets_of(value) > 1 {
            self.used.add(Prim::SendPacketsBelow);
            let (start, at) = self.start(base, index, step)?;
            return Ok(format!("send_packets_below({start}, {at}, {}, {values});", end.text));
        }
        let any = Expr::binary("<", Prec::Relation, &at, &end);
        Ok(format!("if ({}) send_packet({address}, {values});", any.text))
    }
}
