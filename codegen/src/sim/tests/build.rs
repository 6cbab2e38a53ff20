//! Short names for building test kernels.

use std::sync::Arc;

use crate::ir::samples::Sample;
use crate::ir::*;
use crate::sim::{Bindings, Compiled, Machine, Memory, Options};

pub(super) const U: Type = Type::scalar(Dtype::U32);

/// A kernel for two ranks, with an output array of 64 numbers.
pub(super) fn sample() -> (Sample, ParamId) {
    let mut s = Sample::new("test");
    s.b.kernel.ranks = 2;
    let out = s.b.param("out", ParamKind::Local, Dtype::U32, 64);
    (s, out)
}

pub(super) fn tile(len: u32) -> Type {
    Type::tile(Dtype::U32, len)
}

/// What the tests do with a [`Sample`] all the time.
pub(super) trait Short {
    fn get(&mut self, p: impl Into<Place>, index: ValueId) -> ValueId;
    fn load(&mut self, ty: Type, p: impl Into<Place>, index: ValueId, receipt: Option<ReceiptId>) -> ValueId;
    fn set(&mut self, p: impl Into<Place>, index: ValueId, value: ValueId);
    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId;
    fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId;
    fn rank(&mut self) -> ValueId;
    fn group(&mut self) -> ValueId;
    fn read_var(&mut self, var: VarId) -> ValueId;
    fn set_var(&mut self, var: VarId, value: ValueId);
    fn when(&mut self, cond: ValueId, then: impl FnOnce(&mut Self));
    fn split(&mut self, body: impl FnOnce(&mut Self));
    fn atomic(&mut self, op: ReduceOp, p: impl Into<Place>, index: ValueId, value: ValueId) -> ValueId;
    fn epoch(&mut self, advance: bool) -> ValueId;
    fn put(&mut self, to: ValueId, buffer: ParamId, index: ValueId, value: ValueId) -> ParcelId;
    fn signal(&mut self, parcel: ParcelId, flag: ParamId, index: ValueId, value: ValueId);
    fn wait(&mut self, flag: ParamId, index: ValueId, from: ValueId, value: ValueId) -> ReceiptId;
}

impl From<ParamId> for Place {
    fn from(p: ParamId) -> Place {
        Place::Param(p)
    }
}

impl From<SharedId> for Place {
    fn from(s: SharedId) -> Place {
        Place::Shared(s)
    }
}

impl Short for Sample {
    fn get(&mut self, p: impl Into<Place>, index: ValueId) -> ValueId {
        self.load(U, p, index, None)
    }

    fn load(&mut self, ty: Type, p: impl Into<Place>, index: ValueId, receipt: Option<ReceiptId>) -> ValueId {
        let place = p.into();
        self.value("", ty, |out| MemoryOp::Load { out, place, index, receipt })
    }

    fn set(&mut self, p: impl Into<Place>, index: ValueId, value: ValueId) {
        self.op(MemoryOp::Store { place: p.into(), index, value, mask: None });
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary("", BinaryOp::Add, a, b)
    }

    fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary("", BinaryOp::Mul, a, b)
    }

    fn rank(&mut self) -> ValueId {
        self.value("me", U, |out| ValueOp::Rank { out })
    }

    fn group(&mut self) -> ValueId {
        self.value("group", U, |out| ValueOp::GroupIndex { out })
    }

    fn read_var(&mut self, var: VarId) -> ValueId {
        let ty = self.b.kernel.vars[var.index()].ty;
        self.value("", ty, |out| ControlOp::VarGet { out, var })
    }

    fn set_var(&mut self, var: VarId, value: ValueId) {
        self.op(ControlOp::VarSet { var, value });
    }

    fn when(&mut self, cond: ValueId, then: impl FnOnce(&mut Self)) {
        let loc = self.loc();
        let then = self.region(then);
        self.b.push(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
    }

    /// Into groups of one warp; a sample's block has two.
    fn split(&mut self, body: impl FnOnce(&mut Self)) {
        let loc = self.loc();
        let body = self.region(body);
        self.b.push(ControlOp::Split { warps: 1, body }, loc);
    }

    fn atomic(&mut self, op: ReduceOp, p: impl Into<Place>, index: ValueId, value: ValueId) -> ValueId {
        let place = p.into();
        self.value("", U, |out| MemoryOp::Atomic { out, op, place, index, value })
    }

    fn epoch(&mut self, advance: bool) -> ValueId {
        let word = self.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
        self.value("epoch", U, |out| ValueOp::Epoch { out, word, advance })
    }

    fn put(&mut self, to: ValueId, buffer: ParamId, index: ValueId, value: ValueId) -> ParcelId {
        let parcel = self.parcel(Target::Rank(to));
        self.op(CommOp::Put(Put { parcel, buffer, index, value, mask: None }));
        parcel
    }

    fn signal(&mut self, parcel: ParcelId, flag: ParamId, index: ValueId, value: ValueId) {
        self.op(CommOp::Signal(Signal { parcel, flag, index, value, order: SignalOrder::Release }));
    }

    fn wait(&mut self, flag: ParamId, index: ValueId, from: ValueId, value: ValueId) -> ReceiptId {
        let receipt = self.receipt(flag);
        self.op(CommOp::Wait(Wait { receipt, flag, index, from, value }));
        receipt
    }
}

/// A machine whose two ranks launch kernels one after the other; `out` and `cells` are zeroed.
pub(super) fn machine(kernels: Vec<Kernel>) -> Machine {
    let mut machine = Machine::new(2);
    for kernel in kernels {
        let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap_or_else(|e| panic!("{e}"))));
        machine.buffers_of(kernel.kernel()).unwrap();
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    for name in ["out", "cells"] {
        // Not every kernel has both.
        let _ = machine.zero(name);
    }
    machine
}

/// The memory that a kernel without mistakes leaves behind.
pub(super) fn run(kernel: Kernel) -> Memory {
    machine(vec![kernel]).run(&Options::default()).unwrap_or_else(|f| panic!("{f}")).memory
}

/// The first numbers of rank 1's output.
pub(super) fn outputs(kernel: Kernel, count: usize) -> Vec<u32> {
    run(kernel).read::<u32>(1, "out").unwrap()[..count].to_vec()
}
