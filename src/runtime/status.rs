//! What a kernel leaves behind when one of its waits runs out of time.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use peerwarp_codegen::ir::ANY_BLOCK;
use peerwarp_codegen::print::WaitSite;

use super::image::KernelImage;

/// The record that emitted kernels write: `Status` in their source.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Status {
    /// 1 + the rank that gave up, 0 while all is well.
    pub aborted: u32,
    /// Whether the rest is filled in.
    pub filled: u32,
    /// Which kernel waited.
    pub kernel: u64,
    /// Index of the flag in its array.
    pub index: u64,
    /// The rank that waited.
    pub rank: u32,
    /// The role that waited.
    pub role: u32,
    /// The block that waited.
    pub block: u32,
    /// The rank that did not signal. For flags between blocks of one rank it is that rank's role and block instead: bit 31, the
    /// role's number in bits 16 to 30 (all set where several roles signal the flags), and the block's number in its role. Far channels set
    /// bit 30: it counts ranks of all nodes.
    pub peer: u32,
    /// Which parameter the flag array is.
    pub flag: u32,
    /// Number of the wait in its kernel; the line of its source in kernels that were compiled without a table of waits.
    pub site: u32,
    /// The epoch that was waited for.
    pub expected: u32,
    /// What stood there instead.
    pub seen: u32,
    /// Ranks without which the world goes on, as a mask: set by hosts.
    pub inactive: u64,
}

/// The bit of [`Status::peer`] that says that it is a block of the rank itself.
const OWN_BLOCKS: u32 = 1 << 31;
/// The bit of [`Status::peer`] that says that it is a rank among those of all nodes.
const FAR: u32 = 1 << 30;
/// The role in [`Status::peer`] where more than one role signals the flags.
const ANY_ROLE: u32 = 0x7fff;

/// The number by which a kernel calls itself in a [`Status`]: FNV-1a of the variant's name.
pub fn kernel_id(variant: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    variant.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A rank's record. Numbers of ranks in it count from the first one of its node on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub rank: u32,
    pub first: u32,
    pub status: Status,
}

/// The names that a [`Status`] gives by number.
#[derive(Clone, Debug)]
pub(super) struct KernelNames {
    id: u64,
    variant: String,
    roles: Vec<String>,
    parameters: Vec<String>,
    waits: Vec<WaitSite>,
}

impl KernelNames {
    pub fn of(image: &KernelImage) -> KernelNames {
        KernelNames {
            id: kernel_id(&image.variant),
            variant: image.variant.clone(),
            roles: image.roles.clone(),
            parameters: image.args.fields.iter().map(|f| f.name.clone()).collect(),
            waits: image.waits.clone(),
        }
    }
}

/// A wait ran out of time, and every rank left its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// The rank that gave up first, as far as this process's ranks know.
    pub rank: u32,
    /// What it waited for. None if that rank is another process's: the error over there says.
    pub wait: Option<ExpiredWait>,
    /// What carries far channels reported first, if it reported a fault.
    pub carrier: Option<String>,
    /// Whether the world can be used again after [`crate::runtime::World::reset`].
    pub recoverable: bool,
}

/// The wait that ran out of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredWait {
    /// The variant.
    pub kernel: String,
    /// The role that waited.
    pub role: String,
    /// The block that waited.
    pub block: u32,
    /// The rank that did not signal: its own, where it waited for one of its own blocks.
    pub peer: u32,
    /// The role and block that did not signal, of flags between blocks of one rank. [`ANY_BLOCK`] is whichever block drew the work.
    pub awaited_block: Option<(String, u32)>,
    /// The flag array.
    pub flag: String,
    /// The flag's index in it.
    pub index: u64,
    /// The epoch that was waited for.
    pub expected: u32,
    /// What stood there instead.
    pub seen: u32,
    /// The kernel author's file; none if the kernel was compiled without a table of its waits.
    pub file: Option<String>,
    /// Line of the wait in it.
    pub line: u32,
}

impl Aborted {
    /// What the status records of this process's ranks say; none while all is well.
    pub(super) fn of(records: &[Record], kernels: &[KernelNames]) -> Option<Aborted> {
        let first = records.iter().find(|r| r.status.aborted != 0)?;
        let first = first.first + first.status.aborted - 1;
        // Two ranks may have given up at the same time; each raised the other's `aborted`.
        let own = records.iter().filter(|r| r.status.filled != 0);
        let told = own.clone().find(|r| r.rank == first).or_else(|| own.clone().next());
        let wait = told.map(|record| ExpiredWait::of(record, kernels));
        Some(Aborted { rank: told.map_or(first, |t| t.rank), wait, carrier: None, recoverable: true })
    }
}

impl ExpiredWait {
    fn of(Record { rank, first, status }: &Record, kernels: &[KernelNames]) -> ExpiredWait {
        let names = kernels.iter().find(|k| k.id == status.kernel);
        let site = names.and_then(|k| k.waits.get(status.site as usize));
        let numbered = |names: Option<&Vec<String>>, what: &str, i: u32| {
            names.and_then(|n| n.get(i as usize)).cloned().unwrap_or_else(|| format!("{what} {i}"))
        };
        ExpiredWait {
            kernel: names.map_or_else(|| format!("kernel {:#018x}", status.kernel), |k| k.variant.clone()),
            role: numbered(names.map(|k| &k.roles), "role", status.role),
            block: status.block,
            peer: match status.peer & OWN_BLOCKS == 0 {
                true if status.peer & FAR != 0 => status.peer & !FAR,
                true => first + status.peer,
                false => *rank,
            },
            awaited_block: (status.peer & OWN_BLOCKS != 0).then(|| {
                let role = status.peer >> 16 & ANY_ROLE;
                let role = match role {
                    ANY_ROLE => "roles".into(),
                    role => format!("role {}", numbered(names.map(|k| &k.roles), "number", role)),
                };
                (role, status.peer & 0xffff)
            }),
            flag: numbered(names.map(|k| &k.parameters), "parameter", status.flag),
            index: status.index,
            expected: status.expected,
            seen: status.seen,
            file: site.map(|site| site.file.clone()),
            line: site.map_or(status.site, |site| site.line),
        }
    }

    /// Where the wait stands: `kernel.rs:207`, or `line 207` where the file is not known.
    fn place(&self) -> String {
        match &self.file {
            Some(file) => format!("{}:{}", file.rsplit(['/', '\\']).next().unwrap_or(file), self.line),
            None => format!("line {}", self.line),
        }
    }
}

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wait {
            None => write!(f, "rank {} gave up waiting; its own error says for what", self.rank)?,
            Some(w) => {
                let awaited = match &w.awaited_block {
                    Some((role, ANY_BLOCK)) => format!("some block of its own {role}"),
                    Some((role, block)) => format!("block {block} of its own {role}"),
                    None => format!("rank {}", w.peer),
                };
                let ExpiredWait { kernel, role, block, flag, index, expected, seen, .. } = w;
                write!(
                    f,
                    "rank {} waited in vain for {awaited}: {flag}[{index}] was to reach epoch {expected} and is {seen} \
                     ({kernel}, role {role}, block {block}, {})",
                    self.rank,
                    w.place()
                )?;
            }
        }
        if let Some(fault) = &self.carrier {
            write!(f, "; the proxy of far channels reports: {fault}")?;
        }
        match self.recoverable {
            true => f.write_str("; reset the world before it is used again"),
            false => f.write_str("; the world cannot be used again"),
        }
    }
}

impl std::error::Error for Aborted {}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
