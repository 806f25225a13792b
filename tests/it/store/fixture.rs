//! Tiny models, made from nothing but the published rules of the formats.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use snug::error::Result;
use snug::import::{ModelSource, SourceTensor};
use snug::num::f32_to_bf16;
use snug::num::rng::Stream;
use snug::store::Texts;

pub const CONFIG: &str = r#"{"model_type":"llama","hidden_size":64}"#;
pub const TOKENIZER: &str = r#"{"model":{"type":"BPE","vocab":{},"merges":[]}}"#;

/// A tensor for a safetensors file: name, type, shape, bytes.
#[derive(Clone)]
pub struct Raw {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

pub fn raw(name: &str, dtype: &'static str, shape: &[u64], bytes: Vec<u8>) -> Raw {
    Raw { name: name.into(), dtype, shape: shape.to_vec(), bytes }
}

/// Little-endian bytes of bf16 words.
pub fn le(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Words as trained weights have them: normal, with a small spread.
pub fn weights(seed: u64, count: usize) -> Vec<u16> {
    let mut stream = Stream::new(seed);
    (0..count).map(|_| f32_to_bf16(0.02 * stream.normal())).collect()
}

/// A safetensors file: tensors in the order given, no alignment.
pub fn safetensors(tensors: &[Raw]) -> Vec<u8> {
    let mut at = 0;
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    for t in tensors {
        let end = at + t.bytes.len();
        let info = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, end]});
        assert!(header.insert(t.name.clone(), info).is_none(), "{} twice", t.name);
        at = end;
    }
    let data: Vec<u8> = tensors.iter().flat_map(|t| t.bytes.iter().copied()).collect();
    frame(&Value::Object(header).to_string(), &data)
}

/// Length, JSON, data.
pub fn frame(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

/// The tensors of a tiny model in bf16.
pub fn tiny_tensors() -> Vec<Raw> {
    let shapes: [(&str, &[u64]); 5] = [
        ("model.embed_tokens.weight", &[96, 64]),
        ("model.layers.0.input_layernorm.weight", &[64]),
        ("model.layers.0.mlp.up_proj.weight", &[200, 64]),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 72]),
        ("model.norm.weight", &[3]),
    ];
    let tensor = |(i, (name, shape)): (usize, &(&str, &[u64]))| {
        let count = shape.iter().product::<u64>() as usize;
        raw(name, "BF16", shape, le(&weights(i as u64, count)))
    };
    shapes.iter().enumerate().map(tensor).collect()
}

/// Writes a model directory with one safetensors file.
pub fn model_dir(at: &Path, tensors: &[Raw]) -> PathBuf {
    let dir = at.join("tiny-model");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.json"), CONFIG).unwrap();
    fs::write(dir.join("tokenizer.json"), TOKENIZER).unwrap();
    fs::write(dir.join("model.safetensors"), safetensors(tensors)).unwrap();
    dir
}

/// A source in memory.
pub struct Memory {
    pub texts: Texts,
    pub tensors: Vec<SourceTensor>,
    pub words: Vec<Vec<u16>>,
}

impl Memory {
    pub fn new(tensors: &[(&str, &[u32], Vec<u16>)]) -> Memory {
        let mut tensors = tensors.to_vec();
        tensors.sort_by(|a, b| a.0.cmp(b.0));
        let listed = |t: &(&str, &[u32], Vec<u16>)| SourceTensor {
            name: t.0.into(),
            dims: t.1.into(),
            dtype: "BF16".into(),
        };
        Memory {
            texts: Texts {
                config: CONFIG.into(),
                tokenizer: TOKENIZER.into(),
                chat_template: Some("{{ messages }}".into()),
                ..Texts::default()
            },
            tensors: tensors.iter().map(listed).collect(),
            words: tensors.into_iter().map(|t| t.2).collect(),
        }
    }

    /// One matrix that the codec shrinks, one that it does not, one vector.
    pub fn tiny() -> Memory {
        let noise = |n| (0..n).map(|i| (i as u16).wrapping_mul(40_503)).collect();
        Memory::new(&[
            ("a.weight", &[80, 192], weights(11, 80 * 192)),
            ("b.weight", &[5, 7], noise(35)),
            ("c.weight", &[100], weights(13, 100)),
        ])
    }
}

impl Memory {
    /// Matrices that need every kind of `pairlut` record between them: narrow and wide patches, tables at even and odd
    /// exponents, sixteen entries instead of eight, raw words.
    pub fn every_kind() -> Memory {
        let mut stream = Stream::new(21);
        let scaled =
            |scale: u16| weights(22, 32 * 128).into_iter().map(move |w| w + (scale << 7)).collect();
        let mut far: Vec<u16> = scaled(0);
        far[100] = 0x7fc1;
        let mut even: Vec<u16> = scaled(1);
        even[4000] = 0xff80;
        let wide = (0..32 * 128)
            .map(|_| (104 + stream.below(14) as u16) << 7 | stream.next_u64() as u16 & 0x807f)
            .collect();
        let mut noisy = weights(23, 64 * 320);
        noisy[..16 * 320].fill_with(|| stream.next_u64() as u16);
        Memory::new(&[
            ("a", &[32, 128], scaled(0)),
            ("b", &[32, 128], far),
            ("c", &[32, 128], scaled(1)),
            ("d", &[32, 128], even),
            ("e", &[32, 128], wide),
            ("f", &[64, 320], noisy),
        ])
    }
}

impl ModelSource for Memory {
    fn kind(&self) -> &'static str {
        "hf"
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn texts(&self) -> &Texts {
        &self.texts
    }

    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_rows(&self, index: usize, rows: Range<u32>, out: &mut [u16]) -> Result<()> {
        let cols = self.tensors[index].shape().cols as usize;
        out.copy_from_slice(
            &self.words[index][rows.start as usize * cols..rows.end as usize * cols],
        );
        Ok(())
    }
}

/// The names in a directory, sorted.
pub fn listing(dir: &Path) -> Vec<String> {
    let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

/// Packs and reads the file's bytes.
pub fn packed(source: &dyn ModelSource, format: snug::codec::Format) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.snug");
    snug::store::pack(source, format, &out, Default::default(), &|_, _| (), &|| false).unwrap();
    fs::read(out).unwrap()
}
