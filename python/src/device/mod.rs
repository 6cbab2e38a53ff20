//! Operations on this process's GPU, on tensors and addresses that Python passes. All that is unsafe of this package is here: an
//! address is a number, and what is there is the word of who tells it.

mod collectives;
mod exchange;
mod moe;
mod operation;

use peerwarp::runtime::gpu::RawStream;

use crate::error::Failure;

pub use collectives::DeviceCollectives;
pub use exchange::Exchange;
pub use moe::DeviceMoe;
pub use operation::DeviceOperation;

/// A stream of any library.
fn stream_of(handle: u64) -> RawStream<'static> {
    // SAFETY: it is the current stream of this GPU, which PyTorch never destroys.
    unsafe { RawStream::from_raw(handle) }
}

/// Whether an address is one that kernels can load from 16 bytes at once.
fn aligned(field: &str, address: u64) -> Result<u64, Failure> {
    match address != 0 && address.is_multiple_of(16) {
        true => Ok(address),
        false => {
            let allowed = "one that 16 divides: a tensor's own memory, not a part that begins in between";
            Err(Failure::invalid(&format!("address of {field}"), format!("{address:#x}"), allowed))
        }
    }
}
