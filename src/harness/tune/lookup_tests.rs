use peerwarp_codegen::family::CudaArch;

use super::super::table::tests::record;
use super::*;
use crate::families::moe::kernels::Layout;
use crate::families::moe::{MoeShape, RowDtype};
use crate::harness::tune::Pair;

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 32, ranks: 2, dtype: RowDtype::Bf16 };
const TARGET: Target = Target::Cuda(CudaArch::Sm90a);

const KEY: Key = Key { shape: SHAPE, layout: Layout::Experts };

fn with(tokens: u32) -> Key {
    KEY.with_tokens(tokens)
}

fn tuned(tokens: &[u32]) -> Tuned {
    let mut table = Table::new("NVIDIA H200", TARGET);
    tokens.iter().for_each(|&n| table.insert(record(with(n))));
    Tuned::new(table)
}

#[test]
fn a_shape_gets_its_own_record_or_that_of_nearly_as_many_tokens() {
    let tuned = tuned(&[8, 32, 64]);
    let by = |key: Key| tuned.find(&key).map(|chosen| chosen.by);
    assert_eq!(by(KEY), Some(Choice::Tuned));
    assert_eq!(by(with(48)), Some(Choice::Alike { tokens: 64 }));
    assert_eq!(by(with(40)), Some(Choice::Alike { tokens: 32 }));
    assert_eq!(by(with(128)), Some(Choice::Alike { tokens: 64 }));
    assert_eq!(by(with(16)), Some(Choice::Alike { tokens: 32 }));
    // Too many or too few, or another shape.
    assert_eq!(by(with(129)), None);
    assert_eq!(by(with(3)), None);
    assert_eq!(by(Key::by_expert(MoeShape { topk: 3, ..SHAPE })), None);
    assert_eq!(by(Key::by_expert(MoeShape { dtype: RowDtype::Fp16, ..SHAPE })), None);
    let chosen = tuned.find(&with(48)).unwrap().tuning;
    chosen.check(&with(48).shape).unwrap();
    assert_eq!(chosen.dispatch.warps, MoeTuning::defaults(&SHAPE).unwrap().small().dispatch.warps);
}

#[test]
fn a_layout_never_gets_what_was_tuned_for_the_other() {
    let token = |tokens| Key::by_token(with(tokens).shape);
    let mut table = tuned(&[32]).table;
    table.insert(record(token(8)));
    let tuned = Tuned::new(table);
    let by = |key: Key| tuned.find(&key).map(|chosen| chosen.by);
    // Neither its own shape's, nor that of nearly as many tokens.
    assert_eq!((by(with(32)), by(token(32))), (Some(Choice::Tuned), None));
    assert_eq!((by(with(64)), by(token(64))), (Some(Choice::Alike { tokens: 32 }), None));
    assert_eq!((by(with(8)), by(token(8))), (None, Some(Choice::Tuned)));
    assert_eq!(
        (by(with(16)), by(token(16))),
        (Some(Choice::Alike { tokens: 32 }), Some(Choice::Alike { tokens: 8 }))
    );
    for key in [with(16), token(16), with(64), token(64)] {
        let chosen = Tuned::choose(Some(&tuned), &key).unwrap();
        assert_eq!(Key::of(&chosen.tuning.dispatch), key);
        assert_eq!(chosen.tuning.combine.layout, key.layout);
        chosen.tuning.check(&key.shape).unwrap();
    }
    // Without a record a layout has its own defaults.
    let chosen = Tuned::choose(Some(&tuned), &token(64)).unwrap();
    assert_eq!((chosen.by, chosen.tuning), (Choice::Default, token(64).defaults().unwrap()));
    // Nor does a search begin there.
    assert_eq!((alike(&tuned.table, &with(16)).len(), alike(&tuned.table, &token(16)).len()), (1, 1));
    assert_eq!(alike(&tuned.table, &token(16))[0].dispatch.layout, Layout::Tokens);
}

#[test]
fn what_has_drifted_is_not_taken() {
    let mut table = tuned(&[32]).table;
    table.records[0].kernels = "0123".into();
    let tuned = Tuned::new(table);
    assert_eq!(tuned.find(&KEY), None);
    assert_eq!(tuned.find(&with(40)), None);
    assert!(matches!(tuned.check(), Err(TableError::Drifted { .. })));
    let chosen = Tuned::choose(Some(&tuned), &KEY).unwrap();
    assert_eq!((chosen.by, chosen.tuning), (Choice::Default, MoeTuning::defaults(&SHAPE).unwrap()));
}

#[test]
fn starts_of_a_search_are_the_next_fewer_and_the_next_more_tokens() {
    let table = tuned(&[8, 32, 128]).table;
    let names = |key| {
        let of = |t: &MoeTuning| Pair::of(t);
        alike(&table, &key).iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(names(with(64)).len(), 2);
    assert_eq!(names(with(4)).len(), 1);
    assert_eq!(names(Key::by_expert(MoeShape { topk: 3, ..SHAPE })), []);
}

#[test]
fn devices_have_short_names() {
    assert_eq!(device_slug("NVIDIA H200"), "h200");
    assert_eq!(device_slug("NVIDIA H100 80GB HBM3"), "h100-80gb-hbm3");
    assert_eq!(device_slug("AMD Instinct MI300X"), "instinct-mi300x");
}

/// Every table in the folder is embedded, by the name of its device, and can be read.
#[test]
fn embedded_tables_are_those_of_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated").join("tuned");
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    files.sort();
    assert_eq!(files, BUILTIN.map(|(name, _)| format!("{name}.toml")));
    for (name, text) in BUILTIN {
        let table = Table::parse(text, name).unwrap();
        assert_eq!(device_slug(&table.device), name);
        assert!(Tuned::builtin(&table.device, table.target).is_some());
        assert!(Tuned::builtin(&table.device, "hip:gfx942".parse().unwrap()).is_none());
    }
}

/// A change of kernels makes what was measured of no use: the table is to be made anew, or to lose those records.
#[test]
fn embedded_tables_have_not_drifted() {
    for (name, text) in BUILTIN {
        let tuned = Tuned::new(Table::parse(text, name).unwrap());
        tuned.check().unwrap_or_else(|e| panic!("generated/tuned/{name}.toml: {e}"));
        assert_eq!(Tuned::named(name).unwrap(), tuned);
    }
}

#[test]
fn names_and_files_are_told_apart() {
    let said = |name: &str| Tuned::named(name).unwrap_err().to_string();
    let error = said("h20");
    assert!(error.contains("--tuned = h20") && error.contains("FILE.toml"), "{error}");
    let error = said("no/such.toml");
    assert!(error.contains("--tuned = no/such.toml") && error.contains("a table that"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let table = tuned(&[8]).table;
    table.write(&path).unwrap();
    assert_eq!(Tuned::named(path.to_str().unwrap()).unwrap().table(), &table);
    let mut drifted = table;
    drifted.records[0].kernels = "0123".into();
    drifted.write(&path).unwrap();
    assert!(said(path.to_str().unwrap()).contains("kernels = 0123"));
    // So is one that comes with the program, though it is passed over in silence where nobody names it.
    let text = drifted.text();
    let error = Tuned::named_in(&[("h200", &text)], "H200").unwrap_err().to_string();
    assert!(error.contains("--tuned = H200") && error.contains("kernels = 0123"), "{error}");
    assert_eq!(Tuned::of_slug(&[("h200", &text)], "h200").unwrap().find(&with(8)), None);
}
