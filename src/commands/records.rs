//! The JSON records of `run` and `chat`. Field names are OpenAI's where one exists; fields are only ever added.

use serde_json::{Map, Value, json};

use super::replies::Reply;
use super::sampling;
use crate::engine::protocol::{Ask, Loaded, Token};
use crate::text::base64::base64;

/// What is about to be asked of what.
pub fn start(loaded: &Loaded, ask: &Ask) -> Value {
    json!({
        "v": 1,
        "type": "start",
        "model": format!("{}:{}", loaded.name, loaded.variant),
        "device": loaded.card.id,
        "device_path": loaded.card.path,
        "seed": ask.sampling.seed,
        "sampler": sampling::to_json(&ask.sampling),
        "max_tokens": ask.max_tokens,
        "stop": ask.stop,
        "stop_ids": loaded.stops.iter().map(|(id, origin)| json!({"id": id, "origin": origin})).collect::<Vec<_>>(),
        "ctx_size": loaded.context,
    })
}

/// One token.
pub fn token(i: usize, token: &Token) -> Value {
    let mut record = json!({ "v": 1, "type": "token", "i": i });
    extend(&mut record, piece(token.id, &token.bytes));
    if let Some(l) = &token.logprobs {
        record["logprob"] = number(l.chosen);
        record["top"] = l
            .top
            .iter()
            .map(|(id, bytes, logprob)| {
                let mut entry = piece(*id, bytes);
                entry["logprob"] = number(*logprob);
                entry
            })
            .collect();
    }
    record
}

/// A whole reply.
pub fn end(loaded: &Loaded, reply: &Reply) -> Value {
    let s = &reply.stats;
    let fresh = s.prompt_tokens.saturating_sub(s.cached_tokens);
    let decode_tps = rate(s.completion_tokens.saturating_sub(1), s.decode.as_secs_f64());
    let machine = Machine::now();
    let mut record = json!({
        "v": 1,
        "type": "end",
        "text": reply.text,
        "reasoning": (!reply.reasoning.is_empty()).then_some(&reply.reasoning),
        "finish_reason": reply.finish.name(),
        "usage": {
            "prompt_tokens": s.prompt_tokens,
            "cached_tokens": s.cached_tokens,
            "completion_tokens": s.completion_tokens,
            "reasoning_tokens": s.reasoning_tokens,
        },
        "timings": {
            "load_ms": ms(loaded.took.as_secs_f64()),
            "ttft_ms": ms(s.ttft.as_secs_f64()),
            "prefill_tps": rate(fresh, s.prefill.as_secs_f64()),
            "decode_tps": decode_tps,
        },
        "memory": {
            "weights": s.ledger.weights,
            "kv_reserved": s.ledger.kv_reserved,
            "kv_used": s.ledger.kv_used,
            "scratch": s.ledger.scratch,
            "other": s.ledger.context,
            "free": machine.free,
            "peak": machine.peak,
        },
        "io": {
            "bytes_per_token": s.bytes_per_token,
            "gbps": decode_tps.map(|tps| round(tps * s.bytes_per_token as f64 / 1e9, 3)),
            "pct_of_measured": null,
            "measured_gbps": null,
        },
        // Nothing is proven by running; `snug verify` proves.
        "exactness": null,
    });
    if let Some((from, to)) = reply.truncated {
        record["truncated"] = json!({ "from": from, "to": to, "tokens": from - to });
    }
    record
}

fn piece(id: u32, bytes: &[u8]) -> Value {
    json!({ "id": id, "text": String::from_utf8_lossy(bytes), "bytes": base64(bytes) })
}

fn extend(record: &mut Value, more: Value) {
    if let (Value::Object(record), Value::Object(more)) = (record, more) {
        Map::extend(record, more);
    }
}

/// A log-probability; minus infinity has no JSON number.
fn number(x: f32) -> Value {
    if x.is_finite() { json!(round(f64::from(x), 6)) } else { Value::Null }
}

/// Items per second, when there were any.
pub fn rate(n: u32, seconds: f64) -> Option<f64> {
    (n > 0 && seconds > 0.0).then(|| round(f64::from(n) / seconds, 2))
}

fn ms(seconds: f64) -> f64 {
    round(seconds * 1e3, 3)
}

fn round(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}

/// Memory of the machine and of this process, where the system tells.
struct Machine {
    free: Option<u64>,
    peak: Option<u64>,
}

impl Machine {
    fn now() -> Machine {
        Machine { free: available_memory(), peak: kib("/proc/self/status", "VmHWM:") }
    }
}

pub use crate::backend::available_memory;

/// Memory of this machine, where the system tells.
pub fn total_memory() -> Option<u64> {
    kib("/proc/meminfo", "MemTotal:")
}

fn kib(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|l| l.strip_prefix(key))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|n| n * 1024)
}
