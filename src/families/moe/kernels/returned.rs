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

/// What rows are like on their way.
pub(super) struct Form {
    /// Bits of an element.
    pub bits: u32,
    /// The type of their words, unless it is that of combined rows.
    dtype: Option<Dtype>,
    /// Elements of a word.
    packed: u32,
    /// Elements that have a scale together, unless they are a piece's: a row's one scale goes with each of its pieces, which may be
    /// different groups'.
    scaled: Option<u32>,
    /// Whether the scales of a piece end in the row's.
    of_row: bool,
}

impl ReturnDtype {
    pub(super) fn form(self) -> Form {
        let fp8 = Form { bits: 8, dtype: Some(Dtype::Fp8), packed: 1, scaled: None, of_row: false };
        match self {
            ReturnDtype::Combined => Form { bits: 16, dtype: None, scaled: Some(SCALE_BLOCK), ..fp8 },
            ReturnDtype::Fp8 => Form { scaled: Some(SCALE_BLOCK), ..fp8 },
            ReturnDtype::Fp8Token => fp8,
            ReturnDtype::Nvfp4 => {
                let scaled = Some(4 * NVFP4_BLOCK);
                Form { bits: 4, dtype: Some(Dtype::U32), packed: 8, scaled, of_row: true }
            }
        }
    }

    /// Bytes of a row of so many elements, without its scales.
    pub(super) fn row_bytes(self, hidden: u32) -> u32 {
        hidden / 8 * self.form().bits
    }

    /// Bytes of a row and its scales. Scales that repeat with pieces, or fill packets, are not counted.
    pub fn sent_bytes(self, hidden: u32) -> u32 {
        let form = self.form();
        let scales = form.scaled.map_or(1, |elements| hidden.div_ceil(elements)) + u32::from(form.of_row);
        self.row_bytes(hidden) + if self.quantises() { 4 * scales } else { 0 }
    }

    /// Elements of a piece of a row: `vectors` of 16 bytes for each lane of `warps` warps.
    pub(super) fn piece_len(self, hidden: u32, warps: u32, vectors: u32) -> u32 {
        piece_len(hidden, warps, vectors * (16 / self.form().bits), 2)
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
        self.combine_dtype.form().dtype.unwrap_or(self.dtype.dtype())
    }

    /// Bytes of a row that travels.
    pub(super) fn returned_bytes(&self) -> u32 {
        self.combine_dtype.row_bytes(self.hidden)
    }

    /// How many of the type in which rows travel so many elements are.
    pub(super) fn moved(&self, elements: u32) -> u32 {
        elements / self.combine_dtype.form().packed
    }

    /// Where a piece of a row begins that travels, in the type in which it does.
    pub(super) fn place(&self, start: Val<u32>) -> Val<u64> {
        (start / self.combine_dtype.form().packed).to_u64()
    }

    /// Elements that have a scale together as it travels.
    pub(super) fn scaled(&self) -> u32 {
        self.combine_dtype.form().scaled.unwrap_or_else(|| self.piece_len())
    }

    /// Scales of a piece that travels, and how many words of them do: whole packets, where they are packets.
    pub(super) fn scales_of(&self, piece: u32) -> quantise::Piece {
        // Of nvfp4 the row's own goes with each of its pieces, too.
        let of_row = u32::from(self.combine_dtype.form().of_row && piece > 0);
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
pub(super) trait Quantising {
    /// Puts a part of a slot's row.
    fn put(&self, to: &Back<'_>, part: Val<u32>, slot: &dyn Slot);

    /// Puts a piece of a row that is summed here, of which its group has no other piece: so there is no scale for the row.
    fn put_sum(&self, to: &Back<'_>, sum: Tile<f32>, (start, _): (Val<u32>, u32)) {
        to.row.put_f32(start.to_u64(), sum);
    }
}

impl Combine {
    /// How a group quantises what it sends back. It `spreads` pieces that arrive as packets over its lanes.
    pub(super) fn quantising(&self, spreads: bool) -> Box<dyn Quantising> {
        let by_block = || Quantiser::new(Method::fp8(SCALE_BLOCK), self.piece_len());
        match (self.combine_dtype, spreads) {
            (ReturnDtype::Combined, _) => Box::new(AsItIs),
            (ReturnDtype::Fp8, false) => Box::new(ByBlock(by_block())),
            (ReturnDtype::Fp8, true) => Box::new(ByBlock(by_block().spreading())),
            (ReturnDtype::Fp8Token, _) => Box::new(ByRow),
            (ReturnDtype::Nvfp4, _) => Box::new(BySixteen(Quantiser::new(Method::nvfp4(), self.piece_len()))),
        }
    }
}

/// It does not.
struct AsItIs;

impl Quantising for AsItIs {
    fn put(&self, to: &Back<'_>, part: Val<u32>, slot: &dyn Slot) {
        slot.put(part, &to.row);
    }
}

/// With a scale for each block.
struct ByBlock(Quantiser);

impl Quantising for ByBlock {
    fn put(&self, to: &Back<'_>, part: Val<u32>, slot: &dyn Slot) {
        to.c.sent_pieces().each(part, |start, len| self.put_piece(to, slot.piece(start, len), (start, len)));
    }

    fn put_sum(&self, to: &Back<'_>, sum: Tile<f32>, at: (Val<u32>, u32)) {
        self.put_piece(to, AnyTile::rounded(sum, to.c.dtype.dtype()), at);
    }
}

impl ByBlock {
    fn put_piece(&self, to: &Back<'_>, piece: AnyTile, (start, len): (Val<u32>, u32)) {
        let (x, scales) = self.0.quantise(piece, to.c.scales_of(len));
        to.put(start, x, scales.to_f32());
    }
}

/// With a scale for each row.
struct ByRow;

impl Quantising for ByRow {
    #[kernel]
    fn put(&self, to: &Back<'_>, part: Val<u32>, slot: &dyn Slot) {
        let scale = to.scale_of(slot, E4M3_MAX);
        to.c.sent_pieces().each(part, |start, len| {
            let x = AnyTile::rounded(slot.piece(start, len).to_f32() / scale, Dtype::Fp8);
            let sent = to.c.scales_of(len).sent;
            to.put(start, x, splat(scale, sent));
        });
    }
}

/// With a scale for each row, and those of its blocks.
struct BySixteen(Quantiser);

impl Quantising for BySixteen {
    #[kernel]
    fn put(&self, to: &Back<'_>, part: Val<u32>, slot: &dyn Slot) {
        let scale = to.scale_of(slot, NVFP4_MAX);
        to.c.sent_pieces().each(part, |start, len| {
            let piece = quantise::Piece { of_row: Some(scale), ..to.c.scales_of(len) };
            let (x, scales) = self.0.returned(slot.piece(start, len), piece);
            to.put(start, x, scales);
        });
    }
}

/// A row that is put.
pub(super) struct Back<'m> {
    pub c: &'m Combine,
    pub row: OutgoingField<'m, Any>,
    pub scales: Option<OutgoingField<'m, f32>>,
}

impl Back<'_> {
    /// The scale of a slot's row.
    fn scale_of(&self, slot: &dyn Slot, most: f32) -> Val<f32> {
        let lens = (self.c.hidden, self.c.piece_len());
        scale_of_row(lens, most, &|start, len| slot.piece(start, len))
    }

    /// Puts a piece, and the scales that go with it.
    fn put(&self, start: Val<u32>, x: AnyTile, scales: Tile<f32>) {
        self.row.put(self.c.place(start), x);
        if let Some(field) = &self.scales {
            field.put(self.c.first_scale(start), scales);
        }
    }
}
