"""Reads a .snug file with the safetensors package and decodes it by FORMAT.md alone; compares every SHA-256.

    pip install safetensors==0.8.0 numpy==2.2.6
    python tests/golden/read_snug.py FILE.snug [HF_DIRECTORY]

With a directory, every weight is also compared with the source tensor itself. Exits with 1 at the first difference.
"""

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from safetensors import safe_open

TILE_ROWS, TILE_COLS, RECORD_TILES = 16, 64, 4
POSITIONS = TILE_ROWS * TILE_COLS

# Element (l, s, j) of a tile: lane, k-step, element of the k-step.
LANE, STEP, ELEMENT = np.meshgrid(np.arange(32), np.arange(4), np.arange(8), indexing="ij")
ROW = LANE // 4 + 8 * (ELEMENT // 2 % 2)
COLUMN = 16 * (LANE % 4) + 4 * STEP + ELEMENT % 2 + 2 * (ELEMENT // 4)
POSITION = 512 * (STEP // 2) + 16 * LANE + 8 * (STEP % 2) + ELEMENT
RAW_POSITION = (512 * STEP + 16 * LANE + 2 * ELEMENT) // 2


def need(condition, what):
    if not condition:
        sys.exit(f"read_snug: {what}")


def check_container(path):
    """Section 1, read from the bytes rather than through the safetensors package."""
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    need(2 <= n <= 64 << 20 and (8 + n) % 4096 == 0, "length of the header")
    header = json.loads(data[8:8 + n])
    metadata = header.pop("__metadata__")
    end, pads = 0, 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = t["data_offsets"]
        need(begin == end, f"{name} does not begin where the tensor before ends")
        need(stop - begin == int(np.prod(t["shape"])) * {"BF16": 2, "U8": 1}[t["dtype"]], f"size of {name}")
        if name.startswith("pad:"):
            need(1 <= stop - begin <= 255 and not any(data[8 + n + begin:8 + n + stop]), f"content of {name}")
            pads += 1
        else:
            need(begin % 256 == 0, f"{name} begins at {begin}")
        end = stop
    need(8 + n + end == len(data), "the last tensor does not end with the file")
    need(sorted(k for k in header if k.startswith("pad:")) == sorted(f"pad:{k}" for k in range(pads)), "names of pads")
    return metadata


def codes_of(words, four_bit):
    """u32 words `[planes][32]` → codes `[32][4][8]`."""
    shifts = 4 * np.arange(8, dtype=np.uint32)
    if four_bit:
        return ((words[:, :, None] >> shifts) & 15).transpose(1, 0, 2)
    low = ((words[:, :, None] >> shifts) & 7).transpose(1, 0, 2)
    spread = (words[:, :, None] >> (shifts + 3)) & 1
    last = spread[0] | spread[1] << 1 | spread[2] << 2
    return np.concatenate([low, last[:, None, :]], axis=1)


def decode_record(record, tiles, seen):
    """Bytes of one record → u16 words `[tiles][16][64]`."""
    ends = record[:8].view("<u2").astype(np.uint32)
    counts, flags = ends & 0x1FFF, ends >> 13
    mode, wide, shifted = int(flags[0] & 3), bool(flags[0] >> 2), bool(flags[1] >> 2)
    need(mode < 3 and flags[1] & 3 == 0 and flags[2] == 0 and flags[3] == 0, "flags of a record")
    seen[("3-bit", "4-bit", "raw")[mode] + ", wide" * wide + ", shifted" * shifted] += 1
    at = 32 if mode == 1 else 16
    table = record[8:24] if mode == 1 else record[8:16]
    code_bytes = 512 if mode == 1 else 384
    words = np.zeros((tiles, TILE_ROWS, TILE_COLS), np.uint16)
    if mode == 2:
        for t in range(tiles):
            raw = record[at:at + 2048].view("<u2")
            words[t][ROW, COLUMN] = raw[RAW_POSITION]
            at += 2048
    else:
        low, high = [], []
        for _ in range(tiles):
            low.append(record[at:at + POSITIONS])
            planes = record[at + POSITIONS:at + POSITIONS + code_bytes].view("<u4").reshape(-1, 32)
            by_position = np.zeros(POSITIONS, np.uint8)
            by_position[POSITION] = table[codes_of(planes, mode == 1)]
            high.append(by_position)
            at += POSITIONS + code_bytes
        size, total = (4, int(counts[tiles - 1])) if wide else (2, int(counts[tiles - 1]))
        patches = record[at:at + size * total].view("<u4" if wide else "<u2").astype(np.uint32)
        at += size * total
        first = 0
        for t in range(tiles):
            mine = patches[first:counts[t]]
            position, xor = mine & 1023, (mine >> 16 if wide else mine >> 10)
            need(np.all(np.diff(position.astype(int)) > 0) and np.all(xor != 0), "patches of a tile")
            high[t][position] ^= xor.astype(np.uint8)
            first = counts[t]
            word = high[t].astype(np.uint16) << 8 | low[t]
            words[t][ROW, COLUMN] = word[POSITION]
    need(len(record) - at < 16 and not record[at:].any(), "end of a record")
    return words - np.uint16(0x80) if shifted else words


def decode_pairlut(records, index, rows, cols, seen):
    row_blocks, tiles = -(-rows // TILE_ROWS), -(-cols // TILE_COLS)
    per_row = -(-tiles // RECORD_TILES)
    index = index.view("<u4")
    need(len(index) == row_blocks * per_row + 1 and index[0] == 0, "length of an index")
    need(int(index[-1]) * 16 == len(records), "end of an index")
    out = np.zeros((row_blocks * TILE_ROWS, tiles * TILE_COLS), np.uint16)
    for block in range(row_blocks):
        for i in range(per_row):
            r = block * per_row + i
            held = min(RECORD_TILES, tiles - RECORD_TILES * i)
            words = decode_record(records[16 * int(index[r]):16 * int(index[r + 1])], held, seen)
            for t in range(held):
                c = (RECORD_TILES * i + t) * TILE_COLS
                out[block * TILE_ROWS:(block + 1) * TILE_ROWS, c:c + TILE_COLS] = words[t]
    return out[:rows, :cols]


def source_bytes(folder):
    """Every bf16 tensor of a Hugging Face directory as bytes, through a plain reading of the safetensors layout."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                tensors[name] = data[8 + n + begin:8 + n + end]
    return tensors


def main():
    path = Path(sys.argv[1])
    source = source_bytes(Path(sys.argv[2])) if len(sys.argv) > 2 else None
    metadata = check_container(path)
    need(metadata["format"] == "pt" and metadata["snug.version"] == "1" and metadata["snug.requires"] == "", "version")
    weights = json.loads(metadata["snug.weights"])
    origin = json.loads(metadata["snug.source"])
    seen, parameters, stored, lines = Counter(), 0, 0, []
    with safe_open(path, framework="np") as f:
        names = set(f.keys())
        for name in sorted(weights):
            w = weights[name]
            rows, cols = w["shape"] if len(w["shape"]) == 2 else (1, w["shape"][0])
            if w["codec"] == "bf16":
                data = read_bf16(path, name, names)
            else:
                need(w["codec"] == "pairlut.1", f"codec {w['codec']}")
                records, index = f.get_tensor(f"{name}:records"), f.get_tensor(f"{name}:index")
                data = decode_pairlut(records, index, rows, cols, seen).tobytes()
                stored += len(records) + len(index)
                parameters += rows * cols
            need(len(data) == rows * cols * 2, f"size of {name}")
            need(hashlib.sha256(data).hexdigest() == w["sha256"], f"{name} has another SHA-256 than its metadata says")
            need(source is None or source.pop(name, None) == data, f"{name} differs from the source")
            lines.append(f"{name} {w['sha256']}\n")
        for text in ("config.json", "tokenizer.json"):
            json.loads(f.get_tensor(f"file:{text}").tobytes())
    need(not source, f"the source has more weights: {sorted(source or [])}")
    need(origin["id"] == hashlib.sha256("".join(lines).encode()).hexdigest(), "id of the source")
    print(f"{path.name}: {len(weights)} weights equal their SHA-256; packed matrices {8 * stored / max(parameters, 1):.3f}"
          f" bits per weight; records: {dict(seen)}")


def read_bf16(path, name, names):
    """The numpy side of safetensors has no bf16, so the bytes are taken from where the header says."""
    need(name in names, f"{name} is missing")
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        begin, end = json.loads(f.read(n))[name]["data_offsets"]
        f.seek(8 + n + begin)
        return f.read(end - begin)


if __name__ == "__main__":
    main()
