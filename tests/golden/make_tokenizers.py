#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/: four small tokenizers of the usual families, and ids that the reference gives.

    python3 tests/golden/make_tokenizers.py        # needs: tokenizers

Everything they are trained on is in this file.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "tokenizers"

TEXT = """
The lamp on the table was small, and its light was smaller still. "Is anybody there?" asked the fox.
Nobody answered, so the fox sat down and counted: 1, 2, 3, 10, 100, 2048. It counted until the snow stopped.
def area(width, height):
    # a rectangle has width * height squares
    return width * height

for row in range(10):
    print(row, area(row, row + 1))

| name  | size |
|-------|------|
| alpha |  1.5 |
Déjà vu, naïve café, größer, mañana, smörgåsbord, Ελλάδα, привет мир, 漢字かな交じり文, 한국어 문장, नमस्ते दुनिया.
Emoji come in parts: 😸 👩‍👩‍👧 🇫🇷 ☕️ and so on.
You are a friendly little assistant. The user asked a question; the assistant will answer it. System says hello.
It isn't, they're, we've, I'll, he'd: short forms. Tabs\tand  double  blanks   and\r\nline ends matter too.
{"role": "user", "content": "hello"} <b>bold</b> & "quoted" 'single'
""".strip().split("\n")

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def bytelevel():
    """Byte-level BPE with a Qwen-like splitting rule, ChatML specials and markers that are not special."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=560, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens([special(s) for s in CHATML])
    t.add_tokens([AddedToken(s, normalized=False) for s in ["<think>", "</think>", "<tool_response>", "</tool_response>"]])
    config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
              "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "add_bos_token": False}
    return t, config


def llama3():
    """Byte-level BPE that takes whole words from the vocabulary, with a begin-of-text token before every text."""
    t, _ = bytelevel()
    file = json.loads(t.to_str())
    file["model"]["ignore_merges"] = True
    file["normalizer"] = None
    file["added_tokens"] = []
    t = Tokenizer.from_str(json.dumps(file))
    t.add_special_tokens([special(s) for s in [
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
            special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))]),
    ])
    return t, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def sentencepiece():
    """SentencePiece-style BPE with byte fallback, as Llama 2 and Mistral use it."""
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    # Training must not split at ▁ alone, so it sees the normalised words.
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    ascii_only = ["".join(c for c in line if ord(c) < 0x250) for line in TEXT]
    t.train_from_iterator(ascii_only, trainers.BpeTrainer(
        vocab_size=640, special_tokens=["<unk>", "<s>", "</s>", *fallback], show_progress=False))
    t.pre_tokenizer = None
    file = json.loads(t.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(file))
    t.add_special_tokens([special("[INST]"), special("[/INST]")])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)])
    return t, {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False,
                             "rstrip": False, "single_word": False},
               "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
               "added_tokens_decoder": {"0": {"content": "<unk>", "special": True, "normalized": False},
                                        "1": {"content": "<s>", "special": True, "normalized": False},
                                        "2": {"content": "</s>", "special": True, "normalized": False}}}


def unigram():
    """A Unigram model with its control tokens inside the vocabulary, metaspace decoder, lower-case normaliser."""
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    t.train_from_iterator(TEXT, trainers.UnigramTrainer(
        vocab_size=420, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    t.add_special_tokens([special("<pad>"), special("</s>"), special("<unk>"),
                          AddedToken("<mask>", special=True, normalized=False, lstrip=True)])
    t.add_tokens([AddedToken("Ｗord", normalized=True, single_word=True)])
    return t, {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}


def texts(tokenizer):
    rng = random.Random(7)
    specials = [a.content for a in tokenizer.get_added_tokens_decoder().values()]
    pool = ([*"abcdefgh  \n\n\t.,'0123456789éß漢字한नि😸 "] + ["👩‍👩‍👧", "it's", "  ", "\r\n", "<", ">", "|", "[", "/", "\u0301", "▁"]
            + ["the", "fox", " assistant", "Word", "Ｗord"])
    fixed = ["", " ", "\n\n", "Hello", " Hello", "Hello  world\n", *TEXT[:6], *TEXT[15:18]]
    fixed += ["".join(rng.choice(pool) for _ in range(rng.randrange(1, 40))) for _ in range(60)]
    fixed += ["".join(rng.choice(pool + specials * 3) for _ in range(rng.randrange(1, 25))) for _ in range(80)]
    return fixed


def main():
    HERE.mkdir(exist_ok=True)
    golden = {}
    for make in [bytelevel, llama3, sentencepiece, unigram]:
        name = make.__name__
        t, config = make()
        text = json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":"))
        (HERE / f"{name}.json").write_text(text + "\n")
        (HERE / f"{name}_config.json").write_text(json.dumps(config, indent=1) + "\n")
        t = Tokenizer.from_str(text)
        cases = []
        for s in texts(t):
            scaffold = t.encode(s, add_special_tokens=False).ids
            framed = t.encode(s, add_special_tokens=True).ids
            cases.append([s, scaffold, framed[:len(framed) - len(scaffold)], t.decode(scaffold, skip_special_tokens=True)])
        golden[name] = cases
    lines = []
    for name, cases in golden.items():
        rows = ",\n  ".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
        lines.append(f'"{name}": [\n  {rows}\n]')
    (HERE / "ids.json").write_text("{" + ",\n".join(lines) + "}\n")


main()
