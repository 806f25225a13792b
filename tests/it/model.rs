//! config.json → `Config` → `Program`: what is read, what is refused by name, and the tables of angles.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use snug::error::Kind;
use snug::model::arch::{self, ARCHS};
use snug::model::config::{Activation, RopeScaling};
use snug::model::kv::KvFormat;
use snug::model::memory::MemoryPlan;
use snug::model::op::{Buf, Op};
use snug::model::program::{Program, Role};
use snug::model::rope::RopeTable;

/// A small valid config with `changes` laid over it; a change to `Value::String("-")` removes the key.
fn config(changes: &[(&str, Value)]) -> String {
    let mut base = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    for (key, value) in changes {
        let map = base.as_object_mut().expect("an object");
        match value.as_str() {
            Some("-") => drop(map.remove(*key)),
            _ => drop(map.insert(key.to_string(), value.clone())),
        }
    }
    base.to_string()
}

#[test]
fn each_family_reads_its_own_switches() {
    let c = arch::read(&config(&[])).unwrap();
    assert_eq!((c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim), (64, 3, 4, 2, 16));
    assert_eq!((c.ffn, c.vocab, c.max_positions, c.norm_eps), (96, 128, 64, 1e-5));
    assert_eq!((c.rope.theta, c.rope.dims, c.attn_scale), (10_000.0, 16, 0.25));
    assert!(c.tied && !c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm);
    assert_eq!((c.activation, c.windows.as_slice()), (Activation::Silu, [None; 3].as_slice()));

    let c = arch::read(&config(&[
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("head_dim", json!(40)),
        ("num_key_value_heads", json!("-")),
        ("hidden_act", json!("gelu_pytorch_tanh")),
        ("tie_word_embeddings", json!("-")),
        ("sliding_window", json!(8)),
        ("rope_theta", json!(500000)),
        ("quantization_config", json!(null)),
        ("pretraining_tp", json!(1)),
    ]))
    .unwrap();
    assert!(c.qkv_bias && c.o_bias && c.mlp_bias && !c.tied);
    assert_eq!((c.kv_heads, c.head_dim, c.activation), (4, 40, Activation::GeluTanh));
    assert_eq!((c.rope.theta, c.windows.as_slice()), (500_000.0, [None; 3].as_slice()));

    let mistral = |window| {
        let text = config(&[("model_type", json!("mistral")), ("sliding_window", window)]);
        arch::read(&text).unwrap().windows
    };
    assert_eq!(mistral(json!(7)), [Some(7); 3]);
    assert_eq!(mistral(json!(null)), [None; 3]);
    assert_eq!(mistral(json!("-")), [Some(4096); 3], "the family's default");

    let qwen = |model_type: &str, changes: &[(&str, Value)]| {
        let mut all = vec![("model_type", json!(model_type)), ("sliding_window", json!(9))];
        all.extend_from_slice(changes);
        arch::read(&config(&all)).unwrap()
    };
    let c = qwen("qwen2", &[("use_sliding_window", json!(false)), ("max_window_layers", json!(1))]);
    assert!(c.qkv_bias && !c.o_bias && !c.qk_norm);
    assert_eq!((c.head_dim, c.windows.as_slice()), (16, [None; 3].as_slice()));
    let c = qwen("qwen2", &[("use_sliding_window", json!(true)), ("max_window_layers", json!(1))]);
    assert_eq!(c.windows, [None, Some(9), Some(9)]);
    let c = qwen("qwen3", &[]);
    assert!(c.qk_norm && !c.qkv_bias);
    assert_eq!(c.head_dim, 128, "the family's default");
    let kinds = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    let c = qwen("qwen3", &[("use_sliding_window", json!(true)), ("layer_types", kinds)]);
    assert_eq!(c.windows, [Some(9), None, Some(9)]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let nested = json!({"full_attention": {"rope_theta": 1e4}});
    let cases: Vec<(Vec<(&str, Value)>, &str)> = vec![
        (vec![("model_type", json!("gpt\x1b[2J"))], "gpt␛[2J"),
        (vec![("model_type", json!("-"))], "model_type"),
        (vec![("model_type", json!(7))], "model_type"),
        (vec![("quantization_config", json!({"quant_method": "gptq"}))], "quantization_config"),
        (vec![("pretraining_tp", json!(2))], "pretraining_tp"),
        (vec![("partial_rotary_factor", json!(0.5))], "partial_rotary_factor"),
        (vec![("num_local_experts", json!(8))], "num_local_experts"),
        (vec![("logits_scaling", json!(8.0))], "logits_scaling"),
        (vec![("final_logit_softcapping", json!(30.0))], "final_logit_softcapping"),
        (vec![("hidden_act", json!("relu2"))], "relu2"),
        (vec![("architectures", json!(["LlamaForSequenceClassification"]))], "architectures"),
        (vec![("layer_types", json!(["chunked_attention"]))], "layer_types"),
        (vec![("rope_scaling", json!({"type": "longrope", "factor": 2.0}))], "longrope"),
        (vec![("rope_scaling", json!({"type": "mrope"}))], "mrope"),
        (vec![("rope_scaling", json!({"type": "linear"}))], "factor"),
        (vec![("rope_scaling", json!({"type": "linear", "factor": 0.5}))], "factor"),
        (vec![("rope_scaling", json!({"type": "linear", "factor": "x"}))], "factor"),
        (vec![("rope_scaling", json!("linear"))], "rope_scaling"),
        (vec![("rope_scaling", json!({"type": "llama3", "factor": 8.0}))], "low_freq_factor"),
        (vec![("rope_parameters", nested)], "full_attention"),
        (vec![("rope_theta", json!(1.0))], "rope_theta"),
        (vec![("rope_theta", json!(-1.0))], "rope_theta"),
        (vec![("hidden_size", json!("-"))], "hidden_size"),
        (vec![("hidden_size", json!(0))], "hidden_size"),
        (vec![("hidden_size", json!(1.5))], "hidden_size"),
        (vec![("hidden_size", json!(66))], "hidden_size"),
        (vec![("hidden_size", json!(1u64 << 40))], "hidden_size"),
        (vec![("num_hidden_layers", json!(70_000))], "num_hidden_layers"),
        (vec![("num_key_value_heads", json!(3))], "num_key_value_heads"),
        (vec![("head_dim", json!(15))], "head_dim"),
        (vec![("head_dim", json!(-2))], "head_dim"),
        (vec![("vocab_size", json!(0))], "vocab_size"),
        (vec![("rms_norm_eps", json!(0.0))], "rms_norm_eps"),
        (vec![("rms_norm_eps", json!(1e-60))], "rms_norm_eps"),
        (vec![("tie_word_embeddings", json!(1))], "tie_word_embeddings"),
        (
            vec![
                ("num_attention_heads", json!(1024)),
                ("head_dim", json!(1024)),
                ("num_key_value_heads", json!(1024)),
            ],
            "heads",
        ),
        (
            vec![("model_type", json!("qwen2")), ("layer_types", json!(["full_attention"]))],
            "layer_types",
        ),
        (
            vec![
                ("model_type", json!("qwen3")),
                ("layer_types", json!(["full_attention", "full_attention", "sliding_attention"])),
            ],
            "sliding_window",
        ),
        (vec![("model_type", json!("mistral")), ("sliding_window", json!(0))], "sliding_window"),
    ];
    for (changes, named) in cases {
        let e = arch::read(&config(&changes)).expect_err(&format!("{changes:?}"));
        assert_eq!(e.kind, Kind::BadFile, "{changes:?}");
        assert!(e.why.contains(named), "{changes:?}: {e}");
    }
    for text in ["", "[]", "7", "{\"model_type\":", "{\"model_type\": \"llama\"}"] {
        assert_eq!(arch::read(text).expect_err(text).kind, Kind::BadFile, "{text}");
    }
}

#[test]
fn rotary_settings_follow_the_precedence_of_the_reference() {
    let scaling = |changes: &[(&str, Value)]| arch::read(&config(changes)).unwrap().rope;
    let linear = |factor| RopeScaling::Linear { factor };
    // `rope_type` before `type`; `rope_scaling` before `rope_parameters`; the inner theta before the outer one.
    let r =
        scaling(&[("rope_scaling", json!({"rope_type": "linear", "type": "yarn", "factor": 3}))]);
    assert_eq!(r.scaling, linear(3.0));
    let r = scaling(&[
        ("rope_theta", json!(7e4)),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0, "rope_theta": 5e4})),
        ("rope_parameters", json!({"rope_type": "linear", "factor": 9.0, "rope_theta": 6e4})),
    ]);
    assert_eq!((r.theta, r.scaling), (5e4, linear(2.0)));
    let r = scaling(&[
        ("rope_scaling", json!(null)),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 6e4})),
    ]);
    assert_eq!((r.theta, r.scaling), (6e4, RopeScaling::None));
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32});
    let original = |changes: &[(&str, Value)]| match scaling(changes).scaling {
        RopeScaling::Llama3 { original, .. } => original,
        other => panic!("{other:?}"),
    };
    assert_eq!(original(&[("rope_scaling", llama3.clone())]), 32);
    let outer = ("original_max_position_embeddings", json!(16));
    assert_eq!(original(&[("rope_scaling", llama3), outer]), 16);
}

