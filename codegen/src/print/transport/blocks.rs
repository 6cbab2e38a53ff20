//! Signals, waits and tickets between the blocks of a rank.

use crate::ir::{ANY_BLOCK, BlockSignal, BlockWait, OpId, ParamId, SignalOrder, ValueId};
use crate::print::analysis::signals::signaller;
use crate::print::emit::Emitter;
use crate::print::text::{Expr, Prim, PrintError};

impl Emitter<'_, '_> {
    /// A signal to the blocks of this rank.
    pub fn block_signal(&mut self, id: OpId, op: &BlockSignal) -> Result<(), PrintError> {
        self.flush()?;
        let BlockSignal { flag, index, value, order } = *op;
        self.released(id, order)?;
        self.used.add(Prim::BlockSignal);
        let (index, value) = (self.scalar(index)?, self.scalar(value)?);
        let at = Expr::offset(&self.arg(flag), &index);
        let (name, place) = (self.param_name(flag), self.place(self.f.p.kernel.op(id).loc));
        self.w.gap();
        self.w.comment(&format!(
            "Signal {name} to this rank's blocks: what every lane did before comes before it ({place})"
        ));
        self.w.line(&format!("signal_blocks({}, {}, {});", self.group.name, at.text, value.plain()));
        Ok(())
    }

    /// A wait for blocks of this rank.
    pub fn block_wait(&mut self, id: OpId, op: &BlockWait) -> Result<(), PrintError> {
        self.flush()?;
        let BlockWait { flag, index, count, from, value, per_block } = *op;
        self.used.add(Prim::BlockWait);
        let (index, count) = (self.scalar(index)?, self.scalar(count)?);
        let any = self.f.p.int(from) == Some(ANY_BLOCK.into());
        let (from, value) = (self.scalar(from)?, self.scalar(value)?);
        let mut of_blocks = format!("{}, {per_block}", from.plain());
        if any {
            self.used.add(Prim::AnyBlock);
            of_blocks = "any_block, all_flags".into();
        }
        // A loader's part of a kernel signals nothing.
        let k = self.loaders.map_or(self.f.p.kernel, |loaders| &loaders.multiplies);
        let (name, place) = (self.param_name(flag), self.place(k.op(id).loc));
        let role = signaller(k, flag).map_or("0x7fff".into(), |r| format!("role_{}", k.roles[r].name));
        self.w.gap();
        self.w.comment(&format!(
            "Wait for {name} of this rank's blocks: what they did before setting it comes before this ({place})"
        ));
        self.leave_unless(&format!(
            "wait_for_blocks({}, args, {}, {}, {}, {role}, {of_blocks}, {}, {})",
            self.group.name,
            self.arg(flag).text,
            index.plain(),
            count.plain(),
            value.plain(),
            self.site(id, flag)
        ));
        Ok(())
    }

    /// A ticket: whether this group is the last to come.
    pub fn ticket(
        &mut self,
        id: OpId,
        out: ValueId,
        (counter, index): (ParamId, ValueId),
        count: ValueId,
        order: SignalOrder,
    ) -> Result<(), PrintError> {
        self.flush()?;
        self.released(id, order)?;
        self.used.add(Prim::Ticket);
        let (index, count) = (self.scalar(index)?, self.scalar(count)?);
        let at = Expr::offset(&self.arg(counter), &index);
        let (name, place) = (self.param_name(counter), self.place(self.f.p.kernel.op(id).loc));
        let group = self.group.name;
        self.w.gap();
        self.w.comment(&format!(
            "Take a ticket of {name}: the last of {} to come sees what the others did before ({place})",
            count.plain()
        ));
        let result = self.declare(out);
        self.w.line(&format!("const bool {result} = comes_last({group}, {}, {});", at.text, count.plain()));
        Ok(())
    }

    fn param_name(&self, param: ParamId) -> String {
        self.f.p.kernel.params[param.index()].name.clone()
    }

    /// Nothing relaxed is emitted.
    fn released(&self, id: OpId, order: SignalOrder) -> Result<(), PrintError> {
        match order {
            SignalOrder::Release => Ok(()),
            SignalOrder::Relaxed => Err(PrintError::RelaxedSignal { loc: self.f.p.kernel.op(id).loc }),
        }
    }
}
