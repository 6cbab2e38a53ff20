//! Shares tile registers between tiles that are not alive at once, so that an agent holds few of them.

use smallvec::SmallVec;

use super::code::{Insn, Pc, TileReg};

/// Tile registers of a role.
#[derive(Debug)]
pub(crate) struct TileRegisters {
    /// How many there are.
    pub count: u32,
    /// By instruction.
    pub after: Vec<After>,
}

/// What an agent's turn needs to know of an instruction.
#[derive(Debug)]
pub(crate) struct After {
    /// See [`Insn::share_of_turn`].
    pub share: u32,
    /// Tile registers without a read after it.
    pub dead: SmallVec<[TileReg; 2]>,
}

/// Renumbers the tile registers of `code`, in which every tile has one of its own. `loops` are the loops as ranges of code.
pub(crate) fn allocate(code: &mut [Insn], loops: &[(Pc, Pc)], tiles: u32) -> TileRegisters {
    let mut first = vec![Pc::MAX; tiles as usize];
    let mut last = vec![0; tiles as usize];
    for (at, insn) in code.iter_mut().enumerate() {
        let at = at as Pc;
        insn.tiles(&mut |t| {
            let t = *t as usize;
            first[t] = first[t].min(at);
            last[t] = last[t].max(at);
            // What is alive before a loop and used in it is needed in the next round again.
            for &(head, exit) in loops {
                if (head..exit).contains(&at) && first[t] < head {
                    last[t] = last[t].max(exit - 1);
                }
            }
        });
    }
    let mut ends: Vec<Vec<usize>> = vec![vec![]; code.len()];
    for t in 0..tiles as usize {
        if first[t] != Pc::MAX {
            ends[last[t] as usize].push(t);
        }
    }
    let mut place: Vec<Option<TileReg>> = vec![None; tiles as usize];
    let (mut free, mut used, mut after) = (vec![], 0, vec![]);
    for (at, insn) in code.iter_mut().enumerate() {
        insn.tiles(&mut |t| {
            let slot = place[*t as usize].get_or_insert_with(|| {
                free.pop().unwrap_or_else(|| {
                    used += 1;
                    used - 1
                })
            });
            *t = *slot;
        });
        let dead: SmallVec<[TileReg; 2]> = ends[at].iter().filter_map(|&t| place[t]).collect();
        free.extend(dead.iter().copied());
        after.push(After { share: insn.share_of_turn(), dead });
    }
    TileRegisters { count: used, after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Dtype;
    use crate::sim::flatten::insns::TileInsn;

    fn splat(out: TileReg) -> Insn {
        Insn::Tile(TileInsn::Splat { dtype: Dtype::U32, len: 4, out, a: 0 })
    }

    fn read(insns: &mut [Insn]) -> Vec<Vec<TileReg>> {
        let mut all = vec![];
        for i in insns {
            let mut regs = vec![];
            i.tiles(&mut |t| regs.push(*t));
            all.push(regs);
        }
        all
    }

    #[test]
    fn a_dead_tile_gives_its_register_back() {
        let mut code =
            [splat(0), Insn::CopyTile { out: 1, a: 0 }, Insn::CopyTile { out: 2, a: 1 }, Insn::End];
        let registers = allocate(&mut code, &[], 3);
        assert_eq!(registers.count, 2);
        let regs = read(&mut code);
        assert_eq!(regs[0][0], regs[1][0], "read where it was written");
        assert_ne!(regs[1][0], regs[1][1], "an operand is not overwritten while it is read");
        assert_eq!(regs[1][1], regs[2][0]);
        let dead: Vec<&[TileReg]> = registers.after.iter().map(|a| &a.dead[..]).collect();
        assert_eq!(dead, [&[][..], &[regs[0][0]], &[regs[2][0], regs[2][1]], &[]]);
    }

    #[test]
    fn a_tile_used_in_a_loop_lives_through_it() {
        // 0: t0 = ..; loop 1..4 { 1: t1 = t0; 2: t2 = t1; 3: t3 = t2 }
        let mut code = [
            splat(0),
            Insn::CopyTile { out: 1, a: 0 },
            Insn::CopyTile { out: 2, a: 1 },
            Insn::CopyTile { out: 3, a: 2 },
            Insn::End,
        ];
        allocate(&mut code, &[(1, 4)], 4);
        let regs = read(&mut code);
        let outer = regs[0][0];
        assert!(regs[1][1] != outer && regs[2][1] != outer && regs[3][1] != outer, "{regs:?}");
    }
}
