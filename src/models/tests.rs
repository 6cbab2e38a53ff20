use super::*;
use crate::input::Problem;

/// What is known of published models' configurations, by name.
fn configs() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let lines = include_str!("configs.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let parts: Vec<&str> = line.splitn(3, " | ").collect();
        let [name, told, text] = parts[..] else { panic!("{line}") };
        (name, told, text)
    })
}

fn shape(text: &str) -> Shape {
    from_hf_text(text, "config.json").unwrap().shape
}

fn error(text: &str) -> InputError {
    from_hf_text(text, "config.json").unwrap_err()
}

#[test]
fn configurations_of_published_models_are_read_or_refused_by_key() {
    let mut refused = 0;
    for (name, told, text) in configs() {
        match from_hf_text(text, "config.json") {
            Ok(Model { shape: Shape { hidden, experts, topk }, .. }) => {
                assert_eq!(format!("{hidden} {experts} {topk}"), told, "{name}");
            }
            Err(error) => {
                let error = error.to_string();
                told.split(", ").for_each(|part| assert!(error.contains(part), "{name}: {part}: {error}"));
                refused += 1;
            }
        }
    }
    assert_eq!((configs().count() >= 90, refused), (true, 4));
}

#[test]
fn every_built_in_model_has_the_shape_of_its_configuration() {
    for model in builtin() {
        let (_, _, text) = configs().find(|config| config.0 == model.name).expect(&model.name);
        assert_eq!(shape(text), model.shape, "{}", model.name);
    }
}

