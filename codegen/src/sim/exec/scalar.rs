//! Instructions on scalars: most of what agents execute. They touch nothing but registers and the position, so they run in a loop of
//! their own, in which nothing else has to be asked, and stand in a list of their own, in few words.

use super::exact;
use crate::ir::{BinaryOp, CompareOp, Dtype, UnaryOp};
use crate::sim::flatten::{Insn, Pc};
use crate::sim::values::{
    arith::{Trap, scalar_binary, scalar_compare, scalar_unary},
    convert::cast_scalar,
};

/// An instruction as this loop reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar {
    does: Does,
    /// Where the result goes, or a jump.
    out: u32,
    /// Registers.
    of: [u32; 3],
}

#[derive(Clone, Copy, Debug)]
enum Does {
    /// What this loop does not do.
    Other,
    Copy,
    // All 64 bits of them: what is exact of 32 (see `exact`), too.
    Add,
    Sub,
    Mul,
    Product,
    Binary(BinaryOp, Dtype),
    Unary(UnaryOp, Dtype),
    Compare(CompareOp, Dtype),
    Select,
    /// Of a `U32`, to 64 bits.
    Widen,
    /// Of an `I32`, to `U32`.
    Signed,
    Cast(Dtype, Dtype),
    Fma,
    Jump,
    Unless,
    LoopHead(Dtype),
}

impl Scalar {
    /// What stands at a position. No tile ends its life at any of those that the loop does.
    pub fn of(insn: &Insn, pc: Pc) -> Scalar {
        let new = |does, out, of| Scalar { does, out, of };
        match *insn {
            Insn::Copy { out, a } => new(Does::Copy, out, [a, 0, 0]),
            Insn::Binary { op, dtype, out, a, b } => {
                let does = match (op, dtype) {
                    (BinaryOp::Add, Dtype::U32 | Dtype::U64) => Does::Add,
                    (BinaryOp::Sub, Dtype::U32 | Dtype::U64) => Does::Sub,
                    (BinaryOp::Mul, Dtype::U32) => Does::Product,
                    (BinaryOp::Mul, Dtype::U64) => Does::Mul,
                    _ => Does::Binary(op, dtype),
                };
                new(does, out, [a, b, 0])
            }
            Insn::Unary { op, dtype, out, a } => new(Does::Unary(op, dtype), out, [a, 0, 0]),
            Insn::Compare { op, dtype, out, a, b } => new(Does::Compare(op, dtype), out, [a, b, 0]),
            Insn::Select { out, cond, a, b } => new(Does::Select, out, [cond, a, b]),
            Insn::Cast { from: Dtype::I32, to: Dtype::U32, out, a } => new(Does::Signed, out, [a, 0, 0]),
            Insn::Cast { from: Dtype::U32, to: Dtype::U64, out, a } => new(Does::Widen, out, [a, 0, 0]),
            Insn::Cast { from, to, out, a } => new(Does::Cast(from, to), out, [a, 0, 0]),
            Insn::Fma { out, a, b, c } => new(Does::Fma, out, [a, b, c]),
            Insn::Jump { to } if to > pc => new(Does::Jump, to, [0; 3]),
            Insn::Unless { cond, to } => new(Does::Unless, to, [cond, 0, 0]),
            Insn::LoopHead { dtype, var, end, to } => new(Does::LoopHead(dtype), to, [var, end, 0]),
            // Only jumps back can make a run endless.
            any!(launched, ends)
            | Insn::Jump { .. }
            | Insn::LoopNext { .. }
            | Insn::CopyTile { .. }
            | Insn::Tile(_)
            | Insn::Memory(_)
            | Insn::Matrix(_)
            | Insn::Comm(_) => new(Does::Other, 0, [0; 3]),
        }
    }
}

/// The place that a run of instructions on scalars is at.
pub(crate) struct Ran {
    /// The instruction that has not been executed: it is none of these, jumps back, or traps.
    pub pc: Pc,
    /// How many were executed.
    pub steps: u64,
    pub trap: Option<Trap>,
}

