//! Tile operations that are not plain elementwise arithmetic, and dispatch by element type.

use smallvec::SmallVec;

use super::arith::{Num, Trap, compare, map, with_num};
use super::value::Tile;
use crate::ir::{
    BinaryOp, CompareOp, Const, Dtype, NoResult, OneOperand, ReduceOp, TwoOperands, UnaryOp, truths,
};
use crate::sim::exec::exact;

pub(crate) fn binary(op: BinaryOp, dtype: Dtype, a: &Tile, b: &Tile, out: &mut Tile) -> Result<(), Trap> {
    if dtype == Dtype::Bool {
        truths(op, a.view(), b.view(), out.fresh(a.bytes()));
        return Ok(());
    }
    if dtype == Dtype::U32 {
        exact::ordered_tiles_by(op, a, b)?;
    }
    with_num!(dtype, T => {
        let (a, b) = (a.view::<T>(), b.view::<T>());
        match a.len() {
            0..LONG => T::binary(op, a, b, out.fresh(a.len())),
            LONG.. => long_binary(op, a, b, out.fresh(a.len())),
        }
    })?;
    if dtype == Dtype::U32 {
        exact::note_binary(op, a, b, out);
    }
    Ok(())
}

/// Elements from which on it is worth asking for vectors of 32 bytes.
const LONG: usize = 64;

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn long_binary<T: Num>(op: BinaryOp, a: &[T], b: &[T], out: &mut [T]) -> Result<(), NoResult> {
    T::binary(op, a, b, out)
}

pub(crate) fn unary(op: UnaryOp, dtype: Dtype, a: &Tile, out: &mut Tile) {
    if dtype == Dtype::Bool {
        map(a.view::<u8>(), out.fresh(a.bytes()), |v| v ^ 1);
        return;
    }
    with_num!(dtype, T => {
        let a = a.view::<T>();
        match op.counts() {
            true => T::count(op, a, out.fresh(a.len())),
            false => T::unary(op, a, out.fresh(a.len())),
        }
    })
}

pub(crate) fn compare_tiles(op: CompareOp, dtype: Dtype, a: &Tile, b: &Tile, out: &mut Tile) {
    if dtype == Dtype::Bool {
        return compare(op, a.view::<u8>(), b.view::<u8>(), out.fresh(a.bytes()));
    }
    with_num!(dtype, T => match b.element::<T>() {
        // What is full of one element need not be there for that.
        Some(b) => compare_with(op, a.view::<T>(), b, out),
        None => compare(op, a.view::<T>(), b.view::<T>(), out.fresh(a.bytes() / size_of::<T>())),
    })
}

fn compare_with<T: Num>(op: CompareOp, a: &[T], b: T, out: &mut Tile) {
    let out = out.fresh::<u8>(a.len());
    match op {
        CompareOp::Eq => map(a, out, |v| u8::from(v == b)),
        CompareOp::Ne => map(a, out, |v| u8::from(v != b)),
        CompareOp::Lt => map(a, out, |v| u8::from(v < b)),
        CompareOp::Le => map(a, out, |v| u8::from(v <= b)),
        CompareOp::Gt => map(a, out, |v| u8::from(v > b)),
        CompareOp::Ge => map(a, out, |v| u8::from(v >= b)),
    }
}

pub(crate) fn select(dtype: Dtype, cond: &Tile, a: &Tile, b: &Tile, out: &mut Tile) {
    fn pick<T: bytemuck::Pod>(cond: &Tile, a: &Tile, b: &Tile, out: &mut Tile) {
        let (cond, a, b) = (cond.view::<u8>(), a.view::<T>(), b.view::<T>());
        let out = out.fresh::<T>(a.len());
        for (((o, &c), &a), &b) in out.iter_mut().zip(cond).zip(a).zip(b) {
            *o = if c != 0 { a } else { b };
        }
    }
    match dtype.bytes() {
        1 => pick::<u8>(cond, a, b, out),
        2 => pick::<u16>(cond, a, b, out),
        4 => pick::<u32>(cond, a, b, out),
        _ => pick::<u64>(cond, a, b, out),
    }
    exact::note_select(cond, a, b, out);
}

