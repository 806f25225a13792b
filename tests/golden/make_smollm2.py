"""Makes tests/golden/smollm2.json: what transformers says with the weights of a SmolLM2-135M-Instruct GGUF file.

    pip install torch==2.7.1 transformers==5.24.0 tokenizers==0.23.3 gguf==0.19.0 accelerate numpy==2.2.6
    python tests/golden/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

Weights: dequantised by the gguf package, rounded to the nearest bf16 (ties to even), computed with in float32.
Transformers' own GGUF reader is run over the same file and must agree with every tensor, the undone permutation of
q and k rows included.
"""

import hashlib
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

import reference

GREEDY = 48
MIN_MARGIN = 1e-3
KEEP = 24  # logits kept per position: every 2,048th

CHATS = [
    [{"role": "user", "content": "Explain how bread is made."}],
    [{"role": "system", "content": "You answer in one short sentence."},
     {"role": "user", "content": "Why is the sky blue?"},
     {"role": "assistant", "content": "Because air scatters blue light more than red."},
     {"role": "user", "content": "What causes the seasons?"}],
    [{"role": "user", "content": "Add  12,  345 and 6789.\n\n\n  Then tell me about “naïve” cafés ☕ in Zürich."}],
]

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def hf_name(name):
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    return f"{NAMES[parts[0]]}.{parts[1]}"


def unpermuted(x, heads):
    """GGUF keeps the two halves of a head's rotary pairs side by side; here they are half a head apart."""
    half = x.shape[0] // heads // 2
    return x.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(x.shape)


def dequantised(path, config):
    tensors = {}
    for t in gguf.GGUFReader(path).tensors:
        x = np.asarray(gguf.dequantize(t.data, t.tensor_type), dtype=np.float32)
        name = hf_name(t.name)
        if name.endswith("q_proj.weight"):
            x = unpermuted(x, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            x = unpermuted(x, config.num_key_value_heads)
        tensors[name] = torch.from_numpy(x.copy())
    return tensors


def load(path):
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    tensors = dequantised(path, model.config)
    hashes = {}
    for name, p in model.named_parameters():
        assert torch.equal(p, tensors[name]), f"two readers disagree about {name}"
        rounded = p.to(torch.bfloat16)
        hashes[name] = hashlib.sha256(rounded.view(torch.int16).numpy().tobytes()).hexdigest()
        p.copy_(rounded)
    assert sorted(hashes) == sorted(tensors)
    return model, hashes


def tokenizer(path):
    """Transformers' reader does not know this model's `tokenizer.ggml.pre`: digits stand alone before GPT-2's rule."""
    t = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    t.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return t


def main():
    path = Path(sys.argv[1])
    model, hashes = load(path)
    t = tokenizer(path)
    chats = []
    for messages in CHATS:
        text = t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = t.encode(text, add_special_tokens=False)
        prompt_logits, tokens, margins, last = reference.greedy(model, ids, GREEDY)
        assert min(margins) > MIN_MARGIN, f"near a tie ({min(margins):.1e}): take another prompt"
        print(f"smallest margin {min(margins):.1e}", repr(t.decode(tokens)))
        step = model.config.vocab_size // KEEP
        logits = [{"position": p, "step": step, "largest": reference.number(x.abs().max()),
                   "values": reference.numbers(x[::step])}
                  for p, x in [(len(ids) - 1, prompt_logits[-1]), (len(ids) + GREEDY - 2, last)]]
        chats.append({"messages": messages, "text": text, "ids": ids, "greedy": tokens,
                      "reply": t.decode(tokens, skip_special_tokens=True), "margins": reference.rounded(margins),
                      "logits": logits})
    listing = "".join(f"{name} {hashes[name]}\n" for name in sorted(hashes))
    reference.write_json(Path(__file__).parent / "smollm2.json", {
        "file": path.name, "tensors": len(hashes), "sha256_of_listing": hashlib.sha256(listing.encode()).hexdigest(),
        "sha256": {n: hashes[n] for n in sorted(hashes) if "layers" not in n or ".0." in n}, "chats": chats})


if __name__ == "__main__":
    main()
