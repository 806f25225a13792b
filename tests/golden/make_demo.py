"""Makes tests/golden/demo.json: what transformers says with the built-in model's weights, in float32.

    pip install torch==2.7.1 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.2.6
    python tests/golden/make_demo.py FOLDER        a Hugging Face directory: the model before it was packed
"""

import hashlib
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import reference

GREEDY = 64
MIN_MARGIN = 5e-4
KEEP = 64  # every 64th logit

CHATS = [
    [{"role": "user", "content": "Tell me a story about a lost kite."}],
    [{"role": "system", "content": "You are a friendly little assistant."}, {"role": "user", "content": "Hi!"},
     {"role": "assistant", "content": "Hello! I can tell you a story, or we can just talk."},
     {"role": "user", "content": "What is 7 plus 5?"}],
    [{"role": "user", "content": "Write a story about a fox and a crow in winter."}],
]


def main():
    folder = Path(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    t = AutoTokenizer.from_pretrained(folder)
    chats = []
    for messages in CHATS:
        text = t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = t.encode(text, add_special_tokens=False)
        prompt_logits, tokens, margins, last = reference.greedy(model, ids, GREEDY)
        assert min(margins) > MIN_MARGIN, f"near a tie ({min(margins):.1e}): take another prompt"
        print(f"smallest margin {min(margins):.1e}", repr(t.decode(tokens)))
        logits = [{"position": p, "step": KEEP, "largest": reference.number(x.abs().max()),
                   "values": reference.numbers(x[::KEEP])}
                  for p, x in [(len(ids) - 1, prompt_logits[-1]), (len(ids) + GREEDY - 2, last)]]
        chats.append({"messages": messages, "text": text, "ids": ids, "greedy": tokens,
                      "reply": t.decode(tokens, skip_special_tokens=True), "margins": reference.rounded(margins),
                      "logits": logits})
    weights = load_file(folder / "model.safetensors")
    assert all(w.dtype == torch.bfloat16 for w in weights.values())
    hashes = {n: hashlib.sha256(w.view(torch.int16).numpy().tobytes()).hexdigest() for n, w in weights.items()}
    listing = "".join(f"{name} {hashes[name]}\n" for name in sorted(hashes))
    reference.write_json(Path(__file__).parent / "demo.json", {
        "tensors": len(hashes), "sha256_of_listing": hashlib.sha256(listing.encode()).hexdigest(), "chats": chats})


if __name__ == "__main__":
    main()
