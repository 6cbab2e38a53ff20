//! The timeline: what a kernel records about itself when it is emitted with one.
//!
//! Every warp writes to a slice of its own, which only one of its threads does, so that nothing has to be agreed on.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::ir::{
    CommOp, ControlOp, Kernel, Loc, OpId, OpKind, ParamId, ParcelId, SendMessages, Signal, Target, ValueId,
    Wait, WaitAll,
};
use crate::print::analysis::Program;
use crate::print::text::{ConstantText, Names, PrintError};

/// Bytes of a record.
pub(crate) const EVENT_BYTES: u64 = 32;

/// The most records that a warp can have room for.
pub(crate) const MOST_SLOTS: u32 = 1 << 16;

/// What a record of the timeline is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SiteKind {
    /// All that a warp did in its role: the first record of each slice.
    Role,
    /// All that a group of a split did.
    Group,
    /// A parcel, from its first put (and what is loaded for it) to the end of its signal; or packets.
    Send,
    /// A signal: the wait for the group's puts to be on their way, and the flag.
    Signal,
    /// A wait for flags.
    Wait,
    /// A wait for packets, and their taking.
    Take,
}

impl SiteKind {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            SiteKind::Role => "role",
            SiteKind::Group => "group",
            SiteKind::Send => "send",
            SiteKind::Signal => "signal",
            SiteKind::Wait => "wait",
            SiteKind::Take => "take",
        }
    }
}

/// What the words `peers` and `index` of a site's records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SitePeers {
    /// There are none: `index` is how many records a warp made, or a group's number in its block.
    None,
    /// `peers` is a rank; `index` is that of the flag, or of the first packet's first element.
    Rank,
    /// `peers` has a bit for each rank; `index` as above.
    Set,
    /// `peers` is a number of flags from `index` on, of which rank `i / per_rank % ranks` sets the i-th.
    Flags {
        /// Flags in a row that one rank sets.
        per_rank: u32,
    },
    /// `peers` has a bit for each of the flags from `index` on that are waited for; who sets them as above.
    Some {
        /// Flags in a row that one rank sets.
        per_rank: u32,
    },
}

/// A place in the kernel that makes records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimelineSite {
    /// What happens there.
    pub kind: SiteKind,
    /// The role that does it.
    pub role: String,
    /// The flags or packets that it is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parameter: Option<String>,
    /// How to read `peers` and `index`.
    pub peers: SitePeers,
    /// The author's file.
    pub file: String,
    /// The line in it.
    pub line: u32,
}

impl TimelineSite {
    /// `file:line`; the file alone if the source was emitted without lines.
    pub fn place(&self) -> String {
        match self.line {
            0 => self.file.clone(),
            line => format!("{}:{line}", self.file),
        }
    }
}

/// What a kernel with a timeline records, and where.
///
/// On each rank there are `slices` slices of `1 + slots` records of 32 bytes: slice `block * warps + warp` is that warp's. Of
/// its first record `index` is how many records the warp made, of which those that had no room are missing. A record is
/// `begin_ns: u64, end_ns: u64, peers: u64, index: u32, site: u32`, times by the GPU's own global timer. The host clears all of
/// it before a launch: a kernel that left early, because the world is aborted, writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Records that a warp has room for.
    pub slots: u32,
    /// Warps a block.
    pub warps: u32,
    /// Warps of the whole launch.
    pub slices: u32,
    /// Bytes on each rank.
    pub bytes: u64,
    /// The places that make records, by their numbers.
    pub sites: Vec<TimelineSite>,
}

/// The sites of a kernel that is being printed.
#[derive(Debug)]
pub(crate) struct Sites {
    pub slots: u32,
    sites: Vec<TimelineSite>,
    /// Names of the sites' constants.
    pub names: Vec<String>,
    pub ops: HashMap<OpId, usize>,
    /// Of parcels that are put and signalled by one group.
    pub parcels: HashMap<ParcelId, usize>,
    pub roles: Vec<usize>,
}

impl Sites {
    /// Finds everything in a kernel that makes records.
    pub fn new(p: &Program, slots: u32) -> Result<Sites, PrintError> {
        let kernel = p.kernel;
        if !(1..=MOST_SLOTS).contains(&slots) {
            return Err(PrintError::TimelineSlots { slots, most: MOST_SLOTS });
        }
        let (ops, parcels) = (HashMap::new(), HashMap::new());
        let mut all = Sites { slots, sites: vec![], names: vec![], ops, parcels, roles: vec![] };
        let mut names = Names::new([]);
        for role in &kernel.roles {
            let site = |kind, parameter: Option<ParamId>, peers, loc: Loc| TimelineSite {
                kind,
                role: role.name.clone(),
                parameter: parameter.map(|p| kernel.params[p.index()].name.clone()),
                peers,
                file: loc.short_file().into(),
                line: loc.line,
            };
            let whole = all.add(site(SiteKind::Role, None, SitePeers::None, role.loc), &mut names);
            all.roles.push(whole);
            kernel.walk(&role.body, &mut |id, op| {
                let Some(Record { kind, parameter, peers, .. }) = recorded(kernel, &op.kind) else { return };
                if let Some(&Signal { parcel, .. }) = op.kind.signal()
                    && !puts(p, parcel).is_empty()
                    && puts(p, parcel).iter().all(|&put| p.split(put) == p.split(id))
                {
                    let sent = all.add(site(SiteKind::Send, parameter, peers, op.loc), &mut names);
                    all.parcels.insert(parcel, sent);
                }
                let number = all.add(site(kind, parameter, peers, op.loc), &mut names);
                all.ops.insert(id, number);
            });
        }
        Ok(all)
    }

