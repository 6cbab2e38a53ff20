use super::*;
use crate::input::Problem;

/// What the thirteen models' own `config.json` files have in the places that matter here, traps included: the shared
/// experts, the vision tower's hidden size, the second spelling of a key.
const CONFIGS: &[(&str, &str)] = &[
    (
        "deepseek-v3",
        r#"{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
            "intermediate_size": 18432, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "topk_group": 4,
            "first_k_dense_replace": 3, "norm_topk_prob": true, "ep_size": 1}"#,
    ),
    (
        "deepseek-v2-lite",
        r#"{"model_type": "deepseek_v2", "hidden_size": 2048, "n_routed_experts": 64, "n_shared_experts": 2,
            "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "q_lora_rank": null}"#,
    ),
    (
        "kimi-k2",
        r#"{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 7168,
            "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1}"#,
    ),
    (
        "qwen3-235b-a22b",
        r#"{"model_type": "qwen3_moe", "hidden_size": 4096, "num_experts": 128, "num_experts_per_tok": 8,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "num_local_experts": null}"#,
    ),
    (
        "qwen3-30b-a3b",
        r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "num_experts": 128, "num_experts_per_tok": 8}"#,
    ),
    (
        "qwen3-next-80b",
        r#"{"model_type": "qwen3_next", "hidden_size": 2048, "num_experts": 512, "num_experts_per_tok": 10,
            "shared_expert_intermediate_size": 512}"#,
    ),
    (
        "gpt-oss-120b",
        r#"{"model_type": "gpt_oss", "hidden_size": 2880, "experts_per_token": 4, "num_experts_per_tok": 4,
            "num_local_experts": 128}"#,
    ),
    (
        "gpt-oss-20b",
        r#"{"model_type": "gpt_oss", "hidden_size": 2880, "experts_per_token": 4, "num_local_experts": 32}"#,
    ),
    (
        "mixtral-8x7b",
        r#"{"model_type": "mixtral", "hidden_size": 4096, "num_local_experts": 8, "num_experts_per_tok": 2}"#,
    ),
    (
        "mixtral-8x22b",
        r#"{"model_type": "mixtral", "hidden_size": 6144, "num_local_experts": 8, "num_experts_per_tok": 2}"#,
    ),
    (
        "glm-4.5",
        r#"{"model_type": "glm4_moe", "hidden_size": 5120, "n_routed_experts": 160, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3}"#,
    ),
    (
        "llama-4-maverick",
        r#"{"model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120,
            "interleave_moe_layer_step": 2, "num_local_experts": 128, "num_experts_per_tok": 1},
            "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 1408}}"#,
    ),
    (
        "minimax-m2",
        r#"{"model_type": "minimax_m2", "hidden_size": 3072, "num_local_experts": 256,
            "num_experts_per_tok": 8, "shared_intermediate_size": 0}"#,
    ),
];

fn shape(text: &str) -> Shape {
    from_hf_text(text, "config.json").unwrap().shape
}

fn error(text: &str) -> InputError {
    from_hf_text(text, "config.json").unwrap_err()
}

#[test]
fn reads_the_config_of_every_built_in_model() {
    let names: Vec<&str> = builtin().iter().map(|m| m.name.as_str()).collect();
    for name in names {
        let (_, text) = CONFIGS.iter().find(|c| c.0 == name).expect("every built-in model is tested");
        assert_eq!(shape(text), find(name).unwrap().shape, "{name}");
    }
    assert_eq!(CONFIGS.len(), builtin().len());
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
