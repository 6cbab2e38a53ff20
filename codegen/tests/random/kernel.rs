//! The kernel of a plan. On each rank, block `first` and block `second` go through the exchanges in order; roles beside them, and roles
//! that draw rows or take tickets, have exchanges of their own.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

use super::plan::{Plan, ROOM, Rule, Step};

pub const RANKS: u32 = 2;
/// LL elements that say something to all blocks, and those of an exchange.
const SAID: u32 = 64;
const WORDS: u32 = 32;

#[derive(Clone, Copy)]
struct Args {
    steps: u32,
    epoch: Epoch,
    x: Ptr<f32>,
    out: Ptr<f32>,
    n: Ptr<u32>,
    counts: Ptr<u32>,
    totals: Ptr<u32>,
    carry: Ptr<f32>,
    rows: Ptr<f32>,
    parts: Ptr<f32>,
    /// Packets of the other rank, and of this one.
    inbox: Packets<f32>,
    own: Packets<f32>,
    say: Ll<u32>,
    mail: Sym<f32>,
    window: Window<f32>,
    taken: Flags,
    sent: Flags,
    open: Flags,
    over: Flags,
    /// Signalled by `first`, and by `second`.
    ready: BlockFlags,
    back: BlockFlags,
    work: Counters,
}

impl Args {
    fn bind(p: &mut Binder, steps: u32) -> Args {
        let all = u64::from(steps * ROOM);
        let each = u64::from(steps);
        Args {
            steps,
            x: p.arg("x", all),
            out: p.arg("out", all),
            n: p.arg("n", 4 * each),
            counts: p.arg("counts", each),
            totals: p.arg("totals", each),
            carry: p.arg("carry", 2 * all),
            rows: p.arg("rows", all),
            parts: p.arg("parts", 8 * each),
            inbox: p.arg("inbox", ROOM.into()),
            own: p.arg("own", ROOM.into()),
            say: p.arg("say", (SAID + steps * WORDS).into()),
            mail: p.arg("mail", all),
            window: p.arg("window", all),
            taken: p.arg("taken", 2 * each),
            sent: p.arg("sent", 2 * each),
            open: p.arg("open", each),
            over: p.arg("over", (2 * RANKS).into()),
            ready: p.arg("ready", each),
            back: p.arg("back", each + 1),
            work: p.arg("work", each),
            epoch: p.arg::<EpochWord>("epoch", 1).begin(),
        }
    }

    /// Sends a row as packets.
    fn send(self, at: u32, len: u32) {
        self.inbox.send(Peers::rank(other()), 0, self.x.load(at, len));
    }

    /// Takes the other rank's row, and lets it send the next one there.
    fn take(self, at: u32, len: u32, flag: u32) {
        self.out.store(at, self.inbox.take(0, len, other()));
        self.taken.signal(Peers::rank(other()), flag, self.epoch);
    }

    fn until_taken(self, flag: u32) {
        let _ = self.taken.from(other()).wait(flag, self.epoch);
    }

    fn publish(self, i: u32) {
        self.window.signal(Peers::rank(other()), &self.open, i, self.epoch);
    }

    /// Reads all ranks' windows as one.
    fn sum(self, i: u32, step: Step) {
        let at = i * ROOM;
        self.window.signal(Peers::all(), &self.sent, 2 * i + rank(), self.epoch);
        let got = self.sent.wait_all(2 * i, RANKS, 1, self.epoch);
        let from = at + step.by / 4 * 4;
        self.out.store(at, self.window.load_reduce(ReduceOp::Sum, &got, from, step.len));
    }

    /// Reads the other rank's window.
    fn pull(self, i: u32, step: Step) {
        let at = i * ROOM;
        let got = self.open.from(other()).wait(i, self.epoch);
        self.out.store(at, self.window.of(other()).load(&got, at + step.by, step.len));
    }

    fn hear(self, at: u32) {
        let said = self.say.load(0, SAID, other(), self.epoch);
        self.out.store(at, said.cast::<f32>());
    }
}

