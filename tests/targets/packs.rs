//! Every family packs for every target, with the variant that is chosen for the target's device.
//!
//! All are emitted here. Compilers take a third of a second for a kernel, so that CI compiles each seventh of them; `PEERWARP_TARGETS=write`
//! compiles all and keeps, in `packed.txt`, what packed for which target. The page of targets is made of that record.

use std::collections::BTreeMap;
use std::{env, fs};

use peerwarp::build::emit::{self, Job};
use peerwarp::build::pack::{self, BuildError, Options};
use peerwarp::codegen::family::{Registry, Target, Variant};
use peerwarp::codegen::print::{self, Excess};
use peerwarp::harness::choose::{self, Device};
use peerwarp::harness::request::Request;
use rayon::prelude::*;

use super::shipped::{KERNELS, parts, registry};

/// What is packed for a target, by family.
type Jobs = Vec<(&'static str, Job)>;

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/targets/packed.txt");

const HOW: &str = "PEERWARP_TARGETS=write cargo test -p peerwarp --test targets packs";
/// Architectures whose devices hold what the defaults are.
const LARGE: [&str; 2] = ["sm_90a", "gfx942"];
/// Waves of 1024 threads that spill where numbers of warps are in vector registers.
const CROWDED: (&str, &str) = ("moe_round_trip", "gfx950");

/// The variant of a kernel's key that is chosen for a target.
fn chosen(kernel: &str, registry: &Registry, target: Target) -> Variant {
    let (family, key) = parts(kernel);
    let request = Request { key, ..Request::family(family, family) };
    let found = choose::for_requests(None, &[request], registry, &Device::of_target(target));
    found.unwrap_or_else(|e| panic!("{target}, {kernel}: {e}")).variants.remove(0)
}

/// The first kernel of each family, without what is set of its tuning.
pub(super) fn families() -> Vec<(&'static str, String)> {
    let registry = registry();
    let first = |family: &str| KERNELS.iter().find(|kernel| parts(kernel).0 == family).expect("each has one");
    let of = |name: &'static str| {
        let family = registry.family(name).expect("it is built in");
        let keys = family.fields().iter().filter(|f| f.role == peerwarp::codegen::family::FieldRole::Key);
        let keys: Vec<&str> = keys.map(|f| f.name).collect();
        let fields = parts(first(name)).1.into_iter().filter(|(field, _)| keys.contains(&field.as_str()));
        let fields: Vec<String> = fields.map(|(field, value)| format!("{field}={value}")).collect();
        (name, format!("{name} {}", fields.join(" ")))
    };
    registry.families().iter().map(|family| of(family.name())).collect()
}

/// What packed for which target.
pub(super) fn record() -> BTreeMap<Target, Vec<String>> {
    let text = fs::read_to_string(RECORD).expect("the record is there");
    let line = |line: &str| {
        let (target, families) = line.split_once(": ").expect("target: families");
        (target.parse().expect("a target"), families.split(' ').map(str::to_owned).collect())
    };
    text.lines().map(line).collect()
}

/// What is packed of each job: one that compiles, without spills and with all blocks resident.
fn pack(jobs: &[Job]) -> Result<usize, BuildError> {
    let dir = tempfile::tempdir().unwrap();
    let built = pack::build("peerwarp", jobs, &[], &dir.path().join("pack"), &Options::default(), || ())?;
    Ok(built.compiled)
}

#[test]
fn every_family_packs_for_every_target() {
    let (registry, families) = (registry(), families());
    let targets: Vec<Target> = Target::all().collect();
    let of_target = |&target: &Target| {
        let job = |(family, kernel): &(&'static str, String)| {
            let variant = chosen(kernel, &registry, target);
            let traced =
                emit::trace(&*variant, target.warp_size()).unwrap_or_else(|e| panic!("{target}: {e}"));
            let excess = print::excess(&traced, target).unwrap_or_else(|e| panic!("{target}: {e}"));
            assert_eq!(excess, Excess::default(), "{target}: {}", variant.variant_name());
            emit::source("peerwarp", &*variant, target).unwrap_or_else(|e| panic!("{target}: {e}"));
            if LARGE.contains(&target.arch()) {
                let default = registry.family(family).unwrap().build(&parts(kernel).1).unwrap();
                assert_eq!(variant.variant_name(), default.variant_name(), "{target}: what fits stays");
            }
            (*family, Job { label: String::new(), variant, target })
        };
        (target, families.iter().map(job).collect())
    };
    let jobs: Vec<(Target, Jobs)> = targets.par_iter().map(of_target).collect();
    if env::var_os("PEERWARP_TARGETS").is_some_and(|how| how == "write") {
        let packs = |(family, job): &(&str, Job)| match pack(std::slice::from_ref(job)) {
            Ok(_) => Some((*family).to_owned()),
            Err(e) => {
                println!("{}: {e}", job.target);
                None
            }
        };
        let lines = jobs.iter().map(|(target, jobs)| {
            let packed: Vec<String> = jobs.par_iter().filter_map(packs).collect();
            format!("{target}: {}\n", packed.join(" "))
        });
        return fs::write(RECORD, lines.collect::<String>()).unwrap();
    }
    let record = record();
    assert!(record.keys().eq(&targets), "a target has no line: {HOW}");
    let names: Vec<&str> = families.iter().map(|(name, _)| *name).collect();
    let known = |families: &[String]| families.iter().all(|family| names.contains(&&**family));
    assert!(record.values().all(|families| known(families)), "a family is gone: {HOW}");
    let turn = |(number, (target, jobs)): (usize, (Target, Jobs))| {
        let packed = record[&target].clone();
        let mine = jobs.into_iter().enumerate().filter(move |(at, (family, _))| {
            let turn = (at + number) % 7 == 0 || (*family, target.arch()) == CROWDED;
            turn && packed.iter().any(|name| name == family)
        });
        mine.map(|(_, (_, job))| job).collect::<Vec<_>>()
    };
    let wanted: Vec<Job> = jobs.into_iter().enumerate().flat_map(turn).collect();
    match pack(&wanted) {
        Ok(compiled) => assert_eq!(compiled, wanted.len()),
        Err(BuildError::Compiler(e)) if env::var_os("CI").is_none() => println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    }
}
