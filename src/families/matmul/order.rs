//! Tiles of a result: how large, in which order, and what they take.

use peerwarp_codegen::device::Device;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::{DOT_ROW_BYTES, Dtype};

use super::output::Output;
use super::scales::{BLOCK, Scales};
use super::split::Split;

/// Which tiles a block has. Both go through all of them in the same order.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Those that are its own from the start, as many apart as there are blocks.
    Strided,
    /// The next one whenever it is free, from a work counter.
    Counter,
}

impl Order {
    /// Work counters that blocks draw tiles from.
    pub(super) fn counters(self) -> u64 {
        u64::from(self == Order::Counter)
    }

    /// Refused where blocks wait for those that have other parts of a tile: they know these by the order.
    pub(super) fn legal(self, split: u32) -> Result<(), Illegal> {
        let allowed =
            || format!("strided with split = {split}: blocks know which block has the other parts of a tile");
        Illegal::unless(self == Order::Strided || split == 1, "order", "counter", allowed)
    }
}

/// How rows of one matrix times rows of another are cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Rows and columns of the result.
    pub rows: u32,
    pub columns: u32,
    /// Those of a tile.
    pub tile_rows: u32,
    pub tile_columns: u32,
    /// Height of a tile group; tiles inside it run column by column (L2 reuse).
    pub group: u32,
    /// Whether rows of tiles are of pairs, which two neighbouring blocks multiply: an even number, of which one may have no rows.
    pub pair: bool,
}

impl Cut {
    /// Rows of tiles.
    pub fn bands(&self) -> u32 {
        let bands = self.rows.div_ceil(self.tile_rows);
        if self.pair { bands.next_multiple_of(2) } else { bands }
    }

    /// Columns of tiles.
    pub fn strips(&self) -> u32 {
        self.columns.div_ceil(self.tile_columns)
    }

    pub fn tiles(&self) -> u32 {
        self.bands() * self.strips()
    }

    /// The products of so many columns of a type for as many ranks, cut into parts.
    pub fn split(&self, parts: u32, columns: u32, dtype: Dtype, ranks: u32) -> Split {
        Split {
            parts,
            columns,
            dtype,
            tiles: ranks * self.tiles(),
            tile: [self.tile_rows, self.tile_columns],
        }
    }

    /// Whose tile the `i`-th one of as many ranks is, and which of those: all of one rank's before the next one's, or those of one place
    /// abreast.
    pub fn of_ranks(&self, i: Val<u32>, ranks: u32, abreast: bool) -> (Val<u32>, Val<u32>) {
        if abreast { (i % ranks, i / ranks) } else { (i / self.tiles(), i % self.tiles()) }
    }

    /// The first row and the first column of a tile, of a group of rows of tiles column by column.
    #[kernel]
    pub fn corner(&self, tile: Val<u32>) -> (Val<u32>, Val<u32>) {
        let group = self.group.min(self.bands());
        let first = tile / (group * self.strips()) * group;
        let rest = tile % (group * self.strips());
        // The last group may have fewer rows of tiles.
        let rows = if self.bands().is_multiple_of(group) {
            group.val()
        } else {
            let left = self.bands().val() - first;
            left.lt(group).select(left, group)
        };
        let row = (first + rest % rows) * self.tile_rows;
        let column = rest / rows * self.tile_columns;
        (row, column)
    }
}

/// Shared memory of a block where defaults were measured; no device's is larger. Where it is smaller the printer says so. AMD's GPUs take one
/// stage, whatever is asked for.
const MOST_SHARED: u32 = Device::measured().block_shared_bytes;

/// Whether rows of `n` elements of 16 bits and of `k` operands of `dtype` are whole 16 bytes.
pub(in crate::families) fn whole_rows(n: u32, k: u32, dtype: Dtype) -> Result<(), Illegal> {
    let whole = |(field, value, unit): (&'static str, u32, u32)| {
        let allowed = || format!("a multiple of {unit}: rows are whole 16 bytes");
        Illegal::unless(value.is_multiple_of(unit), field, value, allowed)
    };
    [("n", n, 8), ("k", k, 16 / dtype.bytes())].into_iter().try_for_each(whole)
}