fn other() -> Val<u32> {
    (rank() + 1) % RANKS
}

pub fn kernel(plan: &Plan, warp_size: u32) -> Kernel {
    let name = format!("drawn_{}", plan.number);
    let meta = TraceMeta::new(&name, RANKS, warp_size, plan.warps);
    let steps = || (0..).zip(plan.steps.iter().copied());
    let traced = trace(meta, |p: &mut Binder| {
        let a = Args::bind(p, plan.steps.len() as u32);
        role("first", 1, |b| {
            a.say.send(Peers::rank(other()), 0, arange(SAID), a.epoch);
            steps().for_each(|(i, step)| first(b, a, i, step, warp_size == 32));
            a.back.from(0).wait(a.steps, a.epoch);
            if !plan.breaks(Rule::Meet) {
                let _ = a.over.meet(a.epoch);
            }
        });
        if plan.steps.iter().any(|step| step.rule == Rule::Beside) {
            role_beside("first", "next_to", 1, |_| {
                steps().filter(|(_, step)| step.rule == Rule::Beside).for_each(|(i, step)| turn(a, i, step));
            });
        }
        role("second", 1, |_| {
            steps().for_each(|(i, step)| second(a, i, step));
            a.back.signal(a.steps, a.epoch);
            let late = steps().filter(|(_, step)| step.broken && step.rule == Rule::LlAgain);
            late.for_each(|(i, _)| a.hear(i * ROOM));
        });
        for (i, step) in steps() {
            match step.rule {
                Rule::Draw => role(&format!("draw_{i}"), 2, |b| draw(b, a, i, step)),
                Rule::Ticket => role(&format!("add_{i}"), 2, |b| add(b, a, i, step)),
                _ => {}
            }
        }
    });
    traced.unwrap_or_else(|e| panic!("{plan:?}: {e}"))
}

/// What block `first` does of an exchange. Only NVIDIA's switches add.
fn first(b: Group, a: Args, i: u32, step: Step, nvidia: bool) {
    let (at, epoch, Step { len, broken, .. }) = (i * ROOM, a.epoch, step);
    match step.rule {
        Rule::ProgramOrder | Rule::Index => shift(a, i, step),
        Rule::Split => turn_parts(b, a, i, broken),
        Rule::Launch => {
            let bank = if broken { 0u32.val() } else { epoch.parity() };
            a.out.store(at, a.carry.load(bank * (a.steps * ROOM) + at, len));
        }
        Rule::Signal => {
            let mut parcel = send_to(Peers::rank(other()));
            if broken {
                parcel.put_value(&a.mail, at + ROOM - 1, 0.0f32);
                parcel.signal(&a.sent, 2 * i, epoch);
                let mut late = send_to(Peers::rank(other()));
                late.put(&a.mail, at, a.x.load(at, len));
                late.signal(&a.sent, 2 * i + 1, epoch);
            } else {
                parcel.put(&a.mail, at, a.x.load(at, len));
                parcel.signal(&a.sent, 2 * i, epoch);
            }
            let got = a.sent.from(other()).wait(2 * i, epoch);
            a.out.store(at, a.mail.load(&got, at, len));
            if broken {
                let _ = a.sent.from(other()).wait(2 * i + 1, epoch);
            }
        }
        Rule::Window | Rule::Meet => {
            if nvidia && !broken && step.rule == Rule::Meet {
                a.window.store(at, a.x.load(at, ROOM));
                return a.sum(i, step);
            }
            let early = broken && step.rule == Rule::Window;
            if early {
                a.publish(i);
            }
            a.window.store(at, a.x.load(at, ROOM));
            if !early {
                a.publish(i);
            }
            a.pull(i, step);
        }
        Rule::Chain => {
            a.window.store(at, a.x.load(at, ROOM));
            a.ready.signal(i, epoch);
        }
        Rule::BlockFlag | Rule::Beside => {
            a.rows.store(at, a.x.load(at, len) * 2.0);
            a.ready.signal(i, epoch);
        }
        Rule::Atomic => {
            if broken {
                a.rows.store(at, a.x.load(at, len));
            }
            a.totals.atomic_add(i, 1 + step.by);
        }
        Rule::Packets => {
            a.rows.store(at, a.x.load(at, len));
            a.own.send(Peers::rank(rank()), 0, a.x.load(at, len));
            a.ready.signal(i, epoch);
            a.back.from(0).wait(i, epoch);
        }
        Rule::Ll => {
            a.rows.store(at, a.x.load(at, WORDS));
            a.say.send(Peers::rank(rank()), SAID + i * WORDS, arange(WORDS), epoch);
            a.ready.signal(i, epoch);
        }
        Rule::Credit | Rule::Looks => pass_two(a, i, step),
        Rule::Takings => {
            let len = len.min(ROOM / 2);
            a.send(at, len);
            a.take(at, len, 2 * i);
            if !broken {
                a.ready.signal(i, epoch);
            }
            a.until_taken(2 * i);
            a.say.send(Peers::rank(other()), SAID + i * WORDS, arange(WORDS), epoch);
            a.send(at + ROOM / 2, len);
            a.until_taken(2 * i + 1);
            // The next row comes to the place that the other block has emptied.
            a.back.from(0).wait(i, epoch);
        }
        Rule::Counter => count(a, i),
        Rule::LlAgain | Rule::Ticket | Rule::Draw | Rule::LaneOrder => {}
    }
}

