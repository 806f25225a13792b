//! Whole files: names, shapes, the order of rows, configs, and what is refused.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use snug::error::Kind;
use snug::import::gguf::types::GgmlType;
use snug::model::arch;
use snug::model::config::RopeScaling;
use snug::num::rng::Stream;

use super::writer::{ARRAY, Writer, tiny};
use super::{golden_json, golden_path, hex, import, listing, refused, sha256, smollm2, weight};

#[test]
fn models_of_the_reference_are_read_as_it_made_them() {
    for (name, want) in golden_json("models.json").as_object().unwrap() {
        let source = snug::import::open(&golden_path(&format!("{name}.gguf"))).unwrap();
        assert_eq!((source.kind(), source.name()), ("gguf", format!("{name}.gguf").as_str()));
        assert!(!source.exact());
        let weights = want["weights"].as_object().unwrap();
        let names: Vec<&str> = source.tensors().iter().map(|t| t.name.as_str()).collect();
        let mut sorted: Vec<&str> = weights.keys().map(String::as_str).collect();
        sorted.sort_unstable();
        assert_eq!(names, sorted, "{name}");
        for (i, t) in source.tensors().iter().enumerate() {
            let got = json!([t.dtype, t.dims, sha256(&weight(&*source, i))]);
            assert_eq!(got, weights[&t.name], "{name}: {}", t.name);
        }
        let ours = arch::read(&source.texts().config).unwrap();
        let theirs = arch::read(&want["config"].to_string()).unwrap();
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn smollm2_has_the_weights_that_the_reference_dequantises() {
    let Some(source) = smollm2() else { return };
    let golden = include_str!("../../golden/smollm2.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    let listing = listing(&*source);
    for (name, want) in golden["sha256"].as_object().unwrap() {
        let line = format!("{name} {}", want.as_str().unwrap());
        assert!(listing.lines().any(|l| l == line), "{name} differs");
    }
    assert_eq!(hex(&Sha256::digest(listing)), golden["sha256_of_listing"]);
    let ends: Value =
        serde_json::from_str(source.texts().generation_config.as_ref().unwrap()).unwrap();
    assert_eq!(ends["eos_token_id"], json!([2, 0]));
}

/// What joins the parts is said for every part; those but the first have no other metadata.
#[test]
fn parts_of_a_model_are_refused_with_what_joins_them() {
    let mut first = tiny("llama");
    first.u32("split.count", 3);
    first.u32("split.no", 0);
    let mut second = Writer::new();
    second.u32("split.no", 1);
    second.u32("split.count", 3);
    let mut odd = tiny("llama");
    odd.u32("split.count", 3);
    for (part, why) in [(first, "part 1 of 3"), (second, "part 2 of 3"), (odd, "one of 3 parts")] {
        let Err(e) = import(&part.bytes()) else { panic!("{why}: accepted") };
        assert_eq!(e.kind, Kind::BadFile);
        assert!(e.why.contains(why), "{e}");
        assert!(e.todo.contains("--merge NAME-00001-of-00003.gguf"), "{e}");
    }
    // A whole model may say that it is one of one.
    let mut whole = tiny("llama");
    whole.u32("split.count", 1);
    assert!(import(&whole.bytes()).is_ok());
}

/// Rows can be asked for in any run; every type goes through the same path, permuted or not.
#[test]
fn runs_of_rows_fit_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut stream = Stream::new(3);
    for ty in GgmlType::all() {
        let mut w = tiny("llama");
        // 256 wide, so that every block fits a row; q has 256 rows in two heads of 128.
        for key in ["embedding_length", "attention.key_length", "attention.value_length"] {
            w.u32(&format!("llama.{key}"), if key == "embedding_length" { 256 } else { 128 });
        }
        for t in &mut w.tensors {
            for d in &mut t.dims {
                *d = match *d {
                    32 => 256,
                    16 => 128,
                    48 => 256,
                    n => n,
                };
            }
            t.ty = ty.id();
            let blocks = t.dims.iter().product::<u64>() as usize / ty.block_len();
            t.data = (0..blocks * ty.block_bytes()).map(|_| stream.next_u64() as u8).collect();
        }
        w.u32("llama.feed_forward_length", 256);
        let path = dir.path().join("x.gguf");
        std::fs::write(&path, w.bytes()).unwrap();
        let source = snug::import::open(&path).unwrap();
        assert_eq!(source.exact(), ty == GgmlType::BF16);
        for (i, t) in source.tensors().iter().enumerate() {
            let whole = weight(&*source, i);
            let shape = t.shape();
            let cols = shape.cols as usize;
            for _ in 0..3 {
                let start = stream.below(shape.rows);
                let end = start + stream.below(shape.rows - start + 1);
                let mut part = vec![1; (end - start) as usize * cols];
                source.read_rows(i, start..end, &mut part).unwrap();
                let want = &whole[start as usize * cols..end as usize * cols];
                assert!(part == want, "{} {}: rows {start}..{end}", ty.name(), t.name);
            }
        }
        // A file that shrinks under the reader is an error.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(w.header().len() as u64 + 64).unwrap();
        let last = source.tensors().iter().position(|t| t.name.ends_with("1.mlp.down_proj.weight"));
        let mut row = vec![0; 256];
        refused(
            "a shrunk file",
            source.read_rows(last.unwrap(), 0..1, &mut row),
            "file ends before",
        );
    }
}

#[test]
fn rows_of_llama_heads_are_put_back() {
    let mut w = tiny("llama");
    // Row r holds r in every column.
    let rows = |n: u64| (0..n).flat_map(|r| [r as f32; 32]).collect::<Vec<_>>();
    w.floats("blk.0.attn_q.weight", &[32, 32], &rows(32));
    w.floats("blk.0.attn_v.weight", &[16, 32], &rows(16));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, w.bytes()).unwrap();
    let source = snug::import::open(&path).unwrap();
    let column = |name: &str| {
        let i = source.tensors().iter().position(|t| t.name == name).unwrap();
        let words = weight(&*source, i);
        words.chunks(32).map(|row| snug::num::bf16_to_f32(row[0]) as u32).collect::<Vec<_>>()
    };
    // Even rows are the first half of a head, odd ones the second; heads are 16 rows.
    let head = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15];
    let both: Vec<u32> = head.iter().copied().chain(head.iter().map(|r| r + 16)).collect();
    assert_eq!(column("model.layers.0.self_attn.q_proj.weight"), both);
    assert_eq!(column("model.layers.0.self_attn.v_proj.weight"), (0..16).collect::<Vec<_>>());
}

