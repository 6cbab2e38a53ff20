//! What tells kernels that were measured from those that came after.

use peerwarp_codegen::family::{Target, Variant};
use peerwarp_codegen::print::code;

use crate::build::digest::sha256;
use crate::build::emit::{self, EmitError};

/// A digest of the emitted code of variants, comments left out.
pub fn digest(variants: &[Variant], target: Target) -> Result<String, EmitError> {
    let code = |variant: &Variant| Ok(code(&emit::source("peerwarp", &**variant, target)?.text));
    let all = variants.iter().map(code).collect::<Result<String, EmitError>>()?;
    Ok(sha256(all.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::example::{KEY, TARGET, pair, small};
    use peerwarp_codegen::ir::Kernel;

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
    fn lines_and_comments_of_the_author_make_no_difference() {
        let variant = &pair(KEY).variants()[0].clone();
        let kernel = emit::trace(&**variant, 32).unwrap().into_kernel();
        let mut moved = kernel.clone();
        moved.ops.iter_mut().for_each(|op| op.loc.line += 1000);
        let text = |kernel: &Kernel| {
            emit::printed("peerwarp", &emit::verified(kernel.clone()).unwrap(), TARGET).unwrap().text
        };
        assert_ne!(text(&kernel), text(&moved));
        let code = code(&text(&kernel));
        assert_eq!(code, super::code(&text(&moved)));
        assert!(code.contains("__global__") && !code.contains("//") && !code.contains(".rs:"), "{code}");
    }
}
