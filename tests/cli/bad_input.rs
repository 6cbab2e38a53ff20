//! Every bad input gets an error that names the field, the value and what is allowed, and leaves nothing behind.

use super::support::Place;

/// The rest of each command line, and what must be in the error.
const USAGE: &[(&str, &str, &[&str])] = &[
    (
        "unknown model",
        "run --model deepsek-v3",
        &["--model = deepsek-v3", "allowed: deepseek-v3,", "did you mean"],
    ),
    ("nothing selected", "show", &["selection is missing", "--model NAME"]),
    ("bench of a bad list", "bench --model glm-4.5 --tokens 1,,8", &["tokens = ", "1 to 65536"]),
    (
        "bench of a bad list of a family",
        "bench --family all_reduce elements=8,zz ranks=2 dtype=bf16",
        &["elements = zz", "1 to 268435456"],
    ),
    ("tuning of a bad list", "tune --model glm-4.5 --tokens 1,,8", &["tokens = ", "1 to 65536"]),
    (
        "a report to nowhere",
        "bench --model glm-4.5 --ranks 2 --html no/such/folder/report.html",
        &["--html = no/such/folder/report.html", "a folder that is there"],
    ),
    (
        "no such setting of round trips",
        "bench --model glm-4.5 --ranks 2 --fused --set moe_round_trip.nonsense=1",
        &["--set = moe_round_trip.nonsense", "expert_blocks"],
    ),
    (
        "value of a setting of round trips",
        "bench --model glm-4.5 --ranks 2 --fused --set moe_round_trip.warps=3",
        &["warps = 3", "one of 2, 4, 8, 16"],
    ),
    (
        "setting of round trips that are not timed",
        "bench --model glm-4.5 --ranks 2 --set moe_round_trip.warps=4",
        &["--set = moe_round_trip.warps"],
    ),
    (
        "round trips in one launch without dedup",
        "bench --model glm-4.5 --ranks 2 --fused --dedup false",
        &["--fused = true", "contradicts --dedup = false", "--fused with dedup"],
    ),
    (
        "a trace of round trips in one launch without dedup",
        "trace --model glm-4.5 --ranks 2 --fused --dedup false",
        &["--fused = true", "contradicts --dedup = false", "--fused with dedup"],
    ),
    (
        "weights for rows by expert, which have them",
        "run --model glm-4.5 --ranks 2 --layout expert-major --weighted",
        &["weighted = true", "false for expert-major, whose rows combine weights in any case"],
    ),
    (
        "round trips of rows that are not whole packets",
        "bench --hidden 136 --experts 8 --topk 2 --ranks 2 --dtype fp8 --fused",
        &["hidden = 136", "whole packets of 16 bytes"],
    ),
    (
        "graphs on the simulator",
        "run --backend sim --model glm-4.5 --ranks 2 --tokens 1 --replays 3",
        &["--replays = 3", "contradicts the simulator, which runs it, as --backend says"],
    ),
    (
        "an option that is no field of the family",
        "show --family moe_dispatch hidden=64 --model glm-4.5",
        &["--model = glm-4.5", "it is no field of moe_dispatch"],
    ),
    (
        "two ways to give a shape",
        "show --model glm-4.5 --hidden 64",
        &["--model = glm-4.5", "contradicts --hidden"],
    ),
    (
        "dispatch and combine that do not go together",
        "run --backend gpu --model glm-4.5 --ranks 2 --layout expert-major --set moe_dispatch.dedup=false",
        &[
            "combine = moe_combine_",
            "with layout, max_rows, expert_slots, ids and dedup as dispatch has them",
        ],
    ),
    (
        "a pack that is not there",
        "run --backend gpu --model glm-4.5 --ranks 2 --pack no/such/pack",
        &["--pack = no/such/pack", "a folder that `pack` wrote"],
    ),
    (
        "a trace of a pack that is not there",
        "trace --model glm-4.5 --ranks 2 --pack no/such/pack",
        &["--pack = no/such/pack", "a folder that `pack` wrote"],
    ),
    (
        "a trace of a pack with room for records",
        "trace --model glm-4.5 --ranks 2 --pack no/such/pack --slots 8",
        &["--pack <DIR>", "cannot be used with", "--slots <N>"],
    ),
    (
        "gpumode with tokens",
        "bench --gpumode --ranks 2 --tokens 8",
        &["--tokens = 8", "contradicts --gpumode"],
    ),
    (
        "more rounds kept than recorded",
        "trace --model glm-4.5 --ranks 2 --rounds 2 --keep 3",
        &["--keep = 3", "at most --rounds, 2"],
    ),
    (
        "a trace to nowhere",
        "trace --model glm-4.5 --ranks 2 --out no/such/folder/trace.json",
        &["--out = no/such/folder/trace.json", "a folder that is there"],
    ),
    ("timeline without room", "show --model glm-4.5 --cuda --timeline 0", &["0", "1..=65536"]),
    (
        "primitives of IR",
        "show --model glm-4.5 --ir --split-primitives",
        &["--split-primitives = true", "contradicts --ir"],
    ),
    (
        "an engine for what is near",
        "generate --model glm-4.5 --far gin --out out",
        &[
            "--far = gin: ",
            "`moe_dispatch_",
            "has no far channels, so there is nothing for NCCL's GIN to carry",
        ],
    ),
    ("timeline of IR", "show --model glm-4.5 --ir --timeline", &["--timeline = 256", "contradicts --ir"]),
    ("tuning of nothing", "tune --ranks 2", &["selection is missing"]),
    (
        "tuning with a field set",
        "tune --model glm-4.5 --set warps=4",
        &["--set = warps=4", "contradicts tune"],
    ),
    (
        "tuning in halves",
        "tune --model glm-4.5 --phase split",
        &["contradicts moe_dispatch_", "one variant of each family"],
    ),
    ("tuning no tokens", "tune --model glm-4.5 --tokens 1,x", &["tokens = x", "1 to 65536"]),
    ("tuning worlds of two sizes", "tune --model glm-4.5 --ranks 2,4", &["ranks = 4", "one world size"]),
    ("tuning without time", "tune --model glm-4.5 --budget 0", &["--budget = 0", "1 to 86400 seconds"]),
    ("tuning without trials", "tune --model glm-4.5 --trials 0", &["0", "1..=10000"]),
    ("tuning no catalogue", "tune --catalogue no/such.toml", &["--catalogue = no/such.toml"]),
    ("bench of nothing", "bench", &["selection is missing"]),
    ("half a shape", "run --hidden 4096 --topk 2", &["--experts is missing", "all of --hidden"]),
    (
        "hidden not a multiple of 8",
        "run --hidden 4100 --experts 8 --topk 2",
        &["hidden = 4100", "multiple of 8"],
    ),
    ("hidden of no number", "run --hidden big --experts 8 --topk 2", &["hidden = big", "multiple of 8"]),
    ("topk above experts", "run --hidden 64 --experts 4 --topk 5", &["topk = 5", "experts"]),
    ("topk above 32", "run --hidden 64 --experts 64 --topk 33", &["topk = 33", "1 to 32"]),
    ("no experts", "run --hidden 64 --experts 0 --topk 1", &["experts = 0", "1 to 65535"]),
    ("no rank", "run --model mixtral-8x7b --ranks 0", &["ranks = 0", "1 to 64"]),
    ("no tokens", "run --model mixtral-8x7b --tokens 0", &["tokens = 0", "1 to 65536"]),
    ("unknown dtype", "run --model mixtral-8x7b --dtype int4", &["dtype = int4", "bf16"]),
    (
        "unknown tuning field",
        "show --model glm-4.5 --set send_block=3",
        &["--set = send_block", "send_blocks"],
    ),
    ("tuning value", "show --model glm-4.5 --set send_blocks=3", &["send_blocks = 3", "one of"]),
    (
        "setting without value",
        "show --model glm-4.5 --set send_blocks",
        &["--set = send_blocks", "FIELD=VALUE"],
    ),
    ("unknown phase", "show --model glm-4.5 --phase half", &["phase = half"]),
    (
        "unknown family",
        "show --family moe_dispach hidden=8",
        &["--family = moe_dispach", "did you mean: moe_dispatch"],
    ),
    ("pair without family", "show hidden=8", &["--family is missing"]),
    ("unknown variant", "show moe_dispatch_h7168", &["variant = moe_dispatch_h7168"]),
    ("variant of no family", "show all_minimum_n8", &["variant = all_minimum_n8", "moe_dispatch"]),
    ("unknown target", "show --model glm-4.5 --target cuda:sm_91", &["--target = cuda:sm_91", "cuda:sm_90a"]),
    ("bare target", "show --model glm-4.5 --target sm_90a", &["did you mean: cuda:sm_90a"]),
    ("target of the other kind", "show --model glm-4.5 --hip --target cuda:sm_90", &["contradicts --hip"]),
    (
        "too few counts",
        "run --model mixtral-8x7b --ranks 3 --tokens-per-rank 1,2",
        &["--tokens-per-rank = 1,2", "3 ranks"],
    ),
    (
        "a count above tokens",
        "run --model mixtral-8x7b --ranks 2 --tokens 4 --tokens-per-rank 1,5",
        &["rank 1 = 5", "0 to 4"],
    ),
    ("counts of no number", "run --model mixtral-8x7b --tokens-per-rank 1,x", &["--tokens-per-rank = x"]),
    (
        "unknown routing",
        "run --model mixtral-8x7b --routing zpif:1",
        &["--routing = zpif:1", "zipf:S", "did you mean"],
    ),
    (
        "routing file that is not there",
        "run --model mixtral-8x7b --routing no.npy",
        &["--routing = no.npy", "No such file"],
    ),
    ("config that is not there", "run --hf-config no.json", &["--hf-config = no.json", "No such file"]),
    (
        "catalogue that is not there",
        "generate --catalogue no.toml --out o",
        &["--catalogue = no.toml", "No such file"],
    ),
    (
        "catalogue of no known name",
        "generate --catalogue bultin --out o",
        &["--catalogue = bultin: no such name", "builtin, reviewed, a FILE.toml", "did you mean: builtin?"],
    ),
    (
        "tokens beside a catalogue",
        "generate --catalogue reviewed --tokens 8 --out o",
        &["--tokens = 8", "--catalogue", "--set"],
    ),
];