#[test]
fn the_context_reaches_as_far_as_the_rotary_scaling() {
    let yarn = |original: u32, factor: f64| json!({"type": "yarn", "factor": factor, "original_max_position_embeddings": original});
    // The config says max_position_embeddings 64.
    for (scaling, reach) in [
        (json!(null), 64),
        (json!({"type": "linear", "factor": 2.5}), 160),
        (json!({"type": "dynamic", "factor": 3.0}), 192),
        (json!({"type": "dynamic", "factor": 1.0}), 64),
        (json!({"type": "dynamic", "factor": 1e300}), 1 << 28),
        // Written for the stretched model, or left as it was trained: both are common.
        (yarn(16, 4.0), 64),
        (yarn(64, 4.0), 256),
        (yarn(8, 2.0), 64),
        (
            json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32}),
            64,
        ),
    ] {
        let c = arch::read(&config(&[("rope_scaling", scaling.clone())])).unwrap();
        assert_eq!(c.max_positions, reach, "{scaling}");
    }
}

/// Cosines then sines of positions 1, 50 and 200, eight pairs of dimensions each, as transformers 5.24 computes them
/// in float32 for a head of 16.
#[rustfmt::skip]
fn reference_angles() -> Vec<(&'static str, Value, [[f64; 16]; 3])> {
    vec![
        ("default", json!({"rope_theta": 1e4}), [
            [0.5403023,0.9504153,0.9950042,0.9995000,0.9999500,0.9999950,0.9999995,0.9999999,0.8414710,0.3109836,0.0998334,0.0316175,0.0099998,0.0031623,0.0010000,0.0003162],
            [0.9649661,-0.9946564,0.2836622,-0.0103425,0.8775826,0.9875260,0.9987503,0.9998750,-0.2623748,-0.1032405,-0.9589243,0.9999465,0.4794255,0.1574559,0.0499792,0.0158107],
            [0.4871877,0.9156401,0.4080821,0.9991444,-0.4161468,0.8065784,0.9800666,0.9980007,-0.8732973,0.4019990,0.9129453,0.0413588,0.9092974,0.5911272,0.1986693,0.0632034]]),
        ("linear", json!({"rope_theta": 1e4, "type": "linear", "factor": 4.0}), [
            [0.9689124,0.9968766,0.9996875,0.9999688,0.9999969,0.9999997,1.0000000,1.0000000,0.2474040,0.0789746,0.0249974,0.0079056,0.0025000,0.0007906,0.0002500,0.0000791],
            [0.9977983,-0.6885894,0.3153224,0.9228870,0.9921977,0.9992188,0.9999219,0.9999922,-0.0663219,-0.7251515,0.9489846,0.3850710,0.1246747,0.0395182,0.0124997,0.0039528],
            [0.9649661,-0.9946564,0.2836622,-0.0103425,0.8775826,0.9875260,0.9987503,0.9998750,-0.2623748,-0.1032405,-0.9589243,0.9999465,0.4794255,0.1574559,0.0499792,0.0158107]]),
        ("dynamic", json!({"rope_theta": 1e4, "type": "dynamic", "factor": 2.0}), [
            [0.5403023,0.9504153,0.9950042,0.9995000,0.9999500,0.9999950,0.9999995,0.9999999,0.8414710,0.3109836,0.0998334,0.0316175,0.0099998,0.0031623,0.0010000,0.0003162],
            [0.9649661,-0.9946564,0.2836622,-0.0103425,0.8775826,0.9875260,0.9987503,0.9998750,-0.2623748,-0.1032405,-0.9589243,0.9999465,0.4794255,0.1574559,0.0499792,0.0158107],
            [0.4871877,0.9202493,0.9909581,-0.9991124,0.7159954,0.9814986,0.9988467,0.9999283,-0.8732973,-0.3913325,-0.1341715,0.0421227,0.6981050,0.1914694,0.0480147,0.0119752]]),
        ("llama3", json!({"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}), [
            [0.5403023,0.9719316,0.9995137,0.9999261,0.9999844,0.9999967,0.9999993,0.9999999,0.8414710,0.2352635,0.0311804,0.0121559,0.0055901,0.0025707,0.0011822,0.0005436],
            [0.9649661,0.7700438,0.0115232,0.8209019,0.9611912,0.9917507,0.9982536,0.9996306,-0.2623748,-0.6379911,0.9999336,0.5710692,0.2758833,0.1281821,0.0590744,0.0271786],
            [0.4871877,-0.9308565,0.9989378,-0.7581263,0.4374512,0.8707146,0.9721791,0.9940949,-0.8732973,-0.3653851,-0.0460774,0.6521078,0.8992422,0.4917887,0.2342387,0.1085139]]),
        ("yarn", json!({"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}), [
            [0.6152042,1.1164628,1.1382736,1.1385939,1.1386259,1.1386291,1.1386294,1.1386294,0.9581236,0.2235792,0.0284628,0.0090016,0.0028466,0.0009002,0.0002847,0.0000900],
            [1.0987388,-1.0216126,0.3590353,1.0508263,1.1297455,1.1377400,1.1385405,1.1386205,-0.2987477,-0.5027769,1.0805418,0.4384531,0.1419583,0.0449966,0.0142325,0.0045008],
            [0.5547262,-0.2911399,0.3229861,-0.0117762,0.9992414,1.1244261,1.1372064,1.1384871,-0.9943620,1.1007791,-1.0918595,1.1385685,0.5458881,0.1792839,0.0569078,0.0180026]]),
        ("yarn, every option", json!({"rope_theta": 1e3, "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": false}), [
            [0.5690668,0.9609697,1.0366284,1.0508248,1.0530535,1.0532303,1.0532367,1.0532374,0.8862689,0.4310996,0.1863095,0.0712529,0.0196963,0.0039322,0.0014807,0.0006244],
            [1.0163386,-0.6494733,-0.9069353,-1.0221530,0.6253555,1.0349396,1.0506366,1.0527750,-0.2763431,0.8291526,0.5355166,-0.2539936,0.8474904,0.1954726,0.0739739,0.0312157],
            [0.5131244,-0.9324108,-0.5618989,0.5917201,-0.8700067,0.7730088,1.0118784,1.0458429,-0.9197896,0.4898161,-0.8908307,0.8713076,-0.5936312,0.7153789,0.2922530,0.1245886]]),
    ]
}

#[test]
fn angles_are_those_of_the_reference() {
    for (name, rope, want) in reference_angles() {
        let rope = arch::read(&config(&[("rope_parameters", rope)])).unwrap().rope;
        let mut whole = RopeTable::new(&rope);
        whole.grow(201);
        let mut in_steps = RopeTable::new(&rope);
        for n in [1, 2, 60, 201] {
            in_steps.grow(n);
        }
        assert_eq!(whole.rows(), in_steps.rows(), "{name}: growing in steps");
        for (position, want) in [1, 50, 200].into_iter().zip(want) {
            let (cos, sin) = whole.row(position);
            assert_eq!(cos.len() + sin.len(), want.len(), "{name}");
            for (i, (got, want)) in cos.iter().chain(sin).zip(want).enumerate() {
                // The reference rounds the frequency and the angle to float32 before it takes the cosine.
                let bound = 2e-7 * f64::from(position) + 2e-7;
                let error = (f64::from(*got) - want).abs();
                assert!(error < bound, "{name}, position {position}, value {i}: {got} for {want}");
            }
        }
    }
}

#[test]
fn a_program_names_every_tensor_once_and_uses_all_of_them() {
    let text = config(&[
        ("model_type", json!("qwen3")),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(false)),
        ("head_dim", json!(24)),
    ]);
    let p = Program::read(&text).unwrap();
    let shape = |name: &str| {
        let w = p.weights.iter().find(|w| w.name == name).unwrap_or_else(|| panic!("no {name}"));
        (w.shape.rows, w.shape.cols)
    };
    assert_eq!(shape("model.embed_tokens.weight"), (128, 64));
    assert_eq!(shape("lm_head.weight"), (128, 64));
    assert_eq!(shape("model.norm.weight"), (1, 64));
    assert_eq!(shape("model.layers.2.self_attn.q_proj.weight"), (96, 64));
    assert_eq!(shape("model.layers.2.self_attn.q_proj.bias"), (1, 96));
    assert_eq!(shape("model.layers.0.self_attn.k_proj.weight"), (48, 64));
    assert_eq!(shape("model.layers.0.self_attn.v_proj.bias"), (1, 48));
    assert_eq!(shape("model.layers.1.self_attn.k_norm.weight"), (1, 24));
    assert_eq!(shape("model.layers.1.self_attn.o_proj.weight"), (64, 96));
    assert_eq!(shape("model.layers.1.self_attn.o_proj.bias"), (1, 64));
    assert_eq!(shape("model.layers.1.mlp.down_proj.weight"), (64, 96));
    assert_eq!(p.ops.len(), 1 + 3 * 5 + 2);
    assert_eq!(p.parameters(), p.weights.iter().map(|w| w.shape.len()).sum::<u64>());

    let mut names: Vec<_> = p.weights.iter().map(|w| w.name.as_str()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);

    let mut uses = vec![0; all];
    for op in &p.ops {
        let linear = |l: &snug::model::op::Linear| vec![Some(l.w), l.bias];
        let used = match op {
            Op::Embed { table } => vec![Some(*table)],
            Op::Qkv { norm, q, k, v, q_norm, k_norm, .. } => {
                [vec![Some(*norm), *q_norm, *k_norm], linear(q), linear(k), linear(v)].concat()
            }
            Op::Proj { w, .. } => linear(w),
            Op::GateUp { norm, gate, up } => [vec![Some(*norm)], linear(gate), linear(up)].concat(),
            Op::Head { norm, w } => vec![Some(*norm), Some(*w)],
            Op::Attend { .. } | Op::Sample => vec![],
        };
        used.into_iter().flatten().for_each(|id| uses[id.0 as usize] += 1);
    }
    assert!(uses.iter().all(|n| *n == 1), "{uses:?}");

    let tied = Program::read(&config(&[])).unwrap();
    assert!(tied.weights.iter().all(|w| w.role != Role::Head));
    let (Some(Op::Embed { table }), Some(Op::Head { w, .. })) =
        (tied.ops.first(), tied.ops.iter().rev().nth(1))
    else {
        panic!("{:?}", tied.ops)
    };
    assert_eq!(table, w);
    let from = |op: &Op| matches!(op, Op::Proj { from: Buf::Hidden, .. });
    assert_eq!(tied.ops.iter().filter(|op| from(op)).count(), 3);
}

#[test]
fn the_memory_plan_grows_with_what_it_is_made_of() {
    let p = Program::read(&config(&[])).unwrap();
    let plan = |context, step| MemoryPlan::new(&p, 1000, KvFormat::F32, context, step);
    // 3 layers × (keys + values) × 2 heads × 16 values × 4 bytes
    assert_eq!(plan(10, 1).kv, 10 * 3 * 2 * 2 * 16 * 4);
    assert_eq!(plan(10, 1).total(), 1000 + plan(10, 1).kv + plan(10, 1).scratch);
    assert!(plan(10, 8).scratch > plan(10, 1).scratch);
    assert!(plan(20, 1).scratch > plan(10, 1).scratch, "the rotary table");
    let half = MemoryPlan::new(&p, 1000, KvFormat::Bf16, 10, 1);
    assert_eq!(half.kv * 2, plan(10, 1).kv);
}

/// Values as hostile as JSON allows, at the keys that matter.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u32..300).prop_map(Value::from),
        "[a-z3_]{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["linear", "dynamic", "llama3", "yarn", "qwen2", "mistral"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        let keys = prop::sample::select(KEYS.to_vec());
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..6).prop_map(|pairs| {
                Value::Object(pairs.into_iter().map(|(k, v)| (k.to_string(), v)).collect())
            }),
        ]
    })
}