/// What block `second` does.
fn second(a: Args, i: u32, step: Step) {
    let (at, epoch, Step { len, broken, .. }) = (i * ROOM, a.epoch, step);
    match step.rule {
        Rule::Launch => {
            let bank = if broken { 0u32.val() } else { 1 - epoch.parity() };
            a.carry.store(bank * (a.steps * ROOM) + at, a.x.load(at, ROOM));
        }
        Rule::Chain => {
            in_order(broken, || a.ready.from(0).wait(i, epoch), || a.publish(i));
            a.pull(i, step);
        }
        Rule::BlockFlag => turn(a, i, step),
        Rule::Atomic => {
            a.totals.atomic_add(i, 3u32);
            if broken {
                a.out.store(at, a.rows.load(at, len));
            }
        }
        Rule::Packets => {
            let got = a.own.take(0, len, rank());
            let read = || a.out.store(at, got + a.rows.load(at, len));
            in_order(broken, || a.ready.from(0).wait(i, epoch), read);
            a.back.signal(i, epoch);
        }
        Rule::Ll => {
            let said = a.say.load(SAID + i * WORDS, WORDS, rank(), epoch);
            let read = || a.out.store(at, said.cast::<f32>() + a.rows.load(at, WORDS));
            in_order(broken, || a.ready.from(0).wait(i, epoch), read);
        }
        Rule::LlAgain if !broken => a.hear(at),
        Rule::Takings => {
            let len = len.min(ROOM / 2);
            let said = a.say.load(SAID + i * WORDS, WORDS, other(), epoch);
            a.rows.store(at, said.cast::<f32>());
            if !broken {
                a.ready.from(0).wait(i, epoch);
            }
            a.take(at + ROOM / 2, len, 2 * i + 1);
            a.back.signal(i, epoch);
        }
        _ => {}
    }
}

/// The wait and then what needs it; the other way round where the rule is broken.
fn in_order(broken: bool, wait: impl FnOnce(), act: impl FnOnce()) {
    if broken {
        act();
        wait();
    } else {
        wait();
        act();
    }
}

