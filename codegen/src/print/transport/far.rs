//! Far channels: commands to this rank's proxy, and waits for what it tells.
//!
//! An engine that carries these commands counts each put. So the end of a batch needs no command: its puts have counted themselves.

use crate::ir::{FarPublish, FarPut, FarReach, FarSettle, FarWait, Kernel, OpId, ParamId, ValueId};
use crate::print::emit::Emitter;
use crate::print::text::{Expr, Prim, PrintError};

impl Emitter<'_, '_> {
    /// A message to one rank or to all.
    pub fn far_put(&mut self, id: OpId, op: &FarPut) -> Result<(), PrintError> {
        self.flush()?;
        self.used.add(Prim::FarPut);
        let FarPut { peer, outbox, from, inbox, index, len, counts, counter, reach, .. } = *op;
        let kernel = self.f.p.kernel;
        let [source, target] = [&kernel.params[outbox.index()], &kernel.params[inbox.index()]];
        let what = format!("Put {} to {}: it may arrive from here on", source.name, target.name);
        self.far_comment(id, &what);
        let (from, to) = (self.scalar(from)?, self.scalar(index)?);
        let (from, to) = (Expr::offset(&self.arg(outbox), &from), Expr::offset(&self.arg(inbox), &to));
        let (counter, ranks) = (self.far_counter(counts, counter)?, self.far_ranks(peer, reach)?);
        let bytes = len * source.dtype.bytes();
        let site = self.site(id, counts);
        let group = self.group.name;
        let (from, to) = (from.plain(), to.plain());
        self.leave_unless(&format!(
            "put_far({group}, args, {counter}, {ranks}, {from}, {to}, {bytes}, {site})"
        ));
        Ok(())
    }

    /// The end of a batch, or a credit.
    pub fn far_publish(&mut self, id: OpId, op: &FarPublish) -> Result<(), PrintError> {
        self.flush()?;
        let FarPublish { peer, counts, counter, adds, reach } = *op;
        let name = self.f.p.kernel.params[counts.index()].name.clone();
        if self.f.p.kernel.far_is_put(counts) {
            self.far_comment(id, &format!("{name}: the puts of this batch have counted themselves"));
            return Ok(());
        }
        self.used.add(Prim::FarCount);
        self.far_comment(id, &format!("Count up {name}: what every lane did before comes before it"));
        let (counter, ranks) = (self.far_counter(counts, counter)?, self.far_ranks(peer, reach)?);
        let (adds, site, group) = (self.scalar(adds)?, self.site(id, counts), self.group.name);
        self.leave_unless(&format!("count_far({group}, args, {counter}, {ranks}, {}, {site})", adds.plain()));
        Ok(())
    }

    /// A wait for a number of puts.
    pub fn far_wait(&mut self, id: OpId, op: &FarWait) -> Result<(), PrintError> {
        self.flush()?;
        self.used.add(Prim::FarTake);
        let FarWait { receipt, counts, counter, count, from, value, reach } = *op;
        let name = &self.f.p.kernel.params[counts.index()].name;
        self.far_comment(id, &format!("Take {name}: what the puts brought can be read from here on"));
        let [counter, count, from, value] = [counter, count, from, value].map(|v| self.scalar(v));
        let (counter, count, from, value) = (counter?, count?, from?, value?);
        self.leave_unless(&format!(
            "take_far({}, args, {}, {}, {}, {}, {}, {})",
            self.group.name,
            self.arg(counts).text,
            self.far_channel(counts),
            counter.plain(),
            self.far_reach(from.plain(), count.plain(), reach),
            value.plain(),
            self.site(id, counts)
        ));
        self.before_all_ranks(receipt);
        Ok(())
    }

    /// A wait for local completion.
    pub fn far_settle(&mut self, id: OpId, op: &FarSettle) -> Result<(), PrintError> {
        self.flush()?;
        self.used.add(Prim::FarSettle);
        let kernel = self.f.p.kernel;
        let name = &kernel.params[op.outbox.index()].name;
        self.far_comment(id, &format!("Settle {name}: what was put from it may be written again"));
        let site = self.site(id, op.outbox);
        self.leave_unless(&format!("settle_far({}, args, {site})", self.group.name));
        Ok(())
    }

    fn far_comment(&mut self, id: OpId, what: &str) {
        self.w.gap();
        let place = self.place(self.f.p.kernel.op(id).loc);
        self.w.comment(&format!("{what} ({place})"));
    }

    /// The ranks that something goes to. Where it goes to all, each begins with itself, so that not all reach the same rank at once.
    fn far_ranks(&mut self, peer: Option<ValueId>, reach: FarReach) -> Result<String, PrintError> {
        let kernel = self.f.p.kernel;
        Ok(match peer {
            Some(peer) => format!("{{{}, 1}}", self.scalar(peer)?.plain()),
            None => {
                let all = if reach.rail { kernel.nodes.to_string() } else { "all_ranks".into() };
                self.far_reach(own_rank(kernel), &all, reach)
            }
        })
    }

    /// `{first, count}` of ranks, and what else there is to say of them.
    fn far_reach(&self, first: &str, count: &str, reach: FarReach) -> String {
        let kernel = self.f.p.kernel;
        let step = if reach.rail && kernel.ranks > 1 { "ranks" } else { "1" };
        match (step, reach.others) {
            ("1", false) => format!("{{{first}, {count}}}"),
            (step, false) => format!("{{{first}, {count}, {step}}}"),
            (step, true) => format!("{{{first}, {count}, {step}, {}}}", own_rank(kernel)),
        }
    }

    /// `{channel, index}` of a counter.
    fn far_counter(&mut self, counts: ParamId, counter: ValueId) -> Result<String, PrintError> {
        Ok(format!("{{{}, {}}}", self.far_channel(counts), self.scalar(counter)?.plain()))
    }

    fn far_channel(&self, counts: ParamId) -> String {
        channel_name(&self.f.p.kernel.params[counts.index()].name)
    }
}

/// This rank's number among those of all nodes.
fn own_rank(kernel: &Kernel) -> &'static str {
    match (kernel.nodes, kernel.ranks) {
        (1, _) => "args.rank",
        (_, 1) => "args.far.node",
        _ => "args.far.node * ranks + args.rank",
    }
}

/// The constant with the number of the first channel of an array of counters.
pub(crate) fn channel_name(counts: &str) -> String {
    format!("channel_{counts}")
}
