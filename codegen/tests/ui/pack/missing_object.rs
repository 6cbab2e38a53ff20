fn main() {
    let _ = peerwarp_macros::include_pack!("packs/missing_object");
}