/// Runs instructions on scalars, and jumps forward, as long as there are such.
#[inline(always)]
pub(crate) fn run(code: &[Scalar], scalars: &mut [u64], mut pc: Pc) -> Ran {
    let mut steps = 0;
    loop {
        let Scalar { does, out, of: [a, b, c] } = &code[pc as usize];
        let get = |r: &u32| scalars[*r as usize];
        let bits = match *does {
            Does::Other => return Ran { pc, steps, trap: None },
            Does::Copy => get(a),
            Does::Add => get(a).wrapping_add(get(b)),
            Does::Sub => get(a).wrapping_sub(get(b)),
            Does::Mul => get(a).wrapping_mul(get(b)),
            Does::Product => exact::product(get(a), get(b)),
            Does::Binary(op, dtype) => {
                let is_narrow = dtype == Dtype::U32;
                let exact = if is_narrow { exact::exact(op, get(a), get(b)) } else { None };
                if is_narrow && let Err(trap) = exact::ordered_by(op, get(a), get(b)) {
                    return Ran { pc, steps, trap: Some(trap) };
                }
                match exact.map_or_else(|| scalar_binary(op, dtype, get(a), get(b)), Ok) {
                    Ok(bits) => bits,
                    Err(trap) => return Ran { pc, steps, trap: Some(trap) },
                }
            }
            Does::Unary(op, dtype) => scalar_unary(op, dtype, get(a)),
            Does::Compare(op, dtype) => {
                if dtype == Dtype::U32
                    && let Err(trap) = exact::ordered(get(a), get(b))
                {
                    return Ran { pc, steps, trap: Some(trap) };
                }
                scalar_compare(op, dtype, get(a), get(b))
            }
            Does::Select => get(if get(a) != 0 { b } else { c }),
            Does::Widen => {
                if let Err(trap) = exact::converted(get(a)) {
                    return Ran { pc, steps, trap: Some(trap) };
                }
                get(a) as u32 as u64
            }
            Does::Signed => exact::signed(get(a)),
            Does::Cast(from, to) => {
                if from == Dtype::U32
                    && let Err(trap) = exact::converted(get(a))
                {
                    return Ran { pc, steps, trap: Some(trap) };
                }
                let bits = if from == Dtype::U32 { get(a) as u32 as u64 } else { get(a) };
                cast_scalar(from, to, bits)
            }
            Does::Fma => {
                let [a, b, c] = [a, b, c].map(|r| f32::from_bits(get(r) as u32));
                u64::from(a.mul_add(b, c).to_bits())
            }
            Does::Jump => {
                (pc, steps) = (*out, steps + 1);
                continue;
            }
            Does::Unless => {
                (pc, steps) = (if get(a) == 0 { *out } else { pc + 1 }, steps + 1);
                continue;
            }
            Does::LoopHead(dtype) => {
                if dtype == Dtype::U32
                    && let Err(trap) = exact::ordered(get(a), get(b))
                {
                    return Ran { pc, steps, trap: Some(trap) };
                }
                (pc, steps) = (if less(dtype, get(a), get(b)) { pc + 1 } else { *out }, steps + 1);
                continue;
            }
        };
        scalars[*out as usize] = bits;
        (pc, steps) = (pc + 1, steps + 1);
    }
}

/// Executes one instruction that computes a scalar; none where that traps.
pub(crate) fn one(insn: &Scalar, scalars: &mut [u64]) -> Option<()> {
    let code = [*insn, Scalar { does: Does::Other, out: 0, of: [0; 3] }];
    run(&code, scalars, 0).trap.is_none().then_some(())
}

fn less(dtype: Dtype, a: u64, b: u64) -> bool {
    match dtype {
        Dtype::I32 => (a as u32 as i32) < (b as u32 as i32),
        Dtype::U64 => a < b,
        Dtype::Bool | Dtype::U32 | Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => {
            (a as u32) < b as u32
        }
    }
}