/// Whether all ranks have equally many of `m` rows.
pub(super) fn shared_rows(m: u32, ranks: u32) -> Result<(), Illegal> {
    let allowed = || format!("a multiple of {ranks}, the number of ranks");
    Illegal::unless(m.is_multiple_of(ranks), "m", m, allowed)
}

/// Whether a tile fits the warps, their registers, and shared memory. All numbers of stages that do leave 27 KiB, which is room for what
/// a warp beside has.
pub(in crate::families) fn legal(rows: u32, columns: u32, warps: u32, stages: u32) -> Result<(), Illegal> {
    // 16 x 16 elements are what a warp multiplies at once.
    let parts = rows / 16 * (columns / 16);
    let shared = (1..=warps).any(|down| {
        warps.is_multiple_of(down)
            && (rows / 16).is_multiple_of(down)
            && (columns / 16).is_multiple_of(warps / down)
    });
    let allowed =
        || format!("a number of warps that {rows} x {columns} can be shared among in parts of 16 x 16");
    Illegal::unless(shared, "warps", warps, allowed)?;
    // 128 of a lane's 255 registers hold sums.
    let allowed =
        || format!("at least {} for {rows} x {columns}: a warp holds 4096 sums", parts.div_ceil(16));
    Illegal::unless(parts <= 16 * warps, "warps", warps, allowed)?;
    let stage = stage(rows, columns);
    let allowed = || format!("at most {}: one takes {stage} bytes of shared memory", MOST_SHARED / stage);
    Illegal::unless(stages * stage <= MOST_SHARED, "stages", stages, allowed)
}

/// Columns of a tile. Those of fp8 have one scale of a block, and sums of a piece by themselves.
pub(in crate::families) fn most_columns(dtype: Dtype) -> u32 {
    if dtype == Dtype::Fp8 { BLOCK } else { 256 }
}

/// Whether a tile has no more columns than its type lets it have.
pub(in crate::families) fn columns_fit(columns: u32, dtype: Dtype) -> Result<(), Illegal> {
    let most = most_columns(dtype);
    let allowed =
        || format!("at most {most} with dtype = fp8: registers hold sums of a piece beside all others");
    Illegal::unless(columns <= most, "tile_columns", columns, allowed)
}

/// Type of a result of operands of a type, and of what is added to it.
pub(super) fn result(dtype: Dtype) -> Dtype {
    if matches!(dtype, Dtype::Fp8 | Dtype::U32) { Dtype::Bf16 } else { dtype }
}

/// Bytes of shared memory that a stage takes.
fn stage(rows: u32, columns: u32) -> u32 {
    (rows + columns) * DOT_ROW_BYTES
}

/// Bytes of shared memory that so many stages leave; none if they do not fit. Less 3 KiB, which barriers, reductions and what is drawn have room
/// in, it is a multiple of 8 KiB.
pub(super) fn left(rows: u32, columns: u32, stages: u32) -> u32 {
    MOST_SHARED.saturating_sub(stages * stage(rows, columns))
}

/// Rows of tiles: as many as there are rows, if these are few.
pub(super) fn tile_rows(rows: u32) -> u32 {
    if rows > 64 { 128 } else { 64 }
}

/// As many as all but few groups of random rows have, of which each has `each` in the mean: the mean and twice the deviation. With 48 rows in
/// the mean tiles of 64 rows are faster, with 64 those of 128 (`bench/results/products.md`, groups).
pub(in crate::families) fn tile_rows_of_groups(each: u32, groups: u32) -> u32 {
    tile_rows(each + 2 * (each - each / groups).isqrt())
}

/// Such rows of tiles.
pub(super) fn bands(rows: u32) -> u32 {
    rows.div_ceil(tile_rows(rows))
}

/// Warps that multiply such tiles: warpgroups have 64 rows of a product. At most two of them, as registers hold no more sums.
pub(in crate::families) fn warps(tile_rows: u32) -> u32 {
    (tile_rows / 16).min(8)
}

/// Whose rows blocks go through, one rank's after another's if they have several tiles: so often the right matrix is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// So many ranks'.
    pub ranks: u32,
    /// Nanoseconds until those of the second one are there. Blocks that have fewer tiles than there are ranks wait for so long.
    pub arrival: u64,
}

