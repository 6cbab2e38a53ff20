//! How messages travel that say by themselves that they have arrived: a row a transport.

use serde::{Deserialize, Serialize};

use super::{Dtype, FarPart, PACKET_BYTES, ParamKind};

/// How such a message travels. It orders nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// Packets of 16 bytes, each of which arrives at once. One whose last word is all ones is empty; all of them are before the first
    /// launch. A receive takes them: it leaves them empty.
    Packets,
    /// LL words: 4 bytes of data, which are one element or two, and 4 of epoch in 8 bytes that arrive at once; all epochs are zero before
    /// the first launch. Any number of groups may receive an element.
    Ll,
}

/// What a transport is like.
#[derive(Debug)]
pub struct Traits {
    /// What a buffer is to signatures, in one word, and with its article.
    pub words: [&'static str; 3],
    /// What tables and findings call messages.
    pub label: &'static str,
    /// What headers call a buffer.
    pub constant: &'static str,
    /// What a comment on a buffer begins with.
    pub comment: &'static str,
    /// The name of sending.
    pub send: &'static str,
    /// The name of receiving.
    pub receive: &'static str,
    /// What findings call receiving.
    pub receiving: &'static str,
    /// What a buffer is for.
    pub purpose: &'static str,
    /// What tiles are made of, for messages of the tracer.
    pub several: &'static str,
    /// What the tracer says of a part of a message: what the buffer moves, and what else helps.
    pub whole: (&'static str, &'static str),
    /// The byte that fills a buffer before the first launch.
    pub empty: u8,
    /// The type of a word, where one has more than data.
    pub word: Option<Dtype>,
    /// Whether each message carries an epoch. Without one it carries floats only.
    pub has_epoch: bool,
    /// Whether a receive leaves what it received empty, and so is the only one.
    pub takes: bool,
    /// Whether waiting names elements, not messages.
    pub waits_by_element: bool,
    /// Whether lanes send and receive whole messages of 16 bytes, any number each. Otherwise a lane has one message at most.
    pub wide: bool,
    /// Which elements messages have.
    pub elements: &'static str,
}

impl Transport {
    /// What a buffer is, with its article.
    pub const fn noun(self) -> &'static str {
        self.traits().words[2]
    }

    /// Every transport.
    pub const ALL: [Transport; 2] = [Transport::Packets, Transport::Ll];

    /// What it is like.
    pub const fn traits(self) -> &'static Traits {
        match self {
            Transport::Packets => &Traits {
                words: ["Packets", "packets", "a packet buffer"],
                label: "packets",
                constant: "PACKETS",
                comment: "packets, all ones at first,",
                send: "send_packets",
                receive: "take_packets",
                receiving: "taking",
                purpose: "`send_packets` fills it and `take_packets` empties it, nothing else",
                several: "packets",
                whole: ("which moves packets of", ""),
                empty: 0xff,
                word: None,
                has_epoch: false,
                takes: true,
                waits_by_element: false,
                wide: true,
                elements: "packets are of floats, or of u32 words that hold floats: an integer of all ones would not arrive",
            },
            Transport::Ll => &Traits {
                words: ["Ll", "ll", "an LL buffer"],
                label: "LL",
                constant: "LL",
                comment: "LL",
                send: "send_ll",
                receive: "read_ll",
                receiving: "reading",
                purpose: "send to it and read it as such",
                several: "LL elements",
                whole: (
                    "of which an LL word has",
                    "; a tile range, `b.tiles(n, chunk)`, sends any number of them",
                ),
                empty: 0,
                word: Some(Dtype::U64),
                has_epoch: true,
                takes: false,
                waits_by_element: true,
                wide: false,
                elements: "elements are u32, i32 or f32, or f16 or bf16 in pairs",
            },
        }
    }

    /// Whether messages may have elements of a type.
    pub fn carries(self, dtype: Dtype) -> bool {
        match self {
            // Floats survive that a packet never looks empty, also as words.
            Transport::Packets => dtype.is_float() || dtype == Dtype::U32,
            Transport::Ll => dtype.per_ll_word().is_some(),
        }
    }

    /// Elements of a message.
    pub const fn unit(self, dtype: Dtype) -> u32 {
        match self {
            Transport::Packets => PACKET_BYTES / dtype.bytes(),
            Transport::Ll => match dtype.per_ll_word() {
                Some(word) => word,
                None => 1,
            },
        }
    }

    /// Bytes of memory that an element takes.
    pub const fn element_bytes(self, dtype: Dtype) -> u32 {
        match self {
            Transport::Packets => dtype.bytes(),
            Transport::Ll => 2 * dtype.bytes(),
        }
    }

    /// Messages of `unit` elements, in words.
    pub(super) fn messages(self, unit: u32) -> String {
        match self {
            Transport::Packets => format!("packets of {PACKET_BYTES} bytes"),
            Transport::Ll => format!("LL words of {unit}"),
        }
    }

    /// Why a value is no whole number of messages.
    pub(super) fn broken(self, value: &str, bytes: u64, unit: u32) -> String {
        match self {
            Transport::Packets => {
                format!("{value} has {bytes} bytes, which are no whole packets of {PACKET_BYTES}")
            }
            Transport::Ll => format!("{value} is no whole number of LL words of {unit} elements"),
        }
    }

    /// Why an index of a buffer is no first element of a message.
    pub(super) fn inside(self, op: &str, buffer: &str, value: &str, unit: u32) -> String {
        match self {
            Transport::Packets => format!(
                "`{op}`: index {value} of packet buffer `{buffer}` is not known to be a multiple of {unit} elements, the size of a \
                 packet; compute it as a multiple of that"
            ),
            Transport::Ll => format!(
                "`{op}` of `{buffer}` at element {value}, which is not known to begin an LL word of {unit} elements"
            ),
        }
    }
}

impl ParamKind {
    /// A buffer of packets.
    #[allow(non_upper_case_globals)]
    pub const Packets: ParamKind = ParamKind::Messages(Transport::Packets);
    /// A buffer of LL words.
    #[allow(non_upper_case_globals)]
    pub const Ll: ParamKind = ParamKind::Messages(Transport::Ll);

    /// Every kind.
    pub const ALL: [ParamKind; 14] = [
        ParamKind::Local,
        ParamKind::Symmetric,
        ParamKind::Window,
        ParamKind::Flags,
        ParamKind::Counts,
        ParamKind::Packets,
        ParamKind::Ll,
        ParamKind::Far(FarPart::Outbox),
        ParamKind::Far(FarPart::Inbox),
        ParamKind::Far(FarPart::Counts),
        ParamKind::EpochWord,
        ParamKind::Counters,
        ParamKind::BlockFlags,
        ParamKind::Scalar,
    ];

    /// How what is sent to such a parameter travels, if it says by itself that it has arrived.
    pub const fn transport(self) -> Option<Transport> {
        if let ParamKind::Messages(transport) = self { Some(transport) } else { None }
    }
}
