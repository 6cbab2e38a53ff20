use super::super::example::{
    KEY, Pair, PairKey, TARGET, defaults, pair, record, small, stranger_task, value,
};
use super::*;
use std::fs;

const WIDE: PairKey = PairKey { tokens: 32, ..KEY };

fn with(tokens: u32) -> PairKey {
    KEY.tokens(tokens)
}

fn tuned(tokens: &[u32]) -> Tuned {
    let mut table = Table::new("NVIDIA H200", TARGET);
    tokens.iter().for_each(|&n| table.insert(record(with(n))));
    Tuned::new(table)
}

fn by(tuned: &Tuned, key: PairKey) -> Option<Choice> {
    tuned.find(&Pair, pair(key).variants()).map(|found| found.by)
}

fn alike_to(tokens: i64) -> Option<Choice> {
    Some(Choice::Alike { key: [("tokens".to_owned(), KeyValue::Number(tokens))].into() })
}

#[test]
fn a_key_gets_its_own_record_or_that_of_nearly_as_many_tokens() {
    let tuned = tuned(&[8, 32, 64]);
    let by = |key| by(&tuned, key);
    assert_eq!(by(WIDE), Some(Choice::Tuned));
    assert_eq!(by(with(48)), alike_to(64));
    assert_eq!(by(with(40)), alike_to(32));
    assert_eq!(by(with(128)), alike_to(64));
    assert_eq!(by(with(16)), alike_to(32));
    assert_eq!(by(with(48)).unwrap().to_string(), "as tuned for tokens 64");
    // Too many or too few, or another key.
    assert_eq!(by(with(129)), None);
    assert_eq!(by(with(3)), None);
    assert_eq!(by(PairKey { hidden: 128, ..WIDE }), None);
    assert!(tuned.find(&Pair, defaults(WIDE, "bf16").variants()).is_none());
    let found = tuned.find(&Pair, pair(with(48)).variants()).unwrap().variants;
    Pair.components().check(&found).unwrap();
    assert_eq!(Key::of("pair", &found), with(48).of());
    assert_eq!(value(&found[0], "warps"), value(&small(&pair(WIDE)).variants()[0], "warps"));
    // One component alone is not what was tuned, nor is the same in another order another.
    let variants = pair(WIDE).variants().to_vec();
    assert!(tuned.find(&Pair, &variants[..1]).is_none());
    let turned = tuned.find(&Pair, &[variants[1].clone(), variants[0].clone()]).unwrap();
    assert_eq!(turned.variants[0].family().name(), "get");
}

#[test]
fn a_key_never_gets_what_was_tuned_for_another_layout() {
    let slots = |tokens| with(tokens).slots();
    let mut table = tuned(&[32]).table().clone();
    table.insert(record(slots(8)));
    let tuned = Tuned::new(table);
    let by = |key| by(&tuned, key);
    // Neither its own key's, nor that of nearly as many tokens.
    assert_eq!((by(with(32)), by(slots(32))), (Some(Choice::Tuned), None));
    assert_eq!((by(with(64)), by(slots(64))), (alike_to(32), None));
    assert_eq!((by(with(8)), by(slots(8))), (None, Some(Choice::Tuned)));
    assert_eq!((by(with(16)), by(slots(16))), (alike_to(32), alike_to(8)));
    for key in [with(16), slots(16), with(64)] {
        let found = tuned.find(&Pair, pair(key).variants()).unwrap();
        assert_eq!(Key::of("pair", &found.variants), key.of());
        Pair.components().check(&found.variants).unwrap();
    }
    // Nor does a search begin there.
    let start = alike(&tuned.table, &slots(16).task());
    assert_eq!((alike(&tuned.table, &with(16).task()).len(), start.len()), (1, 1));
    assert_eq!(Key::of("pair", start[0].variants()), slots(16).of());
}

#[test]
fn earlier_records_serve_after_all_others_and_say_so() {
    let mut table = tuned(&[32, 64]).table().clone();
    let earlier = |key: &[(&str, i64)]| {
        let key = key.iter().map(|(name, n)| ((*name).to_owned(), KeyValue::Number(*n))).collect();
        Some(Choice::Earlier { key })
    };
    table.records[0].revisions.insert("get".into(), 0);
    let tuned = Tuned::new(table.clone());
    // Its own record is earlier, and that of twice as many tokens is not.
    assert_eq!((by(&tuned, WIDE), by(&tuned, with(16))), (alike_to(64), earlier(&[("tokens", 32)])));
    table.records[1].revisions.clear();
    let tuned = Tuned::new(table.clone());
    assert_eq!((by(&tuned, WIDE), by(&tuned, with(128))), (earlier(&[]), earlier(&[("tokens", 64)])));
    assert_eq!(by(&tuned, WIDE).unwrap().to_string(), "as measured for an earlier revision");
    assert_eq!(by(&tuned, with(16)).unwrap().to_string(), "as measured for an earlier revision, tokens 32");
    let found = tuned.find(&Pair, pair(WIDE).variants()).unwrap().variants;
    assert_eq!(Candidate::new(found), small(&pair(WIDE)));
    assert_eq!(tuned.winners(&Pair).count(), 2);
    let notes = tuned.notes(&[&Pair]);
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("2 of 2 records are of an earlier revision") && notes[0].contains("tokens 32")
    );
    // Of a suite that is not known nothing can be said.
    assert_eq!(tuned.notes(&[stranger_task(64).suite]), [""; 0]);
    // A driver of another major version makes all records earlier.
    let current = self::tuned(&[32]);
    assert_eq!(by(&current.clone().on_driver("CUDA 13.9"), WIDE), Some(Choice::Tuned));
    assert_eq!(by(&current.on_driver("CUDA 14.0"), WIDE), earlier(&[]));
}