/// How a product is cut: the columns of tiles, and among how many blocks the columns of its operands are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::families) struct Tiling {
    pub columns: u32,
    pub split: u32,
}

/// Columns of a piece of 16-bit operands. Those of 8 bits count as half as many of 16.
const HALVES: u32 = DOT_ROW_BYTES / 2;

impl Tiling {
    /// The one with which so many blocks have been through all tiles the soonest, of so many rows of tiles. Columns are shared where
    /// there are no more parts than blocks.
    pub(super) fn of(
        [tile_rows, bands]: [u32; 2],
        columns: u32,
        k: u32,
        blocks: u32,
        passage: Passage,
    ) -> Tiling {
        let whole = |split: &u32| *split == 1 || k.is_multiple_of(split * HALVES);
        let all = [1, 2, 4, 8].into_iter().filter(whole);
        let all = all.flat_map(|split| [64, 128, 256].map(|columns| Tiling { columns, split }));
        let few = |t: &Tiling| t.split == 1 || t.items(bands, columns) <= blocks;
        let elements = u64::from(columns) * u64::from(k);
        let time = |t: &Tiling| {
            let turns = t.items(bands, columns).div_ceil(blocks);
            let readings = if turns > 1 { passage.ranks.into() } else { 1 };
            let waits = if turns < passage.ranks { passage.arrival } else { 0 };
            waits + t.time(tile_rows, k, turns, readings * elements)
        };
        all.filter(few).min_by_key(time).unwrap_or(Tiling { columns: 64, split: 1 })
    }

    /// The same of tiles of whole columns, where so many elements of right matrices are read.
    pub fn unsplit([tile_rows, bands]: [u32; 2], columns: u32, k: u32, blocks: u32, elements: u64) -> Tiling {
        let turns = |t: &Tiling| t.items(bands, columns).div_ceil(blocks);
        let all = [64, 128, 256].map(|columns| Tiling { columns, split: 1 });
        let time = |t: &Tiling| t.time(tile_rows, k, turns(t), elements);
        all.into_iter().min_by_key(time).unwrap_or(Tiling { columns: 64, split: 1 })
    }

    /// Nanoseconds that a product takes on an H200 beside what each launch does, where a block has so many tiles and so many elements
    /// of the right matrix are read. The constants are fitted to 137 ways to cut 35 products of 64 to 1024 rows
    /// (`bench/results/products.md`, few rows).
    fn time(self, tile_rows: u32, k: u32, turns: u32, elements: u64) -> u64 {
        let [rows, width, split, turns] = [tile_rows, self.columns, self.split, turns].map(u64::from);
        // A piece of 64 columns comes into shared memory, which takes a third longer when blocks are no longer in step, and is
        // multiplied meanwhile.
        let comes = 60 + (rows + width) * 17 / 16;
        let piece = (if turns > 2 { comes * 4 / 3 } else { comes }).max(rows * width / 51);
        let pieces = u64::from(k.div_ceil(HALVES * self.split));
        let multiplied = turns * (pieces * piece + 1500);
        // The right matrix comes from memory, 4.3 TB/s, and not evenly.
        let from_memory = 2 * elements / 4300 + multiplied / 5;
        let added_up = if split > 1 { 2000 + (split - 1) * rows * width * 3 / 50 } else { 0 };
        multiplied.max(from_memory) + added_up
    }

    /// Parts of all tiles.
    pub fn items(self, bands: u32, columns: u32) -> u32 {
        bands * columns.div_ceil(self.columns) * self.split
    }
}

/// Blocks that an SM has at once. One of two multiplies while the other one waits for a piece, adds up or stores: two with four stages are 1.03
/// to 1.23 times as fast as one with six in fp8 (`bench/results/products.md`, groups).
fn blocks_an_sm(rows: u32, columns: u32) -> u32 {
    if rows == 64 && columns <= 128 { 2 } else { 1 }
}

/// Blocks that all SMs have at once, if each has so many stages.
pub(in crate::families) fn resident_blocks(rows: u32, columns: u32, stages: u32) -> u32 {
    let fit = Device::measured().sm_shared_bytes / (stages * stage(rows, columns) + BESIDE);
    SMS * fit.clamp(1, blocks_an_sm(rows, columns))
}

