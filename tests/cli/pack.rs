//! `peerwarp pack`, with an nvcc that is a shell script: objects are digests of sources, and what kernels use is what the
//! test wants.

use std::fs;
use std::path::PathBuf;

use peerwarp::build::pack::{Entry, Pack};
use peerwarp::codegen::family::{DynKernel, Family, Fields};
use peerwarp::families::moe::kernels::{Combine, CombineKey, Dispatch};
use peerwarp::runtime::image::Images;
use peerwarp::runtime::registry::{Registry, Selected};

use super::support::{Place, Ran, names};

pub const NVCC: &str = r#"
if [ "$1" = --version ]; then echo "release 13.0, V${VERSION:-13.0.88}"; exit; fi
echo "$@" >> "$CALLS"
[ -n "$WRONG" ] && { echo "k.cu(3): error: $WRONG" >&2; exit 2; }
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
sha256sum < "$1" > "$out"
echo "ptxas info    : Compiling entry function '${1%.cu}' for 'sm'
ptxas info    : Function properties for ${1%.cu}
    ${STACK:-0} bytes stack frame, ${SPILLS:-0} bytes spill stores, ${SPILLS:-0} bytes spill loads
ptxas info    : Used ${REGISTERS:-32} registers, used 1 barriers, 40 bytes smem" >&2
"#;

struct Packing {
    place: Place,
    nvcc: String,
    calls: String,
}

impl Packing {
    fn new() -> Packing {
        let place = Place::new();
        let nvcc = place.program("nvcc", NVCC);
        let calls = place.write("calls", "").display().to_string();
        Packing { place, nvcc, calls }
    }

    /// Packs two kernels, dispatch and combine, for each target.
    fn pack(&self, more: &str, env: &[(&str, &str)]) -> Ran {
        let args = format!("pack --model mixtral-8x7b --tokens 8 --compiler nvcc --out out {more}");
        let mut all = vec![("PEERWARP_NVCC", self.nvcc.as_str()), ("CALLS", self.calls.as_str())];
        all.extend_from_slice(env);
        self.place.run_with(&args.split_whitespace().collect::<Vec<_>>(), &all)
    }

    /// How often nvcc has compiled since this was asked last.
    fn compiled(&self) -> usize {
        let lines = fs::read_to_string(&self.calls).unwrap().lines().count();
        fs::write(&self.calls, "").unwrap();
        lines
    }

    fn manifest(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.place.path("out/pack.json")).unwrap()).unwrap()
    }

    fn objects(&self) -> Vec<PathBuf> {
        let of = |k: &serde_json::Value| self.place.path("out").join(k["object"]["file"].as_str().unwrap());
        self.manifest()["kernels"].as_array().unwrap().iter().map(of).collect()
    }
}

#[test]
fn compiles_what_has_changed_and_nothing_else() {
    let p = Packing::new();
    let ran = p.pack("", &[]);
    assert_eq!((ran.code, p.compiled()), (0, 2), "{}", ran.report());
    assert_eq!(ran.stdout, "2 kernels in out (136 B), 2 compiled: 2 for cuda:sm_90a\n");
    assert_eq!((names(&p.place.path("out")).len(), names(&p.place.path("out/sm_90a")).len()), (3, 4));

    let ran = p.pack("", &[]);
    assert_eq!((ran.code, p.compiled()), (0, 0));
    assert!(ran.stdout.contains("0 compiled"), "{}", ran.stdout);

    // Another target besides: what is there is kept.
    p.pack("--target cuda:sm_90a,cuda:sm_80", &[]);
    assert_eq!(p.compiled(), 2);
    // Another version of the compiler, or other sources.
    p.pack("--target cuda:sm_90a", &[("VERSION", "13.1.5")]);
    let left = ["ir", "pack.json", "sm_90a"].map(String::from).to_vec();
    assert_eq!((p.compiled(), names(&p.place.path("out"))), (2, left));
    let ran = p.pack("--set moe_dispatch.vectors=1", &[("VERSION", "13.1.5")]);
    assert_eq!((ran.code, p.compiled(), names(&p.place.path("out/sm_90a")).len()), (0, 1, 4));
}

