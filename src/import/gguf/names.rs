//! Tensor names, shapes and row order: what a GGUF calls a weight → what Hugging Face calls it.
//!
//! Converters of the `llama` architecture reorder the rows of q and k so that a rotated pair lies side by side: row
//! 2i + p of a head is row i + p·(head_dim / 2) of the original, p = 0, 1. Reading undoes that.

use std::collections::BTreeMap;

use super::config::{Dims, Family};
use super::parse::{Tensor, bad, unsupported};
use crate::error::{Result, visible};

/// A weight under its Hugging Face name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Position in the file's list of tensors.
    pub tensor: usize,
    /// One or two dimensions, outputs first.
    pub dims: Vec<u32>,
    /// Rows come in pairs that belong half a head of this width apart.
    pub paired: Option<u32>,
}

/// The factors by which some files divide the rotary frequencies; see [`super::rope`].
pub const ROPE_FREQS: &str = "rope_freqs.weight";

/// A length that the metadata give.
#[derive(Clone, Copy)]
enum Len {
    Hidden,
    Q,
    Kv,
    Head,
    Ffn,
    Vocab,
}

impl Len {
    fn of(self, d: &Dims) -> u64 {
        match self {
            Len::Hidden => d.hidden,
            Len::Q => d.heads * d.head_dim,
            Len::Kv => d.kv_heads * d.head_dim,
            Len::Head => d.head_dim,
            Len::Ffn => d.ffn,
            Len::Vocab => d.vocab,
        }
        .into()
    }
}

/// One name and the one or two lengths of its tensor, outputs first.
struct Rule(&'static str, &'static str, &'static [Len]);

const GLOBAL: &[Rule] = &[
    Rule("token_embd.weight", "model.embed_tokens.weight", &[Len::Vocab, Len::Hidden]),
    Rule("output_norm.weight", "model.norm.weight", &[Len::Hidden]),
    Rule("output.weight", "lm_head.weight", &[Len::Vocab, Len::Hidden]),
];

/// In layer N: `blk.N.` here, `model.layers.N.` there.
const LAYER: &[Rule] = &[
    Rule("attn_norm.weight", "input_layernorm.weight", &[Len::Hidden]),
    Rule("attn_q.weight", "self_attn.q_proj.weight", &[Len::Q, Len::Hidden]),
    Rule("attn_k.weight", "self_attn.k_proj.weight", &[Len::Kv, Len::Hidden]),
    Rule("attn_v.weight", "self_attn.v_proj.weight", &[Len::Kv, Len::Hidden]),
    Rule("attn_output.weight", "self_attn.o_proj.weight", &[Len::Hidden, Len::Q]),
    Rule("ffn_norm.weight", "post_attention_layernorm.weight", &[Len::Hidden]),
    Rule("ffn_gate.weight", "mlp.gate_proj.weight", &[Len::Ffn, Len::Hidden]),
    Rule("ffn_up.weight", "mlp.up_proj.weight", &[Len::Ffn, Len::Hidden]),
    Rule("ffn_down.weight", "mlp.down_proj.weight", &[Len::Hidden, Len::Ffn]),
    // From here on: there or not, by architecture and model.
    Rule("attn_q_norm.weight", "self_attn.q_norm.weight", &[Len::Head]),
    Rule("attn_k_norm.weight", "self_attn.k_norm.weight", &[Len::Head]),
    Rule("attn_q.bias", "self_attn.q_proj.bias", &[Len::Q]),
    Rule("attn_k.bias", "self_attn.k_proj.bias", &[Len::Kv]),
    Rule("attn_v.bias", "self_attn.v_proj.bias", &[Len::Kv]),
    Rule("attn_output.bias", "self_attn.o_proj.bias", &[Len::Hidden]),
    Rule("ffn_gate.bias", "mlp.gate_proj.bias", &[Len::Ffn]),
    Rule("ffn_up.bias", "mlp.up_proj.bias", &[Len::Ffn]),
    Rule("ffn_down.bias", "mlp.down_proj.bias", &[Len::Hidden]),
];

/// What the list of tensors says about the model beyond its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// `output.weight` is missing: the head is the embedding.
    pub tied: bool,
    /// Biases on q, k, v and o.
    pub attention_bias: bool,
    /// Biases on gate, up and down.
    pub mlp_bias: bool,
}

