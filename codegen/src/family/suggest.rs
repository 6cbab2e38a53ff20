//! Near misses of names.

/// The candidate closest to what was given, if it is close enough to be a likely slip.
pub(crate) fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let length = given.chars().count();
    let limit = (length / 3).max(1);
    candidates
        .into_iter()
        // No fewer edits than the lengths differ by: what is far longer than all names is not compared with any.
        .filter(|c| length.abs_diff(c.chars().count()) <= limit)
        .map(|c| (strsim::damerau_levenshtein(&given, c), c))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, c)| c)
}

/// ` (did you mean ..?)`, or nothing.
pub(crate) fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |n| format!(" (did you mean `{n}`?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_likely_slips_are_suggested() {
        let names = ["hidden", "experts", "topk"];
        assert_eq!(nearest("hiden", names), Some("hidden"));
        assert_eq!(nearest("TOPK", names), Some("topk"));
        assert_eq!(nearest("banana", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"h".repeat(1 << 24), names), None);
    }
}
