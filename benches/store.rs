//! Speed and memory of packing, opening and verifying a model of half a gigabyte: `cargo bench --bench store`.
//!
//! Bytes are bytes of bf16 (2 a weight). CPU seconds are those of all threads, so that GB/s by CPU second is the speed of
//! one core whatever else the machine does; peak memory is the most that was resident at once while packing, beyond what
//! was before.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use snug::codec::Format;
use snug::num::f32_to_bf16;
use snug::num::rng::Stream;
use snug::store::{Store, pack};

/// Name, rows, columns. The largest is 64 MiB.
const LAYER: [(&str, u64, u64); 4] = [
    ("self_attn.q_proj", 2048, 2048),
    ("self_attn.o_proj", 2048, 2048),
    ("mlp.up_proj", 5632, 2048),
    ("mlp.down_proj", 2048, 5632),
];
const LAYERS: usize = 7;
const EMBED: (&str, u64, u64) = ("model.embed_tokens", 16384, 2048);

fn main() {
    let at = tempfile::tempdir().expect("a temporary directory");
    let dir = at.path().join("model");
    let (all, largest) = model(&dir);
    let source = snug::import::open(&dir).expect("the model follows the rules");
    println!("model: {:.0} MB in bf16, largest tensor {:.1} MB", all / 1e6, largest / 1e6);
    let out = |format: Format| at.path().join(format!("{}.snug", format.codec().id()));
    for format in [Format::Bf16, Format::Pairlut] {
        let pack = || {
            pack(source.as_ref(), format, &out(format), Default::default(), &|_, _| (), &|| false)
                .expect("there is room for it");
        };
        let peak = measure(&format!("pack {}", format.codec().id()), all, pack);
        println!(
            "{:18} {:6.1} MB = {:.2} x the largest tensor",
            "  peak memory",
            peak / 1e6,
            peak / largest
        );
    }
    let mut store = None;
    measure("open pairlut.1", all, || {
        store = Some(Store::open(&out(Format::Pairlut)).expect("it was just packed"));
    });
    measure("verify pairlut.1", all, || {
        let store = store.as_ref().expect("it was just opened");
        let checked = store.verify_hashes(&|_, _| (), &|| false).expect("nobody stops it");
        assert!(checked.differences.is_empty());
    });
}

/// Writes a model directory with normal weights; its size and that of its largest tensor, in bytes.
fn model(dir: &Path) -> (f64, f64) {
    let mut tensors = vec![(format!("{}.weight", EMBED.0), EMBED.1, EMBED.2)];
    for layer in 0..LAYERS {
        let name = |part| format!("model.layers.{layer}.{part}.weight");
        tensors.extend(LAYER.map(|(part, rows, cols)| (name(part), rows, cols)));
    }
    let mut at = 0;
    let mut header = serde_json::Map::new();
    for (name, rows, cols) in &tensors {
        let end = at + 2 * rows * cols;
        let info =
            serde_json::json!({"dtype": "BF16", "shape": [rows, cols], "data_offsets": [at, end]});
        header.insert(name.clone(), info);
        at = end;
    }
    let write = || {
        fs::create_dir(dir)?;
        fs::write(dir.join("config.json"), "{}")?;
        fs::write(dir.join("tokenizer.json"), "{}")?;
        let mut file = fs::File::create(dir.join("model.safetensors"))?;
        let header = serde_json::Value::Object(header).to_string();
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let mut stream = Stream::new(3);
        let block: Vec<u8> =
            (0..1 << 22).flat_map(|_| f32_to_bf16(0.02 * stream.normal()).to_le_bytes()).collect();
        let mut left = at as usize;
        while left > 0 {
            let now = left.min(block.len());
            file.write_all(&block[..now])?;
            left -= now;
        }
        file.sync_all()
    };
    write().expect("the temporary directory has room");
    (at as f64, (2 * EMBED.1 * EMBED.2) as f64)
}

/// Prints the speed of `work`; the most memory it had resident, in bytes, beyond what was before.
fn measure(what: &str, bytes: f64, work: impl FnOnce()) -> f64 {
    // Forgets the peak so far; a system without this file reports a peak that is too high.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let (before, cpu, wall) = (status("VmRSS:"), cpu_s(), Instant::now());
    work();
    let (wall_s, cpu_s) = (wall.elapsed().as_secs_f64(), cpu_s() - cpu);
    println!(
        "{what:18} {:6.2} GB/s  {:6.2} GB/s by CPU second",
        bytes / wall_s / 1e9,
        bytes / cpu_s.max(0.01) / 1e9
    );
    (status("VmHWM:") - before).max(0.0)
}

/// A line of /proc/self/status, in bytes; 0 where there is no such file.
fn status(key: &str) -> f64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0.0) * 1024.0
}

/// CPU seconds of this process, from /proc/self/stat: fields 14 and 15, in hundredths.
fn cpu_s() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or("");
    let ticks =
        after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}