const KEYS: &[&str] = &[
    "model_type",
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "type",
    "rope_type",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
    "truncate",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "quantization_config",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is in the file, reading it ends in a config that can be built and turned, or in `BadFile`.
    #[test]
    fn no_config_panics(
        arch in 0..ARCHS.len(),
        changes in prop::collection::vec((prop::sample::select(KEYS.to_vec()), any_value()), 0..8),
    ) {
        let mut map: Map<String, Value> = serde_json::from_str(&config(&[])).unwrap();
        map.insert("model_type".into(), ARCHS[arch].model_type.into());
        for (key, value) in changes {
            map.insert(key.into(), value);
        }
        match Program::read(&Value::Object(map).to_string()) {
            Err(e) => prop_assert_eq!(e.kind, Kind::BadFile),
            Ok(p) => {
                let c = &p.config;
                prop_assert_eq!(c.windows.len(), c.layers as usize);
                MemoryPlan::new(&p, u64::MAX / 2, KvFormat::F32, c.max_positions, 512).total();
                let mut table = RopeTable::new(&c.rope);
                table.grow(80);
                prop_assert!(table.rows().iter().all(|x| x.is_finite()), "{:?}", c.rope);
            }
        }
    }

    #[test]
    fn no_text_panics(text in ".{0,200}") {
        prop_assert_eq!(arch::read(&text).expect_err("not a config").kind, Kind::BadFile);
    }
}
