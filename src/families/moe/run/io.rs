//! What a rank's caller owns on its GPU.

use std::sync::Arc;

use crate::families::moe::MoeShape;
use crate::families::moe::Tokens;
use crate::runtime::RuntimeError;
use crate::runtime::gpu::Gpu;
use crate::runtime::handles::Buffer;

/// What dispatch reads and combine yields, for as many tokens as the shape allows.
#[derive(Debug)]
pub(crate) struct Io {
    pub x: Buffer,
    pub x_scale: Buffer,
    pub n: Buffer,
    pub ids: Buffer,
    pub weights: Buffer,
    pub out: Buffer,
}

impl Io {
    /// With any contents.
    pub fn new(gpu: &Arc<dyn Gpu>, shape: &MoeShape) -> Result<Io, RuntimeError> {
        let (tokens, topk) = (u64::from(shape.tokens), u64::from(shape.topk));
        let buffer = |bytes: u64| Buffer::new(gpu, bytes);
        Ok(Io {
            x: buffer(tokens * u64::from(shape.row_bytes()))?,
            x_scale: buffer(tokens * u64::from(shape.scales()) * 4)?,
            n: buffer(4)?,
            ids: buffer(tokens * topk * 4)?,
            weights: buffer(tokens * topk * 4)?,
            out: buffer(tokens * combined_row_bytes(shape))?,
        })
    }

    /// For dispatch.
    pub fn tokens(&self) -> Tokens {
        let [x, x_scale, n, ids, weights] =
            [&self.x, &self.x_scale, &self.n, &self.ids, &self.weights].map(Buffer::ptr);
        Tokens { x, x_scale, n, ids, weights }
    }
}

/// Bytes of a row that experts put out.
pub(crate) fn combined_row_bytes(shape: &MoeShape) -> u64 {
    u64::from(shape.hidden) * u64::from(shape.dtype.combined().bytes())
}
