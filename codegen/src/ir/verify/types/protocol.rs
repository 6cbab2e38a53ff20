//! Types of operations that communicate.

use super::*;

impl Check<'_, '_> {
    pub(super) fn protocol(&mut self, op: &CommOp) {
        match op {
            CommOp::Put(Put { parcel, buffer, index, value, mask }) => {
                self.target(self.report.kernel.parcels[parcel.index()].target);
                self.inbox(*buffer);
                self.element(Place::Param(*buffer), *value);
                self.scalar_index(*index);
                self.mask(*value, *mask);
                if self.report.kernel.parcels[parcel.index()].multicast {
                    self.multicast(*buffer, *value, *mask);
                }
            }
            CommOp::PutMatrix(PutMatrix { parcel, to, column, value }) => {
                self.target(self.report.kernel.parcels[parcel.index()].target);
                self.rows(to);
                self.consecutive(to);
                match to.place {
                    Place::Param(buffer) => self.param(buffer, ParamKind::Symmetric, "a symmetric buffer"),
                    Place::Peer(..) | Place::All(..) | Place::Shared(_) => {
                        let param = self.report.place_name(to.place);
                        self.add(Problem::NoMatrix { op: self.name, param });
                    }
                }
                self.element(to.place, *value);
                self.is_matrix("value", *value);
                self.operand("column", *column, U32);
            }
            CommOp::BulkCopy(BulkCopy { parcel, buffer, index, source, from, len, room }) => {
                self.target(self.report.kernel.parcels[parcel.index()].target);
                // Its owner could read a window before a copy in bulk is there, as only the parcel's signal waits for it.
                self.param(*buffer, ParamKind::Symmetric, "a symmetric buffer");
                if self.report.param(*source).kind != ParamKind::Window {
                    self.param(*source, ParamKind::Local, "a buffer of this rank");
                }
                self.scalar_index(*index);
                self.scalar_index(*from);
                self.copied(*buffer, *source, *len, *room);
            }
            CommOp::Signal(Signal { parcel, flag, index, value, .. }) => {
                let parcel = &self.report.kernel.parcels[parcel.index()];
                self.target(parcel.target);
                parcel.windows.iter().for_each(|w| self.param(*w, ParamKind::Window, "a window"));
                self.flag_or_count(*flag, *index, *value);
            }
            CommOp::Wait(Wait { flag, index, from, value, .. }) => {
                self.flag_or_count(*flag, *index, *value);
                self.operand("source rank", *from, U32);
            }
            CommOp::WaitAll(WaitAll { flag, index, count, only, per_rank, value, or_later, .. }) => {
                self.flag(*flag, *index, *value);
                self.operand("count", *count, U32);
                if let Some(only) = only {
                    self.operand("mask of flags", *only, Type::scalar(Dtype::U64));
                    if *or_later {
                        self.add(Problem::LaterOfSome);
                    }
                }
                if *per_rank == 0 {
                    self.add(Problem::NoFlagsPerRank);
                }
            }
            CommOp::BlockSignal(BlockSignal { flag, index, value, .. }) => {
                self.block_flag(*flag, *index, *value);
            }
            CommOp::BlockWait(BlockWait { flag, index, count, from, value, per_block }) => {
                self.block_flag(*flag, *index, *value);
                self.operand("count", *count, U32);
                self.operand("source block", *from, U32);
                if *per_block == 0 {
                    self.add(Problem::NoFlagsPerBlock);
                }
            }
            CommOp::SendMessages(SendMessages { transport, buffer, target, index, value, epoch, count }) => {
                count.iter().for_each(|n| self.operand("count", *n, U32));
                self.target(*target);
                self.messages((*transport, *buffer), *value, *epoch);
                self.scalar_index(*index);
            }
            CommOp::ReceiveMessages(ReceiveMessages { transport, buffer, mask, tiles, epoch, count }) => {
                count.iter().for_each(|n| self.operand("count", *n, U32));
                for t in tiles {
                    self.messages((*transport, *buffer), t.out, *epoch);
                }
                match transport.traits().takes {
                    true => self.taken(*mask, tiles),
                    false => self.read(*mask, tiles),
                }
            }
            CommOp::FarPut(_) | CommOp::FarPublish(_) | CommOp::FarWait(_) | CommOp::FarSettle(_) => {
                self.far(op);
            }
        }
    }

    /// What peers put into: a symmetric buffer, or a window.
    fn inbox(&mut self, buffer: ParamId) {
        if self.report.param(buffer).kind != ParamKind::Window {
            self.param(buffer, ParamKind::Symmetric, "a symmetric buffer or a window");
        }
    }

    fn flag(&mut self, flag: ParamId, index: ValueId, value: ValueId) {
        self.param(flag, ParamKind::Flags, "a flag array");
        self.scalar_index(index);
        self.operand("value", value, U32);
    }