#[test]
fn experts_in_a_latent_space_receive_its_rows() {
    let with = |latent: &str| {
        shape(&format!(r#"{{"hidden_size": 4096{latent}, "num_experts": 8, "moe_k": 2}}"#)).hidden
    };
    for key in ["moe_latent_size", "routed_expert_hidden_size"] {
        assert_eq!(with(&format!(r#", "{key}": 1024"#)), 1024);
        assert_eq!(with(&format!(r#", "{key}": null"#)), 4096);
    }
    let text = r#"{"text_config": {"hidden_size": 64, "num_experts": 8, "moe_k": 2}, "moe_latent_size": 16}"#;
    assert_eq!(shape(text).hidden, 16, "the level of the key does not matter");
}

#[test]
fn text_that_python_writes_is_read() {
    let s = Shape { hidden: 64, experts: 16, topk: 2 };
    let shape_of = r#""hidden_size": 64, "num_experts": 16, "moe_k": 2"#;
    for text in [
        format!("\u{feff}{{{shape_of}}}"),
        format!(r#"{{"a": Infinity, "b": [-Infinity, NaN], {shape_of}}}"#),
        format!(r#"{{"say \"NaN\\\\": "Infinity", "b":NaN,{shape_of}, "c": -Infinity}}"#),
        r#"{"moe": {"num_experts": 16, "moe_router_topk": 2}, "hidden_size": 64}"#.to_owned(),
        format!(r#"{{"moe": true, {shape_of}}}"#),
    ] {
        assert_eq!(shape(&text), s, "{text}");
    }
    let said = error(r#"{"hidden_size": Infinity, "num_experts": 16, "moe_k": 2}"#).to_string();
    assert!(said.starts_with("config.json: hidden_size = \"Infinity\": not allowed"), "{said}");
    let said = error("{\"a\": NaN, ").to_string();
    assert!(said.contains("not JSON: expected value at line 1 column 7"), "{said}");
}

#[test]
fn a_file_a_folder_and_a_pipe_have_the_same_shape() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, text) = configs().find(|config| config.0 == "gpt-oss-20b").unwrap();
    std::fs::write(dir.path().join("config.json"), text).unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (from, to) = (dir.path().join("config.json"), pipe.clone());
    let writer = std::thread::spawn(move || std::fs::copy(from, to).unwrap());
    // A command that asks twice, as `bench` does, gets the pipe's text twice.
    for path in [dir.path(), &dir.path().join("config.json"), &pipe, &pipe] {
        assert_eq!(from_hf_file(path).unwrap().shape, shape(text), "{}", path.display());
    }
    writer.join().unwrap();
    let said = from_hf_file(&dir.path().join("none")).unwrap_err().to_string();
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn reads_other_spellings_and_nestings() {
    let s = Shape { hidden: 64, experts: 16, topk: 2 };
    for text in [
        r#"{"d_model": 64, "ffn_config": {"moe_num_experts": 16, "moe_top_k": 2}}"#,
        r#"{"hidden_size": 64, "num_experts": 16, "moe_topk": [2, 2, 2]}"#,
        r#"{"hidden_size": 64, "moe_num_experts": [16, 16], "moe_k": 2}"#,
        r#"{"thinker_config": {"text_config": {"hidden_size": 64, "num_experts": 16, "num_experts_per_tok": 2}}}"#,
        r#"{"hidden_size": 9, "text_config": {"hidden_size": 64, "num_experts": 16, "num_experts_per_token": 2}}"#,
        r#"{"hidden_size": 64, "text_config": {"num_experts": 16, "num_experts_per_tok": 2}}"#,
        r#"{"dim": 64, "n_routed_experts": 16, "n_activated_experts": 2}"#,
    ] {
        assert_eq!(shape(text), s, "{text}");
    }
}

#[test]
fn names_a_config_by_its_path_or_type() {
    let with = |extra: &str| {
        let text = format!(r#"{{"hidden_size": 8, "num_experts": 2, "moe_topk": 1{extra}}}"#);
        from_hf_text(&text, "config.json").unwrap().name
    };
    assert_eq!(with(r#", "model_type": "qwen3_moe""#), "qwen3-moe");
    assert_eq!(with(r#", "_name_or_path": "org/My Model", "model_type": "x""#), "my-model");
    assert_eq!(with(r#", "_name_or_path": "../..""#), "config");
    assert_eq!(with(""), "config");
}

#[test]
fn looks_models_up_kindly() {
    assert_eq!(find("deepseek-ai/DeepSeek-V3").unwrap().name, "deepseek-v3");
    assert_eq!(find("Mixtral_8x7B").unwrap().name, "mixtral-8x7b");
    let e = find("deepsek-v3").unwrap_err();
    assert_eq!((&e.problem, e.nearest[0].as_str()), (&Problem::Unknown, "deepseek-v3"));
    assert!(e.allowed.contains("minimax-m2"), "{}", e.allowed);
}

#[test]
fn refuses_what_it_cannot_read() {
    let cases = [
        "[]",
        "{\"hidden_size\": 64,",
        "{\"rope\": Infinity}",
        r#"{"model": {"text": {"hidden_size": 64, "num_experts": 16, "moe_k": 2}}}"#,
        r#"{"hidden_size": 64, "moe_latent_size": 0, "num_experts": 16, "moe_k": 2}"#,
        r#"{"hidden_size": 64, "moe_latent_size": 8, "routed_expert_hidden_size": 16, "num_experts": 16, "moe_k": 2}"#,
        r#"{"hidden_size": 64, "expert_latent_dim": 16, "num_experts": 16, "moe_k": 2}"#,
        r#"{"hidden_size": 4096, "num_attention_heads": 32}"#,
        r#"{"hidden_size": 64, "num_experts": 16, "top_k": 2}"#,
        r#"{"num_experts": 16, "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": "64", "num_experts": 16, "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": 64, "num_experts": 0, "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": 64, "num_experts": -1, "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": 64, "num_experts": 16.5, "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": 64, "num_experts": 4294967296, "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": 64, "num_experts": [16, 8], "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": 64, "num_experts": [], "num_experts_per_tok": 2}"#,
        r#"{"hidden_size": 64, "num_local_experts": 16, "num_experts": 8, "num_experts_per_tok": 2}"#,
        r#"{"text_config": {"hidden_size": 64, "num_experts": true, "num_experts_per_tok": 2}}"#,
    ];
    let report: Vec<String> = cases.iter().map(|c| format!("{c}\n{}\n", error(c))).collect();
    insta::assert_snapshot!(report.join("\n"));
}