    /// The number of a site; one that is there already is not added again.
    fn add(&mut self, site: TimelineSite, names: &mut Names) -> usize {
        if let Some(at) = self.sites.iter().position(|s| *s == site) {
            return at;
        }
        let mut want = format!("site_{}", site.role);
        if site.kind != SiteKind::Role {
            let parameter = site.parameter.iter().map(|p| format!("_{p}")).collect::<String>();
            want = format!("{want}_{}{parameter}_{}", site.kind.name(), site.line);
        }
        self.names.push(names.fresh(&want));
        self.sites.push(site);
        self.sites.len() - 1
    }

    /// What a host program has to know.
    pub fn layout(&self, kernel: &Kernel) -> Timeline {
        let warps = kernel.block_warps + kernel.beside_warps();
        let slices = kernel.grid_blocks() * warps;
        let bytes = u64::from(slices) * (1 + u64::from(self.slots)) * EVENT_BYTES;
        Timeline { slots: self.slots, warps, slices, bytes, sites: self.sites.clone() }
    }

    /// The constants that emitted source names.
    pub fn constants(&self) -> Vec<ConstantText> {
        let number = |name: &str, value: String, comment: String| ConstantText {
            r#type: "u32",
            name: name.into(),
            value,
            comment: Some(comment),
        };
        let mut out = vec![number("timeline_slots", self.slots.to_string(), "records of a warp".into())];
        for (i, (name, site)) in self.names.iter().zip(&self.sites).enumerate() {
            let file = site.file.rsplit(['/', '\\']).next().unwrap_or(&site.file);
            out.push(number(name, i.to_string(), format!("{file}:{}", site.line)));
        }
        out
    }

    /// All names that are taken by it.
    pub fn taken(&self) -> impl Iterator<Item = String> + '_ {
        let own = ["timeline", "timeline_slots", "Timeline", "TimelineEvent"].map(str::to_owned);
        own.into_iter().chain(self.names.iter().cloned())
    }
}

/// What an operation records.
pub(crate) struct Record {
    pub kind: SiteKind,
    pub parameter: Option<ParamId>,
    pub peers: SitePeers,
    /// Index, then peers.
    pub words: Option<(ValueId, ValueId)>,
}

/// What an operation records, if it does. Puts are recorded with their parcel; messages that stay are polled for by each lane; blocks
/// are no peers.
pub(crate) fn recorded(kernel: &Kernel, op: &OpKind) -> Option<Record> {
    let record = |kind, parameter, peers, index, of| {
        Some(Record { kind, parameter: Some(parameter), peers, words: Some((index, of)) })
    };
    let sent = |kind, parameter, index, target: Target| match target {
        Target::Rank(rank) => record(kind, parameter, SitePeers::Rank, index, rank),
        Target::Mask(set) => record(kind, parameter, SitePeers::Set, index, set),
    };
    match op {
        OpKind::Control(ControlOp::Split { .. }) => {
            Some(Record { kind: SiteKind::Group, parameter: None, peers: SitePeers::None, words: None })
        }
        OpKind::Comm(op) => match op {
            CommOp::Signal(Signal { parcel, flag, index, .. }) => {
                sent(SiteKind::Signal, *flag, *index, kernel.parcels[parcel.index()].target)
            }
            CommOp::Wait(Wait { flag, index, from, .. }) => {
                record(SiteKind::Wait, *flag, SitePeers::Rank, *index, *from)
            }
            CommOp::WaitAll(WaitAll { flag, index, count, only, per_rank, .. }) => {
                let per_rank = *per_rank;
                let (peers, of) = match only {
                    None => (SitePeers::Flags { per_rank }, *count),
                    Some(only) => (SitePeers::Some { per_rank }, *only),
                };
                record(SiteKind::Wait, *flag, peers, *index, of)
            }
            CommOp::SendMessages(SendMessages { buffer, target, index, .. }) => {
                sent(SiteKind::Send, *buffer, *index, *target)
            }
            CommOp::ReceiveMessages(op) => {
                let first = op.tiles.first().filter(|_| op.transport.traits().takes)?;
                record(SiteKind::Take, op.buffer, SitePeers::Rank, first.index, first.from)
            }
            any!(puts, far) | CommOp::BlockSignal(_) | CommOp::BlockWait(_) => None,
        },
        OpKind::Control(
            any!(exits, variables) | ControlOp::If { .. } | ControlOp::For { .. } | ControlOp::While { .. },
        ) => None,
        OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) => None,
    }
}

/// The puts of a parcel, in program order.
pub(crate) fn puts(p: &Program, parcel: ParcelId) -> Vec<OpId> {
    let is_put = |id: &&OpId| p.kernel.op(**id).kind.puts().is_some_and(|(of, _)| of == parcel);
    p.ops().iter().filter(is_put).copied().collect()
}
