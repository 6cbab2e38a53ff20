//! What the checker reports.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use serde::ser::SerializeStruct;

use crate::ir::Loc;
use crate::sim::setup::report::Report;

/// A row for each kind: its name in reports, where it belongs, and whether the run goes on.
macro_rules! finding_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $stage:ident, $run:ident;)+) => {
        /// What is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum FindingKind {
            $($(#[$doc])* $kind),+
        }

        impl FindingKind {
            const fn facts(self) -> (&'static str, Stage, Run) {
                match self {
                    $(FindingKind::$kind => ($name, Stage::$stage, Run::$run)),+
                }
            }
        }
    };
}
finding_kinds! {
    /// Two accesses to the same memory, at least one a write, with nothing that orders them.
    DataRace = "data-race", Data, GoesOn;
    /// A read of memory that was never written.
    UninitializedRead = "uninitialized-read", Data, GoesOn;
    /// A read, ordered by a wait, of data that an older epoch left there: this epoch's put is missing.
    StaleRead = "stale-read", Data, GoesOn;
    /// An index outside a buffer, or a rank outside the world.
    OutOfBounds = "out-of-bounds", Use, Ends;
    /// A scatter with two lanes that write one element.
    ScatterConflict = "scatter-conflict", Data, GoesOn;
    /// A signal that another one overwrites before, or without being ordered after, the wait for it; one that is added to a count
    /// without being ordered after the wait that took what was counted before.
    LostSignal = "lost-signal", Protocol, GoesOn;
    /// A signal that no group ever waits for.
    UnwaitedSignal = "unwaited-signal", Protocol, GoesOn;
    /// Packets sent where what was sent before is not taken, or is not known to be; packets taken where the taking before is not known
    /// to be over; LL elements sent where the reading of what was sent before is not known to be over.
    LostPacket = "lost-packet", Protocol, GoesOn;
    /// Packets that no group ever takes.
    UntakenPacket = "untaken-packet", Protocol, GoesOn;
    /// A flag signalled twice with the same value.
    DoubledSignal = "doubled-signal", Protocol, GoesOn;
    /// A wait that meets a newer epoch or a larger count than it expects, a signal older than what the flag holds, or a read under a
    /// wait for one epoch of data of a newer one.
    EpochConfusion = "epoch-confusion", Protocol, Ends;
    /// A launch that begins its epoch before the launch before it is over, which advances the same word.
    EarlyEpoch = "early-epoch", Protocol, Ends;
    /// A wait satisfied by another rank than the one it names.
    WrongSender = "wrong-sender", Protocol, GoesOn;
    /// Nothing can run any more.
    Deadlock = "deadlock", Protocol, Ends;
    /// A wait for a block that has no room to run until the waiting blocks finish.
    NotResident = "not-resident", Protocol, Ends;
    /// A loop that goes round and round, while no group does anything that could end it.
    EndlessSpin = "endless-spin", Protocol, Ends;
    /// The run executed more instructions than allowed.
    StepLimit = "step-limit", Use, Ends;
    /// A piece of an operand comes into a slot of shared memory that another one still needs, or is multiplied before it arrives.
    PieceOutOfTurn = "piece-out-of-turn", Protocol, Ends;
    /// An outbox of a far channel that is written before the puts from it are locally complete.
    OutboxReused = "outbox-reused", Protocol, GoesOn;
    /// As [`FindingKind::OutboxReused`], of puts of an earlier launch, whose end completed nothing.
    UnflushedEnd = "unflushed-end", Protocol, GoesOn;
    /// A far put into a bank of which nothing says that the receiver is done with it.
    NoCredit = "no-credit", Protocol, GoesOn;
    /// A far wait, or a publish, for more or fewer puts than there are.
    CountMismatch = "count-mismatch", Protocol, GoesOn;
    /// A read of a far message after a wait for a part of the puts that its source puts in the launch.
    PrefixAssumed = "prefix-assumed", Protocol, GoesOn;
    /// A far put that no publish of its group stands behind: it needs an order that puts do not have.
    StrongOrder = "strong-order", Protocol, GoesOn;
    /// A work counter that is not zero at the end of a launch.
    CounterNotReset = "counter-not-reset", Protocol, GoesOn;
    /// Two blocks of a pair that multiply by different rows or columns, or one that multiplies more often.
    PairsDiffer = "pairs-differ", Protocol, GoesOn;
    /// A number that was computed in 32 bits and does not fit them, as an index, an end of a loop or where its size decides.
    WrappedIndex = "wrapped-index", Use, Ends;
    /// Integer division or remainder by zero.
    DivisionByZero = "division-by-zero", Use, Ends;
    /// The smallest integer divided by -1.
    DivisionOverflow = "division-overflow", Use, Ends;
    /// A shift by at least the operand's width.
    ShiftOverflow = "shift-overflow", Use, Ends;
    /// A host step of the program failed.
    HostFailed = "host-failed", Result, Ends;
}

impl FindingKind {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// Whether the run cannot go on in a meaningful way.
    pub(crate) const fn ends_run(self) -> bool {
        matches!(self.facts().2, Run::Ends)
    }

    /// Where in a row of causes and consequences a kind belongs: a mistake with the protocol shows in what is read, and what is
    /// read where it is used.
    const fn stage(self) -> Stage {
        self.facts().1
    }
}

/// What a finding does to its run.
enum Run {
    GoesOn,
    Ends,
}

