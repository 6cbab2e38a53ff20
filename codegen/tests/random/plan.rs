//! What random kernels are made of: exchanges, each of which keeps a rule of the memory model or breaks it.

use peerwarp_codegen::sim::FindingKind;

/// Elements that an exchange has in each buffer.
pub const ROOM: u32 = 512;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end)) as u32
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize]
    }
}

/// A rule of `docs/explanation/memory-model.md`, in the order of that page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    ProgramOrder,
    Index,
    Split,
    Launch,
    Signal,
    Chain,
    Meet,
    Window,
    BlockFlag,
    Beside,
    Ticket,
    Atomic,
    Draw,
    Packets,
    Credit,
    Takings,
    Looks,
    Ll,
    LlAgain,
    LaneOrder,
    Counter,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 21] = [
        Rule::ProgramOrder,
        Rule::Index,
        Rule::Split,
        Rule::Launch,
        Rule::Signal,
        Rule::Chain,
        Rule::Meet,
        Rule::Window,
        Rule::BlockFlag,
        Rule::Beside,
        Rule::Ticket,
        Rule::Atomic,
        Rule::Draw,
        Rule::Packets,
        Rule::Credit,
        Rule::Takings,
        Rule::Looks,
        Rule::Ll,
        Rule::LlAgain,
        Rule::LaneOrder,
        Rule::Counter,
    ];

    /// Its name in the page.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::ProgramOrder => "program-order",
            Rule::Index => "index",
            Rule::Split => "split",
            Rule::Launch => "launch",
            Rule::Signal => "signal",
            Rule::Chain => "chain",
            Rule::Meet => "meet",
            Rule::Window => "window",
            Rule::BlockFlag => "block-flag",
            Rule::Beside => "beside",
            Rule::Ticket => "ticket",
            Rule::Atomic => "atomic",
            Rule::Draw => "draw",
            Rule::Packets => "packets",
            Rule::Credit => "credit",
            Rule::Takings => "takings",
            Rule::Looks => "looks",
            Rule::Ll => "ll",
            Rule::LlAgain => "ll-again",
            Rule::LaneOrder => "lane-order",
            Rule::Counter => "counter",
        }
    }

    /// What the simulator must find one of where a kernel breaks the rule. Nothing where only a printer can.
    pub const fn broken(self) -> &'static [FindingKind] {
        const RACE: &[FindingKind] = &[FindingKind::DataRace, FindingKind::UninitializedRead];
        match self {
            Rule::ProgramOrder | Rule::Index | Rule::Looks | Rule::LaneOrder | Rule::Counter => &[],
            Rule::Split
            | Rule::Launch
            | Rule::Signal
            | Rule::Chain
            | Rule::Meet
            | Rule::Window
            | Rule::BlockFlag
            | Rule::Beside
            | Rule::Ticket
            | Rule::Atomic
            | Rule::Draw
            | Rule::Packets
            | Rule::Ll => RACE,
            Rule::Credit | Rule::Takings | Rule::LlAgain => &[FindingKind::LostPacket],
        }
    }
}

/// An exchange.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub rule: Rule,
    pub broken: bool,
    /// Elements of its row, a multiple of 4.
    pub len: u32,
    /// How many elements on a row is read, and by which arithmetic.
    pub by: u32,
    pub how: u32,
    /// Start, end and step of a counter.
    pub range: [u32; 3],
}

impl Step {
    fn new(rule: Rule, broken: bool, r: &mut Random) -> Step {
        let high = r.one_of(&[0, u32::MAX - 50]);
        let range = [high + r.below(20), high + r.below(50), r.one_of(&[1, 3, 7, 1 << 31, u32::MAX - 3])];
        Step {
            rule,
            broken,
            len: r.one_of(&[32, 64, 100, 128, 256, 500]),
            by: r.below(8),
            how: r.below(4),
            range,
        }
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Plan {
    pub number: u64,
    /// Warps of a block.
    pub warps: u32,
    pub steps: Vec<Step>,
}

impl Plan {
    /// A kernel that keeps every rule. Each rule is among those of a seed.
    pub fn kept(number: u64) -> Plan {
        let mut r = Random(number);
        let rules: Vec<Rule> = Rule::ALL.into_iter().filter(|&rule| rule != Rule::LaneOrder).collect();
        let first = rules[(number % rules.len() as u64) as usize];
        let mut all = vec![first];
        (0..1 + r.below(2)).for_each(|_| all.push(r.one_of(&rules)));
        // Looks go above reads of LL elements, so these stand in front of packets as often as behind them.
        all.push(r.one_of(&[Rule::Looks, Rule::Takings, Rule::Credit]));
        let steps = all.into_iter().map(|rule| Step::new(rule, false, &mut r)).collect();
        Plan { number, warps: r.one_of(&[1, 2]), steps }
    }

    /// A kernel that breaks a rule, between exchanges that keep theirs.
    pub fn breaking(rule: Rule, number: u64) -> Plan {
        let mut r = Random(number);
        // None of these orders ranks, which would mend what is broken.
        let around = [Rule::ProgramOrder, Rule::Index, Rule::BlockFlag];
        let mut steps = vec![Step::new(r.one_of(&around), false, &mut r)];
        steps.insert(r.below(2) as usize, Step::new(rule, true, &mut r));
        Plan { number, warps: 2, steps }
    }

    /// Whether it breaks this rule.
    pub fn breaks(&self, rule: Rule) -> bool {
        self.steps.iter().any(|step| step.broken && step.rule == rule)
    }
}
