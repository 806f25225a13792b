"""What the golden scripts share: a greedy run of a transformers model in float32, and a stable way to write JSON."""

import json

import numpy as np
import torch

torch.set_num_threads(1)
torch.set_grad_enabled(False)


def margin(logits):
    """How far the best logit is ahead of the second, relative to the largest magnitude."""
    best = torch.topk(logits, 2).values
    return ((best[0] - best[1]) / logits.abs().max()).item()


def greedy(model, prompt, count):
    """Feeds the prompt at once, then one token at a time through the cache; end tokens do not stop it.

    Returns the logits of every prompt position `[n][vocab]`, the chosen tokens, the margin of each choice, and the
    logits that the last choice was made from.
    """
    out = model(torch.tensor([prompt]), use_cache=True)
    prompt_logits = out.logits[0]
    last, tokens, margins = prompt_logits[-1], [], []
    for i in range(count):
        token = int(torch.argmax(last))
        tokens.append(token)
        margins.append(margin(last))
        if i + 1 < count:
            out = model(torch.tensor([[token]]), cache=out.past_key_values, use_cache=True)
            last = out.logits[0, -1]
    return prompt_logits, tokens, margins, last


def number(x):
    """The shortest decimal that reads back as this float32."""
    return json.loads(np.format_float_scientific(np.float32(x), unique=True))


def numbers(values):
    return [number(x) for x in np.asarray(values, dtype=np.float32)]


def rounded(values):
    """Three digits are enough for margins, which are there for people."""
    return [float(f"{x:.3g}") for x in values]


def write_json(path, value):
    """One line a top-level key: small, and a diff shows which part changed."""
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
