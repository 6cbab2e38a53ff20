use peerwarp_codegen::family::CudaArch;

use super::super::table::tests::record;
use super::*;
use crate::moe::RowDtype;
use crate::tune::Pair;

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 32, ranks: 2, dtype: RowDtype::Bf16 };
const TARGET: Target = Target::Cuda(CudaArch::Sm90a);

fn with(tokens: u32) -> MoeShape {
    MoeShape { tokens, ..SHAPE }
}

fn tuned(tokens: &[u32]) -> Tuned {
    let mut table = Table::new("NVIDIA H200", TARGET);
    tokens.iter().for_each(|&n| table.insert(record(with(n))));
    Tuned::new(table)
}

#[test]
fn a_shape_gets_its_own_record_or_that_of_nearly_as_many_tokens() {
    let tuned = tuned(&[8, 32, 64]);
    let by = |shape: MoeShape| tuned.find(&shape).map(|chosen| chosen.by);
    assert_eq!(by(SHAPE), Some(Choice::Tuned));
    assert_eq!(by(with(48)), Some(Choice::Alike { tokens: 64 }));
    assert_eq!(by(with(40)), Some(Choice::Alike { tokens: 32 }));
    assert_eq!(by(with(128)), Some(Choice::Alike { tokens: 64 }));
    assert_eq!(by(with(16)), Some(Choice::Alike { tokens: 32 }));
    // Too many or too few, or another shape.
    assert_eq!(by(with(129)), None);
    assert_eq!(by(with(3)), None);
    assert_eq!(by(MoeShape { topk: 3, ..SHAPE }), None);
    assert_eq!(by(MoeShape { dtype: RowDtype::Fp16, ..SHAPE }), None);
    let chosen = tuned.find(&with(48)).unwrap().tuning;
    chosen.check(&with(48)).unwrap();
    assert_eq!(chosen.dispatch.warps, MoeTuning::defaults(&SHAPE).unwrap().small().dispatch.warps);
}

#[test]
fn what_has_drifted_is_not_taken() {
    let mut table = tuned(&[32]).table;
    table.records[0].kernels = "0123".into();
    let tuned = Tuned::new(table);
    assert_eq!(tuned.find(&SHAPE), None);
    assert_eq!(tuned.find(&with(40)), None);
    assert!(matches!(tuned.check(), Err(TableError::Drifted { .. })));
    let chosen = Tuned::choose(Some(&tuned), &SHAPE).unwrap();
    assert_eq!((chosen.by, chosen.tuning), (Choice::Default, MoeTuning::defaults(&SHAPE).unwrap()));
}

#[test]
fn starts_of_a_search_are_the_next_fewer_and_the_next_more_tokens() {
    let table = tuned(&[8, 32, 128]).table;
    let names = |shape| {
        let of = |t: &MoeTuning| Pair::of(t);
        alike(&table, &shape).iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(names(with(64)).len(), 2);
    assert_eq!(names(with(4)).len(), 1);
    assert_eq!(names(MoeShape { topk: 3, ..SHAPE }), []);
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
}
