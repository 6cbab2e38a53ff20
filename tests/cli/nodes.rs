//! `--nodes`: ranks on several machines.

use super::support::Place;

#[test]
fn an_all_reduce_on_several_nodes_is_the_family_for_them() {
    let place = Place::new();
    let asked = "run --backend sim --family all_reduce --ranks 4 --nodes 2 elements=1000 dtype=bf16 --json";
    let json = place.say(asked).json();
    assert_eq!(json["ok"], true, "{json}");
    let variant = json["variant"].as_str().unwrap();
    assert!(variant.starts_with("all_reduce_nodes_n1000_r4_o2_bf16_sum__railfirst_"), "{variant}");
    let one = place.say(&asked.replace("--nodes 2", "--nodes 1")).json();
    assert!(one["variant"].as_str().unwrap().starts_with("all_reduce_n1000_r4_"), "{one}");
    let checked =
        "check --family all_reduce --ranks 6 --nodes 3 elements=3000 dtype=f32 --set levels=node-first";
    let checked = place.say(&format!("{checked} --set blocks=2 --seeds 10"));
    assert_eq!(checked.code, 0, "{}", checked.report());
}

#[test]
fn other_collectives_on_several_nodes_are_the_families_for_them() {
    let place = Place::new();
    for family in ["all_gather", "broadcast", "reduce_scatter", "all_to_all"] {
        let asked = format!("--family {family} --ranks 6 --nodes 2 elements=1031 dtype=fp16");
        let json = place.say(&format!("run --backend sim {asked} --json")).json();
        assert_eq!(json["ok"], true, "{json}");
        let variant = json["variant"].as_str().unwrap();
        assert!(variant.starts_with(&format!("{family}_nodes_n1031_r6_o2_fp16_")), "{variant}");
        let checked = place.say(&format!("check {asked} --set chunk=256 --set blocks=2 --seeds 10"));
        assert_eq!(checked.code, 0, "{}", checked.report());
    }
    let root = place.say("run --family broadcast --ranks 4 --nodes 2 elements=10 dtype=bf16 root=4");
    assert_eq!(root.code, 2, "{}", root.report());
    assert!(root.report().contains("allowed: a rank: 0 to 3"), "{}", root.report());
}

#[test]
fn nodes_that_cannot_be_are_refused_by_name() {
    let place = Place::new();
    for (asked, said) in [
        (
            "run --family all_reduce --ranks 6 --nodes 4 elements=1000 dtype=bf16",
            "allowed: a multiple of the 4 nodes",
        ),
        (
            "run --family matmul --nodes 2 m=64 n=64 k=64 dtype=bf16",
            "--nodes = 2: contradicts matmul, which runs on one node",
        ),
        (
            "run --hidden 64 --experts 6 --topk 3 --tokens 4 --ranks 4 --nodes 2",
            "experts = 6: not allowed\n  allowed: a multiple of the 4 ranks",
        ),
        (
            "run --hidden 64 --experts 8 --topk 3 --tokens 4 --ranks 4 --nodes 2 --fused",
            "--nodes = 2: contradicts moe",
        ),
        (
            "run --family all_reduce --ranks 4 --nodes 0 elements=1000 dtype=bf16",
            "--nodes = 0: not allowed\n  allowed: a number of nodes, 1 or more",
        ),
        (
            "show --hidden 64 --experts 6 --topk 3 --tokens 4 --ranks 4 --nodes few",
            "--nodes = few: not allowed",
        ),
        (
            "show --nodes 4 broadcast_nodes_n10_r4_o2_f32_root0_noi__packets_w4_c1024_b1",
            "--nodes = 4: contradicts broadcast_nodes_n10_r4_o2_f32_root0_noi__packets_w4_c1024_b1, which runs on 2",
        ),
        (
            "show --nodes 2 all_gather_n1024_r4_bf16_noi__push_packets_w4_c1024_b1",
            "--nodes = 2: contradicts all_gather_n1024_r4_bf16_noi__push_packets_w4_c1024_b1, which runs on 1",
        ),
        (
            "tune --family all_reduce --ranks 4 --nodes 1,2 elements=1000 dtype=bf16",
            "nodes = 2: contradicts nodes = 1",
        ),
    ] {
        let ran = place.say(asked);
        assert_eq!(ran.code, 2, "{}", ran.report());
        assert!(ran.report().contains(said), "{said}: {}", ran.report());
    }
}

/// Launches between the nodes, and those of one node on each.
#[test]
fn moe_on_several_nodes_is_four_launches_and_six_in_halves() {
    let place = Place::new();
    let asked = "run --hidden 64 --experts 8 --topk 3 --tokens 4 --ranks 4 --nodes 2 --dtype fp16";
    for (rest, launches) in [("", 4), (" --layout expert-major --phase split", 6)] {
        let ran = place.say(&format!("{asked}{rest}"));
        assert_eq!(ran.code, 0, "{}", ran.report());
        let named = ran.stdout.lines().take_while(|line| line.starts_with("moe_")).count();
        assert_eq!(named, launches, "{}", ran.report());
        assert!(ran.stdout.contains("one for each token and node"), "{}", ran.report());
        assert!(ran.stdout.ends_with("ok: the result agrees with the reference\n"), "{}", ran.report());
    }
}