/// Rows that come by one place, one after the other, behind LL elements where looks are tried.
fn pass_two(a: Args, i: u32, step: Step) {
    let (at, len) = (i * ROOM, step.len.min(ROOM / 2));
    if step.rule == Rule::Looks {
        a.hear(at);
    }
    a.send(at, len);
    if step.broken {
        a.send(at + ROOM / 2, len);
    }
    a.take(at, len, 2 * i);
    a.until_taken(2 * i);
    if !step.broken {
        a.send(at + ROOM / 2, len);
    }
    a.take(at + ROOM / 2, len, 2 * i + 1);
    a.until_taken(2 * i + 1);
}

/// Stores rows of a shared array, one at an index from memory, and reads one some elements on.
fn shift(a: Args, i: u32, step: Step) {
    let (at, len, by) = (i * ROOM, step.len, step.by);
    let row = shared::<f32>(&format!("row_{i}"), 2 * ROOM);
    let start = a.n.get(4 * i);
    row.store(0, a.x.load(at, ROOM));
    row.store(ROOM, a.x.load(at, ROOM));
    row.store(start, a.x.load(at, len) + 1.0);
    let from = match (step.rule, step.how) {
        (Rule::ProgramOrder, _) => start + by,
        (_, 0) => (start.to_u64() + (1u64 << 32)).to_u32() + by,
        (_, 1) => (start.to_i32() + 1).to_u32() + by,
        (_, 2) => (start << 1) - start + by,
        _ => start * 3 - start * 2 + by,
    };
    a.out.store(at, row.load(from, len) * 3.0);
}

/// Groups store parts of a shared row; the block turns it round.
fn turn_parts(b: Group, a: Args, i: u32, broken: bool) {
    let (at, groups) = (i * ROOM, b.warps());
    let row = shared::<f32>(&format!("part_{i}"), 32 * groups);
    b.split(1, |g| {
        let part = g.in_block() * 32;
        row.store(part, a.x.load(at + part, 32));
        if broken {
            a.out.store(at + part, row.load((g.in_block() + 1) % groups * 32, 32));
        }
    });
    if !broken {
        a.out.store(at, row.gather((32 * groups - 1) - arange(32 * groups), true, 0.0));
    }
}

/// Turns the row that the other group hands over.
fn turn(a: Args, i: u32, step: Step) {
    let (at, len) = (i * ROOM, step.len);
    let read = || a.out.store(at, a.rows.gather((at + len - 1) - arange(len), true, 0.0));
    in_order(step.broken, || a.ready.from(0).wait(i, a.epoch), read);
}

/// The last group adds up what all groups have added up.
fn add(b: Group, a: Args, i: u32, step: Step) {
    b.split(1, |g| {
        let groups = g.count();
        a.parts.set(8 * i + g.index(), a.x.load(i * ROOM + g.index() * 32, 32).sum());
        let all = || a.counts.set(i, a.parts.load(8 * i, groups).sum().to_u32());
        if step.broken {
            in_first(g, all);
        } else {
            g.last(a.work.counter(i), all);
        }
    });
}

#[kernel]
fn in_first(g: Group, act: impl FnOnce()) {
    if g.index() == 0 {
        act();
    }
}

#[kernel]
fn count(a: Args, i: u32) {
    let mut turns = var(0u32);
    for at in (a.n.get(4 * i + 1)..a.n.get(4 * i + 2)).step_by(a.n.get(4 * i + 3)) {
        turns = (turns * 3 + at % 7) % 1000;
    }
    a.counts.set(i, turns);
}

/// Groups draw rows. Where the rule is broken, each reads the first row, whichever drew it.
fn draw(b: Group, a: Args, i: u32, step: Step) {
    b.split(1, |g| {
        draw_rows(g, a, i, step);
        if step.broken {
            a.parts.set(8 * i + g.index(), a.out.load(i * ROOM, 32).sum());
        }
    });
}

#[kernel]
fn draw_rows(g: Group, a: Args, i: u32, step: Step) {
    for row in g.dynamic(1 + step.by, Some(a.work.counter(i))) {
        let at = i * ROOM + row * 32;
        a.out.store(at, a.x.load(at, 32) * 5.0);
    }
}
