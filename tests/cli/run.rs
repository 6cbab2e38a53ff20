//! `peerwarp run` and `peerwarp check`.

use super::support::Place;

const SMALL: &str = "--hidden 64 --experts 6 --topk 3 --tokens 4 --ranks 4";

/// Replaces what depends on the machine.
fn stable(text: &str) -> String {
    let seconds = |line: &str| match line.find(" in ").filter(|_| line.ends_with(" s")) {
        Some(at) => format!("{} in <time>", &line[..at]),
        None => line.to_owned(),
    };
    text.lines().map(seconds).map(|l| l + "\n").collect()
}

#[test]
fn agrees_with_the_reference_and_says_what_moved() {
    let place = Place::new();
    let ran = place.say(&format!("run --backend sim {SMALL} --tokens-per-rank 4,0,1,3 --seed 7"));
    assert_eq!(ran.code, 0, "{}", ran.report());
    insta::assert_snapshot!(stable(&ran.report()));
    let json =
        place.say(&format!("run --backend sim {SMALL} --tokens-per-rank 4,0,1,3 --seed 7 --json")).json();
    assert_eq!((&json["ok"], &json["backend"]), (&true.into(), &"sim".into()));
    assert!(json["max_abs_err"].is_number() && json["max_rel_err"].is_number(), "{json}");
    assert!(
        json["variant"]
            .as_str()
            .unwrap()
            .starts_with("moe_dispatch_h64_e6_k3_t4_r4_bf16_raw_rankmajor_both__")
    );
    assert!(
        json["variants"][1]
            .as_str()
            .unwrap()
            .starts_with("moe_combine_h64_e6_k3_t4_r4_bf16_rankmajor_both__")
    );
    let links = json["link_bytes"].as_array().unwrap();
    let wire: u64 = (0..4)
        .flat_map(|a| (0..4).filter(move |b| a != *b).map(move |b| (a, b)))
        .map(|(a, b)| links[a][b].as_u64().unwrap())
        .sum();
    assert_eq!(json["bytes_on_wire"], wire);
    assert!(wire > 0);
}

#[test]
fn combine_may_apply_the_weights_of_rank_major_rows() {
    let place = Place::new();
    for command in ["run --backend sim", "check --seeds 3"] {
        let ran = place.say(&format!("{command} {SMALL} --weighted --json"));
        assert_eq!((ran.code, &ran.json()["ok"]), (0, &true.into()), "{}", ran.report());
        assert!(ran.stdout.contains("_rankmajor_weighted_both__"), "{}", ran.stdout);
    }
    let help = place.say("run --help").stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("--weighted") && help.contains("experts apply the weights, see --weighted"),
        "{help}"
    );
}

#[test]
fn every_dtype_and_way_of_routing_works() {
    let place = Place::new();
    for (dtype, routing) in [("bf16", "zipf:1.2"), ("fp16", "uniform"), ("fp8", "zipf:3")] {
        let ran = place.say(&format!("run --backend sim {SMALL} --dtype {dtype} --routing {routing} --json"));
        assert_eq!((ran.code, &ran.json()["ok"]), (0, &true.into()), "{}", ran.report());
    }
    let ids: Vec<i32> = (0..2 * 3 * 3).map(|i| if i % 5 == 0 { -1 } else { i % 6 }).collect();
    let array = peerwarp::families::moe::npy::Array { shape: vec![2, 3, 3], data: ids };
    place.write("r.npy", peerwarp::families::moe::npy::write(&array));
    for (sizes, tokens) in [("--tokens 4 --ranks 2", 4), ("", 3)] {
        for command in ["run --backend sim", "check --seeds 2"] {
            let command =
                format!("{command} --hidden 64 --experts 6 --topk 3 {sizes} --routing r.npy --json");
            let ran = place.say(&command);
            assert_eq!((ran.code, &ran.json()["ok"]), (0, &true.into()), "{}", ran.report());
            let variant = ran.json()["variants"][0].as_str().unwrap().to_owned();
            assert!(variant.contains(&format!("_t{tokens}_r2_")), "{variant}");
        }
    }
}

#[test]
fn many_ranks_fit_the_screen() {
    let ran = Place::new().say("run --backend sim --hidden 8 --experts 24 --topk 2 --tokens 1 --ranks 24");
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert!(ran.stdout.contains("bytes on a link: ") && ran.stdout.contains("median"), "{}", ran.stdout);
    assert!(ran.stdout.lines().all(|l| l.len() < 120), "{}", ran.stdout);
}

