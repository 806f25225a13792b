#!/usr/bin/env python3
"""Writes tests/golden/gguf/: what others make of GGUF files.

    pip install gguf==0.19.0 torch==2.7.1 transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 \\
        regex==2026.11.19 numpy==2.2.6
    python tests/golden/make_gguf.py [SmolLM2-135M-Instruct.Q4_1.gguf]

dequant.txt      blocks of every type and their float32 values, by the gguf package
splits.json      where each pre-tokenizer cuts, by the regex package
<model>.gguf     tiny random models, written by the gguf package as converters write them
models.json      their configs as transformers writes them, and the SHA-256 of each weight
ids.json         token ids: sentencepiece's and tokenizers' own; SmolLM2's when its file is given
"""

import hashlib
import json
import math
import sys
import tempfile
import unicodedata
from pathlib import Path

import gguf
import numpy as np
import regex
import sentencepiece
import torch
from gguf import GGMLQuantizationType as T
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

import reference

OUT = Path(__file__).parent / "gguf"

TEXTS = [
    "", " ", "  ", "\n", "\r\n", " \n", "\t", "a", " a", "a ", "  a  b   c    ", "\n\n\n", " \n \n\t\n x",
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", "It's they're WE'VE I'll he'd I'M can't 'tis",
    "1", "12", "123", "1234567", "3.14159e-10", "1,000,000.00", "x1y22z333", "٣٤٥ ①② Ⅻ ½ ²", "v2.0-rc1",
    "naïve café Ångström", "e\u0301 vs \u00e9, o\u0308", "Größe, Straße, ΑΒΓ αβγ, Привет, мир!", "İstanbul ıŞİK ſ",
    "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界。这是测试", "日本語のテキスト、カタカナ", "한국어 문장입니다",
    "😀 👩\u200d👩\u200d👧 🇫🇷 ☕\ufe0f ✨✨", "\u200b\u00a0\u2003\u3000x\u2028y", "\ufeffbom", "a\u0000b\u0007c",
    "def f(x):\n    return x**2  # square\n\n\tif x != 0: y += 1\n", "{\"a\": [1, 2, {\"b\": null}], \"c\": \"\\n\"}",
    "<div class='x'>&amp;</div>", "https://example.org/a_b?c=d&e=%20#f", "$100 + €20 = £?; ~`^|\\ @#%&*", "......!!!???---___===",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case", "C++ C# .NET a/b\\c", "line one\nline two\r\nline three\rend",
    "[INST] <<SYS>> hi </s> <s> <unk> <0x0A>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "trailing spaces   ", "   \n   leading",
    "many                                                  spaces", "Ünïcödé ＦＵＬＬ ｗｉｄｔｈ", "𝔘𝔫𝔦 𠮷野家 𓀀",
]
SPECIALS = ["<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_end|>", "x<|im_end|> y <|endoftext|>z", "<|im_start", "a <think> b"]

TRAIN = [line for text in TEXTS for line in text.split("\n") if line.strip() and "\0" not in line] + """
A kettle sings on the stove while rain taps at the window and the cat pretends to sleep.
Numbers such as 7, 42, 365 and 1024 are written with digits; dates such as 2031-05-17 too.
for i in range(10): print(i, i * i, [j for j in range(i)])
It is what it is, and they are who they are; we have been there, they will be there.
Das Wasser ist kalt, der Himmel ist grau, und die Straße ist leer. L'été est fini, la pluie revient.
""".strip().split("\n") * 3


def half(x):
    return np.array([x], dtype=np.float16).view(np.uint8)


# ---------------------------------------------------------------- dequantisation

# Where the half-precision scales of a block lie.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.F16: [0]}
TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K]


def make_dequant():
    rng = np.random.default_rng(2024)
    lines = ["# type, then blocks in hex; the next line has their float32 values as big-endian hex"]
    for t in TYPES:
        _, size = gguf.GGML_QUANT_SIZES[t]
        # Usual, large and negative, subnormal, and not finite.
        for scale in [0.013, -231.0, 3e-7, math.inf, math.nan]:
            count = 8 if size <= 4 else 1
            raw = rng.integers(0, 256, size=(count, size), dtype=np.uint8)
            for at in SCALES.get(t, []):
                value = scale * (1 + rng.random()) if math.isfinite(scale) else scale
                raw[:, at:at + 2] = half(value)
            with np.errstate(invalid="ignore", over="ignore"):
                values = np.asarray(gguf.dequantize(raw.reshape(-1) if size <= 4 else raw, t), dtype=np.float32)
            lines.append(f"{t.name} {raw.tobytes().hex()}")
            lines.append(" ".join(f"{x:x}" for x in values.reshape(-1).view(np.uint32)))
    (OUT / "dequant.txt").write_text("\n".join(lines) + "\n")


