//! What a rank sends, on its GPU. Values are random, of one size and finite: how long kernels take does not depend on
//! them, but links and memory that move zeros may be faster than they are.

use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::families::moe::Tokens;
use crate::families::moe::kernels::Layout;
use crate::families::moe::run::io::{Io, combined_row_bytes};
use crate::families::moe::{MoeProblem, MoeShape, RowDtype};
use crate::runtime::gpu::DevicePtr;
use crate::runtime::handles::Buffer;
use crate::runtime::{Member, RuntimeError, World};

/// Bytes that are drawn; longer buffers repeat them.
const PATTERN: usize = 1 << 20;

/// Everything that dispatch and combine read or write of the caller's.
#[derive(Debug)]
pub(crate) struct Inputs {
    io: Io,
    y: Buffer,
}

impl Inputs {
    /// Of the first round of a problem, for every rank of this process.
    pub fn all(
        problem: &MoeProblem,
        layout: Layout,
        world: &World,
    ) -> Result<Arc<Vec<Inputs>>, RuntimeError> {
        let inputs = world.members().iter().map(|member| Inputs::new(problem, layout, member));
        world.agree(inputs.collect::<Result<Vec<_>, _>>()).map(Arc::new)
    }

    fn new(problem: &MoeProblem, layout: Layout, member: &Member) -> Result<Inputs, RuntimeError> {
        let (shape, routing, at) = (problem.shape, problem.routing(0), member.rank as usize);
        let rows = match layout {
            // As many rows come as entries name this rank's experts.
            Layout::Experts => super::wire::rows(&shape, routing, false).iter().map(|to| to[at]).sum(),
            Layout::Tokens => layout.places(shape.ranks * shape.tokens, shape.topk),
        };
        let io = Io::new(&member.gpu, &shape)?;
        let y = Buffer::new(&member.gpu, rows * combined_row_bytes(&shape))?;
        let n = routing.tokens_per_rank(shape.topk)[at];
        io.n.write(0, &[n])?;
        io.ids.write(0, &routing.ids[at])?;
        io.weights.write(0, &routing.weights[at])?;
        io.x_scale.write(0, &vec![1.0f32; (n * shape.scales()) as usize])?;
        let mut rng = ChaCha8Rng::seed_from_u64(problem.seed);
        rng.set_stream(u64::from(member.rank));
        fill(&io.x, &pattern(shape.dtype, &mut rng))?;
        fill(&y, &pattern(combined(&shape), &mut rng))?;
        Ok(Inputs { io, y })
    }

    /// For dispatch.
    pub fn tokens(&self) -> Tokens {
        self.io.tokens()
    }

    /// The experts' outputs.
    pub fn y(&self) -> DevicePtr {
        self.y.ptr()
    }

    /// Where combine puts its sums.
    pub fn out(&self) -> DevicePtr {
        self.io.out.ptr()
    }
}

fn combined(shape: &MoeShape) -> RowDtype {
    match shape.dtype {
        RowDtype::Fp16 => RowDtype::Fp16,
        RowDtype::Bf16 | RowDtype::Fp8 => RowDtype::Bf16,
    }
}

/// Elements from 0.5 to 1 and from -1 to -0.5, as bytes.
fn pattern(dtype: RowDtype, rng: &mut ChaCha8Rng) -> Vec<u8> {
    // The bits that are drawn, sign and mantissa, and those of the exponent that belongs to 0.5.
    let (drawn, half) = match dtype {
        RowDtype::Bf16 => ([0x7f, 0x80], [0x00, 0x3f]),
        RowDtype::Fp16 => ([0xff, 0x83], [0x00, 0x38]),
        RowDtype::Fp8 => ([0x87, 0x87], [0x30, 0x30]),
    };
    let mut bytes = vec![0; PATTERN];
    rng.fill_bytes(&mut bytes);
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = *byte & drawn[i % 2] | half[i % 2];
    }
    bytes
}

fn fill(buffer: &Buffer, pattern: &[u8]) -> Result<(), RuntimeError> {
    let mut at = 0;
    while at < buffer.bytes() {
        let part = (buffer.bytes() - at).min(pattern.len() as u64);
        buffer.write(at, &pattern[..part as usize])?;
        at += part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::elements::decode;

    #[test]
    fn values_are_of_one_size_and_have_both_signs() {
        for dtype in [RowDtype::Bf16, RowDtype::Fp16, RowDtype::Fp8] {
            let values = decode(dtype.dispatched(), &pattern(dtype, &mut ChaCha8Rng::seed_from_u64(1)));
            assert!(values.iter().all(|v| (0.5..1.0).contains(&v.abs())), "{dtype}");
            assert!(values.iter().any(|v| *v > 0.0) && values.iter().any(|v| *v < 0.0), "{dtype}");
        }
    }
}
