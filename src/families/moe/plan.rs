//! Which buffers MoE dispatch and combine have, and where in a rank's memory.

use std::collections::BTreeMap;

use peerwarp_codegen::dsl::ParamSpec;
use peerwarp_codegen::family::Variant;
use peerwarp_codegen::ir::ParamKind;

use crate::runtime::gpu::DevicePtr;

/// Buffers start at multiples of this: a sector of every GPU's memory system.
const ALIGN: u64 = 256;

/// Parameters that the caller passes to dispatch.
pub(super) const INPUTS: [&str; 5] = ["x", "x_scale", "n", "ids", "weights"];

/// Parameters that the caller passes to combine, beside what it gave to dispatch.
pub(super) const OUTPUTS: [&str; 2] = ["y", "out"];

/// Which buffer is where: one plan for all ranks.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// First byte and size of each symmetric buffer, by name.
    pub symmetric: BTreeMap<String, (u64, u64)>,
    pub symmetric_bytes: u64,
    /// First byte and size of each buffer of this rank alone, by name.
    pub local: BTreeMap<String, (u64, u64)>,
    pub local_bytes: u64,
    /// What has to hold one byte everywhere before the first launch: its name, and the byte.
    pub cleared: Vec<(String, u8)>,
}

impl Plan {
    pub fn new(kernels: &[(Kernel, Vec<Variant>)]) -> Plan {
        let mut plan = Plan::default();
        for (kernel, variants) in kernels {
            variants.iter().flat_map(|v| v.params()).for_each(|p| plan.add(&p, *kernel));
        }
        plan
    }

    fn add(&mut self, p: &ParamSpec, kernel: Kernel) {
        let name = kernel.buffer(p);
        let bytes = match p.kind {
            ParamKind::Scalar => return,
            // The epoch, and how many blocks have begun.
            ParamKind::EpochWord => 8,
            kind => p.len * u64::from(kind.element_bytes(p.dtype)),
        };
        let (all, end) = match p.kind {
            ParamKind::Symmetric | ParamKind::Flags | ParamKind::Packets | ParamKind::Ll => {
                (&mut self.symmetric, &mut self.symmetric_bytes)
            }
            _ if INPUTS.contains(&name.as_str()) || OUTPUTS.contains(&name.as_str()) => return,
            _ => (&mut self.local, &mut self.local_bytes),
        };
        if all.contains_key(&name) {
            return;
        }
        all.insert(name.clone(), (*end, bytes));
        *end = (*end + bytes).next_multiple_of(ALIGN);
        match p.kind {
            ParamKind::Flags | ParamKind::EpochWord | ParamKind::Ll | ParamKind::Counters => {
                self.cleared.push((name, 0))
            }
            // No packet has arrived.
            ParamKind::Packets => self.cleared.push((name, 0xff)),
            _ => {}
        }
    }

    /// First byte and size of every buffer that holds nothing from one round to the next.
    pub fn payload(&self, symmetric: DevicePtr, local: DevicePtr) -> Vec<(DevicePtr, u64)> {
        let lasting = |name: &String| self.cleared.iter().any(|(cleared, _)| cleared == name);
        let placed = [(symmetric, &self.symmetric), (local, &self.local)];
        let all =
            placed.into_iter().flat_map(|(base, all)| all.iter().map(move |(name, at)| (base, name, at)));
        all.filter(|(_, name, _)| !lasting(name)).map(|(base, _, (at, bytes))| (base + at, *bytes)).collect()
    }
}

/// The kernels that there are: the two of a round, and the one that is a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Dispatch,
    Combine,
    RoundTrip,
}

impl Kernel {
    /// What its launches are called when there are so many.
    pub fn phases(self, launches: usize) -> &'static [&'static str] {
        match (self, launches) {
            (Kernel::Dispatch, 1) => &["dispatch"],
            (Kernel::Dispatch, _) => &["dispatch send", "dispatch recv"],
            (Kernel::Combine, 1) => &["combine"],
            (Kernel::Combine, _) => &["combine send", "combine recv"],
            (Kernel::RoundTrip, _) => &["round trip"],
        }
    }

    /// The buffer that a parameter is. Dispatch and combine share those of the same name, except that each has an epoch of its
    /// own; a round trip shares nothing but what the caller passes.
    pub fn buffer(self, p: &ParamSpec) -> String {
        let passed = INPUTS.contains(&p.name.as_str()) || OUTPUTS.contains(&p.name.as_str());
        match self {
            _ if p.kind == ParamKind::EpochWord => self.epoch().to_owned(),
            Kernel::RoundTrip if !passed => format!("round_trip_{}", p.name),
            _ => p.name.clone(),
        }
    }

    /// The buffer of its epoch word.
    pub fn epoch(self) -> &'static str {
        match self {
            Kernel::Dispatch => "epoch",
            Kernel::Combine => "combine_epoch",
            Kernel::RoundTrip => "round_trip_epoch",
        }
    }
}