#[test]
fn split_launches_do_the_same() {
    let place = Place::new();
    let run = |phase: &str| {
        let ran = place.say(&format!("run --backend sim {SMALL} --phase {phase} --json"));
        assert_eq!(ran.code, 0, "{}", ran.report());
        ran.json()
    };
    let (both, split) = (run("both"), run("split"));
    assert_eq!(both["link_bytes"], split["link_bytes"]);
    assert_eq!(
        (both["variants"].as_array().unwrap().len(), split["variants"].as_array().unwrap().len()),
        (2, 4)
    );
    let ran = place.say(&format!("run --backend sim {SMALL} --phase send"));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("both, or split"), "{}", ran.stderr);
}

#[test]
fn dedup_saves_bytes() {
    let place = Place::new();
    let run = |dedup: bool| {
        let ran = place.say(
            &format!("run --backend sim {SMALL} --experts 8 --dedup {dedup} --json")
                .replace("--experts 6 ", ""),
        );
        assert_eq!(ran.code, 0, "{}", ran.report());
        ran.json()["bytes_on_wire"].as_u64().unwrap()
    };
    assert!(run(true) < run(false));
}

#[test]
fn the_seed_decides_the_run() {
    let place = Place::new();
    let run = |seed: u32| {
        let mut json = place.say(&format!("run --backend sim {SMALL} --seed {seed} --json")).json();
        json["seconds"] = 0.into();
        json
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1)["link_bytes"], run(2)["link_bytes"]);
}

#[test]
fn checks_the_protocol_over_seeds() {
    let place = Place::new();
    let ran = place.say(&format!("check {SMALL} --seeds 6 --epochs 3"));
    assert_eq!(ran.code, 0, "{}", ran.report());
    insta::assert_snapshot!(stable(&ran.report()));
    let json = place.say(&format!("check {SMALL} --seeds 2 --seed 5 --json")).json();
    assert_eq!((&json["ok"], &json["seeds"], &json["first_seed"]), (&true.into(), &2.into(), &5.into()));
}

/// Without a hint, the report says whether the kernel had anything to leave out.
#[test]
fn no_hints_say_whether_channels_have_spares() {
    let place = Place::new();
    let said = |command: &str| place.say(&format!("check {command} --seeds 2 --hints")).report();
    let channels = said("--family all_reduce elements=64 ranks=2 dtype=f32");
    assert!(
        channels.contains("no hints: the kernel needs all credits and second banks of its channels"),
        "{channels}"
    );
    let flags = said("--family registered_all_reduce elements=64 ranks=2 dtype=f32 op=sum");
    assert!(flags.contains("no hints: the kernel has no channel with credits or a second bank"), "{flags}");
}

/// Fields have options of their own where a family is selected by its name, too.
#[test]
fn options_set_the_fields_of_a_family_and_of_a_variant() {
    let place = Place::new();
    let ran = place.say(
        "run --backend sim --family moe_dispatch hidden=64 experts=6 topk=3 hook=raw layout=expert-major phase=both \
         --tokens 4 --ranks 4 --dtype bf16 --dedup false --json",
    );
    let json = ran.json();
    assert_eq!((ran.code, &json["ok"]), (0, &true.into()), "{}", ran.report());
    let name = json["variant"].as_str().unwrap();
    assert!(name.starts_with("moe_dispatch_h64_e6_k3_t4_r4_bf16_") && name.contains("_nodedup_"), "{name}");
    let other = place.say(&format!("run --backend sim {name} --tokens 8 --dedup true --json")).json();
    let other = other["variant"].as_str().unwrap();
    assert!(other.contains("_t8_") && other.contains("_dedup_"), "{other}");
}

#[test]
fn says_where_it_ran_and_why() {
    let place = Place::new();
    let json = place.say(&format!("run {SMALL} --json")).json();
    // On a machine with enough GPUs it runs on them.
    let (backend, why) = (json["backend"].as_str().unwrap(), json["because"].as_str().unwrap());
    match peerwarp::runtime::cuda::gpus() {
        Ok(gpus) if gpus.len() >= 4 => assert_eq!((backend, why), ("gpu", "as there is one for each rank")),
        Ok(gpus) => assert_eq!(
            (backend, why),
            ("sim", &*format!("as 4 ranks need as many GPUs, and there are {}", gpus.len()))
        ),
        Err(_) => assert!(backend == "sim" && why.starts_with("as ") && why.contains("not found"), "{json}"),
    }
}

#[test]
fn fused_is_the_round_trip_in_one_launch() {
    let json = Place::new().say(&format!("run --backend sim {SMALL} --fused --json")).json();
    let [variant] = json["variants"].as_array().unwrap().as_slice() else { panic!("{json}") };
    assert!(variant.as_str().unwrap().starts_with("moe_round_trip_h64_e6_k3_t4_r4_bf16_expert__"), "{json}");
    assert_eq!(json["ok"], true);
}
