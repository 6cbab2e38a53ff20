//! `peerwarp generate`.

use sha2::{Digest, Sha256};

use super::support::{Place, names};

const MIXTRAL: &str = "generate --model mixtral-8x7b --tokens 16 --target cuda:sm_90a,hip:gfx942 --out out";

#[test]
fn writes_checks_and_repairs() {
    let place = Place::new();
    let first = place.say(MIXTRAL);
    assert_eq!(first.code, 0, "{}", first.report());
    assert_eq!(first.stdout, "4 kernels in out: 9 files new, 0 changed\n");
    assert_eq!(names(&place.path("out")), ["manifest.json", "mixtral-8x7b"]);
    assert_eq!(names(&place.path("out/mixtral-8x7b")), ["gfx942", "sm_90a"]);
    let files = names(&place.path("out/mixtral-8x7b/sm_90a"));
    let ends: Vec<_> = files.iter().map(|f| f.rsplit_once('.').unwrap().1).collect();
    assert_eq!(ends, ["cu", "h", "cu", "h"], "{files:?}");
    assert_eq!(place.names(), ["out"]);

    let check = format!("{MIXTRAL} --check");
    let ran = place.say(&check);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok: 4 kernels in out are as emitted\n"));
    assert_eq!(place.say(MIXTRAL).stdout, "4 kernels in out, all up to date\n");

    let folder = place.path("out/mixtral-8x7b/sm_90a");
    let edited = folder.join(&files[0]);
    std::fs::write(&edited, "// edited").unwrap();
    std::fs::remove_file(folder.join(&files[1])).unwrap();
    place.write("out/mixtral-8x7b/stray.cu", "");
    let ran = place.say(&check);
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.report());
    assert_eq!(std::fs::read_to_string(&edited).unwrap(), "// edited", "--check wrote");
    let json = place.say(&format!("{check} --json")).json();
    assert_eq!((&json["ok"], &json["checked"]), (&false.into(), &true.into()));
    assert_eq!(json["differences"]["foreign"][0], "mixtral-8x7b/stray.cu");

    assert_eq!(place.say(MIXTRAL).stdout, "4 kernels in out: 1 files new, 1 changed\n");
    std::fs::remove_file(place.path("out/mixtral-8x7b/stray.cu")).unwrap();
    assert_eq!(place.say(&check).code, 0);
}