/// `a * b + c` with one rounding each.
pub(crate) fn fma(a: &Tile, b: &Tile, c: &Tile, out: &mut Tile) {
    let (a, b, c) = (a.view::<f32>(), b.view::<f32>(), c.view::<f32>());
    let out = out.fresh::<f32>(a.len());
    fused(a, b, c, out);
}

/// Without the machine instruction `mul_add` is a library call of some 20 ns.
#[multiversion::multiversion(targets("x86_64+avx2+fma"))]
fn fused(a: &[f32], b: &[f32], c: &[f32], out: &mut [f32]) {
    for (((o, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
        *o = a.mul_add(b, c);
    }
}

pub(crate) fn splat(dtype: Dtype, bits: u64, len: usize, out: &mut Tile) {
    out.fill(len, dtype.bytes() as usize, bits);
    if dtype == Dtype::U32 {
        exact::note_splat(bits, len, out);
    }
}

pub(crate) fn arange(len: usize, out: &mut Tile) {
    for (i, o) in out.fresh::<u32>(len).iter_mut().enumerate() {
        *o = i as u32;
    }
}

/// Lanes that the fixed reduction tree has: partial `l` sums elements `l`, `l + TREE`, ..., then halves meet.
const TREE: usize = 32;

/// Reduces a tile to a scalar.
pub(crate) fn reduce(op: ReduceOp, dtype: Dtype, a: &Tile) -> u64 {
    use super::arith::Bits;
    if dtype == Dtype::Bool {
        let a = a.view::<u8>();
        return u64::from(match op {
            ReduceOp::And | ReduceOp::Min => a.iter().all(|&v| v != 0),
            ReduceOp::Or | ReduceOp::Max | ReduceOp::Sum => a.iter().any(|&v| v != 0),
        });
    }
    with_num!(dtype, T => {
        let a = a.view::<T>();
        let f = combine::<T>(op);
        let mut lanes: SmallVec<[T; TREE]> = a[..a.len().min(TREE)].into();
        for chunk in a[lanes.len()..].chunks(TREE) {
            for (lane, &v) in lanes.iter_mut().zip(chunk) {
                *lane = f(*lane, v);
            }
        }
        while lanes.len() > 1 {
            let half = lanes.len().div_ceil(2);
            for i in half..lanes.len() {
                lanes[i - half] = f(lanes[i - half], lanes[i]);
            }
            lanes.truncate(half);
        }
        lanes.first().map_or(0, |v| v.to_bits64())
    })
}

/// Prefix reduction; an exclusive one starts with the operation's neutral element.
pub(crate) fn scan(op: ReduceOp, dtype: Dtype, exclusive: bool, a: &Tile, out: &mut Tile) {
    use super::arith::Bits;
    if dtype == Dtype::Bool {
        let (a, out) = (a.view::<u8>(), out.fresh::<u8>(a.bytes()));
        let and = matches!(op, ReduceOp::And | ReduceOp::Min);
        return prefix(a, out, exclusive, u8::from(and), |x, y| if and { x & y } else { x | y });
    }
    with_num!(dtype, T => {
        let a = a.view::<T>();
        let neutral = T::from_bits64(neutral_element(op, dtype));
        prefix(a, out.fresh(a.len()), exclusive, neutral, combine::<T>(op));
    })
}

fn prefix<T: Copy>(a: &[T], out: &mut [T], exclusive: bool, neutral: T, f: impl Fn(T, T) -> T) {
    let mut sum = neutral;
    for (o, &v) in out.iter_mut().zip(a) {
        let next = f(sum, v);
        *o = if exclusive { sum } else { next };
        sum = next;
    }
}

/// The binary operation that a reduction folds with.
pub(crate) const fn fold_op(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::And => BinaryOp::And,
        ReduceOp::Or => BinaryOp::Or,
    }
}

pub(crate) fn combine<T: Num>(op: ReduceOp) -> impl Fn(T, T) -> T {
    let op = fold_op(op);
    move |a, b| {
        let mut out = [a];
        // None of the fold operations can trap.
        let _ = T::binary(op, &[a], &[b], &mut out);
        out[0]
    }
}

fn neutral_element(op: ReduceOp, dtype: Dtype) -> u64 {
    let (min, max) = match dtype {
        Dtype::I32 => (u64::from(i32::MIN as u32), i32::MAX as u64),
        Dtype::U64 => (0, u64::MAX),
        Dtype::F32 => (u64::from(f32::NEG_INFINITY.to_bits()), u64::from(f32::INFINITY.to_bits())),
        Dtype::Bool | Dtype::U32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => (0, u64::from(u32::MAX)),
    };
    match op {
        ReduceOp::Sum | ReduceOp::Or => 0,
        ReduceOp::Min => max,
        ReduceOp::Max => min,
        ReduceOp::And => u64::MAX,
    }
}

/// A comptime constant as scalar bits.
pub(crate) const fn const_bits(value: Const) -> u64 {
    match value {
        Const::Bool(v) => v as u64,
        Const::I32(v) => v as u32 as u64,
        Const::U32(v) | Const::F32(v) => v as u64,
        Const::U64(v) => v,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile<T: bytemuck::Pod>(v: &[T]) -> Tile {
        let mut t = Tile::default();
        t.fresh::<T>(v.len()).copy_from_slice(v);
        t
    }

    #[test]
    fn reductions() {
        for len in [1usize, 2, 31, 32, 33, 64, 100, 1000] {
            let v: Vec<u32> = (0..len as u32).map(|i| i * 7 % 101 + 1).collect();
            let t = tile(&v);
            assert_eq!(reduce(ReduceOp::Sum, Dtype::U32, &t), u64::from(v.iter().sum::<u32>()), "{len}");
            assert_eq!(reduce(ReduceOp::Max, Dtype::U32, &t), u64::from(*v.iter().max().unwrap()));
            assert_eq!(reduce(ReduceOp::Min, Dtype::U32, &t), u64::from(*v.iter().min().unwrap()));
        }
        assert_eq!(reduce(ReduceOp::Min, Dtype::I32, &tile(&[3i32, -2, 5])) as u32 as i32, -2);
        assert_eq!(reduce(ReduceOp::And, Dtype::Bool, &tile(&[1u8, 0])), 0);
        assert_eq!(reduce(ReduceOp::Or, Dtype::U64, &tile(&[1u64 << 40, 2])), 1 << 40 | 2);
    }

    #[test]
    fn scans() {
        let mut out = Tile::default();
        scan(ReduceOp::Sum, Dtype::U32, true, &tile(&[3u32, 1, 4]), &mut out);
        assert_eq!(out.view::<u32>(), [0, 3, 4]);
        scan(ReduceOp::Sum, Dtype::U32, false, &tile(&[3u32, 1, 4]), &mut out);
        assert_eq!(out.view::<u32>(), [3, 4, 8]);
        scan(ReduceOp::Max, Dtype::I32, true, &tile(&[-5i32, -7, 2]), &mut out);
        assert_eq!(out.view::<i32>(), [i32::MIN, -5, -5]);
        scan(ReduceOp::And, Dtype::Bool, true, &tile(&[1u8, 0, 1]), &mut out);
        assert_eq!(out.view::<u8>(), [1, 1, 0]);
    }

    #[test]
    fn fma_rounds_once() {
        let (a, b) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
        let v: Vec<f32> = (0..19).map(|i| i as f32).collect();
        let (a, b) = (vec![a; v.len()], vec![b; v.len()]);
        let mut out = Tile::default();
        fma(&tile(&a), &tile(&b), &tile(&vec![-1.0f32; v.len()]), &mut out);
        assert!(out.view::<f32>().iter().all(|&v| v == -f32::EPSILON * f32::EPSILON));
    }

    #[test]
    fn select_and_splat_of_every_width() {
        let cond = tile(&[1u8, 0]);
        for dtype in [Dtype::Fp8, Dtype::Fp16, Dtype::F32, Dtype::U64] {
            let (mut a, mut b, mut out) = (Tile::default(), Tile::default(), Tile::default());
            splat(dtype, 1, 2, &mut a);
            splat(dtype, 2, 2, &mut b);
            select(dtype, &cond, &a, &b, &mut out);
            let size = dtype.bytes() as usize;
            let bytes = out.view::<u8>();
            assert_eq!((bytes[0], bytes[size], bytes.len()), (1, 2, 2 * size));
        }
    }
}
