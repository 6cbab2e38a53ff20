//! Families as a crate that derives them sees them: names, candidates, settings, errors.

use std::collections::HashSet;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{
    Choice, Family, FamilyError, FieldRole, Fields, Illegal, Legal, NameError, Registry, Value,
};
use peerwarp_codegen::ir::{Dtype, ParamKind};
use peerwarp_macros::kernel;
use proptest::prelude::*;

#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Rows {
    Bf16,
    #[choice(name = "fp8")]
    Fp8E4m3,
}

#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    RoundRobin,
    ByExpert,
}

/// Has a field of every kind, keys and tuning fields mixed.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = odd_jobs, args = OddArgs, warps = warps, serde)]
pub struct Odd {
    /// Elements of a row.
    #[key(short = "h", range = 8..=65536, multiple_of = 8)]
    pub hidden: u32,
    #[tune(short = "w", values = [4, 8, 16, 32], default = 16)]
    pub warps: u32,
    #[key(short = "r", range = 2..=64, ranks, help = "World size.")]
    pub ranks: u32,
    #[key]
    pub rows: Rows,
    #[key(short = "o", range = -16..=16, multiple_of = 4)]
    pub offset: i32,
    #[key(range = 0..=18446744073709551615)]
    pub long_seed: u64,
    #[tune(short = "s", range = 4..=64, multiple_of = 4, default = |key| (key.ranks * 3).clamp(4, 64) / 4 * 4)]
    pub send_blocks: u32,
    #[tune]
    pub dedup: bool,
    #[tune(short = "f", default = true)]
    pub fused: bool,
    #[tune(default = Order::ByExpert)]
    pub order: Order,
    #[tune(short = "r", values = [Order::ByExpert])]
    pub post: Order,
}

impl Legal for Odd {
    fn legal(&self) -> Result<(), Illegal> {
        Illegal::unless(self.dedup || self.ranks <= 8, "dedup", self.dedup, || {
            format!("true with more than 8 ranks, here {}", self.ranks)
        })?;
        let most = self.hidden / 8;
        Illegal::unless(self.send_blocks <= most, "send_blocks", self.send_blocks, || {
            format!("at most one for 8 elements of a row, {most}")
        })
    }
}

#[derive(KernelArgs)]
#[args(config = Odd)]
pub struct OddArgs {
    /// Rows to send,
    /// `[ranks][hidden]`.
    ///
    /// Anything goes.
    #[len(|c| u64::from(c.ranks) * u64::from(c.hidden))]
    #[dtype(|c| c.rows.dtype())]
    pub rows: AnyPtr,
    /// Numbers.
    pub n: Ptr<u32>,
    #[len(2 * 32)]
    #[dtype(Dtype::F32)]
    pub inbox: AnySym,
    #[len(|c| c.ranks.into())]
    pub row_flag: Flags,
    pub epoch: EpochWord,
    pub scale: Val<f32>,
}

impl Rows {
    fn dtype(self) -> Dtype {
        match self {
            Rows::Bf16 => Dtype::Bf16,
            Rows::Fp8E4m3 => Dtype::Fp8,
        }
    }
}

/// Does
/// odd jobs.
///
/// And nothing else.
#[kernel]
pub fn odd_jobs(c: &Odd, a: &OddArgs) {
    role("send", c.send_blocks, |_| {
        a.n.set(0, c.hidden);
    });
}

#[derive(KernelArgs)]
#[args(config = Bare)]
pub struct BareArgs {}

/// Does nothing.
#[kernel]
pub fn nothing(_c: &Bare, _a: &BareArgs) {}

/// A family without keys but the world size and without tuning.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "odd", kernel = nothing, args = BareArgs, warps = 4)]
pub struct Bare {
    #[key(range = 2..=8, ranks)]
    pub ranks: u32,
}