# ---------------------------------------------------------------- pre-tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
RULES = {
    "gpt-2": [GPT2],
    "default": [r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "smollm": ["digits", GPT2],
    "llama-bpe": [rf"{SHORT}|{WORDS}|\p{{N}}{{1,3}}|{REST}"],
    "qwen2": [rf"{SHORT}|{WORDS}|\p{{N}}|{REST}"],
    "tekken": [CASED % ("", "") + rf"|\p{{N}}|{SLASH}"],
    "gpt-4o": [CASED % (SHORT + "?", SHORT + "?") + rf"|\p{{N}}{{1,3}}|{SLASH}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, "digits"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                    r"|\s*[\r\n]+|\s+(?!\S)|\s+"],
}


def isolate(pattern, piece):
    if pattern == "digits":
        spans = [(i, i + 1) for i, c in enumerate(piece) if unicodedata.category(c)[0] == "N"]
    else:
        spans = [m.span() for m in regex.finditer(pattern, piece) if m.end() > m.start()]
    out, at = [], 0
    for begin, end in spans:
        out += [piece[at:begin], piece[begin:end]]
        at = end
    return [p for p in out + [piece[at:]] if p]


def make_splits():
    cuts = {}
    for name, patterns in RULES.items():
        cuts[name] = []
        for text in TEXTS:
            pieces = [text] if text else []
            for pattern in patterns:
                pieces = [q for p in pieces for q in isolate(pattern, p)]
            assert "".join(pieces) == text
            ends = np.cumsum([len(p.encode()) for p in pieces], dtype=int).tolist()
            cuts[name].append(ends)
    reference.write_json(OUT / "splits.json", {"texts": TEXTS, **cuts})


# ---------------------------------------------------------------- tokenizers

def train_sentencepiece():
    with tempfile.TemporaryDirectory() as d:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAIN), model_prefix=f"{d}/m", model_type="bpe", vocab_size=480, byte_fallback=True,
            character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
            allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
        return sentencepiece.SentencePieceProcessor(model_file=f"{d}/m.model")


def train_bytelevel():
    """As Qwen's: NFC, one digit a piece, special tokens after the vocabulary, one marker that is not special."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(RULES["qwen2"][0]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TRAIN, trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False)
                          for s in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]])
    t.add_tokens([AddedToken("<think>", normalized=False)])
    return t


def write_sentencepiece(w, sp, vocab):
    kinds = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 5 if sp.is_unused(i) else 6 if sp.is_byte(i) else 1
             for i in range(len(sp))]
    pad = vocab - len(sp)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list([sp.id_to_piece(i) for i in range(len(sp))] + [f"[PAD{i}]" for i in range(pad)])
    w.add_token_scores([sp.get_score(i) for i in range(len(sp))] + [-1000.0] * pad)
    w.add_token_types(kinds + [5] * pad)
    w.add_bos_token_id(sp.bos_id())
    w.add_eos_token_id(sp.eos_id())
    w.add_unk_token_id(sp.unk_id())
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)
    w.add_chat_template("{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")


def write_bytelevel(w, t, vocab):
    file = json.loads(t.to_str())
    ids = {i: token for token, i in t.get_vocab().items()}
    added = {a["id"]: a for a in file["added_tokens"]}
    tokens = [ids.get(i, f"[PAD{i}]") for i in range(vocab)]
    kinds = [5 if i not in ids else 1 if i not in added else 3 if added[i]["special"] else 4 for i in range(vocab)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges([" ".join(m) for m in file["model"]["merges"]])
    w.add_eos_token_id(t.token_to_id("<|im_end|>"))
    w.add_pad_token_id(t.token_to_id("<|endoftext|>"))
    w.add_add_bos_token(False)
    w.add_chat_template([{"name": "default", "template": "{{ messages[0].content }}"},
                         {"name": "tool_use", "template": "{{ tools }}"}])


# ---------------------------------------------------------------- models

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
MIX = [T.Q8_0, T.Q4_0, T.F16, T.Q4_1, T.BF16, T.Q5_0, T.F32, T.Q5_1]


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def interleaved(x, heads):
    """Rows of a head in the order that rotates neighbours: 0, half, 1, half + 1, …"""
    return np.concatenate([h.reshape(2, -1, *x.shape[1:]).swapaxes(0, 1).reshape(h.shape) for h in np.split(x, heads)])


def llama3_factors(config):
    """The divisor of each rotary frequency under Llama 3.1's rule."""
    p = config.rope_parameters
    old = p["original_max_position_embeddings"]
    out = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * p["rope_theta"] ** (i / config.head_dim)
        if wavelength < old / p["high_freq_factor"]:
            out.append(1.0)
        elif wavelength > old / p["low_freq_factor"]:
            out.append(p["factor"])
        else:
            kept = (old / wavelength - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
            out.append(1 / ((1 - kept) / p["factor"] + kept))
    return np.array(out, dtype=np.float32)


def write_model(name, arch, config, add_tokenizer):
    torch.manual_seed(len(name) * 1000 + config.vocab_size)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = {n: torch.randn_like(p) * 0.5 if p.dim() == 1 else p * 20 for n, p in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    path = OUT / f"{name}.gguf"
    w = gguf.GGUFWriter(path, arch)
    w.add_name(name)
    w.add_quantization_version(2)
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch != "qwen2":
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
        w.add_rope_dimension_count(config.head_dim)
    kind = config.rope_parameters["rope_type"]
    if kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(config.rope_parameters["factor"])
        w.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])
    elif kind == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(config))
    add_tokenizer(w, config.vocab_size)
    weights = {}
    for i, (n, p) in enumerate(sorted(state.items())):
        x = p.numpy()
        t = T.F32 if x.ndim == 1 else MIX[(i * 5 + len(name)) % len(MIX)]
        # Quantisation works along rows, so the order of rows does not change what comes back.
        back = np.asarray(gguf.dequantize(gguf.quantize(x, t), t), dtype=np.float32)
        bits = torch.from_numpy(back.copy()).to(torch.bfloat16).view(torch.int16).numpy()
        weights[n] = [t.name, list(x.shape), hashlib.sha256(bits.tobytes()).hexdigest()]
        if arch == "llama" and ("q_proj" in n or "k_proj" in n):
            x = interleaved(x, config.num_attention_heads if "q_proj" in n else config.num_key_value_heads)
        w.add_tensor(gguf_name(n), gguf.quantize(x, t), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    check_with_transformers(path, config, weights)
    return {"config": config.to_dict(), "weights": weights}


def check_with_transformers(path, config, weights):
    """Transformers' own reader must find the same weights under the same names. It knows no biases of a
    Llama and no width of a Qwen 3 head, so the config is given."""
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, config=config, dtype=torch.float32)
    for n, p in model.named_parameters():
        bits = p.detach().to(torch.bfloat16).view(torch.int16).numpy()
        assert hashlib.sha256(bits.tobytes()).hexdigest() == weights[n][2], f"{path.name}: {n} differs"
    unread = set(weights) - {n for n, _ in model.named_parameters()}
    assert not unread or path.name == "llama.gguf" and all(n.endswith("bias") for n in unread), unread