#[test]
fn kernels_with_timelines_say_what_they_record() {
    let p = Packing::new();
    p.pack("", &[]);
    let plain = p.manifest();
    p.compiled();
    let ran = p.pack("--timeline 64", &[]);
    assert_eq!((ran.code, p.compiled()), (0, 2), "{}", ran.report());
    let traced = p.manifest();
    for (plain, traced) in [0, 1].map(|i| (&plain["kernels"][i], &traced["kernels"][i])) {
        assert_eq!((plain.get("timeline"), &traced["timeline"]["slots"]), (None, &64.into()));
        let pack = Pack::open(&p.place.path("out")).unwrap();
        let kernel = pack.kernels().find(|k| traced["variant"] == k.entry.variant).unwrap().entry;
        let timeline = kernel.timeline.as_ref().unwrap();
        let warps = kernel.launch.grid * timeline.warps;
        assert_eq!((timeline.slices, timeline.bytes), (warps, u64::from(warps) * 65 * 32));
        assert!(kernel.args.fields.iter().any(|f| f.name == "timeline"));
        // The runtime gets to know.
        let dispatch = Dispatch::parse_variant(&kernel.variant).map(Family::into_variant);
        let combine = || Combine::parse_variant(&kernel.variant).map(Family::into_variant);
        let variant = dispatch.or_else(|_| combine()).unwrap();
        assert_eq!(pack.image(&*variant, kernel.target).unwrap().timeline.as_ref(), Some(timeline));
    }
    // Without the option they are as before.
    p.pack("", &[]);
    assert_eq!((p.compiled(), p.manifest()), (2, plain));
}

#[test]
fn a_program_without_the_types_launches_what_one_with_them_does() {
    let p = Packing::new();
    p.pack("--target cuda:sm_90a,cuda:sm_80", &[]);
    let pack = Pack::open(&p.place.path("out")).unwrap();
    for kernel in pack.kernels() {
        let dispatch = Dispatch::parse_variant(&kernel.entry.variant).map(Family::into_variant);
        let combine = || Combine::parse_variant(&kernel.entry.variant).map(Family::into_variant);
        let typed = dispatch.or_else(|_| combine()).unwrap();
        let packed = pack.carried(kernel.entry).unwrap();
        assert_eq!((packed.family_name(), packed.key()), (typed.family_name(), sorted(typed.key())));
        assert_eq!((packed.trace(32), packed.ranks()), (typed.trace(32), typed.ranks()));
        let unchanneled = typed.params().into_iter().zip(packed.params());
        for (typed, packed) in unchanneled {
            assert_eq!(
                (typed.signature(), typed.binding, &typed.rows, typed.bytes()),
                (packed.signature(), packed.binding, &packed.rows, packed.bytes())
            );
        }
        let images = [pack.image(&*typed, kernel.entry.target), pack.image(&packed, kernel.entry.target)];
        let [typed, packed] = images.map(|image| format!("{:?}", image.unwrap()));
        assert_eq!(typed, packed);
        let error = packed_for(&pack, kernel.entry, 64);
        assert!(error.contains("for warps of 32 lanes, not of 64"), "{error}");
    }
}

fn sorted(mut key: Vec<(String, serde_json::Value)>) -> Vec<(String, serde_json::Value)> {
    key.sort_by(|a, b| a.0.cmp(&b.0));
    key
}

fn packed_for(pack: &Pack, entry: &Entry, lanes: u32) -> String {
    pack.carried(entry).unwrap().trace(lanes).unwrap_err().to_string()
}