#[test]
fn is_reported_by_field_value_and_allowed() {
    let place = Place::new();
    let mut report = vec![];
    for (what, args, needles) in USAGE {
        let ran = place.say(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{what}: {}", ran.report());
        for needle in *needles {
            assert!(ran.stderr.contains(needle), "{what}: no `{needle}` in {}", ran.report());
        }
        report.push(format!("# {what}\n$ peerwarp {args}\n{}", ran.stderr));
    }
    assert_eq!(place.names(), [""; 0], "something was left behind");
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn in_files_is_reported_by_file_and_place() {
    let place = Place::new();
    let npy = |shape: &str, descr: &str, bytes: usize| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.bytes());
        file.extend(std::iter::repeat_n(1, bytes));
        file
    };
    place.write("not.npy", "PK\u{3}\u{4}");
    place.write("long.npy", npy("(2, 1, 2)", "<i8", 32));
    place.write("short.npy", npy("(2, 1, 2)", "<i4", 15));
    place.write("shape.npy", npy("(2, 2)", "<i4", 16));
    place.write("ids.npy", npy("(2, 1, 2)", "<i4", 16));
    place.write("bad.json", "{\"hidden_size\": ");
    place.write("dense.json", "{\"hidden_size\": 4096}");
    place.write("bad.toml", "[[moe]]\nmodel = deepseek-v3\n");
    place.write("unknown.toml", "[[moe]]\nmodel = \"deepseek\"\n");
    place.write("illegal.toml", "[[moe]]\nhidden = 12\nexperts = 8\ntopk = 2\n");
    place.write("target.toml", "targets = [\"cuda:90\"]\n[[moe]]\nmodel = \"glm-4.5\"\n");
    place.write("table.toml", "[[mow]]\nmodel = \"glm-4.5\"\n");
    let before = place.names();
    let run = "run --hidden 64 --experts 8 --topk 2 --ranks 2 --tokens 4 --routing";
    let commands = ["not", "long", "short", "shape", "ids"]
        .map(|f| format!("{run} {f}.npy"))
        .into_iter()
        .chain(["bad", "dense"].map(|f| format!("show --hf-config {f}.json")))
        .chain(
            ["bad", "unknown", "illegal", "target", "table"]
                .map(|f| format!("generate --catalogue {f}.toml --out o")),
        );
    let mut report = vec![];
    for command in commands {
        let ran = place.say(&command);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
        assert!(ran.stderr.contains("allowed: "), "{}", ran.report());
        report.push(format!("$ peerwarp {command}\n{}", ran.stderr));
    }
    assert_eq!(place.names(), before, "something was left behind");
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn is_reported_as_json_too() {
    let ran = Place::new().say("run --model mixtral --json");
    assert_eq!(ran.code, 2);
    let error = &ran.json()["error"];
    assert_eq!((&error["field"], &error["value"]), (&"--model".into(), &"mixtral".into()));
    assert_eq!(error["problem"], "unknown");
    assert_eq!(error["nearest"][0], "mixtral-8x7b");
    assert!(error["allowed"].as_str().unwrap().contains("glm-4.5"));
    assert!(ran.stderr.contains("did you mean"));
}

#[test]
fn an_out_folder_that_cannot_be_written_is_reported() {
    let place = Place::new();
    place.write("file", "mine");
    let ran = place.say("generate --model glm-4.5 --out file/out");
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("--out = file/out: "), "{}", ran.report());
    let ran = place.say("generate --model glm-4.5 --out file");
    assert_eq!(ran.code, 2, "{}", ran.report());
    assert_eq!(place.names(), ["file"]);
    assert_eq!(std::fs::read_to_string(place.path("file")).unwrap(), "mine");
}
