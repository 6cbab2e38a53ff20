//! What dispatch is configured like unless tuning says otherwise, and what combine has in common with it.

use peerwarp_codegen::ir::PACKET_BYTES;

use super::config::{DispatchKey, MAX_A_LANE, MOST_RECORD_ENTRIES};
use super::deliver::Hook;
use super::layout::Layout;
use super::protocol::Protocol;
use super::quantise::Quantise;
use crate::families::moe::{ExpertMap, RowDtype};

/// Shared memory that every supported device gives a block without being asked, less what reductions take: defaults that were measured
/// take no more than half of it for bases.
const FREE_SHARED_BYTES: u64 = 46 << 10;

/// Tokens up to which latency is what counts.
pub(super) const MOST_PACKETS: u32 = 256;

/// Whether receivers have nothing to do but wait: by token and with flags, unless a hook looks into rows.
fn only_waits(key: &DispatchKey) -> bool {
    key.layout == Layout::RankMajor && key.hook == Hook::None && protocol_of_key(key) == Protocol::Flags
}

/// Of fp8 a lane has as many elements to compute with in one vector as it should have.
pub(super) fn vectors_of_dispatch(key: &DispatchKey) -> u32 {
    match key.dtype {
        _ if key.quantise != Quantise::None => 1,
        _ if only_waits(key) => 2,
        RowDtype::Fp8 if key.hook != Hook::None => 1,
        _ if few_to_dispatch(key) => 2,
        _ => 4,
    }
}

/// Where nothing is moved but by stores to other ranks, more warps have more of them under way.
pub(super) fn warps_of_dispatch(key: &DispatchKey) -> u32 {
    match key.tokens {
        _ if key.quantise != Quantise::None => 8,
        _ if only_waits(key) => 32,
        ..32 => 8,
        _ => 16,
    }
}

/// Fewer that send once there are enough warps for all rows, as receivers have more to do: until the link is what they wait for.
pub(super) fn send_blocks(key: &DispatchKey) -> u32 {
    match key.tokens * key.ranks {
        _ if only_waits(key) => 64,
        _ if many_pieces(key) && key.tokens <= 512 => 12,
        _ if many_pieces(key) => 16,
        // They receive as well when they are done.
        slots if slots > 4096 && key.ranks == 2 && key.layout.by_expert() => 40,
        slots if slots > 512 || many_packets(key) => 32,
        _ if key.tokens >= 32 => 16,
        _ => (key.tokens * 4).next_power_of_two().clamp(8, 32),
    }
}

pub(super) fn recv_blocks_of_dispatch(key: &DispatchKey) -> u32 {
    // Slots of a source and a token each.
    match key.tokens * key.ranks {
        _ if only_waits(key) => 16,
        slots if few_to_dispatch(key) => (slots * 4).next_power_of_two().clamp(32, 64),
        _ if many_pieces(key) && key.tokens <= 512 => 112,
        _ if many_pieces(key) => 96,
        slots if slots > 512 || many_packets(key) => 80,
        slots => (slots * 2).next_power_of_two().clamp(8, 64),
    }
}

/// Whether expert-major packets are so few that smaller pieces on more blocks arrive sooner
/// (`bench/results/moe-on-two-gpus.md`, choices).
pub(super) fn few_by_expert(protocol: Protocol, layout: Layout, tokens: u32, ranks: u32) -> bool {
    protocol == Protocol::Packets && layout.by_expert() && tokens * ranks <= 32
}

fn few_to_dispatch(key: &DispatchKey) -> bool {
    few_by_expert(protocol_of_key(key), key.layout, key.tokens, key.ranks)
}

/// Whether rank-major packets are so many that the link bounds dispatch, and more blocks that receive pay
/// (`bench/results/moe-on-two-gpus.md`, choices).
fn many_packets(key: &DispatchKey) -> bool {
    key.layout == Layout::RankMajor && key.tokens >= 128
}

/// Whether expert-major packets of two ranks are so many that stores bound dispatch: each of 64 receiving blocks stores as much as an SM can
/// (`bench/results/moe-on-two-gpus.md`, choices).
fn many_pieces(key: &DispatchKey) -> bool {
    let packets = protocol_of_key(key) == Protocol::Packets;
    key.layout.by_expert() && packets && key.ranks == 2 && key.tokens > 128
}