#[test]
fn models_that_are_not_understood_are_refused_by_name() {
    type Case = (&'static str, &'static str, fn(&mut Writer), &'static str);
    let cases: &[Case] = &[
        ("no architecture", "llama", |w| w.remove("general.architecture"), "general.architecture"),
        (
            "architecture",
            "llama",
            |w| w.str("general.architecture", "mam\x1bba"),
            "is mam␛ba; llama",
        ),
        ("adapter", "llama", |w| w.str("general.type", "adapter"), "general.type is adapter"),
        ("old blocks", "llama", |w| w.u32("general.quantization_version", 1), "version is 1"),
        ("experts", "llama", |w| w.u32("llama.expert_count", 8), "llama.expert_count = 8"),
        ("new key", "llama", |w| w.f32("llama.logit_scale", 0.5), "llama.logit_scale = 0.5"),
        (
            "encoder",
            "llama",
            |w| w.bool("llama.attention.causal", false),
            "attention.causal = false",
        ),
        ("window", "qwen3", |w| w.u32("qwen3.attention.sliding_window", 9), "sliding_window is 9"),
        (
            "no width",
            "llama",
            |w| w.remove("llama.embedding_length"),
            "embedding_length is missing",
        ),
        ("no context", "llama", |w| w.remove("llama.context_length"), "context_length is missing"),
        ("no epsilon", "llama", |w| w.remove("llama.attention.layer_norm_rms_epsilon"), "epsilon"),
        ("width 0", "llama", |w| w.u32("llama.embedding_length", 0), "embedding_length is 0"),
        ("width", "llama", |w| w.u32("llama.embedding_length", 64), "[260, 32]; the metadata make"),
        ("heads", "llama", |w| w.u32("llama.attention.head_count", 5), "5 heads do not divide"),
        ("key heads", "llama", |w| w.u32("llama.attention.head_count_kv", 3), "do not divide"),
        ("odd heads", "llama", |w| w.u32("llama.attention.head_count", 32), "do not divide"),
        (
            "many heads",
            "qwen3",
            |w| {
                w.u32("qwen3.attention.head_count", u32::MAX);
                w.u32("qwen3.attention.key_length", 1 << 16);
            },
            "are absurd",
        ),
        (
            "layers",
            "llama",
            |w| w.u32("llama.block_count", u32::MAX),
            "cannot be 4294967295 layers",
        ),
        (
            "a layer more",
            "llama",
            |w| w.u32("llama.block_count", 3),
            "blk.2.attn_norm.weight is missing",
        ),
        ("a layer less", "llama", |w| w.u32("llama.block_count", 1), "blk.1.attn_norm.weight"),
        ("values", "llama", |w| w.u32("llama.attention.value_length", 8), "values of 8"),
        ("part turns", "llama", |w| w.u32("llama.rope.dimension_count", 8), "of which 8 turn"),
        (
            "by layer",
            "llama",
            |w| w.i32s("llama.feed_forward_length", &[48, 96]),
            "differs between",
        ),
        ("theta", "llama", |w| w.f32("llama.rope.freq_base", f32::NAN), "freq_base is NaN"),
        ("theta 0", "llama", |w| w.f32("llama.rope.freq_base", 0.0), "freq_base is 0"),
        (
            "no embedding",
            "llama",
            |w| w.drop_tensor("token_embd.weight"),
            "token_embd.weight is missing",
        ),
        (
            "no norm",
            "llama",
            |w| w.drop_tensor("output_norm.weight"),
            "output_norm.weight is missing",
        ),
        (
            "no matrix",
            "llama",
            |w| w.drop_tensor("blk.1.ffn_up.weight"),
            "blk.1.ffn_up.weight is missing",
        ),
        (
            "fused",
            "llama",
            |w| w.floats("blk.0.attn_qkv.weight", &[64, 32], &[0.0; 2048]),
            "called blk.0.attn_qkv",
        ),
        ("extra", "llama", |w| w.floats("rope\u{202e}", &[1], &[0.0]), "called rope\\u{202e}"),
        (
            "alias",
            "llama",
            |w| w.floats("blk.01.attn_norm.weight", &[32], &[0.0; 32]),
            "blk.01.attn_norm",
        ),
        (
            "signed",
            "llama",
            |w| w.floats("blk.+1.attn_norm.weight", &[32], &[0.0; 32]),
            "blk.+1.attn_norm",
        ),
        (
            "turned",
            "llama",
            |w| w.get("blk.0.ffn_down.weight").dims.reverse(),
            "[48, 32]; the metadata make it [32, 48]",
        ),
        (
            "half the biases",
            "llama",
            |w| {
                w.floats("blk.0.attn_q.bias", &[32], &[0.0; 32]);
            },
            "blk.0.attn_k.bias is missing",
        ),
        (
            "qkv biases",
            "llama",
            |w| {
                for layer in 0..2 {
                    for (name, n) in [("q", 32), ("k", 16), ("v", 16)] {
                        w.floats(
                            &format!("blk.{layer}.attn_{name}.bias"),
                            &[n],
                            &vec![0.0; n as usize],
                        );
                    }
                }
            },
            "not on the output",
        ),
        (
            "no biases",
            "qwen2",
            |w| {
                w.tensors.retain(|t| !t.name.ends_with("bias"));
            },
            "biases of q, k and v are missing",
        ),
        (
            "no head norms",
            "qwen3",
            |w| {
                w.tensors.retain(|t| {
                    !t.name.ends_with("_norm.weight")
                        || !t.name.contains("_q_") && !t.name.contains("_k_")
                });
            },
            "norms of queries and keys are missing",
        ),
        (
            "head norms",
            "llama",
            |w| {
                for layer in 0..2 {
                    for name in ["q", "k"] {
                        w.floats(
                            &format!("blk.{layer}.attn_{name}_norm.weight"),
                            &[16],
                            &[0.0; 16],
                        );
                    }
                }
            },
            "norms on queries and keys, which no llama has",
        ),
        (
            "tokens",
            "llama",
            |w| w.remove("tokenizer.ggml.tokens"),
            "tokenizer.ggml.tokens is missing",
        ),
        ("no tokenizer", "llama", |w| w.remove("tokenizer.ggml.model"), "tokenizer is missing"),
    ];
    for (what, arch, change, reason) in cases {
        let mut w = tiny(arch);
        change(&mut w);
        refused(what, import(&w.bytes()), reason);
    }
    for arch in ["llama", "qwen2", "qwen3"] {
        import(&tiny(arch).bytes()).unwrap();
    }
}

/// `config.json` of a changed Llama, read.
fn config(change: impl Fn(&mut Writer)) -> snug::error::Result<snug::model::config::Config> {
    let mut w = tiny("llama");
    change(&mut w);
    import(&w.bytes()).map(|m| arch::read(&m.texts.config).unwrap())
}

#[test]
fn options_reach_the_config() {
    let plain = config(|_| ()).unwrap();
    assert_eq!((plain.hidden, plain.layers, plain.heads, plain.kv_heads), (32, 2, 2, 1));
    assert_eq!((plain.head_dim, plain.ffn, plain.vocab, plain.max_positions), (16, 48, 260, 512));
    assert_eq!((plain.norm_eps, plain.rope.theta), (1e-5, 10_000.0));
    assert!(plain.tied && !plain.qkv_bias && !plain.o_bias && !plain.mlp_bias && !plain.qk_norm);

    let untied = config(|w| w.floats("output.weight", &[260, 32], &[0.0; 8320])).unwrap();
    assert!(!untied.tied);
    // A size of each layer, all equal; neutral values of options; no base of the rotation.
    let spelt = config(|w| {
        w.i32s("llama.feed_forward_length", &[48, 48]);
        w.u32("llama.expert_count", 0);
        w.bool("llama.attention.causal", true);
        w.str("llama.tensor_data_layout", "Meta AI original pth");
        w.u32("llama.attention.sliding_window", 0);
        w.remove("llama.rope.freq_base");
        w.str("llama.rope.scaling.type", "none");
    });
    assert_eq!(spelt.unwrap(), plain);
    let window = config(|w| w.u32("llama.attention.sliding_window", 128)).unwrap();
    assert_eq!((window.model_type.as_str(), window.windows), ("mistral", vec![Some(128); 2]));
}

/// Factors by Llama 3.1's rule for heads of 16 and θ = 10,000.
fn factors(factor: f64, low: f64, high: f64, original: f64) -> Vec<f32> {
    let pair = |i: i32| {
        let wavelength = std::f64::consts::TAU * 10_000f64.powf(f64::from(i) / 8.0);
        if wavelength < original / high {
            return 1.0;
        }
        if wavelength > original / low {
            return factor as f32;
        }
        let kept = (original / wavelength - low) / (high - low);
        (1.0 / ((1.0 - kept) / factor + kept)) as f32
    };
    (0..8).map(pair).collect()
}

#[test]
fn rope_scaling_is_read_or_refused() {
    let freqs = |values: Vec<f32>| {
        move |w: &mut Writer| w.floats("rope_freqs.weight", &[values.len() as u64], &values)
    };
    let scaling = |change: &dyn Fn(&mut Writer)| config(change).map(|c| c.rope.scaling);
    let llama3 =
        RopeScaling::Llama3 { factor: 32.0, low_freq: 1.0, high_freq: 4.0, original: 8192 };
    assert_eq!(scaling(&freqs(factors(32.0, 1.0, 4.0, 8192.0))).unwrap(), llama3);
    assert_eq!(scaling(&freqs(vec![1.0; 8])).unwrap(), RopeScaling::None);
    let stated = scaling(&|w| {
        freqs(factors(8.0, 1.0, 4.0, 4096.0))(w);
        w.u32("llama.rope.scaling.original_context_length", 4096);
    });
    let want = RopeScaling::Llama3 { factor: 8.0, low_freq: 1.0, high_freq: 4.0, original: 4096 };
    assert_eq!(stated.unwrap(), want);
    for (what, values) in [
        ("another rule", factors(8.0, 1.0, 3.0, 8192.0)),
        ("another context", factors(8.0, 1.0, 4.0, 4096.0)),
        ("NaN", vec![f32::NAN; 8]),
        ("zero", vec![0.0; 8]),
        ("infinite", [vec![1.0; 7], vec![f32::INFINITY]].concat()),
        ("short", vec![2.0; 4]),
    ] {
        refused(what, scaling(&freqs(values)), "rope_freqs.weight");
    }

    let text = |kind: &'static str, rest: &'static [(&'static str, f32)]| {
        move |w: &mut Writer| {
            w.str("llama.rope.scaling.type", kind);
            for (key, value) in rest {
                w.f32(&format!("llama.rope.scaling.{key}"), *value);
            }
            w.u32("llama.rope.scaling.original_context_length", 256);
        }
    };
    let linear = scaling(&text("linear", &[("factor", 2.5)])).unwrap();
    assert_eq!(linear, RopeScaling::Linear { factor: 2.5 });
    let old = scaling(&|w| w.f32("llama.rope.scale_linear", 4.0)).unwrap();
    assert_eq!(old, RopeScaling::Linear { factor: 4.0 });
    let yarn = |attention_factor: f64, beta_fast: f64| RopeScaling::Yarn {
        factor: 4.0,
        original: 256,
        beta_fast,
        beta_slow: 1.0,
        attention_factor,
        truncate: true,
    };
    let temperature = 0.1 * libm::log(4.0) + 1.0;
    let plain = scaling(&text("yarn", &[("factor", 4.0)])).unwrap();
    assert_eq!(plain, yarn(temperature, 32.0));
    const TUNED: [(&str, f32); 3] =
        [("factor", 4.0), ("attn_factor", 0.5), ("yarn_beta_fast", 16.0)];
    assert_eq!(scaling(&text("yarn", &TUNED)).unwrap(), yarn(0.5 * temperature, 16.0));
    refused("longrope", scaling(&text("longrope", &[("factor", 4.0)])), "longrope");
    refused("mla", scaling(&text("yarn", &[("factor", 4.0), ("yarn_log_multiplier", 0.1)])), "0.1");
    refused("negative", scaling(&text("linear", &[("factor", -1.0)])), "factor is -1");
    let both = scaling(&|w| {
        freqs(factors(8.0, 1.0, 4.0, 8192.0))(w);
        text("linear", &[("factor", 2.0)])(w);
    });
    refused("both", both, "both rope_freqs.weight");
}

#[test]
fn recommended_sampling_is_kept() {
    let mut w = tiny("llama");
    w.f32("general.sampling.temp", 0.6);
    w.f32("general.sampling.top_p", 0.95);
    w.raw("general.sampling.top_k", 5, 20i32.to_le_bytes().to_vec());
    let model = import(&w.bytes()).unwrap();
    let got: Value = serde_json::from_str(model.texts.generation_config.as_ref().unwrap()).unwrap();
    let want = json!({"bos_token_id": 257, "eos_token_id": [258], "do_sample": true,
        "temperature": 0.6, "top_p": 0.95, "top_k": 20});
    assert_eq!(got, want);
    w.raw("tokenizer.ggml.eos_token_id", ARRAY, super::writer::array(4, 0, &[]));
    refused("eos", import(&w.bytes()), "tokenizer.ggml.eos_token_id is an array");
}
