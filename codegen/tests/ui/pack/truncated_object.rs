fn main() {
    let _ = peerwarp_macros::include_pack!("packs/truncated_object");
}
