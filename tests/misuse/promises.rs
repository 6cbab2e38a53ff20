//! What a launch relies on is implemented by who promises it, with `unsafe`.

use peerwarp::codegen::family::{DynKernel, Target};
use peerwarp::runtime::RuntimeError;
use peerwarp::runtime::gpu::DevicePtr;
use peerwarp::runtime::image::{Images, KernelImage};
use peerwarp::runtime::op::{Call, Element, Held, LaunchArgs, Readable, StreamRef, TensorInfo, Writable};

struct Liar;

impl Images for Liar {
    fn image(&self, _: &dyn DynKernel, _: Target) -> Result<KernelImage, RuntimeError> {
        todo!()
    }
}

impl LaunchArgs for Liar {
    type Args = ();
    type Held<'h> = ();
    fn pass<'h>(&'h mut self, _: &mut Call<'_, 'h>) -> Result<(), RuntimeError> {
        Ok(())
    }
}

impl Readable for Liar {
    fn info(&self) -> TensorInfo {
        todo!()
    }
    fn read<'a>(&'a self, _: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
        todo!()
    }
}

impl Writable for Liar {
    fn write<'a>(&'a mut self, _: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
        todo!()
    }
}

impl Element for Liar {
    const DTYPES: &'static [peerwarp::codegen::ir::Dtype] = &[];
}

fn main() {}
