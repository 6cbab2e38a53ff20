use std::path::Path;

use super::super::example::{KEY, Pair, TARGET, pair, record, record_of, small, stranger_task};
use super::super::record::Timed;
use super::*;
use crate::harness::tune::KeyValue;

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
    let task = stranger_task(64);
    table.insert(record(KEY.slots().tokens(8)));
    table.insert(Record { model: None, limit_us: None, ..record_of(&task, &small(&task.defaults)) });
    table.write(&path).unwrap();
    assert_eq!(Table::read(&path).unwrap(), table);
    insta::assert_snapshot!("table", table.text());
    // Nothing else is left there.
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_table_of_another_user_or_that_others_can_write_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h200.toml");
    table().write(&path).unwrap();
    let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let said = || Table::read(&path).unwrap_err().to_string();
    set(0o646);
    assert!(
        said().contains("h200.toml is writable by every user (mode 646)") && said().contains("`chmod go-w`"),
        "{}",
        said()
    );
    set(0o644);
    Table::read(&path).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(65534), None).unwrap();
        assert!(said().contains("belongs to user 65534"), "{}", said());
    }
}

#[test]
fn records_are_kept_in_order_and_once() {
    let mut table = table();
    for tokens in [64, 8, 16] {
        table.insert(Record { tried: tokens, ..record(KEY.tokens(tokens)) });
    }
    let tokens: Vec<_> = table.records.iter().map(|r| r.key["tokens"].clone()).collect();
    assert_eq!(tokens, [8, 16, 64].map(KeyValue::Number));
    assert_eq!(table.record(&KEY.of()).unwrap().tried, 16);
}

#[test]
fn every_key_of_every_suite_has_a_record() {
    let mut table = table();
    let (slots, task) = (KEY.slots(), stranger_task(64));
    assert_eq!(table.record(&slots.of()), None);
    table.insert(record_of(&task, &small(&task.defaults)));
    table.insert(Record { tried: 7, ..record(slots) });
    table.insert(record(KEY.tokens(64)));
    let keys: Vec<Key> = table.records.iter().map(Record::of).collect();
    assert_eq!(keys, [KEY.of(), KEY.tokens(64).of(), slots.of(), task.key()]);
    assert_eq!([KEY, slots].map(|key| table.record(&key.of()).unwrap().tried), [31, 7]);
    for key in [KEY, slots] {
        let winner = table.record(&key.of()).unwrap().winner(&Pair).unwrap();
        assert_eq!(Key::of("pair", winner.variants()), key.of());
    }
    table.record(&task.key()).unwrap().winner(task.suite).unwrap();
    // Again: instead of the one of its key.
    table.insert(Record { tried: 9, ..record(slots) });
    assert_eq!(table.records.len(), 4);
    assert_eq!([KEY, slots].map(|key| table.record(&key.of()).unwrap().tried), [31, 9]);
}

