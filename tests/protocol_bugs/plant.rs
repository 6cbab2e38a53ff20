//! What is planted, and how what the checker says of it is recognised.

use peerwarp::codegen::ir::mutate::{Condition, Mutation, Operand, Site, Slot, mutate};
use peerwarp::codegen::ir::{CompareOp, Kernel, Planted};
use peerwarp::codegen::sim::{Findings, Options, Party};
use peerwarp::families::moe::kernels::{Layout, Protocol};

const DELIVER: &str = include_str!("../../src/families/moe/kernels/deliver.rs");
const SEND: &str = include_str!("../../src/families/moe/kernels/send.rs");
const WIRE: &str = include_str!("../../src/families/moe/kernels/wire.rs");
const RANK_MAJOR: &str = include_str!("../../src/families/moe/kernels/rank_major.rs");
const SUMS: &str = include_str!("../../src/families/moe/kernels/sums.rs");
const OUTPUTS: &str = include_str!("../../src/families/moe/kernels/outputs.rs");
const SEND_BACK: &str = include_str!("../../src/families/moe/kernels/send_back.rs");
const RETURNED: &str = include_str!("../../src/families/moe/kernels/returned.rs");
const ROUND_TRIP: &str = include_str!("../../src/families/moe/kernels/round_trip.rs");

/// What stands on one line of a source.
#[derive(Clone, Copy)]
pub struct Line {
    file: &'static str,
    source: &'static str,
    text: &'static str,
}

pub const fn deliver(text: &'static str) -> Line {
    Line { file: "deliver", source: DELIVER, text }
}

pub const fn send(text: &'static str) -> Line {
    Line { file: "send", source: SEND, text }
}

pub const fn wire(text: &'static str) -> Line {
    Line { file: "wire", source: WIRE, text }
}

pub const fn rank_major(text: &'static str) -> Line {
    Line { file: "rank_major", source: RANK_MAJOR, text }
}

pub const fn sums(text: &'static str) -> Line {
    Line { file: "sums", source: SUMS, text }
}

pub const fn outputs(text: &'static str) -> Line {
    Line { file: "outputs", source: OUTPUTS, text }
}

pub const fn send_back(text: &'static str) -> Line {
    Line { file: "send_back", source: SEND_BACK, text }
}

pub const fn returned(text: &'static str) -> Line {
    Line { file: "returned", source: RETURNED, text }
}

pub const fn round_trip(text: &'static str) -> Line {
    Line { file: "round_trip", source: ROUND_TRIP, text }
}

/// A bug, and how it must be named.
pub struct Bug {
    pub name: &'static str,
    /// The kernel it is planted in.
    pub kernel: &'static str,
    pub protocol: Protocol,
    pub layout: Layout,
    pub plant: Plant,
    /// Kind of a finding.
    pub kind: &'static str,
    /// Role of one of its parties,
    pub role: &'static str,
    /// and that party's line.
    pub line: Line,
}

pub enum Plant {
    Mutation(Mutation),
    /// The role that waits comes first, and fills the device.
    Starve,
}

impl Bug {
    pub fn plant(&self, kernel: &mut Planted) {
        if kernel.name != self.kernel {
            return;
        }
        match &self.plant {
            Plant::Mutation(m) => {
                *kernel = mutate(kernel, m).unwrap_or_else(|e| panic!("{}: {e}", self.name))
            }
            Plant::Starve => {
                let mut starved = Kernel::clone(kernel);
                starved.roles.reverse();
                *kernel = Planted::new(starved).unwrap();
            }
        }
    }

    pub fn options(&self) -> Options {
        let resident_blocks = matches!(self.plant, Plant::Starve).then_some(2);
        Options { resident_blocks, ..Options::default() }
    }

    /// Number of the only line of the source that has the text.
    pub fn line(&self) -> u32 {
        let Line { source, text, .. } = self.line;
        let mut lines = source.lines().zip(1..).filter(|(line, _)| line.contains(text));
        let found = lines.next().unwrap_or_else(|| panic!("no line has `{text}`"));
        assert!(lines.next().is_none(), "two lines have `{text}`");
        found.1
    }

    pub fn is_named_by(&self, findings: &Findings) -> bool {
        let line = self.line();
        let file = format!("src/families/moe/kernels/{}.rs", self.line.file);
        let here = |p: &Party| {
            p.role.as_deref() == Some(self.role)
                && p.loc.is_some_and(|l| l.line == line && l.short_file() == file)
        };
        let named = |f: &&_| -> bool {
            let f: &peerwarp::codegen::sim::Finding = f;
            f.kind.name() == self.kind && (here(&f.at) || f.other.as_ref().is_some_and(here))
        };
        findings.list.iter().any(|f| named(&f))
    }
}

pub fn relax(role: &str, flag: &str) -> Plant {
    Plant::Mutation(Mutation::Relax(Site::signal(role, flag)))
}

pub fn signal_first(role: &str, flag: &str) -> Plant {
    Plant::Mutation(Mutation::SignalFirst(Site::signal(role, flag)))
}

pub fn leave_out(site: Site) -> Plant {
    Plant::Mutation(Mutation::Drop(site))
}

pub fn offset(site: Site, slot: Slot, by: i64) -> Plant {
    Plant::Mutation(Mutation::Offset { site, slot, by })
}

pub fn replace(site: Site, slot: Slot, number: i64) -> Plant {
    Plant::Mutation(Mutation::Replace { site, slot, with: Operand::Number(number) })
}

/// A record is sent only if something is above zero.
pub fn record_only_if(name: &str) -> Plant {
    let when = Condition::new(name, CompareOp::Gt, 0);
    Plant::Mutation(Mutation::Guard { site: Site::signal("route", "rec_flag"), when, whole_parcel: true })
}

pub fn keep_epoch() -> Plant {
    Plant::Mutation(Mutation::KeepEpoch("epoch".into()))
}

/// Records are not double-buffered.
pub fn one_bank() -> Plant {
    let with = Operand::Number(0);
    Plant::Mutation(Mutation::ReplaceValue { name: "bank".into(), nth: None, with })
}
