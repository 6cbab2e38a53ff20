//! What tells kernels that were measured from those that came after.

use peerwarp_codegen::family::{Target, Variant};
use peerwarp_codegen::ir::{Kernel, Loc};

use crate::build::digest::sha256;
use crate::build::emit::{self, EmitError};

/// A digest of the emitted source of variants: of what is compiled, and not of where in our files it stands or of what
/// comments say.
pub fn digest(variants: &[Variant], target: Target) -> Result<String, EmitError> {
    let mut all = String::new();
    for variant in variants {
        all += &code(emit::trace(&**variant, target.warp_size())?.into_kernel(), target)?;
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
    use super::super::example::{KEY, TARGET, pair, small};
    use super::*;

    #[test]
    fn depends_on_the_kernels_and_on_nothing_else() {
        let of = |candidate: &super::super::Candidate| digest(candidate.variants(), TARGET).unwrap();
        let default = pair(KEY);
        assert_eq!(of(&default), of(&default.clone()));
        assert_ne!(of(&default), of(&small(&default)));
        assert_ne!(of(&default), digest(default.variants(), "hip:gfx942".parse().unwrap()).unwrap());
    }

    #[test]
    fn has_code_and_neither_comments_nor_lines() {
        let variant = &pair(KEY).variants()[0].clone();
        let kernel = emit::trace(&**variant, 32).unwrap().into_kernel();
        let mut moved = kernel.clone();
        moved.ops.iter_mut().for_each(|op| op.loc.line += 1000);
        let text = |kernel: &Kernel| {
            emit::printed("peerwarp", &emit::verified(kernel.clone()).unwrap(), TARGET).unwrap().text
        };
        assert_ne!(text(&kernel), text(&moved));
        let code = |kernel| code(kernel, TARGET).unwrap();
        assert_eq!(code(kernel.clone()), code(moved));
        let code = code(kernel);
        assert!(code.contains("__global__") && !code.contains("//") && !code.contains(".rs:"), "{code}");
    }
}
