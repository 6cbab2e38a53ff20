//! `peerwarp show` and `peerwarp list`.

use super::support::Place;

const SMALL: &str = "--hidden 64 --experts 8 --topk 2 --tokens 8 --ranks 4";

#[test]
fn shows_every_form_of_a_selection() {
    let place = Place::new();
    let shown = |form: &str| {
        let ran = place.say(&format!("show {SMALL} {form}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{form}");
        ran.stdout
    };
    assert_eq!(shown(""), shown("--explain"));
    assert!(shown("--cuda").contains("extern \"C\" __global__"), "{}", shown("--cuda"));
    assert_eq!(shown("--cuda"), shown("--target cuda:sm_90a"));
    assert_eq!(shown("--hip"), shown("--target hip:gfx942"));
    assert!(shown("--hip") != shown("--hip --target hip:gfx90a"));
    assert!(shown("--ir") != shown("--ir --target hip:gfx942"), "the warp size shows in the IR");
    assert!(shown("--set send_blocks=64 --ir") != shown("--ir"));
    let timed = shown("--timeline 99");
    assert!(
        timed.contains("timeline_slots = 99;") && timed.contains("--target cuda:sm_90a --timeline 99"),
        "{timed}"
    );
    assert!(shown("--header --timeline").contains("PeerwarpTimelineEvent* timeline;"));
    let far = "show --family all_reduce --ranks 4 --nodes 2 elements=1024 dtype=bf16";
    let [gin, ring] =
        ["--far gin", "--cuda --far ring"].map(|far_by| place.say(&format!("{far} {far_by}")).stdout);
    assert!(
        gin.contains("#include <nccl_device.h>") && gin.contains("--target cuda:sm_90a --far gin"),
        "{gin}"
    );
    assert!(ring.contains("u64* ring;") && !ring.contains("--far"), "{ring}");
    assert!(place.say(&format!("{far} --header --far gin")).stdout.contains("PeerwarpGin far;"));
    let explained = place.say(&format!("{far} --explain --far gin"));
    assert!(
        explained.code == 2 && explained.stderr.contains("--far = gin: contradicts --explain"),
        "{}",
        explained.report()
    );
    // Lines of source move.
    let without_lines = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    let explained: Vec<String> = shown("--explain").split(".rs:").map(without_lines).collect();
    insta::assert_snapshot!(explained.join(".rs"));
}

#[test]
fn shows_a_variant_by_name() {
    let place = Place::new();
    let all = place.say(&format!("show {SMALL} --json")).json();
    let variants: Vec<&str> =
        all.as_array().unwrap().iter().map(|v| v["variant"].as_str().unwrap()).collect();
    assert_eq!(variants.len(), 2);
    for (variant, of_selection) in variants.iter().zip(all.as_array().unwrap()) {
        let by_name = place.say(&format!("show {variant} --json")).json();
        assert_eq!(&by_name[0], of_selection);
        let other = place.say(&format!("show {variant} --set send_blocks=64 --json")).json();
        assert!(other[0]["variant"].as_str().unwrap().contains("_s64_"), "{other}");
    }
}

#[test]
fn forms_exclude_each_other() {
    let ran = Place::new().say(&format!("show {SMALL} --ir --cuda"));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("cannot be used with"), "{}", ran.stderr);
}

#[test]
fn lists_models_families_and_variants() {
    let place = Place::new();
    insta::assert_snapshot!("targets", place.say("list targets").report());
    insta::assert_snapshot!("models", place.say("list models").report());
    insta::assert_snapshot!("families", place.say("list").report());
    assert_eq!(place.say("list models --json").json().as_array().unwrap().len(), 13);
    let families = place.say("list families --json").json();
    assert_eq!(families[0]["name"], "moe_dispatch");
    assert_eq!(families[0]["suite"], "moe");
    let all = place.say("list variants --json").json();
    assert_eq!(all.as_array().unwrap().len(), 13 * 4 * 2);
    // A family of few variants: MoE has a hundred thousand for a key (tests/cli/tune.rs lists them).
    let space = "list variants --family broadcast elements=1000 ranks=2 dtype=bf16";
    let json = place.say(&format!("{space} --json")).json();
    let [family] = &json.as_array().unwrap()[..] else { panic!("{json}") };
    let others = family["others"].as_array().unwrap();
    assert!(others.len() > 50 && !others.contains(&family["selected"]), "{json}");
    let text = place.say(space).stdout;
    let more = format!("... and {} more of broadcast (all of them with --json)", others.len() - 50);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[51]), (52, more.as_str()), "{text}");
}

