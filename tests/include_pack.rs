//! A program with a pack inside, as a user writes it.

use peerwarp::build::pack::{Embedded, Pack};
use peerwarp::include_pack;

static PACK: Embedded = include_pack!("tests/data/pack");

#[test]
fn is_the_pack_of_the_folder() {
    let embedded = PACK.open().unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pack");
    let opened = Pack::open(&folder).unwrap();
    assert_eq!(embedded.manifest(), opened.manifest());
    let target = "cuda:sm_90a".parse().unwrap();
    let [inside, outside] = [&embedded, &opened].map(|pack| pack.find("scale_n8", target).unwrap());
    assert_eq!(inside.object, b"stands for a cubin\n");
    assert_eq!((inside.object, inside.entry), (outside.object, outside.entry));
}

#[test]
fn can_be_the_value_of_an_expression() {
    let pack = include_pack!("tests/data/pack").open().unwrap();
    assert_eq!(pack.kernels().map(|k| k.entry.family.as_str()).collect::<Vec<_>>(), ["scale"]);
}
