//! A GGUF writer that writes whatever it is told to, right or wrong.

use snug::num::rng::Stream;

/// Value types by number.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STR: u32 = 8;
pub const ARRAY: u32 = 9;

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    /// Outputs first.
    pub dims: Vec<u64>,
    pub ty: u32,
    pub data: Vec<u8>,
    /// Instead of the offset that follows from the order.
    pub offset: Option<u64>,
}

#[derive(Clone)]
pub struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    /// What is written, when not the number of tensors and pairs.
    pub counts: (Option<u64>, Option<u64>),
    pub alignment: u64,
    /// Key, value type, bytes of the value.
    pub pairs: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
}

pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// The bytes of an array of `count` values of type `kind`.
pub fn array(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat()
}

impl Writer {
    pub fn new() -> Writer {
        Writer {
            magic: *b"GGUF",
            version: 3,
            counts: (None, None),
            alignment: 32,
            pairs: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Sets a key, in place when it is there.
    pub fn raw(&mut self, key: &str, kind: u32, value: Vec<u8>) {
        let pair = (key.as_bytes().to_vec(), kind, value);
        match self.pairs.iter_mut().find(|p| p.0 == pair.0) {
            Some(old) => *old = pair,
            None => self.pairs.push(pair),
        }
    }

    pub fn remove(&mut self, key: &str) {
        let before = self.pairs.len();
        self.pairs.retain(|p| p.0 != key.as_bytes());
        assert!(self.pairs.len() < before, "{key} is there to be removed");
    }

    pub fn u32(&mut self, key: &str, value: u32) {
        self.raw(key, U32, value.to_le_bytes().to_vec());
    }

    pub fn f32(&mut self, key: &str, value: f32) {
        self.raw(key, F32, value.to_le_bytes().to_vec());
    }

    pub fn bool(&mut self, key: &str, value: bool) {
        self.raw(key, BOOL, vec![value.into()]);
    }

    pub fn str(&mut self, key: &str, value: &str) {
        self.raw(key, STR, string(value.as_bytes()));
    }

    pub fn strs<S: AsRef<str>>(&mut self, key: &str, values: &[S]) {
        let bytes: Vec<u8> = values.iter().flat_map(|s| string(s.as_ref().as_bytes())).collect();
        self.raw(key, ARRAY, array(STR, values.len() as u64, &bytes));
    }

    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.raw(key, ARRAY, array(I32, values.len() as u64, &bytes));
    }

    pub fn f32s(&mut self, key: &str, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.raw(key, ARRAY, array(F32, values.len() as u64, &bytes));
    }

    /// A tensor of float32 (type 0).
    pub fn floats(&mut self, name: &str, dims: &[u64], values: &[f32]) {
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.tensor(name, dims, 0, data);
    }

    /// Sets a tensor, in place when it is there.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: u32, data: Vec<u8>) {
        let t = Tensor { name: name.into(), dims: dims.to_vec(), ty, data, offset: None };
        match self.tensors.iter_mut().find(|t| t.name == name) {
            Some(old) => *old = t,
            None => self.tensors.push(t),
        }
    }

    pub fn get(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub fn drop_tensor(&mut self, name: &str) {
        self.get(name);
        self.tensors.retain(|t| t.name != name);
    }

    /// The file without its data, and without the padding before.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.counts.0.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.counts.1.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.pairs {
            out.extend(string(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        let mut offset = 0;
        for t in &self.tensors {
            out.extend(string(t.name.as_bytes()));
            out.extend((t.dims.len() as u32).to_le_bytes());
            out.extend(t.dims.iter().rev().flat_map(|d| d.to_le_bytes()));
            out.extend(t.ty.to_le_bytes());
            out.extend(t.offset.unwrap_or(offset).to_le_bytes());
            offset += (t.data.len() as u64).next_multiple_of(self.alignment);
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        let align = |out: &mut Vec<u8>| {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        };
        align(&mut out);
        let start = out.len();
        for t in &self.tensors {
            out.resize(start + (out.len() - start).next_multiple_of(self.alignment as usize), 0);
            out.extend(&t.data);
        }
        align(&mut out);
        out
    }
}

/// The visible characters by which byte-level BPE spells bytes 0..=255.
pub fn alphabet() -> Vec<String> {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    (0..=255u8)
        .map(|b| {
            let code = if plain(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// A byte-level tokenizer of 260 tokens: the bytes, one merge, two control tokens and a marker.
pub fn byte_tokens(w: &mut Writer, pre: &str) {
    let mut tokens = alphabet();
    tokens.extend(["he", "<|begin|>", "<|im_end|>", "<tool>"].map(String::from));
    let mut kinds = vec![1; 257];
    kinds.extend([3, 3, 4]);
    w.str("tokenizer.ggml.model", "gpt2");
    w.str("tokenizer.ggml.pre", pre);
    w.strs("tokenizer.ggml.tokens", &tokens);
    w.i32s("tokenizer.ggml.token_type", &kinds);
    w.strs("tokenizer.ggml.merges", &["h e"]);
    w.u32("tokenizer.ggml.bos_token_id", 257);
    w.u32("tokenizer.ggml.eos_token_id", 258);
}

/// A complete model of two layers of width 32 with two heads of 16, one of keys; weights in bf16, norms in float32.
pub fn tiny(arch: &str) -> Writer {
    let mut w = Writer::new();
    w.str("general.architecture", arch);
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 512),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        w.u32(&format!("{arch}.{key}"), value);
    }
    w.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5);
    w.f32(&format!("{arch}.rope.freq_base"), 10_000.0);
    byte_tokens(&mut w, "gpt-2");

    let mut stream = Stream::new(7);
    let mut add = |w: &mut Writer, name: &str, dims: &[u64]| {
        let count = dims.iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..count).map(|_| stream.normal()).collect();
        if dims.len() == 1 {
            w.floats(name, dims, &values);
        } else {
            let bf16 = |x: &f32| snug::num::f32_to_bf16(*x).to_le_bytes();
            w.tensor(name, dims, 30, values.iter().flat_map(bf16).collect());
        }
    };
    add(&mut w, "token_embd.weight", &[260, 32]);
    add(&mut w, "output_norm.weight", &[32]);
    for layer in 0..2 {
        let mut matrix =
            |name: &str, dims: &[u64]| add(&mut w, &format!("blk.{layer}.{name}"), dims);
        matrix("attn_norm.weight", &[32]);
        matrix("attn_q.weight", &[32, 32]);
        matrix("attn_k.weight", &[16, 32]);
        matrix("attn_v.weight", &[16, 32]);
        matrix("attn_output.weight", &[32, 32]);
        matrix("ffn_norm.weight", &[32]);
        matrix("ffn_gate.weight", &[48, 32]);
        matrix("ffn_up.weight", &[48, 32]);
        matrix("ffn_down.weight", &[32, 48]);
        if arch == "qwen2" {
            matrix("attn_q.bias", &[32]);
            matrix("attn_k.bias", &[16]);
            matrix("attn_v.bias", &[16]);
        }
        if arch == "qwen3" {
            matrix("attn_q_norm.weight", &[16]);
            matrix("attn_k_norm.weight", &[16]);
        }
    }
    w
}
