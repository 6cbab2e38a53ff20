fn main() {
    let _ = peerwarp_macros::include_pack!("no/such/folder");
}
