//! Round trips in one launch: `run` and `check` of their family, `bench --fused`.

use super::support::Place;

const SMALL: &str = "--family moe_round_trip hidden=64 experts=8 topk=3 tokens=4 ranks=4 hook=expert";

#[test]
fn run_agrees_with_the_reference() {
    let place = Place::new();
    for dtype in ["bf16", "fp16", "fp8"] {
        let ran =
            place.say(&format!("run --backend sim {SMALL} dtype={dtype} --tokens-per-rank 4,0,1,3 --json"));
        let json = ran.json();
        assert_eq!((ran.code, &json["ok"]), (0, &true.into()), "{}", ran.report());
        let [variant] = json["variants"].as_array().unwrap().as_slice() else { panic!("{json}") };
        let name = format!("moe_round_trip_h64_e8_k3_t4_r4_{dtype}_expert__");
        assert!(variant.as_str().unwrap().starts_with(&name), "{variant}");
        // Rows, of 8 tokens of 64 elements, in one launch a rank; rank 1 has none to send.
        assert_eq!(json["compared"], 8 * 64);
        assert_eq!(json["per_rank"]["tokens sent"], serde_json::json!([4, 0, 1, 3]));
    }
}

/// Rows of 1040 bytes, which are whole packets, though no power of two of them.
#[test]
fn rows_of_any_number_of_packets_will_do() {
    let ran = Place::new()
        .say(&format!("run --backend sim {SMALL} dtype=bf16 --json").replace("hidden=64", "hidden=520"));
    assert_eq!((ran.code, &ran.json()["ok"]), (0, &true.into()), "{}", ran.report());
}

#[test]
fn check_explores_schedules() {
    let ran = Place::new().say(&format!("check {SMALL} dtype=bf16 --seeds 4 --epochs 3 --json"));
    let json = ran.json();
    assert_eq!((ran.code, &json["ok"], &json["seeds"]), (0, &true.into(), &4.into()), "{}", ran.report());
    assert!(json["variants"][0].as_str().unwrap().starts_with("moe_round_trip_h64_"), "{json}");
}

/// With one seed, for it is of a real model's size.
#[test]
fn the_command_of_the_documentation_works() {
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/how-to/runtime.md")).unwrap();
    let from = docs.find("peerwarp check --family moe_round_trip").expect("told in docs/how-to/runtime.md");
    let command = docs[from..].split('`').next().unwrap().strip_prefix("peerwarp ").unwrap();
    let ran = Place::new().say(&format!("{command} --seeds 1"));
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert!(ran.stdout.contains("explored 1 schedules"), "{}", ran.stdout);
}
