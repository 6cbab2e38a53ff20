//! `peerwarp memory`.

use serde_json::Value;

use super::support::Place;

fn stated(args: &str) -> Vec<Value> {
    let ran = Place::new().say(&format!("memory {args} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args}");
    serde_json::from_str(&ran.stdout).unwrap()
}

fn bytes(of: &Value, whose: &str) -> u64 {
    let all = of["memory"]["buffers"].as_array().unwrap().iter().filter(|b| b["whose"] == whose);
    all.map(|b| b["bytes"].as_u64().unwrap()).sum()
}

#[test]
fn what_operations_take_is_stated_for_every_capacity() {
    let found = stated("--hidden 64 --experts 8 --topk 2 --tokens 8,16 --ranks 4");
    let [few, many] = &found[..] else { panic!("{found:?}") };
    // Rows that arrive: of each source, token and element, in two banks of packets.
    assert!(bytes(few, "symmetric") >= 2 * 4 * 8 * 64 * 2, "{few}");
    assert!(bytes(many, "symmetric") > bytes(few, "symmetric"));
    for of in &found {
        let own = bytes(of, "symmetric") + bytes(of, "local");
        let operation = of["memory"]["operation_bytes"].as_u64().unwrap();
        let buffers = of["memory"]["buffers"].as_array().unwrap().len() as u64;
        assert!(
            own <= operation && operation < own + 256 * buffers,
            "buffers begin at multiples of 256: {of}"
        );
        assert_eq!(of["memory"]["caller_bytes"].as_u64().unwrap(), bytes(of, "caller"));
    }
    // Tokens and combined rows are the caller's, 8 of 64 elements of 2 bytes.
    let x = few["memory"]["buffers"].as_array().unwrap().iter().find(|b| b["name"] == "x").unwrap();
    assert_eq!((&x["whose"], &x["bytes"]), (&"caller".into(), &(8 * 64 * 2).into()));
}

#[test]
fn any_family_states_its_memory() {
    let place = Place::new();
    let ran = place.say("memory --family all_reduce elements=4096 ranks=4 dtype=bf16");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for part in [
        "all_reduce_n4096_r4",
        "symmetric",
        "caller     x",
        "each GPU",
        "of the operation, 16.0 KiB of the caller",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let far = stated("--family all_reduce --ranks 4 --nodes 2 elements=1024 dtype=bf16");
    assert!(bytes(&far[0], "far") > 0, "{far:?}");
    let refused = place.say("memory --family all_reduce elements=4096 ranks=0 dtype=bf16");
    assert!(refused.code == 2 && refused.stderr.contains("ranks = 0"), "{}", refused.stderr);
}
