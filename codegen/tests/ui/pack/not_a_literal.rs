const DIR: &str = "packs";

fn main() {
    let _ = peerwarp_macros::include_pack!(DIR);
}