#[test]
fn a_program_without_the_types_finds_the_variant_that_one_with_them_does() {
    let p = Packing::new();
    let catalogue = "[[moe]]\nhidden = 4096\nexperts = 8\ntopk = 2\ntokens = [8, 32, 128]\nranks = 2\n";
    p.place.write("c.toml", catalogue);
    let env = [("PEERWARP_NVCC", p.nvcc.as_str()), ("CALLS", p.calls.as_str())];
    let args = "pack --catalogue c.toml --target cuda:sm_90a --compiler nvcc --out out";
    let ran = p.place.run_with(&args.split(' ').collect::<Vec<_>>(), &env);
    assert_eq!(ran.code, 0, "{}", ran.report());
    let pack = Pack::open(&p.place.path("out")).unwrap();
    let target = "cuda:sm_90a".parse().unwrap();
    let typed: Registry<Combine> = Registry::of_pack(&pack, target, false);
    let any = pack.kernels().find_map(|k| Combine::parse_variant(&k.entry.variant).ok()).unwrap();
    for tokens in 1..130 {
        let key = CombineKey { tokens, ..any.key() };
        let texts: Vec<_> = CombineKey::fields()
            .iter()
            .zip(key.values())
            .map(|(f, v)| (f.name.to_owned(), v.to_string()))
            .collect();
        let found =
            pack.select(Combine::NAME, texts, key.ranks, Some(target)).map(|found| found.variant_name());
        match typed.select(&key) {
            Ok(Selected::Exact(wanted) | Selected::Covering(wanted)) => {
                assert_eq!(found.unwrap(), wanted.variant_name());
            }
            Ok(Selected::Jit) => panic!("nothing can be compiled"),
            Err(none) => {
                let said = found.unwrap_err().to_string();
                assert!(said.contains(&none.nearest.join(", ")), "{said}");
            }
        }
    }
    let said = |family: &str, key: &[(&str, &str)], target: &str| {
        let key: Vec<_> = key.iter().map(|(f, v)| ((*f).to_owned(), (*v).to_owned())).collect();
        pack.select(family, key, 2, Some(target.parse().unwrap())).unwrap_err().to_string()
    };
    let few: Vec<_> =
        texts(&any.key()).into_iter().map(|(f, v)| (f, if f == "tokens" { "few" } else { v })).collect();
    let said = [
        said("moe_combin", &[], "cuda:sm_90a"),
        said("moe_combine", &[("token", "8")], "cuda:sm_90a"),
        said("moe_combine", &few, "cuda:sm_90a"),
        said("moe_combine", &[("tokens", "8"), ("tokens", "9")], "cuda:sm_90a"),
        said("moe_combine", &texts(&any.key()), "hip:gfx942"),
    ];
    insta::assert_snapshot!(said.join("\n\n"));
}

fn texts(key: &CombineKey) -> Vec<(&'static str, &'static str)> {
    CombineKey::fields().iter().zip(key.values()).map(|(f, v)| (f.name, &*v.to_string().leak())).collect()
}