impl Legal for Bare {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// A tuning space that nobody can go through, none of it legal for two ranks.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = huge, args = HugeArgs, warps = r#type)]
pub struct Huge {
    #[key(range = 2..=8, ranks)]
    pub ranks: u32,
    #[tune(range = 1..=32)]
    pub r#type: u32,
    #[tune(range = 0..=18446744073709551615)]
    pub seed: u64,
}

#[derive(KernelArgs)]
#[args(config = Huge)]
pub struct HugeArgs {
    pub r#in: Ptr<u32>,
}

/// Huge.
#[kernel]
pub fn huge(_c: &Huge, _a: &HugeArgs) {}

impl Legal for Huge {
    fn legal(&self) -> Result<(), Illegal> {
        Illegal::unless(self.ranks > 2, "ranks", self.ranks, || "above 2")
    }
}

fn key() -> OddKey {
    OddKey { hidden: 7168, ranks: 8, rows: Rows::Fp8E4m3, offset: -4, long_seed: 7 }
}

fn keys() -> impl Strategy<Value = OddKey> {
    let fields = (1..=8192u32, 2..=64u32, any::<bool>(), -4..=4i32, any::<u64>());
    fields.prop_map(|(hidden, ranks, fp8, offset, long_seed)| OddKey {
        hidden: hidden * 8,
        ranks,
        rows: if fp8 { Rows::Fp8E4m3 } else { Rows::Bf16 },
        offset: offset * 4,
        long_seed,
    })
}

fn legal() -> impl Strategy<Value = Odd> {
    let tuned = (0..4usize, 1..=16u32, any::<[bool; 3]>());
    (keys(), tuned).prop_filter_map("legal", |(key, (warps, send, [dedup, fused, by_expert]))| {
        let odd = Odd {
            hidden: key.hidden,
            warps: [4, 8, 16, 32][warps],
            ranks: key.ranks,
            rows: key.rows,
            offset: key.offset,
            long_seed: key.long_seed,
            send_blocks: send * 4,
            dedup,
            fused,
            order: if by_expert { Order::ByExpert } else { Order::RoundRobin },
            post: Order::ByExpert,
        };
        odd.check().is_ok().then_some(odd)
    })
}

#[test]
fn a_name_has_the_family_the_keys_and_the_tuning_in_order() {
    let odd = Odd::with_defaults(&key()).unwrap();
    assert_eq!(
        odd.variant_name(),
        "odd_jobs_h7168_r8_fp8_om4_longseed7__w16_s24_nodedup_f_byexpert_rbyexpert"
    );
    assert_eq!(
        Odd::name_form(),
        "odd_jobs_h<hidden>_r<ranks>_<rows>_o<offset>_longseed<long_seed>__w<warps>_s<send_blocks>_[no]dedup_[no]f_<order>_r<post>"
    );
    assert_eq!((Family::ranks(&odd), odd.block_warps()), (8, 16));
    assert_eq!(odd.key(), key());
    let bare = Bare { ranks: 4 };
    assert_eq!(bare.variant_name(), "odd_ranks4");
    assert_eq!(bare.block_warps(), 4);
}

#[test]
fn fields_know_their_words() {
    let lines: Vec<String> = Odd::fields()
        .iter()
        .map(|f| {
            format!(
                "{:?} --{} {}: {} [{}] {}",
                f.role,
                f.long(),
                f.short.unwrap_or("-"),
                f.allowed,
                f.default,
                f.help
            )
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
    assert!(Odd::key_fields().iter().all(|f| f.role == FieldRole::Key));
    assert!(Odd::tune_fields().iter().all(|f| f.role == FieldRole::Tune));
    assert_eq!(Odd::key_fields().len(), 5);
    assert_eq!(Odd::fields().iter().filter(|f| f.ranks).map(|f| f.name).collect::<Vec<_>>(), ["ranks"]);
}

#[test]
fn candidates_are_all_legal_points_once_and_no_others() {
    let small = OddKey { hidden: 64, ranks: 16, ..key() };
    let all: Vec<Odd> = Odd::candidates(&small).collect();
    // 4 warps, send blocks 4 and 8, dedup only, fused or not, 2 orders, 1 post.
    assert_eq!(all.len(), 4 * 2 * 2 * 2);
    let names: HashSet<String> = all.iter().map(Odd::variant_name).collect();
    assert_eq!(names.len(), all.len());
    for odd in &all {
        odd.check().unwrap();
        assert_eq!(odd.key(), small);
    }
    assert_eq!(Odd::candidates(&OddKey { hidden: 7, ..small }).count(), 0);
    assert_eq!(Bare::candidates(&BareKey { ranks: 3 }).collect::<Vec<_>>(), [Bare { ranks: 3 }]);
    assert_eq!(Bare::candidates(&BareKey { ranks: 9 }).count(), 0);
}

#[test]
fn candidates_are_made_when_they_are_asked_for() {
    let names: Vec<String> =
        Huge::candidates(&HugeKey { ranks: 3 }).take(2).map(|h| h.variant_name()).collect();
    assert_eq!(names, ["huge_ranks3__type1_seed0", "huge_ranks3__type1_seed1"]);
    // A search that cannot succeed ends.
    let why = Huge::with_defaults(&HugeKey { ranks: 2 }).unwrap_err();
    assert_eq!(why.to_string(), "huge: `ranks` = 2 is not allowed: it must be above 2");
    assert_eq!(Huge { ranks: 3, r#type: 1, seed: 0 }.params()[0].name, "in");
}

#[test]
fn defaults_that_do_not_go_together_give_way_as_little_as_possible() {
    // Default: 48 send blocks and no dedup. This key has room for 8 send blocks and needs dedup.
    let tight = OddKey { hidden: 64, ranks: 16, ..key() };
    let odd = Odd::with_defaults(&tight).unwrap();
    assert!(odd.dedup && odd.fused && odd.warps == 16 && odd.order == Order::ByExpert);
    assert_eq!(odd.send_blocks, 8, "the legal value next to 48");
    // What the user says stays as it is.
    let mut settings =
        vec![("hidden", "64"), ("r", "16"), ("rows", "bf16"), ("offset", "0"), ("long-seed", "1")];
    settings.push(("send-blocks", "4"));
    assert_eq!(Odd::from_settings(&settings).unwrap().send_blocks, 4);
    settings.push(("dedup", "false"));
    let why = Odd::from_settings(&settings).unwrap_err().to_string();
    assert_eq!(
        why,
        "odd_jobs: `dedup` = false is not allowed: it must be true with more than 8 ranks, here 16"
    );
}

#[test]
fn wrong_settings_are_told_with_field_value_and_what_is_allowed() {
    let full = [("hidden", "7168"), ("ranks", "8"), ("rows", "fp8"), ("offset", "-8"), ("long_seed", "3")];
    let said = |change: &[(&str, &str)]| {
        let kept = full.iter().filter(|(n, _)| !change.iter().any(|(c, _)| c == n));
        let all: Vec<_> = kept.chain(change).filter(|(_, v)| *v != "-").copied().collect();
        Odd::from_settings(&all)
            .map(|odd| odd.variant_name())
            .map_err(|e| e.to_string())
            .unwrap_or_else(|e| e)
    };
    let all = [
        said(&[]),
        said(&[("hidden", "7170")]),
        said(&[("hidden", "99999999999999999999999999999999999999999999")]),
        said(&[("hidden", "many")]),
        said(&[("hidden", "")]),
        said(&[("ranks", "1"), ("offset", "17")]),
        said(&[("rows", "fp16")]),
        said(&[("rows", "bf61")]),
        said(&[("warps", "12")]),
        said(&[("warp", "16")]),
        said(&[("banana", "16")]),
        said(&[("dedup", "yes")]),
        said(&[("w", "8"), ("warps", "16")]),
        said(&[("hidden", "-"), ("rows", "-")]),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn wrong_names_are_told_which_part_and_what_stands_there() {
    let registry = Registry::new([Bare::entry(), Odd::entry()]);
    let good = Odd::with_defaults(&key()).unwrap().variant_name();
    let said = |name: &str| match registry.parse(name) {
        Ok(v) => format!("{} of {}", v.variant_name(), v.family().name()),
        Err(e) => e.to_string(),
    };
    let all = [
        said(&good),
        said("odd_ranks4"),
        said("odd_ranks1"),
        said("odd"),
        said(""),
        said("od_jobs_h7168"),
        said("odd_jobs_h7168"),
        said(&good.replace("__", "_")),
        said(&good.replace("h7168", "h07168")),
        said(&good.replace("h7168", "h7169")),
        said(&good.replace("h7168", "7168")),
        said(&good.replace("om4", "om0")),
        said(&good.replace("om4", "o+4")),
        said(&good.replace("fp8", "fp16")),
        said(&good.replace("nodedup", "dodup")),
        said(&good.replace("w16", "w12")),
        said(&good.replace("r8", "r16")),
        said(&format!("{good}_x")),
        said(&format!("{good} ")),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn families_can_be_used_without_knowing_their_types() {
    let registry = Registry::new([Odd::entry(), Bare::entry(), Odd::entry()]);
    assert_eq!(registry.families().iter().map(|f| f.name()).collect::<Vec<_>>(), ["odd", "odd_jobs"]);
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
    assert_eq!(kernel.loc.short_file(), "codegen/tests/family.rs");
    let params: Vec<_> = odd.params().into_iter().map(|p| (p.name, p.kind, p.dtype, p.len, p.doc)).collect();
    let traced: Vec<_> = kernel.params.into_iter().map(|p| (p.name, p.kind, p.dtype, p.len, p.doc)).collect();
    assert_eq!(params, traced);

    let wide = Odd { warps: 32, ..odd.clone() };
    assert!(wide.trace(32).is_ok());
    let said = |odd: &Odd, lanes| odd.trace(lanes).unwrap_err().to_string();
    assert_eq!(
        said(&wide, 64),
        "odd_jobs: `warps` = 32 is not allowed: it must be at most 16 where warps have 64 lanes"
    );
    assert!(said(&Odd { hidden: 9, ..odd.clone() }, 32).contains("`hidden` = 9 is not allowed"));
    assert!(said(&Odd { ranks: 12, ..odd.clone() }, 32).contains("`dedup` = false is not allowed"));
    // A warp size that no target has is an error of the trace.
    assert!(said(&odd, 0).contains("lanes"));
    assert_eq!(Odd::entry().parse(&odd.variant_name()).unwrap().trace(32).unwrap(), odd.trace(32).unwrap());
}

proptest! {
    #[test]
    fn names_are_c_identifiers_and_parse_back(odd in legal()) {
        let name = odd.variant_name();
        prop_assert!(name.starts_with(|c: char| c.is_ascii_alphabetic()));
        prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        prop_assert_eq!(Odd::parse_variant(&name).unwrap(), odd.clone());
        let json = serde_json::to_string(&odd).unwrap();
        prop_assert_eq!(serde_json::from_str::<Odd>(&json).unwrap(), odd);
    }

    #[test]
    fn settings_build_the_configuration_they_describe(odd in legal()) {
        prop_assert_eq!(Odd::from_settings(&odd.describe()).unwrap(), odd);
    }

    #[test]
    fn defaults_and_candidates_of_any_key_are_legal(key in keys()) {
        match Odd::with_defaults(&key) {
            Ok(odd) => {
                prop_assert!(odd.check().is_ok());
                prop_assert_eq!(odd.key(), key);
            }
            Err(_) => prop_assert_eq!(Odd::candidates(&key).count(), 0),
        }
        for odd in Odd::candidates(&key).take(100) {
            prop_assert!(odd.check().is_ok());
        }
    }

    /// A mangled name is an error, or the name of another variant; what parses always prints back to itself.
    #[test]
    fn mangled_names_give_errors(odd in legal(), at in any::<prop::sample::Index>(), with in "[a-z0-9_.é-]{0,3}", cut in 0..3usize) {
        let name = odd.variant_name();
        let at = at.index(name.len());
        let mangled = format!("{}{with}{}", &name[..at], &name[(at + cut).min(name.len())..]);
        match Odd::parse_variant(&mangled) {
            Ok(other) => prop_assert_eq!(other.variant_name(), mangled),
            Err(NameError::Form { .. } | NameError::Part { .. } | NameError::Illegal { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,40}", field in 0..11usize) {
        let _ = Odd::parse_variant(&text);
        let _ = Odd::parse_variant(&format!("odd_jobs_{text}"));
        let _ = Registry::new([Odd::entry()]).parse(&text);
        let _ = Odd::fields()[field].parse(&text);
    }
}

#[cfg(feature = "clap")]
mod command_line {
    use super::*;
    use clap::Command;
    use peerwarp_codegen::family::clap_args;

    fn command() -> Command {
        Command::new("generate").args(clap_args::arguments(Odd::fields()))
    }

    #[test]
    fn fields_are_options_that_say_what_they_take() {
        insta::assert_snapshot!(command().render_long_help());
    }

    #[test]
    fn options_become_settings_and_bad_ones_are_told() {
        let given =
            ["generate", "--hidden", "64", "--ranks=4", "--offset", "-4", "--dedup", "--order", "by-expert"];
        let matches = command().try_get_matches_from(given).unwrap();
        let settings = clap_args::settings(Odd::fields(), &matches);
        let settings: Vec<String> = settings.into_iter().map(|(n, v)| format!("{n}={v}")).collect();
        assert_eq!(settings, ["hidden=64", "ranks=4", "offset=-4", "dedup=true", "order=by-expert"]);
        // Options of another command's fields are not there, which is no reason to fail.
        assert_eq!(clap_args::settings(Bare::fields(), &matches).len(), 1);
        let said = |args: &[&str]| {
            let all = ["generate"].iter().chain(args);
            command().try_get_matches_from(all).unwrap_err().to_string()
        };
        let all = [said(&["--hidden", "7170"]), said(&["--rows", "bf61"]), said(&["--warps=5"])];
        insta::assert_snapshot!(all.join("\n"));
    }
}