def smollm2(path):
    """Digits stand alone, then GPT-2's rule; every control token is special."""
    f = gguf.GGUFReader(path).fields
    tokens, merges, kinds = (f[f"tokenizer.ggml.{k}"].contents() for k in ["tokens", "merges", "token_type"])
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, k in zip(tokens, kinds) if k == 3])
    return t


def main():
    OUT.mkdir(exist_ok=True)
    make_dequant()
    make_splits()
    sp, bl = train_sentencepiece(), train_bytelevel()
    small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    entries = {
        "llama": write_model("llama", "llama", LlamaConfig(
            **small, head_dim=32, vocab_size=len(sp) + 3, max_position_embeddings=131072, rms_norm_eps=1e-5, attention_bias=True,
            mlp_bias=True, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
            rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
            lambda w, v: write_sentencepiece(w, sp, v)),
        "qwen2": write_model("qwen2", "qwen2", Qwen2Config(
            **{**small, "num_attention_heads": 4, "num_key_value_heads": 2}, vocab_size=432, max_position_embeddings=32768,
            rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters={"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                             "original_max_position_embeddings": 8192}),
            lambda w, v: write_bytelevel(w, bl, v)),
        "qwen3": write_model("qwen3", "qwen3", Qwen3Config(
            **{**small, "num_attention_heads": 4, "num_key_value_heads": 2}, head_dim=24, vocab_size=432,
            max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
            lambda w, v: write_bytelevel(w, bl, v)),
    }
    reference.write_json(OUT / "models.json", entries)
    plain = [t for t in TEXTS if "</s>" not in t and "\0" not in t]
    ids = {"llama": [[t, sp.encode(t)] for t in plain]}
    ids["qwen2"] = [[t, bl.encode(t, add_special_tokens=False).ids] for t in TEXTS + SPECIALS]
    ids["qwen3"] = ids["qwen2"][-len(SPECIALS):]
    if len(sys.argv) > 1:
        t = smollm2(sys.argv[1])
        ids["smollm2"] = [[s, t.encode(s, add_special_tokens=False).ids] for s in TEXTS + SPECIALS]
    else:
        ids["smollm2"] = json.loads((OUT / "ids.json").read_text())["smollm2"]
    reference.write_json(OUT / "ids.json", ids)


if __name__ == "__main__":
    main()