/// See [`FindingKind::stage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Who waits for whom.
    Protocol,
    /// What is read and written.
    Data,
    /// What is done with it.
    Use,
    /// What comes of it.
    Result,
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One side of a finding: who did what, where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Party {
    /// The rank.
    pub rank: u32,
    /// The kernel, unless this is the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The block, counted within its role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
    /// The group within the block, inside a split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The author's file and line.
    #[serde(serialize_with = "display_loc", skip_serializing_if = "Option::is_none")]
    pub loc: Option<Loc>,
    /// The epoch its launch works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// What it does there (`put to inbox`).
    pub action: String,
}

fn display_loc<S: serde::Serializer>(loc: &Option<Loc>, s: S) -> Result<S::Ok, S::Error> {
    match loc {
        Some(loc) => s.collect_str(loc),
        None => s.serialize_none(),
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(loc) = self.loc {
            write!(f, "{loc}: ")?;
        }
        write!(f, "rank {}", self.rank)?;
        match &self.kernel {
            Some(kernel) => write!(f, ", {kernel}")?,
            None => f.write_str(", host")?,
        }
        if let Some(role) = &self.role {
            write!(f, ", role {role}")?;
        }
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        if let Some(group) = self.group {
            write!(f, ", group {group}")?;
        }
        if let Some(epoch) = self.epoch {
            write!(f, ", epoch {epoch}")?;
        }
        write!(f, ": {}", self.action)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub kind: FindingKind,
    /// What happened, in plain words.
    pub message: String,
    /// Who it happened to.
    pub at: Party,
    /// The other side, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<Party>,
    /// The buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<String>,
    /// First element and the one after the last, in elements of the access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elements: Option<(u64, u64)>,
    /// Of a deadlock: who waits for whom, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<String>,
    /// How often it happened, at other elements, ranks or blocks.
    pub times: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  at {}", self.kind, self.message, self.at)?;
        if let Some(other) = &self.other {
            write!(f, "\n  and {other}")?;
        }
        for line in &self.chain {
            write!(f, "\n  - {line}")?;
        }
        if self.times > 1 {
            write!(f, "\n {}", repeated(self.times))?;
        }
        Ok(())
    }
}

fn repeated(times: u64) -> String {
    if times > 1 { format!(" ({times} times)") } else { String::new() }
}

/// Everything that a run found, with the seed that replays it.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The seed of the run.
    pub seed: u64,
    /// The findings, causes first, in order of appearance; repeated ones are counted in the first.
    pub list: Vec<Finding>,
    /// How many of them are causes. The others may be what follows from these: their kinds suggest it, no proof does.
    pub causes: usize,
    /// Different findings beyond the limit of [`crate::sim::Options::max_findings`].
    pub dropped: u64,
    /// What the run did until it ended.
    pub report: Report,
}

impl Findings {
    pub(crate) fn new(seed: u64, found: Collector, report: Report) -> Findings {
        let Collector { mut list, dropped, .. } = found;
        list.sort_by_key(|f| f.kind.stage());
        let first = list.first().map(|f| f.kind.stage());
        let causes = list.iter().take_while(|f| Some(f.kind.stage()) == first).count();
        Findings { seed, list, causes, dropped, report }
    }

    /// What may follow from the causes.
    pub fn consequences(&self) -> &[Finding] {
        &self.list[self.causes..]
    }

    /// Whether a finding of this kind is among them.
    pub fn has(&self, kind: FindingKind) -> bool {
        self.list.iter().any(|f| f.kind == kind)
    }

    /// The first finding of this kind.
    pub fn first(&self, kind: FindingKind) -> Option<&Finding> {
        self.list.iter().find(|f| f.kind == kind)
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.list[..self.causes] {
            writeln!(f, "{finding}")?;
        }
        if !self.consequences().is_empty() {
            writeln!(f, "what may follow from that:")?;
        }
        for Finding { kind, message, at, times, .. } in self.consequences() {
            writeln!(f, "  - {kind}: {message} ({at}){}", repeated(*times))?;
        }
        if self.dropped > 0 {
            writeln!(f, "and {} more", self.dropped)?;
        }
        write!(f, "(seed {})", self.seed)
    }
}

impl std::error::Error for Findings {}

/// As `list`, the causes, and `consequences`.
impl Serialize for Findings {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_struct("Findings", 5)?;
        map.serialize_field("seed", &self.seed)?;
        map.serialize_field("list", &self.list[..self.causes])?;
        map.serialize_field("consequences", self.consequences())?;
        map.serialize_field("dropped", &self.dropped)?;
        map.serialize_field("report", &self.report)?;
        map.end()
    }
}

/// Two findings that differ only in elements, ranks or blocks are one.
type Key = (FindingKind, Option<Loc>, Option<Loc>, Option<String>);

/// Collects findings.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub list: Vec<Finding>,
    pub dropped: u64,
    pub limit: usize,
    seen: HashMap<Key, usize>,
    ended: bool,
}

impl Collector {
    pub fn new(limit: usize) -> Collector {
        Collector { limit, ..Collector::default() }
    }

    /// Whether a finding ended the run.
    pub fn ended(&self) -> bool {
        self.ended
    }

    pub fn add(&mut self, finding: Finding) {
        self.ended |= finding.kind.ends_run();
        let other = finding.other.as_ref().and_then(|o| o.loc);
        let key = (finding.kind, finding.at.loc, other, finding.buffer.clone());
        if let Some(&at) = self.seen.get(&key) {
            self.list[at].times += 1;
        } else if self.list.len() < self.limit {
            self.seen.insert(key, self.list.len());
            self.list.push(finding);
        } else {
            self.dropped += 1;
        }
    }
}
