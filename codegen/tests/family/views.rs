//! Configurations as others see them: through the registry, as JSON, as parameters and as a trace.

use peerwarp_codegen::family::{Family, FamilyError, Fields, Operation, Registry, Value};
use peerwarp_codegen::ir::{Dtype, ParamKind};

use super::odd::*;

#[test]
fn families_can_be_used_without_knowing_their_types() {
    let registry = Registry::new([Odd::entry(), Bare::entry(), Odd::entry()]);
    assert_eq!(registry.families().iter().map(|f| f.name()).collect::<Vec<_>>(), ["odd", "odd_jobs"]);
    assert_eq!(registry.families().iter().map(|f| f.revision()).collect::<Vec<_>>(), [1, 3]);
    let family = registry.family("odd_jobs").unwrap();
    assert_eq!(family.doc(), "Does odd jobs.");
    assert_eq!(family.fields(), Odd::fields());
    let settings = [("h", "64"), ("ranks", "2"), ("rows", "bf16"), ("o", "0"), ("long-seed", "1")];
    let settings = settings.map(|(n, v)| (n.to_owned(), v.to_owned()));
    let variant = family.build(&settings).unwrap();
    let odd: &Odd = variant.as_any().downcast_ref().unwrap();
    assert_eq!(odd.variant_name(), variant.variant_name());
    assert_eq!(variant.values(), Fields::values(odd));
    assert_eq!((variant.ranks(), variant.block_warps()), (2, 16));
    assert_eq!(variant.family().name(), "odd_jobs");
    assert_eq!(family.candidates(&settings).unwrap().count(), Odd::candidates(&odd.key()).count());
    assert!(family.candidates(&settings[1..]).is_err());
    let error = registry.family("od_jobs").unwrap_err();
    let near = "no family is called `od_jobs` (did you mean `odd_jobs`?); there are odd, odd_jobs";
    assert_eq!(error.to_string(), near);
}

#[test]
fn configurations_and_keys_go_through_json_by_name_and_are_checked() {
    let odd = Odd::with_defaults(&key()).unwrap();
    let json = serde_json::to_string(&odd).unwrap();
    insta::assert_snapshot!(json);
    assert_eq!(serde_json::from_str::<Odd>(&json).unwrap(), odd);
    assert_eq!(serde_json::from_str::<OddKey>(&serde_json::to_string(&key()).unwrap()).unwrap(), key());
    assert_eq!(serde_json::from_str::<Rows>("\"fp8\"").unwrap(), Rows::Fp8E4m3);
    let said = |json: &str| serde_json::from_str::<Odd>(json).unwrap_err().to_string();
    let all = [
        said(&json.replace("7168", "7169")),
        said(&json.replace("\"r", "\"ranks\":8,\"r")),
        said(&json.replace("hidden", "hiden")),
        said(&json.replace(",\"fused\":true", "")),
        said(&json.replace("\"ranks\":8", "\"ranks\":16")),
        said("[1]"),
        serde_json::from_str::<Rows>("\"bf8\"").unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn a_family_is_the_operation_of_one_launch() {
    let odd = Odd::with_default_plan(&key()).unwrap();
    assert_eq!(odd, Odd::with_defaults(&key()).unwrap());
    let launches = odd.components();
    assert_eq!(launches.iter().map(|v| v.variant_name()).collect::<Vec<_>>(), [odd.variant_name()]);
    assert_eq!(Odd::of_components(&launches), Some(odd.clone()));
    assert_eq!(Bare::of_components(&launches), None, "of another family");
    assert_eq!(Odd::of_components(&[odd.launches(), launches].concat()), None, "two launches");
}

#[test]
fn from_values_refuses_what_does_not_fit() {
    let values = Fields::values(&Bare { ranks: 4 });
    assert_eq!(Bare::from_values(&values).unwrap(), Bare { ranks: 4 });
    for wrong in [vec![], vec![Value::Bool(true)], vec![Value::Int(-1)], vec![Value::Int(1 << 32)]] {
        assert_eq!(Bare::from_values(&wrong).unwrap_err().field, "ranks");
    }
    let error = Bare { ranks: 9 }.check().unwrap_err();
    assert!(matches!(&error, FamilyError::Illegal { family: "odd", source } if source.value == "9"));
}

#[test]
fn parameters_have_the_lengths_and_types_that_the_configuration_decides() {
    let odd = Odd::with_defaults(&key()).unwrap();
    let params = odd.params();
    let words: Vec<String> =
        params.iter().map(|p| format!("{} {:?} {}[{}]: {}", p.name, p.kind, p.dtype, p.len, p.doc)).collect();
    insta::assert_snapshot!(words.join("\n"));
    let bf16 = Odd { rows: Rows::Bf16, ..odd };
    assert_eq!(bf16.params()[0].dtype, Dtype::Bf16);
    assert_eq!((params[5].kind, params[5].len), (ParamKind::Scalar, 1));
}

#[test]
fn a_trace_knows_its_variant_and_checks_it_first() {
    let odd = Odd::with_defaults(&key()).unwrap();
    let kernel = odd.trace(32).unwrap();
    assert_eq!((kernel.name.as_str(), kernel.doc.as_str()), ("odd_jobs", "Does odd jobs."));
    assert_eq!(kernel.variant, odd.variant_name());
    assert_eq!(kernel.config, odd.describe());
    assert_eq!((kernel.ranks, kernel.warp_size, kernel.block_warps), (8, 32, 16));
    assert_eq!(kernel.roles[0].blocks, 24);
    assert_eq!(kernel.loc.short_file(), "codegen/tests/family/odd.rs");
    let params: Vec<_> = odd.params().into_iter().map(|p| (p.name, p.kind, p.dtype, p.len, p.doc)).collect();
    let traced: Vec<_> = kernel.params.into_iter().map(|p| (p.name, p.kind, p.dtype, p.len, p.doc)).collect();
    assert_eq!(params, traced);

    let wide = Odd { warps: 32, ..odd.clone() };
    // A block has 1024 threads at most.
    assert_eq!([32, 64].map(|lanes| wide.trace(lanes).unwrap().block_warps), [32, 16]);
    let said = |odd: &Odd, lanes| odd.trace(lanes).unwrap_err().to_string();
    assert!(said(&Odd { hidden: 9, ..odd.clone() }, 32).contains("`hidden` = 9 is not allowed"));
    assert!(said(&Odd { ranks: 12, ..odd.clone() }, 32).contains("`dedup` = false is not allowed"));
    // A warp size that no target has is an error of the trace.
    assert!(said(&odd, 0).contains("lanes"));
    assert_eq!(Odd::entry().parse(&odd.variant_name()).unwrap().trace(32).unwrap(), odd.trace(32).unwrap());
}
