//! Far channels: commands to this rank's proxy or puts by GIN, and waits for what they count.
//!
//! Both engines count each put. So the end of a batch needs no command: its puts have counted themselves.

use crate::ir::{FarPublish, FarPut, FarReach, FarSettle, FarWait, Kernel, OpId, ParamId, ValueId};
use crate::print::analysis::gin::Burst;
use crate::print::emit::Emitter;
use crate::print::facts::FarEngine;
use crate::print::text::{Expr, Prim, PrintError};

impl Emitter<'_, '_> {
    /// A message to one rank or to all.
    pub fn far_put(&mut self, id: OpId, op: &FarPut) -> Result<(), PrintError> {
        self.flush()?;
        let FarPut { peer, outbox, from, inbox, index, len, counts, counter, reach, .. } = *op;
        let kernel = self.f.p.kernel;
        let [source, target] = [&kernel.params[outbox.index()], &kernel.params[inbox.index()]];
        let put = format!("ut {} to {}: it may arrive from here on", source.name, target.name);
        let room = self.f.far == FarEngine::Gin && self.f.bursts[&id].puts.is_some();
        self.far_comment(id, &format!("{}{put}", if room { "Once there is room, p" } else { "P" }));
        let (from, to) = (self.scalar(from)?, self.scalar(index)?);
        let (from, to) = (Expr::offset(&self.arg(outbox), &from), Expr::offset(&self.arg(inbox), &to));
        let (counter, ranks) = (self.far_counter(counts, counter)?, self.far_ranks(peer, reach)?);
        let bytes = len * source.dtype.bytes();
        let site = self.site(id, counts);
        let group = self.group.name;
        let (from, to) = (from.plain(), to.plain());
        let of = format!("{group}, args, {counter}, {ranks}, {from}, {to}, {bytes}");
        match self.f.far {
            FarEngine::Ring => {
                self.used.add(Prim::FarPut);
                self.leave_unless(&format!("put_far({of}, {site})"));
            }
            FarEngine::Gin => {
                self.used.add(Prim::GinPut);
                let Burst { puts, more } = self.f.bursts[&id];
                if let Some(puts) = puts {
                    self.far_room(&counter, &ranks, puts, &site);
                }
                self.w.line(&format!("put_far{}({of});", if more { "<more_follow>" } else { "" }));
            }
        }
        Ok(())
    }

    /// A wait for room in the queues of GIN.
    fn far_room(&mut self, counter: &str, ranks: &str, puts: u32, site: &str) {
        let group = self.group.name;
        self.leave_unless(&format!("room_far({group}, args, {counter}, {ranks}, {puts}, {site})"));
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
        let count = if self.f.far == FarEngine::Gin { "Once there is room, count up" } else { "Count up" };
        self.far_comment(id, &format!("{count} {name}: what every lane did before comes before it"));
        let (counter, ranks) = (self.far_counter(counts, counter)?, self.far_ranks(peer, reach)?);
        let (adds, site, group) = (self.scalar(adds)?, self.site(id, counts), self.group.name);
        let of = format!("{group}, args, {counter}, {ranks}, {}", adds.plain());
        match self.f.far {
            FarEngine::Ring => {
                self.used.add(Prim::FarCount);
                self.leave_unless(&format!("count_far({of}, {site})"));
            }
            FarEngine::Gin => {
                self.used.add(Prim::GinCount);
                self.far_room(&counter, &ranks, 1, &site);
                self.w.line(&format!("count_far({of});"));
            }
        }
        Ok(())
    }

    /// A wait for a number of puts.
    pub fn far_wait(&mut self, id: OpId, op: &FarWait) -> Result<(), PrintError> {
        self.flush()?;
        self.used.add(match self.f.far {
            FarEngine::Ring => Prim::FarTake,
            FarEngine::Gin => Prim::GinTake,
        });
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
        self.used.add(match self.f.far {
            FarEngine::Ring => Prim::FarSettle,
            FarEngine::Gin => Prim::GinSettle,
        });
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

/// The primitive with the type of what carries far channels.
pub(crate) fn carrier(engine: FarEngine) -> Prim {
    match engine {
        FarEngine::Ring => Prim::Far,
        FarEngine::Gin => Prim::Gin,
    }
}

/// The constant with the number of the first channel of an array of counters.
pub(crate) fn channel_name(counts: &str) -> String {
    format!("channel_{counts}")
}