/// Packets where latency counts, if rows of every type are whole packets: dispatch and combine have to agree. In expert-major layout a
/// rank of two sums rows as it sends them, and a wait for pieces ends sooner than a wait for rows: packets pay for more tokens
/// (`bench/results/moe-on-two-gpus.md`, choices).
pub(super) fn protocol(hidden: u32, tokens: u32, ranks: u32, layout: Layout) -> Protocol {
    let most = if ranks == 2 && layout.by_expert() { 8 * MOST_PACKETS } else { MOST_PACKETS };
    if tokens <= most && hidden.is_multiple_of(PACKET_BYTES) { Protocol::Packets } else { Protocol::Flags }
}

/// The same, unless rows are no floats that have a NaN.
pub(super) fn protocol_of_key(key: &DispatchKey) -> Protocol {
    if !key.dtype.survives_packets() {
        return Protocol::Flags;
    }
    protocol(key.hidden, key.tokens, key.ranks, key.layout)
}

/// One where groups share rows, which spreads a row over as many SMs as can be; else as many that a lane has
/// one to four vectors, and for few tokens more.
pub(super) fn group_warps(row_bytes: u32, protocol: Protocol, tokens: u32) -> u32 {
    match protocol {
        Protocol::Packets => 1,
        Protocol::Flags | Protocol::Bulk => {
            let most = if tokens <= 8 { 8 } else { 4 };
            row_bytes.div_ceil(16 * 32 * 4).next_power_of_two().min(most)
        }
    }
}

/// Whether rows that go with flags are scheduled dynamically, and not dealt to groups: it comes back only where each has several, as not all
/// groups are equally fast.
pub(super) fn worth_dynamic_scheduling(protocol: Protocol, numbers: u32, groups: u32) -> bool {
    protocol != Protocol::Packets && numbers >= 4 * groups
}

/// The smallest chunk whose records are worth sending, no more than four a rank unless those are too long to be made at once, or
/// sixteen where it is the index that counts them, a warp each; and whose bases fit half the shared memory. Expert-major, two ranks and up
/// to 128 tokens: two records a rank. Records that the index counts: 32 on up to four ranks
/// (`bench/results/moe-on-four-gpus.md`, choices).
pub(super) fn record_tokens(key: &DispatchKey) -> u32 {
    let base_words = |chunk: u32| {
        let map = ExpertMap { experts: key.experts, ranks: key.ranks };
        u64::from(map.at_most() * key.ranks) * u64::from(key.tokens.div_ceil(chunk))
    };
    let counted_at_once = key.layout == Layout::RankMajor && protocol_of_key(key) == Protocol::Packets;
    let few_by_expert = key.layout.by_expert() && key.tokens <= 128;
    let (records, entries) = match (counted_at_once, key.ranks) {
        (false, ..3) if few_by_expert => (2, 128),
        (false, _) => (4, 128),
        (true, ..5) => (32, 64),
        (true, _) => (16, 128),
    };
    let worth = |chunk: u32| chunk * key.topk >= entries && chunk >= (key.tokens / records).min(512);
    let enough = |chunk: &u32| *chunk >= key.tokens || worth(*chunk);
    let takes = |chunk: &u32, bytes: u64| base_words(*chunk) * 4 <= bytes;
    let chunks = || (0..=14).map(|bit| 1 << bit).filter(|chunk| chunk * key.topk <= MOST_RECORD_ENTRIES);
    let found = chunks().take(11).find(|chunk| enough(chunk) && takes(chunk, FREE_SHARED_BYTES / 2));
    // Longer ones where there are so many experts and tokens, and shorter ones that a block makes at once if these do as well.
    let most = key.tokens.next_power_of_two();
    let found = found.or_else(|| chunks().skip(10).find(|chunk| takes(chunk, FREE_SHARED_BYTES)));
    let found = found.or_else(|| chunks().next_back()).unwrap_or(1).min(most);
    let at_once = |chunk: &u32| chunk * key.topk <= warps_of_dispatch(key) * 32 * MAX_A_LANE;
    let shorter = || chunks().rfind(|chunk| at_once(chunk) && takes(chunk, FREE_SHARED_BYTES));
    if at_once(&found) { found } else { shorter().unwrap_or(found) }
}
