//! Variants that fit a device.

use peerwarp_codegen::family::{Target, Variant};
use peerwarp_codegen::print::{self, Excess};

use crate::build::emit;
use crate::harness::request::Request;

/// The variant that requests get on a target: the chosen one if a block of it fits the target's device, and else one with smaller numbers
/// in fields that shrink and that the request says nothing of. Where none fits it is the chosen one, of which the printer says what it
/// lacks.
///
/// A later field shrinks before an earlier one, and only if less is missing then.
pub fn fit(request: &Request, chosen: Variant, target: Target) -> Variant {
    let fields = free(request, &chosen);
    if fields.is_empty() {
        return chosen;
    }
    let excess = |variant: &Variant| {
        let kernel = emit::trace(&**variant, target.warp_size()).ok()?;
        print::excess(&kernel, target).ok()
    };
    let (mut found, Some(mut missing)) = (chosen.clone(), excess(&chosen)) else { return chosen };
    while missing != Excess::default() {
        let step = |field: &usize| {
            let smaller = chosen.family().smaller(&*found, *field).into_iter();
            smaller
                .map(|variant| (excess(&variant), variant))
                .find(|(less, _)| less.is_some_and(|less| less < missing))
        };
        match fields.iter().rev().find_map(step) {
            Some((Some(less), variant)) => (found, missing) = (variant, less),
            _ => return chosen,
        }
    }
    found
}

/// The fields that shrink and that a request says nothing of.
fn free(request: &Request, variant: &Variant) -> Vec<usize> {
    let fields = variant.family().fields().iter().enumerate();
    fields.filter(|(_, f)| f.shrinks && !request.sets(variant.family(), f)).map(|(at, _)| at).collect()
}