#[test]
fn records_that_cannot_be_used_are_skipped_and_named() {
    let mut table = tuned(&[32, 64]).table().clone();
    *table.records[0].variants.get_mut("get").unwrap() += "_tma";
    let tuned = Tuned::new(table);
    assert_eq!(by(&tuned, WIDE), alike_to(64));
    assert_eq!(tuned.winners(&Pair).count(), 1);
    let notes = tuned.notes(&[&Pair]);
    assert!(
        notes.len() == 1 && notes[0].contains("_tma") && notes[0].ends_with("it is skipped"),
        "{notes:?}"
    );
}

#[test]
fn starts_of_a_search_are_the_next_fewer_and_the_next_more_tokens() {
    let table = tuned(&[8, 32, 128]).table().clone();
    let starts = |key: PairKey| {
        let all = alike(&table, &key.task());
        all.iter().for_each(|c| assert_eq!(Key::of("pair", c.variants()), key.of()));
        all.len()
    };
    assert_eq!(starts(with(64)), 2);
    assert_eq!(starts(with(4)), 1);
    assert_eq!(starts(PairKey { hidden: 128, ..KEY }), 0);
}

#[test]
fn devices_have_short_names() {
    assert_eq!(device_slug("NVIDIA H200"), "h200");
    assert_eq!(device_slug("NVIDIA H100 80GB HBM3"), "h100-80gb-hbm3");
    assert_eq!(device_slug("AMD Instinct MI300X"), "instinct-mi300x");
}

#[test]
fn devices_of_a_class_share_a_table_that_is_parsed_once() {
    let target: Target = "cuda:sm_90a".parse().unwrap();
    let of = |device: &str| Tuned::builtin(device, target);
    let (h100, h200) = (of("NVIDIA H100 80GB HBM3").unwrap(), of("NVIDIA H200").unwrap());
    // The same text is not read again: a choice has 50 ms.
    assert!(Arc::ptr_eq(&h100.table, &of("NVIDIA H100 PCIe").unwrap().table));
    for other in [of("NVIDIA H200 NVL"), Tuned::builtin_for(target)] {
        assert!(Arc::ptr_eq(&h200.table, &other.unwrap().table));
    }
    assert!([of("NVIDIA H20"), of("NVIDIA A100-SXM4-80GB"), of("NVIDIA H2000")].iter().all(Option::is_none));
    let ampere = "cuda:sm_80".parse().unwrap();
    assert!(
        Tuned::builtin("NVIDIA H100 80GB HBM3", ampere).is_none() && Tuned::builtin_for(ampere).is_none()
    );
}

#[test]
fn a_table_has_records_of_its_class_for_keys_that_it_lacks() {
    let target: Target = "cuda:sm_90a".parse().unwrap();
    let whole = Tuned::builtin("NVIDIA H100 80GB HBM3", target).unwrap();
    let [own, other] = BUILTIN.map(|(name, text)| Table::parse(text, name).unwrap());
    let has = |table: &Table, record: &Record| table.record(&record.of()) == Some(record);
    assert!(own.records.iter().all(|r| has(whole.table(), r)), "its own come first");
    let lacking = other.records.iter().filter(|r| own.record(&r.of()).is_none());
    assert!(lacking.clone().all(|r| has(whole.table(), r)));
    assert_eq!(whole.table().records.len(), own.records.len() + lacking.count());
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
        assert_eq!(table.text(), text, "{name} is not as `tune` writes it");
        assert_eq!(device_slug(&table.device), name);
        assert!(Tuned::builtin(&table.device, table.target).is_some());
        assert!(Tuned::builtin(&table.device, "hip:gfx942".parse().unwrap()).is_none());
    }
}

#[test]
fn names_and_files_are_told_apart() {
    let suites: [&dyn Suite; 1] = [&Pair];
    let error = |name: &str| Tuned::named(name, &suites).unwrap_err().to_string();
    let text = error("h20");
    assert!(text.contains("--tuned = h20") && text.contains("FILE.toml"), "{text}");
    let text = error("no/such.toml");
    assert!(text.contains("--tuned = no/such.toml") && text.contains("a table that"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let table = tuned(&[8]).table().clone();
    table.write(&path).unwrap();
    assert_eq!(Tuned::named(path.to_str().unwrap(), &suites).unwrap().table(), &table);
    let mut earlier = table;
    earlier.records[0].revisions.clear();
    earlier.write(&path).unwrap();
    let named = Tuned::named(path.to_str().unwrap(), &suites).unwrap();
    assert_eq!(named.notes(&suites).len(), 1);
    let text = earlier.text();
    assert_eq!(
        Tuned::named_in(&[("h200", Tuned::new(Table::parse(&text, "h200").unwrap()))], "H200", &suites)
            .unwrap(),
        named
    );
    fs::write(&path, text.replace("us = 18.25", "us = nan")).unwrap();
    let text = Tuned::named(path.to_str().unwrap(), &suites).unwrap_err().to_string();
    assert!(text.contains("us = NaN"), "{text}");
}