#[test]
fn damaged_objects_are_compiled_again() {
    let p = Packing::new();
    p.pack("", &[]);
    let objects = p.objects();
    let good: Vec<_> = objects.iter().map(|o| fs::read(o).unwrap()).collect();
    p.compiled();
    fs::write(&objects[0], &good[0][..10]).unwrap();
    fs::write(&objects[1], &good[0]).unwrap();
    assert_eq!((p.pack("", &[]).code, p.compiled()), (0, 2));
    fs::remove_file(&objects[1]).unwrap();
    assert_eq!((p.pack("", &[]).code, p.compiled()), (0, 1));
    assert_eq!(objects.iter().map(|o| fs::read(o).unwrap()).collect::<Vec<_>>(), good);
    // A manifest that is cut off or of another version says nothing of what is there.
    let path = p.place.path("out/pack.json");
    let text = fs::read_to_string(&path).unwrap();
    for bad in [&text[..text.len() / 2], &text.replace("\"schema\": 2", "\"schema\": 3"), ""] {
        fs::write(&path, bad).unwrap();
        assert_eq!((p.pack("", &[]).code, p.compiled()), (0, 2));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn the_manifest_says_how_to_launch_and_what_is_used() {
    let p = Packing::new();
    p.pack("--set vectors=2", &[("REGISTERS", "64")]);
    let manifest = p.manifest();
    assert_eq!((&manifest["schema"], &manifest["generator"]), (&2.into(), &"peerwarp".into()));
    let kernel = &manifest["kernels"][1];
    let name = kernel["variant"].as_str().unwrap();
    assert!(name.starts_with("moe_dispatch_h4096_e8_k2_t8_r8_bf16"), "{name}");
    assert_eq!((&kernel["entry"], &kernel["family"]), (&name.into(), &"moe_dispatch".into()));
    assert_eq!((&kernel["labels"][0], &kernel["ranks"]), (&"mixtral-8x7b".into(), &8.into()));
    assert_eq!((&kernel["key"]["hidden"], &kernel["tuning"]["vectors"]), (&4096.into(), &2.into()));
    assert_eq!(
        (&kernel["resources"]["registers"], &kernel["resources"]["static_shared_bytes"]),
        (&64.into(), &40.into())
    );
    let launch = &kernel["launch"];
    assert_eq!((&launch["block_threads"], launch["grid"].as_u64().unwrap() > 64), (&256.into(), true));
    // 64 registers of 256 threads: four blocks.
    assert_eq!(
        (&kernel["residency"]["blocks_each"], &kernel["residency"]["device"]),
        (&4.into(), &"H100 SXM".into())
    );
    assert_eq!(
        (&kernel["toolchain"]["name"], &kernel["toolchain"]["version"]),
        (&"nvcc".into(), &"13.0.88".into())
    );
    let options = kernel["toolchain"]["options"].to_string();
    assert!(options.contains("-arch=sm_90a") && !options.contains('/'), "{options}");
    let header = p.place.path("out").join(kernel["header"]["file"].as_str().unwrap());
    assert!(fs::read_to_string(header).unwrap().contains(name));
}

#[test]
fn kernels_that_spill_or_are_not_resident_are_refused_all_at_once() {
    let p = Packing::new();
    p.pack("", &[]);
    let before = fs::read(p.place.path("out/pack.json")).unwrap();

    let ran = p.pack("--target cuda:sm_80", &[("SPILLS", "16"), ("REGISTERS", "128")]);
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.report());
    assert_eq!(fs::read(p.place.path("out/pack.json")).unwrap(), before, "nothing is written");
    let json = p.pack("--target cuda:sm_80 --json", &[("STACK", "8")]).json();
    assert_eq!((&json["ok"], json["refused"].as_array().unwrap().len()), (&false.into(), 2));
    assert_eq!(json["refused"][0]["why"], "a thread uses 8 bytes of local memory, 0 allowed");
    assert_eq!(p.pack("--target cuda:sm_80 --allow-spills", &[("SPILLS", "16")]).code, 0);

    // With 128 registers two blocks of 256 threads fit, so one SM less than half of the grid is too few.
    let grids = p.manifest()["kernels"].as_array().unwrap().clone();
    let grid = |k: &serde_json::Value| k["launch"]["grid"].as_u64().unwrap();
    let most = grids.iter().map(grid).max().unwrap();
    let few = most.div_ceil(2) - 1;
    let ran = p.pack(&format!("--sms {few}"), &[("REGISTERS", "128")]);
    let told = format!(
        "{most} blocks wait for each other and must be resident at once, and {} are: 128 registers for each of 256 \
         threads leave room for 2 on each of {few} SMs (as given); tune it with --set, now",
        2 * few
    );
    assert_eq!((ran.code, ran.stdout.contains(&told)), (1, true), "{}", ran.stdout);
    assert_eq!(p.pack(&format!("--sms {}", few + 1), &[("REGISTERS", "128")]).code, 0);
}

#[test]
fn what_a_compiler_says_is_passed_on() {
    let p = Packing::new();
    let ran = p.pack("", &[("WRONG", "identifier \"x\" is undefined")]);
    assert_eq!((ran.code, ran.stdout.as_str(), p.place.path("out").exists()), (1, "", false));
    let said = "error: nvcc 13.0.88 does not compile moe_combine_h4096_";
    assert!(ran.stderr.starts_with(said), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("for cuda:sm_90a:\nk.cu(3): error: identifier \"x\" is undefined"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_compiler_that_is_missing_or_too_old_is_reported_by_name() {
    let p = Packing::new();
    let ran = p.pack("", &[("PEERWARP_NVCC", "/nowhere/nvcc")]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr
            .starts_with("error: there is no compiler for cuda:sm_90a\n  PEERWARP_NVCC = /nowhere/nvcc"),
        "{}",
        ran.stderr
    );
    let ran = p.pack("--target cuda:sm_100a", &[("VERSION", "12.6.20")]);
    assert!(
        ran.stderr.contains("does not serve for cuda:sm_100a, which needs 12.8 or newer"),
        "{}",
        ran.stderr
    );
    let ran = p.pack("--target hip:gfx942", &[]);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (2, "error: there is no compiler for hip:gfx942 among nvcc: clang, zig, hipcc would do\n")
    );
    let ran = p.pack("--compiler gcc", &[]);
    assert!(ran.stderr.contains("--compiler = gcc: no such name"), "{}", ran.stderr);
}

#[test]
fn kernels_that_put_by_gin_are_of_one_version_of_nccl() {
    let p = Packing::new();
    let header = |code: u32| p.place.write("include/nccl.h", format!("#define NCCL_VERSION_CODE {code}\n"));
    let include = header(23203).parent().unwrap().display().to_string();
    let pack = |more: &str| {
        let args = format!(
            "pack --family all_reduce --ranks 4 --nodes 2 elements=1024 dtype=bf16 --compiler nvcc --out out {more}"
        );
        // What NCCL writes to the stack is no spill.
        let env = [
            ("PEERWARP_NVCC", &*p.nvcc),
            ("CALLS", &*p.calls),
            ("PEERWARP_NCCL", &*include),
            ("STACK", "136"),
        ];
        p.place.run_with(&args.split_whitespace().collect::<Vec<_>>(), &env)
    };
    assert!(pack("--far gin").stderr.contains("no nccl_device.h"));
    p.place.write("include/nccl_device.h", "");
    let ran = pack("--far gin");
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert!(fs::read_to_string(&p.calls).unwrap().contains(&format!("-I{include}")));
    assert_eq!(p.manifest()["kernels"][0]["toolchain"]["nccl"], "2.32.3");
    assert_eq!((p.compiled(), pack("--far gin").code, p.compiled()), (1, 0, 0));
    header(23204);
    assert_eq!((pack("--far gin").code, p.compiled()), (0, 1));
    assert_eq!(p.manifest()["kernels"][0]["toolchain"]["nccl"], "2.32.4");
    let pack_of = Pack::open(&p.place.path("out")).unwrap();
    assert_eq!(pack_of.manifest().kernels[0].args.fields.last().unwrap().bytes, 40);

    assert!(
        pack("").stderr.contains("local memory, 0 allowed")
            || pack("").stdout.contains("local memory, 0 allowed")
    );
    let nvrtc = p.place.say("pack --family all_reduce --ranks 4 --nodes 2 elements=1024 dtype=bf16 --compiler nvrtc --out o --far gin");
    assert!(nvrtc.stderr.contains("for cuda:sm_90a among nvrtc: nvcc would do"), "{}", nvrtc.stderr);
    let hip = pack("--target hip:gfx942 --far gin");
    assert!(hip.stderr.contains("--far = gin: packs for hip:gfx942 cannot be made"), "{}", hip.stderr);
}

#[test]
fn a_trace_of_a_pack_takes_kernels_that_record() {
    let packing = Packing::new();
    let trace = |tokens: u32| {
        packing.place.say(&format!("trace --model mixtral-8x7b --tokens {tokens} --ranks 2 --pack out"))
    };
    assert_eq!(packing.pack("--ranks 2", &[]).code, 0);
    let ran = trace(8);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
    for needle in ["--pack = out: not allowed", "made with --timeline", "moe_dispatch_h4096_e8_k2_t8_r2_bf16"]
    {
        assert!(ran.stderr.contains(needle), "no `{needle}` in {}", ran.stderr);
    }

    assert_eq!(packing.pack("--ranks 2 --timeline", &[]).code, 0);
    let ran = trace(16);
    let absent = "a pack that has moe_dispatch_h4096_e8_k2_t16_r2_bf16";
    assert!(ran.code == 2 && ran.stderr.contains(absent), "{}", ran.report());
    assert!(ran.stderr.contains("did you mean: moe_dispatch_h4096_e8_k2_t8_r2_bf16"), "{}", ran.stderr);
    // What is left to say is that such objects are no kernels, or that there is nothing to run them on.
    let ran = trace(8);
    assert!(ran.code == 2 && !ran.stderr.contains("--pack"), "{}", ran.report());
}
