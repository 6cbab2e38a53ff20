//! What a launch does of an operation, and how rows travel.

use peerwarp_codegen::device::Device;
use peerwarp_codegen::dsl::Transport;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::PACKET_BYTES;

/// Which half of an operation a launch does.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Phase {
    /// Sends and receives, with roles for each.
    Both,
    /// Sends only; the launch that receives comes later, and work may go on in between.
    Send,
    /// Receives what the launch before sent.
    Recv,
}

impl Phase {
    /// Whether it has the sending roles.
    pub fn sends(self) -> bool {
        self != Phase::Recv
    }

    /// Whether it has the receiving role.
    pub fn receives(self) -> bool {
        self != Phase::Send
    }

    /// The blocks of a role that sends: none in a launch that only receives.
    pub fn senders(self, blocks: u32) -> u32 {
        if self.sends() { blocks } else { 0 }
    }

    /// The blocks of a role that receives: none in a launch that only sends.
    pub fn receivers(self, blocks: u32) -> u32 {
        if self.receives() { blocks } else { 0 }
    }
}

/// How rows travel.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Protocol {
    /// 16-byte stores, then a flag for the row that is released after them: three trips until a row is there.
    Flags,
    /// As with flags, but whole rows are copied in bulk by way of shared memory, where the GPU can.
    Bulk,
    /// Packets, which are there after one trip. Each is looked at until it has arrived and is emptied again.
    Packets,
}

impl Protocol {
    /// How a channel of rows is to send them.
    pub fn transport(self) -> Transport {
        match self {
            Protocol::Flags => Transport::Flags,
            Protocol::Bulk => Transport::Bulk,
            Protocol::Packets => Transport::Packets,
        }
    }

    /// As what rows arrive: with flags or as packets. Dispatch and combine of a round have to agree in this.
    pub fn arrival(self) -> Protocol {
        match self {
            Protocol::Flags | Protocol::Bulk => Protocol::Flags,
            Protocol::Packets => Protocol::Packets,
        }
    }
}

/// Bytes of shared memory for rows that are copied in bulk: what GPUs that do so give a block, less what reductions take.
const MAX_ROOM_BYTES: u32 = Device::measured().block_array_bytes();

/// Whether rows can travel so: packets are whole, and so are copies, of which each of a block's groups has one at a time.
pub(super) fn protocol_of(protocol: Protocol, row_bytes: u32, groups: u32) -> Result<(), Illegal> {
    let legal = protocol == Protocol::Flags || row_bytes.is_multiple_of(PACKET_BYTES);
    Illegal::unless(legal, "protocol", protocol.name(), || {
        format!("flags for rows of {row_bytes} bytes, which are no multiple of {PACKET_BYTES}")
    })?;
    let room = u64::from(row_bytes) * u64::from(groups);
    let legal = protocol != Protocol::Bulk || room <= u64::from(MAX_ROOM_BYTES);
    Illegal::unless(legal, "protocol", protocol.name(), || {
        let most = MAX_ROOM_BYTES / row_bytes;
        format!(
            "flags, or at most {most} groups a block: each has a row of {row_bytes} bytes in shared memory"
        )
    })
}
