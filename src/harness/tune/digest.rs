//! What tells kernels that were measured from those that came after.

use peerwarp_codegen::family::{Family, Target};
use peerwarp_codegen::ir::{Kernel, Loc};

use crate::build::digest::sha256;
use crate::build::emit::{self, EmitError};
use crate::families::moe::run::MoeTuning;

/// A digest of the emitted source of a pair: of what is compiled, and not of where in our files it stands or of what
/// comments say.
pub fn digest(tuning: &MoeTuning, target: Target) -> Result<String, EmitError> {
    let dispatch = tuning.dispatch_launches().into_iter().map(Family::into_variant);
    let combine = tuning.combine_launches().into_iter().map(Family::into_variant);
    let mut all = String::new();
    for variant in dispatch.chain(combine) {
        all += &code(emit::trace(&*variant, target.warp_size())?.into_kernel(), target)?;
    }
    Ok(sha256(all.as_bytes()))
}

/// The source of a kernel without comments, and with the same line number everywhere.
fn code(mut kernel: Kernel, target: Target) -> Result<String, EmitError> {
    forget_lines(&mut kernel);
    let source = emit::printed("peerwarp", &emit::verified(kernel)?, target)?.text;
    let code = |line: &str| line.split("//").next().unwrap_or_default().trim().to_owned();
    Ok(source.lines().map(code).filter(|line| !line.is_empty()).map(|line| line + "\n").collect())
}

/// Line numbers are in the records of expired waits: they change with every line above.
fn forget_lines(kernel: &mut Kernel) {
    let nowhere = Loc { file: "", line: 1, col: 1 };
    kernel.loc = nowhere;
    kernel.ops.iter_mut().for_each(|op| op.loc = nowhere);
    kernel.vars.iter_mut().for_each(|var| var.loc = nowhere);
    kernel.shared.iter_mut().for_each(|shared| shared.loc = nowhere);
    kernel.parcels.iter_mut().for_each(|parcel| parcel.loc = nowhere);
    kernel.receipts.iter_mut().for_each(|receipt| receipt.loc = nowhere);
    kernel.roles.iter_mut().for_each(|role| role.loc = nowhere);
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::family::CudaArch;

    use super::*;
    use crate::families::moe::{MoeShape, RowDtype};

    const SHAPE: MoeShape =
        MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };
    const TARGET: Target = Target::Cuda(CudaArch::Sm90a);

    #[test]
    fn depends_on_the_kernels_and_on_nothing_else() {
        let tuning = MoeTuning::defaults(&SHAPE).unwrap();
        let of = |tuning: &MoeTuning| digest(tuning, TARGET).unwrap();
        assert_eq!(of(&tuning), of(&tuning.clone()));
        assert_ne!(of(&tuning), of(&tuning.clone().small()));
        assert_ne!(of(&tuning), digest(&tuning, "hip:gfx942".parse().unwrap()).unwrap());
    }

    #[test]
    fn has_code_and_neither_comments_nor_lines() {
        let variant = MoeTuning::defaults(&SHAPE).unwrap().dispatch.into_variant();
        let kernel = emit::trace(&*variant, 32).unwrap().into_kernel();
        let mut moved = kernel.clone();
        moved.ops.iter_mut().for_each(|op| op.loc.line += 1000);
        let text = |kernel: &Kernel| {
            let kernel = emit::verified(kernel.clone()).unwrap();
            emit::printed("peerwarp", &kernel, TARGET).unwrap().text
        };
        assert_ne!(text(&kernel), text(&moved));
        let code = |kernel| code(kernel, TARGET).unwrap();
        assert_eq!(code(kernel.clone()), code(moved));
        let code = code(kernel);
        assert!(code.contains("__global__") && !code.contains("//") && !code.contains(".rs:"), "{code}");
    }
}
