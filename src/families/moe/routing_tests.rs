use proptest::prelude::*;

use super::*;
use crate::families::moe::RowDtype;

const SHAPE: MoeShape =
    MoeShape { hidden: 8, experts: 32, topk: 6, tokens: 50, ranks: 4, dtype: RowDtype::Bf16 };

fn distinct(ids: &[i32], topk: usize) -> bool {
    ids.chunks(topk).all(|t| (0..topk).all(|i| !t[..i].contains(&t[i])))
}

#[test]
fn parses_sources() {
    assert_eq!("uniform".parse(), Ok(Source::Uniform));
    assert_eq!("zipf:1.2".parse(), Ok(Source::Zipf(1.2)));
    assert_eq!("a/b.npy".parse(), Ok(Source::File("a/b.npy".into())));
    for bad in ["unifrom", "zipf:x", "zipf:-1", "zipf:NaN", "zipf:17", "ids.txt", ""] {
        let e = bad.parse::<Source>().unwrap_err();
        assert_eq!((e.field.as_str(), e.value.as_str()), ("--routing", bad));
    }
    assert_eq!("unifrom".parse::<Source>().unwrap_err().nearest, ["uniform"]);
}

#[test]
fn the_seed_decides_everything() {
    for source in [Source::Uniform, Source::Zipf(1.0)] {
        let a = source.routing(&SHAPE, None, 7).unwrap();
        assert_eq!(a, source.routing(&SHAPE, None, 7).unwrap());
        let b = source.routing(&SHAPE, None, 8).unwrap();
        assert!(a.ids != b.ids && a.weights != b.weights);
        assert_ne!(a.ids[0], a.ids[1], "ranks draw apart from each other");
    }
    // Recorded: a new version of a dependency must not change what a seed means.
    let shape = MoeShape { ranks: 2, tokens: 2, experts: 16, topk: 3, ..SHAPE };
    let report = |s: Source| format!("{:?}", s.routing(&shape, None, 1).unwrap());
    insta::assert_snapshot!([report(Source::Uniform), report(Source::Zipf(1.5))].join("\n"));
}

#[test]
fn zipf_prefers_few_experts_the_same_on_all_ranks() {
    let shape = MoeShape { ranks: 2, tokens: 2000, experts: 32, topk: 2, ..SHAPE };
    let hits = |source: &Source, rank: usize| {
        let mut hits = vec![0u32; 32];
        let routing = source.routing(&shape, None, 3).unwrap();
        routing.ids[rank].iter().for_each(|e| hits[*e as usize] += 1);
        hits
    };
    let top = |hits: &[u32]| (0..32).max_by_key(|e| hits[*e]).unwrap();
    let (a, b) = (hits(&Source::Zipf(1.5), 0), hits(&Source::Zipf(1.5), 1));
    assert_eq!(top(&a), top(&b));
    assert!(a.iter().max().unwrap() > &1200, "{a:?}");
    let flat = hits(&Source::Uniform, 0);
    assert!(flat.iter().all(|n| (60..200).contains(n)), "{flat:?}");
    let flat = hits(&Source::Zipf(0.0), 0);
    assert!(flat.iter().all(|n| (60..200).contains(n)), "{flat:?}");
}

#[test]
fn ragged_and_empty_ranks() {
    let counts = parse_counts("3,0, 17,50").unwrap();
    let r = Source::Uniform.routing(&SHAPE, Some(&counts), 0).unwrap();
    assert_eq!(r.tokens_per_rank(6), [3, 0, 17, 50]);
    assert_eq!(r.ids.iter().map(Vec::len).collect::<Vec<_>>(), [18, 0, 102, 300]);
    assert_eq!(r.weights.iter().map(Vec::len).collect::<Vec<_>>(), [18, 0, 102, 300]);
}

fn npy_file(shape: &[usize], data: Vec<i32>) -> tempfile::TempPath {
    let mut f = tempfile::Builder::new().suffix(".npy").tempfile().unwrap();
    let bytes = npy::write(&npy::Array { shape: shape.to_vec(), data });
    std::io::Write::write_all(&mut f, &bytes).unwrap();
    f.into_temp_path()
}

