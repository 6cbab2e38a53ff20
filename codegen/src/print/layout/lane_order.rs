//! Matrices in memory that lie as lanes hold them.
//!
//! A group's product is spread over its lanes as the matrix instruction leaves it: two or four neighbours of a row here, two of
//! another row there. Rows of a matrix in memory take many small accesses, then. But a matrix that a kernel writes and reads again by
//! whole tiles of one shape, each held by lanes in the same way, need not lie in rows. Every lane stores 16 bytes of such a tile in
//! turn, next to those of its neighbours. A lane that reads it, on this rank or another one, gets the elements of the lane with the
//! same number. The order is a part of the parameter's words: an operation refuses launches that share a matrix in different orders.

use std::collections::{HashMap, HashSet};

use super::{Layout, Layouts, Moved, WIDEST};
use crate::ir::{self, Kernel, OpId, Param, ParamId, ParamKind};
use crate::print::analysis::{Program, Reach};

/// What is known of a matrix in memory, from one access to the next.
struct Seen {
    tile: Layout,
    stored: bool,
    loaded: bool,
}

/// The matrices of a kernel that lie as lanes hold them, and how lanes hold a tile.
pub(crate) fn matrices(p: &Program, layouts: &Layouts) -> HashMap<ParamId, Layout> {
    let mut found: HashMap<ParamId, Seen> = HashMap::new();
    let mut others = HashSet::new();
    for &id in p.ops() {
        let kind = &p.kernel.op(id).kind;
        let access = Moved::of(kind).and_then(|moved| {
            let param = moved.rows.place.param().filter(|param| is_own(p.kernel, *param))?;
            whole_tile(p, layouts, id, moved).map(|tile| (param, tile))
        });
        match access {
            Some((param, tile)) => {
                let seen = found.entry(param).or_insert(Seen { tile, stored: false, loaded: false });
                match Moved::stored(kind) {
                    Some(_) => seen.stored = true,
                    None => seen.loaded = true,
                }
                if seen.tile != tile {
                    others.insert(param);
                }
            }
            None => others.extend(kind.accesses().into_iter().filter_map(|a| a.place.param())),
        }
    }
    let both = found.into_iter().filter(|(_, seen)| seen.stored && seen.loaded);
    both.map(|(param, seen)| (param, seen.tile)).filter(|(param, _)| !others.contains(param)).collect()
}

/// The words of a kernel's parameters: what a caller allocates, and in which order the elements of a matrix lie.
pub(crate) fn words(kernel: &Kernel, lane_order: &HashMap<ParamId, Layout>) -> Vec<String> {
    let order = |&Layout { len, lanes, per_lane, fragments }: &Layout| {
        let parts =
            fragments.map(|f| format!(" in {}x{} parts of {}x{}", f.down, f.across, f.rows, f.columns));
        format!("{lanes} lanes with {per_lane} each of {len}{}", parts.unwrap_or_default())
    };
    let param = |(at, param): (usize, &Param)| match lane_order.get(&ParamId(at as u32)) {
        Some(layout) => ir::in_order(&param.signature(), &order(layout)),
        None => param.signature(),
    };
    kernel.params.iter().enumerate().map(param).collect()
}

/// Whether a matrix is the operation's own. Its launches compare the order in which its elements lie.
fn is_own(kernel: &Kernel, param: ParamId) -> bool {
    let param = &kernel.params[param.index()];
    let own = match param.kind {
        ParamKind::Window | ParamKind::Symmetric | ParamKind::Local => param.own,
        any!(private) | ParamKind::Flags | ParamKind::Counts | ParamKind::Messages(_) | ParamKind::Far(_) => {
            false
        }
    };
    param.columns.is_some() && own
}

/// How lanes hold what is moved, if that is all columns of rows that are there, which begin where a tile does, and lanes have
/// whole 16 bytes of it.
fn whole_tile(
    p: &Program,
    layouts: &Layouts,
    id: OpId,
    Moved { rows, column, matrix: tile }: Moved<'_>,
) -> Option<Layout> {
    let param = &p.kernel.params[rows.place.param()?.index()];
    let (all, columns) = param.shape()?;
    let (down, across) = p.kernel.ty(tile).shape()?;
    let begins = down.is_power_of_two() && p.divisor(rows.row, down) == down;
    let inside = Reach::of(p, rows.row).most() + u128::from(down) <= u128::from(all);
    let layout = layouts.of(tile);
    let vector = layout.per_lane * param.dtype.bytes();
    let lane = layout.steps() * vector;
    let fits = lane.is_multiple_of(WIDEST) && vector <= WIDEST && layout.steps() > 1 && p.split(id).is_none();
    let whole = u64::from(across) == columns && p.int(column) == Some(0) && rows.end.is_none();
    (begins && inside && fits && whole).then_some(layout)
}