#[test]
fn other_versions_and_what_is_no_table_are_refused() {
    let error = |text: &str| Table::parse(text, "t.toml").unwrap_err().to_string();
    let text = table().text();
    assert_eq!(
        error(&text.replace("schema = 4", "schema = 2\nnew = 3")),
        "schema = 2: must be 3 or 4, the versions that this program reads; tune anew"
    );
    assert!(error("device = \"x\"").contains("t.toml: not a table of tuned kernels: `schema`"));
    assert!(error("schema = [").contains("t.toml: not a table"));
    let unknown = error(&text.replace("tried = 31", "tried = 31\nspeed = 9"));
    assert!(unknown.contains("unknown field `speed`"), "{unknown}");
    let target = error(&text.replace("cuda:sm_90a", "cuda:sm_91"));
    assert!(target.contains("cuda:sm_91") && target.contains("cuda:{sm_80|"), "{target}");
    let missing = Table::read(Path::new("no/such/table.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("no/such/table.toml: "), "{missing}");
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let text = table().text();
    for (from, to, expected) in [
        ("us = 18.25", "us = nan", "us = NaN: must be a number of microseconds greater than 0"),
        ("us = 18.25", "us = inf", "us = inf: must be"),
        ("us = 20.5", "us = -1.0", "default.us = -1: must be"),
        ("limit_us = 7.1", "limit_us = 0.0", "limit_us = 0: must be"),
        ("put = 12.5", "put = -inf", "metrics.put = -inf: must be"),
        ("device = \"NVIDIA H200\"", "device = \" \"", "device = \" \": must be the name of GPUs"),
        ("2026-11-22", "../x", "measured = ../x: must be a day"),
        ("2026-11-22", "2026-02-30", "measured = 2026-02-30: must be a day"),
        ("put = 1\n", "put = -1\n", "t.toml: not a table"),
        ("put = 1\n", "push = 1\n", "revisions.push = 1: must be of get, put"),
        ("suite = \"pair\"", "suite = \"\"", "suite = : must be something"),
        ("tokens = 16", "tokens = 1.5", "t.toml: not a table"),
        ("tried = 31", "tried = 0", "tried = 0: must be 1 or more"),
        ("driver = \"CUDA 13.0\"", "driver = \"\"", "made.driver = \"\": must be a line of text"),
        ("variant = \"put_x\"", "variant = \" \"", "refused.variant = \" \": must be a line of text"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Table::parse(&text.replace(from, to), "t.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{from} as {to}: {error}");
    }
    let double = format!("{text}\n{}", &text[text.find("[[record]]").unwrap()..]);
    let error = Table::parse(&double, "t.toml").unwrap_err();
    assert!(matches!(error, TableError::Double { .. }), "{error}");
    let mut one = table();
    one.records[0].default.variants.remove("get");
    let error = Table::parse(&one.text(), "t.toml").unwrap_err().to_string();
    assert!(error.contains("families of default = put: must be get, put"), "{error}");
}

#[test]
fn tables_of_other_devices_are_foreign() {
    let table = table();
    table.check_device("NVIDIA H200", TARGET).unwrap();
    let error = |device, target| table.check_device(device, target).unwrap_err().to_string();
    assert_eq!(
        error("NVIDIA H100", TARGET),
        "device = NVIDIA H200: the table is of another device, it must be NVIDIA H100"
    );
    let other: Target = "cuda:sm_90".parse().unwrap();
    assert!(error("NVIDIA H200", other).starts_with("target = cuda:sm_90a: "));
}

/// What tables were like before families had revisions.
#[test]
fn a_table_of_version_3_is_read_and_its_records_are_earlier() {
    let new = table();
    let text = new.text().replace("schema = 4", "schema = 3");
    let text =
        text.replace("suite = \"pair\"", &format!("suite = \"pair\"\ndigest = \"{}\"", "0123".repeat(16)));
    let text = text.replace("[record.revisions]\nget = 1\nput = 1\n", "");
    assert!(text.contains("digest") && !text.contains("revisions"), "{text}");
    let old = Table::parse(&text, "t.toml").unwrap();
    let mut expected = new.clone();
    expected.records[0].revisions.clear();
    assert_eq!(old, expected);
    let current = |table: &Table| table.records[0].is_current(&Pair, None);
    assert_eq!((current(&old), current(&new)), (false, true));
    // A digest is of version 3 alone.
    let error = Table::parse(&text.replace("schema = 3", "schema = 4"), "t.toml").unwrap_err().to_string();
    assert!(error.contains("unknown field `digest`"), "{error}");
}

#[test]
fn records_are_current_with_their_families_revisions_and_the_drivers_major_version() {
    let table = table();
    let record = &table.records[0];
    assert_eq!(record.made.driver, "CUDA 13.0");
    let current = |driver| record.is_current(&Pair, driver);
    assert_eq!([None, Some("CUDA 13.2"), Some("CUDA 14.0")].map(current), [true, true, false]);
    for changed in [Some(0), Some(2), None] {
        let mut other = record.clone();
        match changed {
            Some(revision) => other.revisions.insert("get".into(), revision),
            None => other.revisions.remove("get"),
        };
        assert!(!other.is_current(&Pair, None), "{changed:?}");
        assert_eq!(other.winner(&Pair).unwrap(), small(&pair(KEY)));
    }
}

#[test]
fn records_of_variants_that_do_not_exist_or_go_together_cannot_be_used() {
    let table = table();
    let record = &table.records[0];
    assert_eq!(record.winner(&Pair).unwrap(), small(&pair(KEY)));
    let error = |record: Record| record.winner(&Pair).unwrap_err();
    // A variant that does not exist any more, of the winner and of what it was compared with.
    let mut gone = record.clone();
    *gone.variants.get_mut("get").unwrap() += "_tma";
    assert!(matches!(error(gone), TableError::Variant { .. }));
    let mut gone = record.clone();
    *gone.default.variants.get_mut("get").unwrap() += "_tma";
    assert!(matches!(error(gone), TableError::Variant { .. }));
    // One of another key, of another family, and two that do not go together.
    let mut other = record.clone();
    other.key.insert("tokens".into(), KeyValue::Number(8));
    let text = error(other).to_string();
    assert!(text.contains("key.tokens = 8: must be 16, as its variants have it"), "{text}");
    let mut other = record.clone();
    other.key.insert("hook".into(), KeyValue::Name("none".into()));
    assert!(error(other).to_string().contains("key.hook = none: must be no field"));
    let put = [("put".to_owned(), "put_h64".to_owned()), ("stranger".to_owned(), "x".to_owned())];
    let stranger = Timed { variants: put.into(), us: None };
    let text = error(Record { default: stranger, ..record.clone() }).to_string();
    assert!(text.contains("family = stranger: must be one of put, get"), "{text}");
    let mut apart = record.clone();
    let get = apart.variants.get_mut("get").unwrap();
    *get = get.replace("_dedup_", "_nodedup_");
    let text = error(apart).to_string();
    assert!(text.contains("dedup"), "{text}");
}