    fn flag_or_count(&mut self, flag: ParamId, index: ValueId, value: ValueId) {
        if !self.report.kernel.counts(flag) {
            return self.flag(flag, index, value);
        }
        self.scalar_index(index);
        self.operand("value", value, U32);
    }

    fn block_flag(&mut self, flag: ParamId, index: ValueId, value: ValueId) {
        self.param(flag, ParamKind::BlockFlags, "an array of flags between blocks");
        self.scalar_index(index);
        self.operand("value", value, U32);
    }

    /// A tile of whole messages of a buffer, and their epoch.
    fn messages(&mut self, (transport, buffer): (Transport, ParamId), tile: ValueId, epoch: Option<ValueId>) {
        self.param(buffer, ParamKind::Messages(transport), transport.noun());
        self.element(Place::Param(buffer), tile);
        self.tile("value", tile);
        epoch.iter().for_each(|e| self.operand("epoch", *e, U32));
        if epoch.is_some() != transport.traits().has_epoch {
            self.add(Problem::MessageEpoch { op: self.name });
        }
        let ty = self.ty(tile);
        let unit = transport.unit(ty.dtype);
        if !ty.len.unwrap_or(1).is_multiple_of(unit) {
            let value = self.report.typed(tile);
            let bytes = u64::from(ty.len.unwrap_or(1)) * u64::from(ty.dtype.bytes());
            self.add(Problem::BrokenMessage { op: self.name, transport, value, bytes, unit });
        }
    }

    /// Tiles that are taken, each where it begins.
    fn taken(&mut self, mask: ValueId, tiles: &[Taken]) {
        self.operand("mask of tiles", mask, Type::scalar(Dtype::U64));
        for t in tiles {
            self.scalar_index(t.index);
            self.operand("source rank", t.from, U32);
            self.operand("tile", t.out, self.ty(tiles[0].out));
        }
        if tiles.is_empty() || tiles.len() > 64 {
            self.add(Problem::TakenTiles { count: tiles.len() });
        }
    }

    /// A tile that is read element by element.
    fn read(&mut self, mask: ValueId, tiles: &[Taken]) {
        let [t] = tiles else { return self.add(Problem::TakenTiles { count: tiles.len() }) };
        let ty = self.ty(t.out).with_dtype(Dtype::U32);
        self.operand("index", t.index, ty);
        self.operand("source ranks", t.from, ty);
        self.operand("mask", mask, ty.with_dtype(Dtype::Bool));
    }

    /// A tile of whole 16 bytes that a switch reduces.
    pub(super) fn multimem(&mut self, place: Place, tile: ValueId, how: ReduceOp) {
        let Type { dtype, len, .. } = self.ty(tile);
        let known = match dtype {
            Dtype::F32 => how == ReduceOp::Sum,
            Dtype::Fp16 | Dtype::Bf16 => matches!(how, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max),
            Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::Fp8 => false,
        };
        if !known {
            self.add(Problem::NoMultimem { op: self.name, dtype, how: how.name() });
        }
        match len {
            Some(_) => self.whole_sixteens(tile),
            None => self.each_by_itself(place),
        }
    }

    fn whole_sixteens(&mut self, tile: ValueId) {
        let ty = self.ty(tile);
        let bytes = u64::from(ty.len.unwrap_or(1)) * u64::from(ty.dtype.bytes());
        if !bytes.is_multiple_of(PACKET_BYTES.into()) {
            let value = self.report.typed(tile);
            self.add(Problem::MultimemTile { op: self.name, value, bytes });
        }
    }

    /// What is done element by element cannot be done to all ranks at once.
    pub(super) fn each_by_itself(&mut self, place: Place) {
        if let Place::All(p, _) = place {
            let buffer = self.report.param(p).name.clone();
            self.add(Problem::MultimemAccess { op: self.name, buffer });
        }
    }

    /// A put that the switch multiplies. What its parcel's target is, constants show.
    fn multicast(&mut self, buffer: ParamId, value: ValueId, mask: Option<ValueId>) {
        let Type { dtype, len, .. } = self.ty(value);
        let float = matches!(dtype, Dtype::F32 | Dtype::Fp16 | Dtype::Bf16);
        if mask.is_some() || len.is_none() || !float {
            let buffer = self.report.param(buffer).name.clone();
            return self.add(Problem::MultimemPut { buffer });
        }
        self.whole_sixteens(value);
    }

    fn target(&mut self, target: Target) {
        match target {
            Target::Rank(v) => self.operand("target rank", v, U32),
            Target::Mask(v) => self.operand("mask of target ranks", v, Type::scalar(Dtype::U64)),
        }
    }
}
