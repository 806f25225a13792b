//! One model and one prompt give the same bits on every path: instruction sets, threads, formats, chunks, old memory.

use serde_json::{Value, json};
use snug::backend::Backend;
use snug::backend::cpu::{Cpu, Isa};
use snug::codec::Format;
use snug::model::op::{Buf, Input, Rows, Step};
use snug::model::program::Program;
use snug::num::bf16_to_f32;
use snug::num::order::tile64;
use snug::num::rng::Stream;

use crate::util::{Model, logits, normals, read, same_bits};

/// Shapes that are not whole row blocks, tiles, or vectors; every switch of the family.
pub fn configs() -> Vec<(&'static str, Value)> {
    let base = |changes: Value| {
        let mut config = json!({
            "model_type": "llama", "hidden_size": 192, "intermediate_size": 328,
            "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
            "vocab_size": 131, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true,
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    vec![
        ("plain", base(json!({}))),
        (
            "biases, heads of 96",
            base(json!({
                "attention_bias": true, "mlp_bias": true, "head_dim": 96, "num_attention_heads": 2,
                "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh",
            })),
        ),
        (
            "head norms, untied",
            base(json!({
                "model_type": "qwen3", "head_dim": 24, "num_attention_heads": 7,
                "num_key_value_heads": 7, "hidden_size": 200, "tie_word_embeddings": false,
            })),
        ),
        (
            "windows",
            base(json!({
                "model_type": "qwen2", "use_sliding_window": true, "sliding_window": 5,
                "max_window_layers": 1, "rope_scaling": {"type": "dynamic", "factor": 2.0},
                "max_position_embeddings": 16,
            })),
        ),
        (
            "one narrow tile",
            base(json!({
                "hidden_size": 24, "intermediate_size": 20, "head_dim": 4, "vocab_size": 17,
            })),
        ),
        (
            "records of one to four tiles",
            base(json!({
                "hidden_size": 320, "intermediate_size": 700, "head_dim": 64, "num_attention_heads": 5,
                "num_key_value_heads": 1, "num_hidden_layers": 1,
            })),
        ),
    ]
}

pub fn random_tokens(seed: u64, count: usize, program: &Program) -> Vec<u32> {
    let mut stream = Stream::new(seed);
    (0..count).map(|_| stream.below(program.config.vocab)).collect()
}

#[test]
fn products_follow_the_named_order_of_sums() {
    for (name, config) in configs() {
        for format in [Format::Bf16, Format::Pairlut] {
            let model = Model::random(&config.to_string(), 3, format);
            let config = &model.program.config;
            let (hidden, ffn) = (config.hidden as usize, config.ffn as usize);
            let id = model.id("model.layers.0.mlp.down_proj.weight");
            let Some(op) = model.program.ops.get(5).filter(|_| !config.mlp_bias) else { continue };
            for isa in Isa::available() {
                for n in [1, 2, 3, 4, 7] {
                    let mut cpu = model.on(isa, 1, 64);
                    let x = normals(&mut Stream::new(n as u64), n * ffn);
                    cpu.write(Buf::Hidden, &x).unwrap();
                    cpu.write(Buf::Residual, &vec![0.0; n * hidden]).unwrap();
                    let tokens = vec![0; n];
                    cpu.exec(op, &step(&tokens, 0)).unwrap();
                    let mut want = Vec::new();
                    for x in x.chunks(ffn) {
                        for w in model.words[id.0 as usize].chunks(ffn) {
                            let w: Vec<f32> = w.iter().map(|w| bf16_to_f32(*w)).collect();
                            want.push(tile64(&w, x));
                        }
                    }
                    let what = format!("{name}, {format:?}, {}, {n} tokens", isa.name());
                    same_bits(&what, &read(&mut cpu, Buf::Residual, n * hidden), &want);
                }
            }
        }
    }
}

fn step(tokens: &[u32], pos: u32) -> Step<'_> {
    Step { input: Input::Tokens(tokens), pos, rows: Rows::All, sample: false }
}

#[test]
fn every_path_gives_the_same_bits() {
    for (name, config) in configs() {
        let plain = Model::random(&config.to_string(), 11, Format::Bf16);
        let packed = plain.stored_as(Format::Pairlut);
        let program = plain.program.clone();
        let tokens = random_tokens(5, 41, &program);
        let want = logits(&mut plain.on(Isa::available()[0], 1, 64), &program, &tokens, 0, 1);
        for (isa, threads, chunk) in paths(tokens.len()) {
            for model in [&plain, &packed] {
                let mut cpu = model.on(isa, threads, 64);
                let got = logits(&mut cpu, &program, &tokens, 0, chunk);
                let packed = model.count(Format::Pairlut);
                let what = format!(
                    "{name}: {}, {threads} threads, steps of {chunk}, {packed} packed weights",
                    isa.name()
                );
                same_bits(&what, &got, &want);
            }
        }
    }
}

/// Every instruction set, thread count and chunk size, though not in every combination.
fn paths(tokens: usize) -> Vec<(Isa, usize, usize)> {
    let mut paths = Vec::new();
    for isa in Isa::available() {
        for chunk in [1, 3, 7, tokens] {
            paths.push((isa, 1, chunk));
        }
    }
    for threads in [2, 3] {
        for chunk in [1, 2, 4, 5, 6, 8, 9, tokens] {
            paths.push((Isa::best(), threads, chunk));
        }
    }
    paths
}

#[test]
fn packing_is_put_to_the_test() {
    let all: usize = configs()
        .iter()
        .map(|(_, config)| Model::random(&config.to_string(), 11, Format::Pairlut))
        .map(|model| model.count(Format::Pairlut))
        .sum();
    assert!(all > 20, "only {all} weights of all test models are packed");
}

#[test]
fn contexts_of_several_pages_give_the_same_bits_however_they_were_read() {
    let config = |window: Value| {
        json!({
            "model_type": "mistral", "hidden_size": 64, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
            "head_dim": 32, "vocab_size": 64, "max_position_embeddings": 2048,
            "sliding_window": window, "tie_word_embeddings": true,
        })
    };
    for window in [json!(null), json!(300), json!(17)] {
        let model = Model::random(&config(window.clone()).to_string(), 4, Format::Bf16);
        let program = model.program.clone();
        let tokens = random_tokens(9, 800, &program);
        let long = tokens.len() - 5;
        let mut whole = model.on(Isa::available()[0], 1, 1000);
        let want = logits(&mut whole, &program, &tokens, 0, 64);
        let tail = &want[long * 64..];
        for isa in Isa::available() {
            for (threads, chunk) in [(1, 9), (2, 24), (3, 160)] {
                let mut cpu = model.on(isa, threads, 1000);
                let chunk = chunk.min(cpu.max_step() as usize);
                let got = logits(&mut cpu, &program, &tokens[..long], 0, chunk);
                let what = format!("{}, window {window}, {threads} threads", isa.name());
                same_bits(&what, &got, &want[..long * 64]);
                // One token at a time takes the pages in parallel.
                let got = logits(&mut cpu, &program, &tokens[long..], long as u32, 1);
                same_bits(&format!("{what}, one by one"), &got, tail);
            }
        }
    }
}

#[test]
fn old_memory_is_never_read() {
    for (name, config) in configs() {
        for format in [Format::Bf16, Format::Pairlut] {
            let model = Model::random(&config.to_string(), 21, format);
            let program = model.program.clone();
            let tokens = random_tokens(6, 40, &program);
            let want = logits(&mut model.cpu(64), &program, &tokens, 0, 40);
            let mut cpu = model.cpu(64);
            let mut got = Vec::new();
            let mut pos = 0;
            for chunk in [1, 2, 5, 17, 1, 14] {
                cpu.poison(f32::NAN);
                got.extend(logits(
                    &mut cpu,
                    &program,
                    &tokens[pos..pos + chunk],
                    pos as u32,
                    chunk,
                ));
                pos += chunk;
            }
            same_bits(name, &got, &want);
        }
    }
}

#[test]
fn going_back_costs_nothing_and_leaves_no_trace() {
    let (_, config) = &configs()[3];
    let model = Model::random(&config.to_string(), 8, Format::Pairlut);
    let program = model.program.clone();
    let (first, other) = (random_tokens(1, 30, &program), random_tokens(2, 20, &program));
    let vocab = program.config.vocab as usize;
    let mut cpu = model.cpu(64);
    let before = logits(&mut cpu, &program, &first, 0, 30);
    logits(&mut cpu, &program, &other, 10, 20);
    let again = logits(&mut cpu, &program, &first[10..], 10, 6);
    same_bits("after going back to token 10", &again, &before[10 * vocab..]);
}

#[test]
fn a_step_is_its_ops_in_order_and_rows_choose_logits() {
    let (_, config) = &configs()[0];
    let model = Model::random(&config.to_string(), 2, Format::Pairlut);
    let program = model.program.clone();
    let vocab = program.config.vocab as usize;
    let tokens = random_tokens(3, 9, &program);
    let all = logits(&mut model.cpu(64), &program, &tokens, 0, 9);

    let mut cpu = model.cpu(64);
    for op in &program.ops {
        cpu.exec(op, &step(&tokens, 0)).unwrap();
    }
    same_bits("op by op", &read(&mut cpu, Buf::Logits, 9 * vocab), &all);

    let mut cpu = model.cpu(64);
    let run = |cpu: &mut Cpu, part: &[u32], pos, rows, sample| {
        cpu.run(&program, &Step { input: Input::Tokens(part), pos, rows, sample }).unwrap();
    };
    run(&mut cpu, &tokens[..4], 0, Rows::None, false);
    run(&mut cpu, &tokens[4..], 4, Rows::Last, true);
    let last = &all[8 * vocab..];
    same_bits("the last row alone", &read(&mut cpu, Buf::Logits, vocab), last);
    let best = (0..vocab).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap() as u32;
    assert_eq!(cpu.token().unwrap(), best);

    // The token that was chosen is what `Input::Last` continues with.
    let more = Step { input: Input::Last, pos: 9, rows: Rows::Last, sample: true };
    cpu.run(&program, &more).unwrap();
    let with_last = read(&mut cpu, Buf::Logits, vocab);
    let mut other = model.cpu(64);
    let longer = [tokens.as_slice(), &[best]].concat();
    let want = logits(&mut other, &program, &longer, 0, 10);
    same_bits("after the chosen token", &with_last, &want[9 * vocab..]);
}