/// Shared memory beside stages that a block has: barriers, what is drawn, reductions, and what the device takes for itself.
const BESIDE: u32 = 5 * 1024;

/// As many as fit an SM's shared memory, and no more than were of use: small tiles, of which each block has one, wait for memory most of
/// the time, and more of them are on their way then.
pub(in crate::families) fn stages(rows: u32, columns: u32, one_each: bool) -> u32 {
    let fit = MOST_SHARED / stage(rows, columns);
    let narrow = rows + columns <= 192;
    let many = [12, 10, 8].into_iter().find(|stages| one_each && narrow && *stages <= fit);
    many.unwrap_or(fit.min(6))
}

/// Stages of products of groups: those that all blocks of an SM have room for.
pub(in crate::families) fn stages_of_groups(rows: u32, columns: u32) -> u32 {
    let room = Device::measured().sm_shared_bytes / blocks_an_sm(rows, columns) - BESIDE;
    (room / stage(rows, columns)).min(6)
}

/// Columns of tiles of products of groups, of so many rows of tiles. Tiles of 64 rows are as wide as leaves three for each SM: with fewer, those
/// SMs that have one more keep all others waiting.
pub(in crate::families) fn columns_of_groups(
    [tile_rows, bands]: [u32; 2],
    [columns, k]: [u32; 2],
    elements: u64,
    most: u32,
) -> u32 {
    if tile_rows > 64 {
        return Tiling::unsplit([tile_rows, bands], columns, k, SMS, elements).columns.min(most);
    }
    let fits = |width: &u32| *width <= most && bands * columns.div_ceil(*width) >= 3 * SMS;
    [256, 128].into_iter().find(fits).unwrap_or(64)
}

/// SMs where defaults were measured.
pub(in crate::families) const SMS: u32 = Device::measured().sms;

/// Plans in which two neighbouring blocks multiply in pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs {
    pub tile_rows: u32,
    /// The field with the height of a tile group, and its value.
    pub group: (&'static str, u32),
    pub blocks: u32,
    pub order: Order,
    pub scales: Scales,
    pub out: Output,
    pub warps: u32,
    pub split: u32,
}

impl Pairs {
    /// Tiles of one place of each rank's rows have one row of tiles each.
    pub fn is_not_abreast(abreast: bool) -> Result<(), Illegal> {
        let allowed = || "false with pair = true: neighbouring blocks have tiles of one rank's rows";
        Illegal::unless(!abreast, "abreast", abreast, allowed)
    }

    /// Blocks 2i and 2i + 1 have tiles one below the other, with rows that fill the lanes of tensor memory, and draw none.
    pub fn legal(self) -> Result<(), Illegal> {
        let Pairs { tile_rows, group, blocks, order, scales, out, warps, split } = self;
        let allowed = || "1 with pair = true: neighbouring blocks have tiles, and not parts of one";
        Illegal::unless(split == 1, "split", split, allowed)?;
        let allowed = || "none, tensor, row or block with pair = true: pairs bring no scales of blocks to tensor memory";
        Illegal::unless(scales.tile().is_none(), "scales", scales.name(), allowed)?;
        let allowed = || "128 or 256 with pair = true: a block's rows fill the lanes of tensor memory";
        Illegal::unless(tile_rows >= BLOCK, "tile_rows", tile_rows, allowed)?;
        let allowed = || "strided with pair = true: blocks of a pair have neighbouring tiles from the start";
        Illegal::unless(order == Order::Strided, "order", order.name(), allowed)?;
        let allowed = || "wide with pair = true and scales = block: a warp with whole rows has no registers for sums of a block by themselves";
        Illegal::unless(out == Output::Wide || scales != Scales::Block, "out", out.name(), allowed)?;
        out.warps_legal(tile_rows, warps)?;
        let even = |(field, value): (&'static str, u32)| {
            let allowed = || "an even number with pair = true: two blocks have neighbouring rows of tiles";
            Illegal::unless(value.is_multiple_of(2), field, value, allowed)
        };
        [group, ("blocks", blocks)].into_iter().try_for_each(even)
    }
}
