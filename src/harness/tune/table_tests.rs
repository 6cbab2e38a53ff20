use peerwarp_codegen::family::CudaArch;

use super::*;
use crate::families::moe::RowDtype;

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };
const TARGET: Target = Target::Cuda(CudaArch::Sm90a);

const KEY: Key = Key { shape: SHAPE, layout: Layout::Experts };

pub(crate) fn record(key: Key) -> Record {
    let default = key.defaults().unwrap();
    let tuning = default.clone().small();
    Record {
        winner: Pair::of(&tuning),
        kernels: digest(&tuning, TARGET).unwrap(),
        measured: "2026-11-22".into(),
        tried: 31,
        layout: key.layout,
        limit_us: Some(7.1),
        shape: key.shape,
        us: Times { round_trip: 18.25, dispatch: 12.5, combine: 9.75 },
        default: Timed::of(&default, Some(20.5)),
        model: Timed::of(&default, None),
        made: Made { peerwarp: "0.1.0".into(), driver: "CUDA 13.0".into(), compiler: "nvrtc 13.0".into() },
        pruned: [("illegal".into(), 12), ("registers".into(), 2)].into(),
        refused: vec![Refusal { variant: "moe_dispatch_x".into(), reason: "does not end".into() }],
    }
}

fn table() -> Table {
    let mut table = Table::new("NVIDIA H200", TARGET);
    table.insert(record(KEY));
    table
}

#[test]
fn a_table_reads_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned").join("h200.toml");
    let mut table = table();
    table.insert(record(Key::by_token(MoeShape { tokens: 8, ..SHAPE })));
    table.write(&path).unwrap();
    assert_eq!(Table::read(&path).unwrap(), table);
    let mut text = table.text();
    // Kernels change; the form should not.
    for record in &table.records {
        text = text.replace(&record.kernels, "DIGEST");
        for name in [&record.winner.dispatch, &record.default.dispatch] {
            text = text.replace(name, "DISPATCH");
        }
        for name in [&record.winner.combine, &record.default.combine] {
            text = text.replace(name, "COMBINE");
        }
    }
    insta::assert_snapshot!("table", text);
    // Nothing else is left there.
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn records_are_kept_in_order_and_once() {
    let mut table = table();
    for tokens in [64, 8, 4] {
        table.insert(Record { tried: tokens, ..record(KEY.with_tokens(tokens)) });
    }
    let tokens: Vec<u32> = table.records.iter().map(|r| r.shape.tokens).collect();
    assert_eq!(tokens, [4, 8, 64]);
    assert_eq!(table.record(&KEY).unwrap().tried, 4);
}

#[test]
fn a_shape_has_a_record_for_each_layout() {
    let mut table = table();
    let token = Key::by_token(SHAPE);
    assert_eq!(table.record(&token), None);
    table.insert(Record { tried: 7, ..record(token) });
    table.insert(record(KEY.with_tokens(8)));
    let keys: Vec<Key> = table.records.iter().map(Record::key).collect();
    assert_eq!(keys, [KEY, KEY.with_tokens(8), token]);
    assert_eq!((table.record(&KEY).unwrap().tried, table.record(&token).unwrap().tried), (31, 7));
    for key in [KEY, token] {
        let tuning = table.tuning(table.record(&key).unwrap()).unwrap();
        assert_eq!(Key::of(&tuning.dispatch), key);
    }
    // Again: instead of the one of its layout.
    table.insert(Record { tried: 9, ..record(token) });
    assert_eq!(table.records.len(), 3);
    assert_eq!((table.record(&KEY).unwrap().tried, table.record(&token).unwrap().tried), (31, 9));
}

#[test]
fn other_versions_and_what_is_no_table_are_refused() {
    let said = |text: &str| Table::parse(text, "t.toml").unwrap_err().to_string();
    let text = table().text();
    assert_eq!(
        said(&text.replace("schema = 2", "schema = 1\nnew = 3")),
        "schema = 1: must be 2, the version that this program reads; tune anew"
    );
    assert!(said("device = \"x\"").contains("t.toml: not a table of tuned kernels: `schema`"));
    assert!(said("schema = [").contains("t.toml: not a table"));
    let unknown = said(&text.replace("tried = 31", "tried = 31\nspeed = 9"));
    assert!(unknown.contains("unknown field `speed`"), "{unknown}");
    let target = said(&text.replace("cuda:sm_90a", "cuda:sm_91"));
    assert!(target.contains("cuda:sm_91") && target.contains("cuda:{sm_80|"), "{target}");
    let missing = Table::read(Path::new("no/such/table.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("no/such/table.toml: "), "{missing}");
}

#[test]
fn tables_of_other_devices_are_foreign() {
    let table = table();
    table.check_device("NVIDIA H200", TARGET).unwrap();
    let said = |device, target| table.check_device(device, target).unwrap_err().to_string();
    assert_eq!(
        said("NVIDIA H100", TARGET),
        "device = NVIDIA H200: the table is of another device, it must be NVIDIA H100"
    );
    let other = Target::Cuda(CudaArch::Sm90);
    assert!(said("NVIDIA H200", other).starts_with("target = cuda:sm_90a: "));
}

#[test]
fn records_of_other_kernels_have_drifted() {
    let table = table();
    let record = &table.records[0];
    assert_eq!(Pair::of(&table.tuning(record).unwrap()), record.winner);
    let said = |record: Record| table.tuning(&record).unwrap_err();
    let drifted = said(Record { kernels: "0123".into(), ..record.clone() });
    assert!(matches!(&drifted, TableError::Drifted { found, .. } if found == "0123"));
    let text = drifted.to_string();
    assert!(text.contains("kernels = 0123") && text.contains(&record.kernels), "{text}");
    // A variant that does not exist any more, and one that is of another shape.
    let mut gone = record.clone();
    gone.winner.combine += "_tma";
    assert!(matches!(said(gone), TableError::Variant { .. }));
    let other = Record { shape: MoeShape { tokens: 8, ..SHAPE }, ..record.clone() };
    assert!(matches!(said(other), TableError::Pair { .. }));
    let other = said(Record { layout: Layout::Tokens, ..record.clone() });
    assert!(matches!(other, TableError::Pair { .. }));
    assert!(other.to_string().contains("layout tokens: layout = tokens: must be experts"), "{other}");
}