#[test]
fn reads_files_whole_or_in_part() {
    let shape = MoeShape { ranks: 2, tokens: 4, experts: 9, topk: 2, ..SHAPE };
    let path = npy_file(&[2, 3, 2], vec![0, 1, 2, -1, 8, 8, 3, 4, 5, 6, 7, 0]);
    let source = Source::File(path.to_path_buf());
    let r = source.routing(&shape, None, 0).unwrap();
    assert_eq!(r.tokens_per_rank(2), [3, 3]);
    assert_eq!(r.ids, [vec![0, 1, 2, -1, 8, 8], vec![3, 4, 5, 6, 7, 0]]);
    let r = source.routing(&shape, Some(&[1, 2]), 0).unwrap();
    assert_eq!(r.ids, [vec![0, 1], vec![3, 4, 5, 6]]);
    let e = source.routing(&shape, Some(&[1, 4]), 0).unwrap_err();
    assert_eq!(e.field, "--tokens-per-rank of rank 1");
    assert!(e.allowed.contains("0 to 3"), "{e}");
}

#[test]
fn refuses_files_that_do_not_fit() {
    let fits = MoeShape { ranks: 2, tokens: 3, experts: 9, topk: 2, ..SHAPE };
    let error = |dims: &[usize], data: Vec<i32>| {
        let path = npy_file(dims, data);
        let e = Source::File(path.to_path_buf()).routing(&fits, None, 0).unwrap_err();
        e.to_string().replace(&path.display().to_string(), "FILE")
    };
    let mut report = vec![
        error(&[2, 4, 2], vec![0; 16]),
        error(&[1, 3, 2], vec![0; 6]),
        error(&[2, 3, 1], vec![0; 6]),
        error(&[6, 2], vec![0; 12]),
        error(&[2, 1, 2], vec![0, 1, 2, 9]),
        error(&[2, 2, 2], vec![0, 1, 2, 3, 4, -2, 0, 0]),
        error(&[2, 1, 2], vec![i32::MIN, 0, 0, 0]),
    ];
    let missing = Source::File("no/such.npy".into());
    report.push(missing.routing(&fits, None, 0).unwrap_err().to_string());
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn refuses_counts_that_do_not_fit() {
    let error = |text: &str| {
        let counts = match parse_counts(text) {
            Ok(c) => c,
            Err(e) => return e.to_string(),
        };
        Source::Uniform.routing(&SHAPE, Some(&counts), 0).unwrap_err().to_string()
    };
    let report: Vec<String> = ["1,2,3", "1,2,3,4,5", "1,2,51,0", "1,,2,3", "1,-2,3,4", "a"].map(error).into();
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn refuses_more_entries_than_experts() {
    let shape = MoeShape { topk: 33, ..SHAPE };
    let e = Source::Uniform.routing(&shape, None, 0).unwrap_err();
    assert_eq!((e.field.as_str(), e.value.as_str()), ("--topk", "33"));
}

proptest! {
    #[test]
    fn draws_legal_routing(experts in 1u32..70, topk in 1u32..33, ranks in 1u32..5, tokens in 0u32..9, seed: u64, s in 0.0..16.0) {
        let shape = MoeShape { ranks, tokens, experts, topk: topk.min(experts), ..SHAPE };
        for source in [Source::Uniform, Source::Zipf(s)] {
            let r = source.routing(&shape, None, seed).unwrap();
            let k = shape.topk as usize;
            for (ids, weights) in r.ids.iter().zip(&r.weights) {
                prop_assert_eq!(ids.len(), tokens as usize * k);
                prop_assert!(ids.iter().all(|e| (0..experts as i32).contains(e)));
                prop_assert!(distinct(ids, k));
                prop_assert!(weights.iter().all(|w| *w > 0.0 && *w <= 1.0));
                prop_assert!(weights.chunks(k).all(|w| (w.iter().sum::<f32>() - 1.0).abs() < 1e-5));
            }
        }
    }
}
