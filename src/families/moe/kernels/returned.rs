//! Rows of combine on their way back: as they are combined, or quantised by their sender.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, AnyTile, OutgoingField};
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::combine_config::Combine;
use super::outputs::Slot;
use super::pieces::piece_len;
use super::protocol::Protocol;
use super::quantise::scale_of_row;
use crate::families::moe::SCALE_BLOCK;
use crate::families::quantise::{self, E4M3_MAX, Method, NVFP4_BLOCK, NVFP4_MAX, Quantiser};

/// What rows of combine travel as.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum ReturnDtype {
    /// The type that rows are combined in.
    Combined,
    /// fp8 (e4m3), with an f32 scale for every 128 elements of a row.
    Fp8,
    /// fp8 (e4m3), with an f32 scale for each row: of a token, or of an entry where `dedup` is off.
    Fp8Token,
    /// 4 bits (e2m1), with an e4m3 scale for every 16 elements, and an f32 scale for each row.
    Nvfp4,
}

impl ReturnDtype {
    /// Bits of an element.
    pub(super) fn bits(self) -> u32 {
        match self {
            ReturnDtype::Combined => 16,
            ReturnDtype::Fp8 | ReturnDtype::Fp8Token => 8,
            ReturnDtype::Nvfp4 => 4,
        }
    }

    /// Bytes of a row of so many elements, without its scales.
    pub(super) fn row_bytes(self, hidden: u32) -> u32 {
        hidden / 8 * self.bits()
    }

    /// Elements of a piece of a row: `vectors` of 16 bytes for each lane of `warps` warps.
    pub(super) fn piece_len(self, hidden: u32, warps: u32, vectors: u32) -> u32 {
        piece_len(hidden, warps, vectors * (16 / self.bits()), 2)
    }

    /// Whether senders quantise rows.
    pub fn quantises(self) -> bool {
        self != ReturnDtype::Combined
    }
}

/// A row on its way back.
#[derive(Message, Clone)]
#[message(config = Combine)]
pub struct Returned {
    /// Rows as they come back, `[token][owner][hidden]`, or `[token][k][hidden]` in plain mode; as packets in two banks.
    #[len(|c| c.moved(c.hidden))]
    #[dtype(|c| c.returned())]
    pub row: AnyField,
    /// Scales as they come back with the pieces of rows, `[token][owner][scale]`, or `[token][k][scale]` in plain mode; as packets
    /// in two banks, each piece's ending in zeros that fill a packet.
    #[len(|c| c.sent_scales())]
    pub scales: Option<Field<f32>>,
}

impl Combine {
    /// Type in which rows travel.
    pub fn returned(&self) -> Dtype {
        match self.combine_dtype {
            ReturnDtype::Combined => self.dtype.dtype(),
            ReturnDtype::Fp8 | ReturnDtype::Fp8Token => Dtype::Fp8,
            ReturnDtype::Nvfp4 => Dtype::U32,
        }
    }

    /// Bytes of a row that travels.
    pub(super) fn returned_bytes(&self) -> u32 {
        self.combine_dtype.row_bytes(self.hidden)
    }

    /// How many of the type in which rows travel so many elements are.
    pub(super) fn moved(&self, elements: u32) -> u32 {
        if self.returned() == Dtype::U32 { elements / 8 } else { elements }
    }

    /// Where a piece of a row begins that travels, in the type in which it does.
    pub(super) fn place(&self, start: Val<u32>) -> Val<u64> {
        if self.returned() == Dtype::U32 { (start / 8).to_u64() } else { start.to_u64() }
    }

    /// Elements that have a scale together as it travels. A row's one scale goes with each of its pieces, which may be different
    /// groups'.
    pub(super) fn scaled(&self) -> u32 {
        match self.combine_dtype {
            ReturnDtype::Combined | ReturnDtype::Fp8 => SCALE_BLOCK,
            ReturnDtype::Fp8Token => self.piece_len(),
            ReturnDtype::Nvfp4 => 4 * NVFP4_BLOCK,
        }
    }

    /// Scales of a piece that travels, and how many words of them do: whole packets, where they are packets.
    pub(super) fn scales_of(&self, piece: u32) -> quantise::Piece {
        // Of nvfp4 the row's own goes with each of its pieces, too.
        let of_row = u32::from(self.combine_dtype == ReturnDtype::Nvfp4 && piece > 0);
        let scales = piece.div_ceil(self.scaled()) + of_row;
        let sent = match self.protocol {
            Protocol::Flags | Protocol::Bulk => scales,
            Protocol::Packets => scales.next_multiple_of(PACKET_BYTES / 4),
        };
        quantise::Piece { len: piece, scales, sent, of_row: None }
    }

    /// Words of a row's scales as they travel.
    fn sent_scales(&self) -> u32 {
        let (row, piece) = (self.hidden, self.piece_len());
        let (whole, rest) = (row / piece, row % piece);
        if self.combine_dtype.quantises() {
            whole * self.scales_of(piece).sent + self.scales_of(rest).sent
        } else {
            0
        }
    }

    /// The first word of the scales of the piece from element `start` on.
    pub(super) fn first_scale(&self, start: Val<u32>) -> Val<u32> {
        let piece = self.piece_len();
        start / piece * self.scales_of(piece).sent
    }

