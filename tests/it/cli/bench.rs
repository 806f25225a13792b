//! `bench` and `devices`.

use serde_json::{Value, json};
use snug::backend::cuda::driver;

use super::Place;

/// Steps of the script take at least two milliseconds, and prompts go in chunks of 16: the speeds that are told are
/// bounded by the steps that were really made.
#[test]
fn every_step_that_is_counted_was_made() {
    let place = Place::new();
    let device = place.device(&[5], json!({ "step_ms": 2, "max_step": 16 }));
    let args = ["bench", "demo", "-d", &device, "-p", "64,0", "-n", "8", "--pg", "32,4"];
    let more = ["--depth", "40,0", "-r", "3", "--warmup", "0", "-o", "jsonl"];
    let ran = place.run(&[&args[..], &more].concat()).ok();
    let rows = ran.records();
    let tests: Vec<&str> = rows.iter().map(|r| r["test"].as_str().unwrap()).collect();
    let want = ["pp64", "tg8", "pp32+tg4", "pp64 @ d40", "tg8 @ d40", "pp32+tg4 @ d40"];
    assert_eq!(tests, want);
    for row in &rows {
        let (p, n) = (row["n_prompt"].as_u64().unwrap(), row["n_gen"].as_u64().unwrap());
        let least_ns = (p.div_ceil(16) + n) * 2_000_000;
        let samples = row["samples_ns"].as_array().unwrap();
        assert_eq!(samples.len(), 3, "{row}");
        let mut sum = 0;
        for ns in samples {
            assert!(ns.as_u64().unwrap() >= least_ns, "{row}: at least {least_ns} ns");
            sum += ns.as_u64().unwrap();
        }
        assert!((row["avg_ns"].as_f64().unwrap() - sum as f64 / 3.0).abs() < 1.0, "{row}");
        for (rate, ns) in row["samples_ts"].as_array().unwrap().iter().zip(samples) {
            let want = (p + n) as f64 * 1e9 / ns.as_f64().unwrap();
            assert!((rate.as_f64().unwrap() / want - 1.0).abs() < 1e-6, "{row}");
        }
        // What a token reads is known where tokens come one by one.
        assert_eq!(row["bytes_per_token"].is_null(), p > 0, "{row}");
        assert_eq!(row["variant"], "lossless");
    }
}

#[test]
fn rows_come_in_four_spellings() {
    let place = Place::new();
    let device = place.device(&[5], json!({}));
    let run = |format: &str| {
        place
            .run(&["bench", "demo", "-d", &device, "-r", "2", "-p", "8", "-n", "2", "-o", format])
            .ok()
    };
    let md = run("md");
    let lines: Vec<&str> = md.out().lines().collect();
    assert_eq!(lines.len(), 4, "{md:?}");
    let bars = lines[0].matches('|').count();
    assert!(lines.iter().all(|l| l.starts_with("| ") && l.matches('|').count() == bars), "{md:?}");
    assert!(lines[2].contains("| pp8 |") && lines[3].contains("| tg2 |"), "{md:?}");

    let csv = run("csv");
    let lines: Vec<&str> = csv.out().lines().collect();
    assert_eq!(lines.len(), 3, "{csv:?}");
    assert!(lines[0].starts_with("model,variant,") && lines[1].starts_with("demo,lossless,"));

    let json: Vec<Value> = serde_json::from_str(run("json").out()).unwrap();
    assert_eq!(json.len(), 2);
    assert_eq!((&json[0]["n_prompt"], &json[1]["n_gen"]), (&json!(8), &json!(2)));

    let lines = place.run(&["bench", "demo", "-d", &device, "-r", "2", "--json"]).ok().records();
    assert_eq!(
        (lines[0]["test"].as_str(), lines[1]["test"].as_str()),
        (Some("pp512"), Some("tg128"))
    );
}

#[test]
fn models_on_the_cpu_and_models_that_nobody_has() {
    let place = Place::new();
    let small = json!({
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": true,
    });
    let config = place.write("config.json", small.to_string());
    let bench = |args: &[&str]| place.run(&[&["bench", "-d", "cpu", "-o", "jsonl"], args].concat());
    let tests = ["-p", "16", "-n", "4", "-r", "1", "--depth", "0,32", "--threads", "2"];
    let ran = bench(
        &[&["--synthetic", &config, "--codec", "lossless,bf16", "demo"], &tests[..]].concat(),
    )
    .ok();
    let rows = ran.records();
    assert_eq!(rows.len(), 3 * 4);
    let (packed, plain) = (&rows[5], &rows[9]);
    assert_eq!((&packed["variant"], &plain["variant"]), (&json!("lossless"), &json!("bf16")));
    let share = packed["model_size"].as_f64().unwrap() / plain["model_size"].as_f64().unwrap();
    assert!((0.69..0.75).contains(&share), "{share}");
    for row in &rows {
        assert_eq!(row["device"], "cpu");
        assert_eq!(row["gbps"].is_number(), row["n_gen"].as_u64() > Some(0), "{row}");
    }
    bench(&[]).fails(2).says("no model was named");
    bench(&["demo", "-p", "0", "-n", "0"]).fails(2);
    bench(&["--synthetic", "llama-4-8t"]).fails(2).says("qwen3-8b");
    bench(&["--synthetic", &config, "--depth", "100", "-p", "64"])
        .fails(11)
        .says("the model knows 128");
    bench(&["no-such-model"]).fails(3);
    bench(&["kernels"]).fails(2).says("before `kernels`");
    place.run(&["bench", "-d", "cpu", "kernels"]).fails(2).says("on GPUs only");
    place.run(&["bench", "kernels", "-d", "cpu"]).fails(2).says("on GPUs only");
    place.run(&["bench", "kernels", "-d", "cuda:999"]).fails(8);
    place.run(&["bench", "kernels", "--synthetic", "nothing", "-n", "9"]).fails(2);
}

#[test]
fn devices_are_listed_and_missing_ones_named() {
    let place = Place::new();
    let ran = place.run(&["devices", "--json"]).ok();
    let cpu: Vec<Value> = ran.records().into_iter().filter(|r| r["id"] == "cpu").collect();
    assert_eq!(cpu.len(), 1);
    assert!(cpu[0]["cores"].as_u64() > Some(0) && cpu[0]["simd"].is_string());
    let table = place.run(&["devices"]).ok();
    assert!(table.out().lines().any(|l| l.starts_with("cpu ")), "{table:?}");
    let gpus = match driver::devices() {
        Ok(list) => {
            for d in &list {
                assert!(table.out().contains(&d.uuid), "{table:?}");
                let named =
                    place.run(&["devices", "--json", "-d", &format!("cuda:{}", d.uuid)]).ok();
                assert_eq!(named.record("device")["index"], d.index);
            }
            list.len()
        }
        Err(e) => {
            assert!(table.stderr.contains(&e.why), "{table:?}");
            assert_eq!(ran.record("no_gpu")["message"], e.why);
            0
        }
    };
    let beyond = format!("cuda:{gpus}");
    for device in [beyond.as_str(), "cuda:GPU-00000000-dead", "gpu-00000000-dead"] {
        place.run(&["devices", "-d", device]).fails(8);
        place.run(&["run", "-d", device, "demo", "hello"]).fails(8);
    }
    place.run(&["devices", "-d", "tpu"]).fails(2);
}
