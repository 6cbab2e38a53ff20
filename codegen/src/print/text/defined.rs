//! What the primitives call their functions.

use std::{collections::HashSet, sync::LazyLock};

use super::Prim;

/// Every function that a template defines at its top level, for names to keep clear of.
pub(crate) static DEFINED: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let templates = Prim::ALL.iter().flat_map(|p| p.templates().each());
    templates.flat_map(|t| t.text.lines()).filter_map(defined).collect()
});

/// The function that a line defines.
fn defined(line: &str) -> Option<&str> {
    let at_top = line.contains("__device__ ") && !line.starts_with("    ");
    let (head, _) = line.split_once('(').filter(|_| at_top)?;
    let head = head.strip_suffix('>').and_then(|h| h.rsplit_once('<')).map_or(head, |(head, _)| head);
    head.rsplit(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_with_and_without_parameters_of_their_own() {
        for name in ["exp_of", "load", "wait_flags", "take_packets", "multiply_add", "fetch_sum"] {
            assert!(DEFINED.contains(name), "{name} is not found");
        }
        assert_eq!(defined("    __device__ void inner(const u32 x) {"), None);
        assert_eq!(defined("template<u32 N> __device__ u32 half<N>(const u32 x) {"), Some("half"));
    }
}