    /// Bytes of shared memory that groups of a block take to quantise what they send and to scale what they receive back.
    pub(super) fn shared_bytes(&self) -> u64 {
        let (piece, groups) = (self.sent_pieces(), u64::from(self.warps / self.group_warps));
        let in_flight = self.tiles_in_flight().min(self.ranks.max(self.topk));
        let receives = in_flight * self.scales_of(piece.len).sent + 3;
        let words = match self.combine_dtype {
            ReturnDtype::Combined => 0,
            ReturnDtype::Fp8 => receives + Method::fp8(SCALE_BLOCK).shared_words(piece.len),
            ReturnDtype::Fp8Token => receives,
            ReturnDtype::Nvfp4 => {
                receives + in_flight * self.moved(piece.len) + 3 + Method::nvfp4().shared_words(piece.len)
            }
        };
        4 * groups * u64::from(words)
    }
}

/// How a group quantises what it sends back.
#[derive(Clone, Copy)]
pub(super) enum Quantising {
    /// It does not.
    None,
    /// With a scale for each block.
    ByBlock(Quantiser),
    /// With a scale for each row.
    ByRow,
    /// With a scale for each row, and those of its blocks.
    BySixteen(Quantiser),
}

impl Quantising {
    /// What a configuration asks of a group.
    pub fn new(c: &Combine) -> Quantising {
        match c.combine_dtype {
            ReturnDtype::Combined => Quantising::None,
            ReturnDtype::Fp8 => Quantising::ByBlock(Quantiser::new(Method::fp8(SCALE_BLOCK), c.piece_len())),
            ReturnDtype::Fp8Token => Quantising::ByRow,
            ReturnDtype::Nvfp4 => Quantising::BySixteen(Quantiser::new(Method::nvfp4(), c.piece_len())),
        }
    }

    /// The same where pieces that arrive as packets are quantised, with elements of so many bytes.
    pub fn of_packets(c: &Combine, bytes: u32) -> Quantising {
        match Quantising::new(c) {
            Quantising::ByBlock(quantiser) if bytes > 1 => Quantising::ByBlock(quantiser.spreading()),
            quantising => quantising,
        }
    }
}

/// A row that is put, and how.
pub(super) struct Back<'m> {
    pub c: &'m Combine,
    pub row: OutgoingField<'m, Any>,
    pub scales: Option<OutgoingField<'m, f32>>,
    pub quantising: Quantising,
}

impl Back<'_> {
    /// Puts a part of a slot's row.
    #[kernel]
    pub fn put(&self, part: Val<u32>, slot: &dyn Slot) {
        let pieces = self.c.sent_pieces();
        match self.quantising {
            Quantising::None => slot.put(part, &self.row),
            Quantising::ByBlock(quantiser) => pieces.each(part, |start, len| {
                self.put_by_block(quantiser, slot.piece(start, len), (start, len));
            }),
            Quantising::BySixteen(quantiser) => {
                let scale = self.scale_of(slot, NVFP4_MAX);
                pieces.each(part, |start, len| {
                    let piece = quantise::Piece { of_row: Some(scale), ..self.c.scales_of(len) };
                    let (x, scales) = quantiser.returned(slot.piece(start, len), piece);
                    self.put_quantised(start, x, scales);
                });
            }
            Quantising::ByRow => {
                let scale = self.scale_of(slot, E4M3_MAX);
                pieces.each(part, |start, len| {
                    let x = AnyTile::rounded(slot.piece(start, len).to_f32() / scale, Dtype::Fp8);
                    let sent = self.c.scales_of(len).sent;
                    self.put_quantised(start, x, splat(scale, sent));
                });
            }
        }
    }

    /// Puts a piece of a row that is summed here, of which its group has no other piece: so there is no scale for the row.
    pub fn put_sum(&self, sum: Tile<f32>, (start, len): (Val<u32>, u32)) {
        match self.quantising {
            Quantising::ByBlock(quantiser) => {
                let piece = AnyTile::rounded(sum, self.c.dtype.dtype());
                self.put_by_block(quantiser, piece, (start, len));
            }
            Quantising::None | Quantising::ByRow | Quantising::BySixteen(_) => {
                self.row.put_f32(start.to_u64(), sum);
            }
        }
    }

    /// Puts a piece of a row, with a scale for each block.
    fn put_by_block(&self, quantiser: Quantiser, piece: AnyTile, (start, len): (Val<u32>, u32)) {
        let (x, scales) = quantiser.quantise(piece, self.c.scales_of(len));
        self.put_quantised(start, x, scales.to_f32());
    }

    /// The scale of a slot's row.
    fn scale_of(&self, slot: &dyn Slot, most: f32) -> Val<f32> {
        let lens = (self.c.hidden, self.c.piece_len());
        scale_of_row(lens, most, &|start, len| slot.piece(start, len))
    }

    fn put_quantised(&self, start: Val<u32>, x: AnyTile, scales: Tile<f32>) {
        self.row.put(self.c.place(start), x);
        if let Some(field) = &self.scales {
            field.put(self.c.first_scale(start), scales);
        }
    }
}