#[test]
fn completes_for_shells_under_its_own_name() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = Place::new().say(&format!("completions {shell}"));
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains("peerwarp") && ran.stdout.contains("hf-config"), "{shell}");
    }
}

/// A machine is for kernels in words alone, and has to say what is between its nodes.
#[test]
fn a_machine_of_show_has_nodes() {
    let place = Place::new();
    let ran = place.say(&format!("show {SMALL} --explain --machine h200-cx7-nodes"));
    // No kernel of these is far.
    assert_eq!(ran.report(), place.say(&format!("show {SMALL} --explain")).report());
    let far = "show --family all_reduce_nodes elements=1048576 dtype=bf16 ranks=16 nodes=2 --explain";
    let told = place.say(far).stdout;
    assert!(told.contains("Network cards move at most ") && !told.contains("As much keeps"), "{told}");
    let told = place.say(&format!("{far} --machine h200-cx7-nodes")).stdout;
    assert!(told.contains(" As much keeps them (46.9 GB/s, 6.90 puts a us) busy for "), "{told}");
    for (args, said) in [
        ("--machine pcie-pairs", "--machine = pcie-pairs: not allowed\n  allowed: a machine with [nodes]"),
        ("--machine nowhere", "--machine = nowhere: no such name"),
        (
            "--cuda --machine h200-cx7-nodes",
            "--machine = h200-cx7-nodes: contradicts --source\n  allowed: --explain",
        ),
    ] {
        let ran = place.say(&format!("show {SMALL} {args}"));
        assert!(ran.code == 2 && ran.stderr.contains(said), "{said}\n{}", ran.report());
    }
}

#[test]
fn help_says_what_there_is() {
    let place = Place::new();
    insta::assert_snapshot!("help", place.say("--help").report());
    for command in ["run", "check", "generate", "show", "list"] {
        let ran = place.say(&format!("help {command}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert!(ran.stdout.contains("--model <NAME>"), "{command}");
        assert_eq!(ran.stdout, place.say(&format!("{command} -h")).stdout, "{command}");
        assert!(ran.stdout.lines().filter(|line| line.is_empty()).count() < 10, "{}", ran.stdout);
    }
    let run = place.say("run --help").stdout;
    let own = run.split("\n\n").find(|part| part.starts_with("Options:")).unwrap();
    assert!(own.contains("--backend") && own.contains("--json") && !own.contains("--seed"), "{run}");
    let ran = place.say("generat");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("similar subcommand exists: 'generate'"), "{}", ran.stderr);
    let ran = place.say("rnu");
    assert!(ran.code == 2 && ran.stderr.contains("'run'"), "{}", ran.stderr);
}

#[test]
fn families_are_listed_by_name() {
    let place = Place::new();
    let ran = place.say("list families moe_combine --family all_gather --json");
    let names: Vec<_> = ran.json().as_array().unwrap().iter().map(|family| family["name"].clone()).collect();
    assert_eq!(names, ["moe_combine", "all_gather"], "{}", ran.report());
    let ran = place.say("list families matmul");
    assert!(ran.code == 0 && ran.stdout.starts_with("matmul: "), "{}", ran.report());
    assert!(!ran.stdout.contains("all_gather"), "{}", ran.stdout);
    let ran = place.say("list families matmol");
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
    let said = "family = matmol: no such name\n  allowed: moe_dispatch, ";
    assert!(ran.stderr.contains(said) && ran.stderr.contains("did you mean: matmul"), "{}", ran.stderr);
}

#[test]
fn a_user_is_not_warned_of_kernels_that_come_with_peerwarp() {
    let place = Place::new();
    for args in
        [SMALL, "--family matmul_reduce_scatter m=512 n=512 k=512 ranks=2 dtype=bf16 --set tile_rows=64"]
    {
        let ran = place.say(&format!("show {args} --cuda"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stderr);
    }
}

#[test]
fn kernels_that_the_pages_show_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = std::fs::read_dir(root.join("docs")).unwrap().map(|folder| folder.unwrap().path());
    let pages = folders.filter(|path| path.is_dir()).flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let pages = pages.map(|page| page.unwrap().path()).chain([root.join("README.md")]);
    let mut shown = 0;
    for page in pages.filter(|path| path.extension().is_some_and(|e| e == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for command in text.lines().filter_map(|line| line.strip_prefix("peerwarp show ")) {
            let args = command.split(" #").next().unwrap().trim();
            let ran = Place::new().say(&format!("show {args}"));
            assert_eq!(ran.code, 0, "{}: {}", page.display(), ran.stderr);
            shown += 1;
        }
    }
    assert!(shown >= 2, "{shown}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_peerwarp"))
        .args(["list", "variants"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
}