/// Maps every tensor, by Hugging Face name, and checks that the set is one the family can have.
///
/// # Errors
/// A tensor nobody knows, of the wrong shape, or missing; biases on some layers or matrices only.
pub fn map(
    tensors: &[Tensor<'_>],
    dims: &Dims,
    family: &Family,
) -> Result<(BTreeMap<String, Weight>, Present)> {
    // Also bounds the work of what follows.
    if dims.layers as usize > tensors.len() {
        return Err(bad(format!("{} tensors cannot be {} layers", tensors.len(), dims.layers)));
    }
    let mut weights = BTreeMap::new();
    for (tensor, t) in tensors.iter().enumerate() {
        if t.name == ROPE_FREQS {
            continue;
        }
        let (rule, name) = rule_of(t.name, dims).ok_or_else(|| {
            unsupported(format!(
                "no tensor of the {} architecture is called {}",
                family.arch,
                visible(t.name)
            ))
        })?;
        let wanted: Vec<u64> = rule.2.iter().map(|len| len.of(dims)).collect();
        if t.dims != wanted {
            return Err(bad(format!(
                "tensor {} is {:?}; the metadata make it {wanted:?}",
                visible(t.name),
                t.dims
            )));
        }
        let turned = ["attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias"];
        let paired = (family.paired_rows && turned.contains(&rule.0)).then_some(dims.head_dim);
        // Each length is a u32 in `Dims` or a product that `Dims` has checked.
        let dims = wanted.iter().map(|n| *n as u32).collect();
        weights.insert(name, Weight { tensor, dims, paired });
    }
    let present = completeness(&weights, dims, family)?;
    Ok((weights, present))
}

/// The rule a name falls under and the name it becomes.
fn rule_of(name: &str, dims: &Dims) -> Option<(&'static Rule, String)> {
    let Some(rest) = name.strip_prefix("blk.") else {
        let rule = GLOBAL.iter().find(|r| r.0 == name)?;
        return Some((rule, rule.1.to_owned()));
    };
    let (number, rest) = rest.split_once('.')?;
    let layer: u32 = number.parse().ok()?;
    // "+1" and "01" also parse, and would name the same weight twice.
    if layer >= dims.layers || layer.to_string() != number {
        return None;
    }
    let rule = LAYER.iter().find(|r| r.0 == rest)?;
    Some((rule, format!("model.layers.{layer}.{}", rule.1)))
}

/// Which groups of optional tensors there are, each in every layer or in none.
fn completeness(
    weights: &BTreeMap<String, Weight>,
    dims: &Dims,
    family: &Family,
) -> Result<Present> {
    let group = |rules: &[&str]| -> Result<bool> {
        let all = (0..dims.layers).flat_map(|layer| {
            LAYER.iter().filter(|r| rules.contains(&r.0)).map(move |r| (layer, r))
        });
        let missing: Vec<_> = all
            .clone()
            .filter(|(layer, r)| !weights.contains_key(&format!("model.layers.{layer}.{}", r.1)))
            .collect();
        match missing.first() {
            None => Ok(true),
            Some(_) if missing.len() == all.count() => Ok(false),
            Some((layer, r)) => Err(bad(format!(
                "tensor blk.{layer}.{} is missing, though others like it exist",
                r.0
            ))),
        }
    };
    let missing = |what: &str| Err(bad(format!("{what} missing, which every {} has", family.arch)));
    let extra = |what: &str| Err(unsupported(format!("{what}, which no {} has", family.arch)));

    let matrices: Vec<&str> = LAYER[..9].iter().map(|r| r.0).collect();
    if !group(&matrices)? {
        return missing("the tensors of all layers are");
    }
    for rule in &GLOBAL[..2] {
        if !weights.contains_key(rule.1) {
            return missing(&format!("tensor {} is", rule.0));
        }
    }
    let norms = group(&["attn_q_norm.weight", "attn_k_norm.weight"])?;
    match (norms, family.qk_norm) {
        (false, true) => return missing("the norms of queries and keys are"),
        (true, false) => return extra("it has norms on queries and keys"),
        _ => {}
    }
    let qkv = group(&["attn_q.bias", "attn_k.bias", "attn_v.bias"])?;
    let o = group(&["attn_output.bias"])?;
    match (qkv, o, family.qkv_bias) {
        (false, _, true) => return missing("the biases of q, k and v are"),
        (_, true, true) => return extra("it has a bias on the attention output"),
        (true, false, false) => return extra("it has biases on q, k and v, but not on the output"),
        (false, true, false) => return extra("it has a bias on the attention output alone"),
        _ => {}
    }
    let mlp_bias = group(&["ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"])?;
    if mlp_bias && !family.mlp_bias {
        return extra("it has biases in the feed-forward");
    }
    let tied = !weights.contains_key("lm_head.weight");
    Ok(Present { tied, attention_bias: qkv && o, mlp_bias })
}

/// The row of the file that holds row `row` of the original, where rows of `head_dim` are paired.
pub fn paired_row(row: u32, head_dim: u32) -> u32 {
    let (head, within) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + 2 * (within % half) + within / half
}