#[test]
fn sources_with_timelines_are_those_that_show_shows() {
    let place = Place::new();
    let ran = place.say("generate --model mixtral-8x7b --tokens 16 --out out --timeline 64");
    assert_eq!(ran.code, 0, "{}", ran.report());
    let manifest = std::fs::read_to_string(place.path("out/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    for kernel in manifest["kernels"].as_array().unwrap() {
        assert_eq!(kernel["timeline"]["slots"], 64);
        let name = kernel["variant"].as_str().unwrap();
        let shown = place.say(&format!("show {name} --cuda --timeline 64")).stdout;
        let text = std::fs::read_to_string(place.path("out").join(kernel["file"].as_str().unwrap())).unwrap();
        assert_eq!(text, shown);
    }
}

#[test]
fn primitives_stand_in_a_header_a_target() {
    let place = Place::new();
    let split = format!("{MIXTRAL} --split-primitives");
    let ran = place.say(&split);
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert_eq!(names(&place.path("out")), ["manifest.json", "mixtral-8x7b", "primitives"]);
    let manifest = std::fs::read_to_string(place.path("out/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    for kernel in manifest["kernels"].as_array().unwrap() {
        let (file, primitives) = (kernel["file"].as_str().unwrap(), kernel["primitives"].as_str().unwrap());
        let text = std::fs::read_to_string(place.path("out").join(file)).unwrap();
        assert!(text.contains(&format!("#include \"../../{primitives}\"\n")), "{text}");
        assert!(!text.contains("struct Warp {"), "{text}");
        assert!(manifest["files"].as_array().unwrap().contains(&primitives.into()));
        let header = std::fs::read_to_string(place.path("out").join(primitives)).unwrap();
        assert!(header.contains("struct Warp {") && !header.contains("struct Args {"), "{header}");
        for (form, of) in [("", "file"), (" --header", "header")] {
            let text = std::fs::read_to_string(place.path("out").join(kernel[of].as_str().unwrap())).unwrap();
            let command = text.lines().find_map(|l| Some(l.split_once("peerwarp show ")?.1)).unwrap();
            assert!(command.ends_with(&format!(" --split-primitives{form}")), "{command}");
            let shown = place.say(&format!("show {command}"));
            assert_eq!((shown.code, shown.stdout), (0, text));
        }
    }
    assert_eq!(place.say(&format!("{split} --check")).code, 0);
    // Without the option the headers go.
    assert_eq!(place.say(MIXTRAL).code, 0);
    assert_eq!(names(&place.path("out")), ["manifest.json", "mixtral-8x7b"]);
}

#[test]
fn what_is_no_longer_selected_goes_away() {
    let place = Place::new();
    place.say(MIXTRAL);
    let ran = place.say("generate --model gpt-oss-20b --tokens 8 --out out");
    assert_eq!(
        (ran.code, names(&place.path("out"))),
        (0, vec!["gpt-oss-20b".into(), "manifest.json".into()])
    );
    assert!(ran.stdout.contains("8 removed"), "{}", ran.stdout);
}

#[test]
fn what_an_earlier_run_left_is_stale_or_extra() {
    let place = Place::new();
    place.say(MIXTRAL);
    let fewer = MIXTRAL.replace(",hip:gfx942", "");
    // As an earlier version would have left it: another text, and its hash in the manifest.
    let file = format!("mixtral-8x7b/sm_90a/{}", names(&place.path("out/mixtral-8x7b/sm_90a"))[0]);
    let manifest = std::fs::read_to_string(place.path("out/manifest.json")).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let hash: String = Sha256::digest("// older").iter().map(|b| format!("{b:02x}")).collect();
    place.write("out/manifest.json", manifest.replace(parsed["sha256"][&file].as_str().unwrap(), &hash));
    place.write(&format!("out/{file}"), "// older");
    let ran = place.say(&format!("{fewer} --check"));
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.report());
    assert_eq!(place.say(&fewer).stdout, "2 kernels in out: 0 files new, 2 changed, 4 removed\n");
    assert_eq!(place.say(&format!("{fewer} --check")).code, 0);
}

#[test]
fn the_banner_names_a_command_that_prints_the_file() {
    let place = Place::new();
    place.say(MIXTRAL);
    for arch in ["sm_90a", "gfx942"] {
        let folder = place.path("out/mixtral-8x7b").join(arch);
        for file in names(&folder) {
            let text = std::fs::read_to_string(folder.join(&file)).unwrap();
            let command =
                text.lines().find_map(|l| Some(l.split_once("peerwarp show ")?.1)).expect("a command");
            let shown = place.say(&format!("show {command}"));
            assert_eq!((shown.code, shown.stdout), (0, text), "{file}");
        }
    }
}

#[test]
fn a_catalogue_has_several_shapes() {
    let place = Place::new();
    place.write(
        "c.toml",
        "targets = [\"hip:gfx942\"]\n[defaults]\nranks = 4\n[[moe]]\nmodel = \"mixtral-8x7b\"\ntokens = [8, 16]\n\
         [[moe]]\nname = \"Our Own\"\nhidden = 64\nexperts = 4\ntopk = 2\ntokens = 8\nlayout = \"expert-major\"\n\
         set = { dedup = false }\n",
    );
    let ran = place.say("generate --catalogue c.toml --out out --json");
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert_eq!(names(&place.path("out")), ["manifest.json", "mixtral-8x7b", "our-own"]);
    assert_eq!(names(&place.path("out/mixtral-8x7b/gfx942")).len(), 8);
    let manifest = std::fs::read_to_string(place.path("out/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let files = manifest["kernels"].as_array().unwrap();
    assert_eq!(files.len(), 6);
    for file in files {
        for of in ["file", "header"] {
            assert!(place.path("out").join(file[of].as_str().unwrap()).is_file());
        }
        assert_eq!((&file["target"], &file["entry"]), (&"hip:gfx942".into(), &file["variant"]));
        assert!(file["grid_blocks"].as_u64().unwrap() > 0 && file["block_threads"].as_u64().unwrap() >= 64);
    }
}

#[test]
fn tuning_beside_a_catalogue_goes_for_all_of_it() {
    let place = Place::new();
    let entry = |hidden: u32| {
        format!("[[moe]]\nhidden = {hidden}\nexperts = 4\ntopk = 2\ntokens = 8\nlayout = \"expert-major\"\n")
    };
    place.write("c.toml", [64, 128].map(entry).concat());
    let ran =
        place.say("generate --catalogue c.toml --set moe_dispatch.group_warps=2 --dedup false --out out");
    assert_eq!(ran.code, 0, "{}", ran.report());
    let manifest = std::fs::read_to_string(place.path("out/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let variants = manifest["kernels"].as_array().unwrap().iter().map(|k| k["variant"].as_str().unwrap());
    let groups = variants.map(|v| (v.contains("dispatch"), v.contains("_g2_"), v.contains("_dedup")));
    assert_eq!(groups.collect::<Vec<_>>(), [(false, false, false), (true, true, false)].repeat(2));
}

#[test]
fn a_shape_that_models_share_is_emitted_once() {
    let place = Place::new();
    let entry =
        |name: &str| format!("[[moe]]\nname = \"{name}\"\nhidden = 64\nexperts = 4\ntopk = 2\ntokens = 8\n");
    place.write("c.toml", ["one", "two", "one"].map(entry).concat());
    let ran = place.say("generate --catalogue c.toml --out out");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "2 kernels in out: 5 files new, 0 changed\n"));
    assert_eq!(names(&place.path("out")), ["manifest.json", "one"]);
    let manifest = std::fs::read_to_string(place.path("out/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["kernels"][0]["models"], serde_json::json!(["one", "two"]));
    assert_eq!(manifest["sha256"].as_object().unwrap().len(), 4);
}

#[test]
fn any_shape_works_by_its_numbers_or_config() {
    let place = Place::new();
    place.write(
        "config.json",
        r#"{"model_type": "x", "hidden_size": 2880, "num_experts": 10, "moe_topk": 3}"#,
    );
    let by = ["--hidden 2880 --experts 10 --topk 3", "--hf-config config.json"];
    let file = |selection: &str, dir: &str| {
        let ran = place.say(&format!("generate {selection} --tokens 8 --ranks 3 --out {dir}"));
        assert_eq!(ran.code, 0, "{}", ran.report());
        let model = place.path(dir).join(if dir == "a" { "h2880-e10-k3" } else { "x" }).join("sm_90a");
        names(&model)
    };
    assert_eq!(file(by[0], "a"), file(by[1], "b"));
}

#[test]
fn architectures_do_not_get_into_each_others_way() {
    let place = Place::new();
    let ran =
        place.say("generate --model glm-4.5 --tokens 8 --target cuda:sm_80,cuda:sm_90a,cuda:sm_80 --out out");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "4 kernels in out: 9 files new, 0 changed\n"));
    assert_eq!(names(&place.path("out/glm-4.5")), ["sm_80", "sm_90a"]);
}
