//! A second reader of `.snug` files, written from FORMAT.md alone, and files spelled out byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sha2::{Digest, Sha256};
use snug::codec::Format;

use super::fixture::{CONFIG, Memory, TOKENIZER, le, packed};

/// Section 1: the tensors of a file by name, every rule checked.
struct File<'a> {
    tensors: BTreeMap<String, Tensor<'a>>,
    metadata: BTreeMap<String, String>,
}

struct Tensor<'a> {
    dtype: String,
    shape: Vec<u64>,
    bytes: &'a [u8],
}

fn read(file: &[u8]) -> File<'_> {
    let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    assert!((2..=64 << 20).contains(&n));
    assert_eq!((8 + n) % 4096, 0, "the data begin at a page");
    let json = std::str::from_utf8(&file[8..8 + n]).unwrap();
    let object = json.trim_end_matches(' ');
    assert!(object.starts_with('{') && object.ends_with('}'));
    let header: serde_json::Map<String, Value> = serde_json::from_str(object).unwrap();
    let keys: Vec<&String> = header.keys().collect();
    assert!(keys.is_sorted(), "keys are written sorted: {keys:?}");
    let data = &file[8 + n..];

    let mut metadata = BTreeMap::new();
    let mut places = Vec::new();
    for (name, info) in &header {
        if name == "__metadata__" {
            metadata.extend(
                info.as_object()
                    .unwrap()
                    .iter()
                    .map(|(k, v)| (k.clone(), v.as_str().unwrap().into())),
            );
            continue;
        }
        let dtype = info["dtype"].as_str().unwrap().to_owned();
        let shape: Vec<u64> =
            info["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        let at = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
        let size = if dtype == "BF16" { 2 } else { 1 };
        assert!(dtype == "BF16" || dtype == "U8");
        assert_eq!((at(1) - at(0)) as u64, size * shape.iter().product::<u64>(), "{name}");
        places.push((at(0), at(1), name.clone(), dtype, shape));
    }
    places.sort();
    let mut end = 0;
    let mut pads = 0;
    let mut tensors = BTreeMap::new();
    for (from, to, name, dtype, shape) in places {
        assert_eq!(from, end, "{name} begins where the one before ends");
        end = to;
        if let Some(k) = name.strip_prefix("pad:") {
            assert_eq!(k.parse(), Ok(pads));
            pads += 1;
            assert!(dtype == "U8" && (1..256).contains(&(to - from)), "{name}");
            assert!(data[from..to].iter().all(|b| *b == 0), "{name}");
        } else {
            assert_eq!(from % 256, 0, "{name}");
            tensors.insert(name, Tensor { dtype, shape, bytes: &data[from..to] });
        }
    }
    assert_eq!(end, data.len());
    assert_eq!(end % 256, 0);
    File { tensors, metadata }
}

/// Section 3: decodes a whole weight, element by element; notes the kinds of record it meets.
fn decode_pairlut(
    (rows, cols): (usize, usize),
    records: &[u8],
    index: &[u8],
    kinds: &mut BTreeSet<(u16, bool, bool)>,
) -> Vec<u16> {
    let u16_at = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let u32_at =
        |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let tiles = cols.div_ceil(64);
    let per_row = tiles.div_ceil(4);
    let count = rows.div_ceil(16) * per_row;
    assert_eq!(index.len(), 4 * (count + 1));
    assert_eq!(u32_at(index, 0), 0);
    assert_eq!(records.len(), 16 * u32_at(index, 4 * count) as usize);
    let mut out = vec![0u16; rows * cols];
    for r in 0..count {
        let (block, i) = (r / per_row, r % per_row);
        let here = if i + 1 < per_row { 4 } else { tiles - 4 * (per_row - 1) };
        let record =
            &records[16 * u32_at(index, 4 * r) as usize..16 * u32_at(index, 4 * r + 4) as usize];
        let end: Vec<u16> = (0..4).map(|t| u16_at(record, 2 * t)).collect();
        let (mode, wide, shifted) = (end[0] >> 13 & 3, end[0] >> 15 == 1, end[1] >> 15 == 1);
        kinds.insert((mode, wide, shifted));
        let head = if mode == 1 { 32 } else { 16 };
        let tile_bytes = [1024 + 384, 1024 + 512, 2048][mode as usize];
        for t in 0..here {
            let tile = &record[head + t * tile_bytes..][..tile_bytes];
            let mut xor = [0u8; 1024];
            let first = if t == 0 { 0 } else { end[t - 1] & 0x1fff };
            for k in usize::from(first)..usize::from(end[t] & 0x1fff) {
                let at = head + here * tile_bytes;
                let (p, x) = if wide {
                    let patch = u32_at(record, at + 4 * k);
                    (patch & 0x3ff, patch >> 16)
                } else {
                    let patch = u32::from(u16_at(record, at + 2 * k));
                    (patch & 0x3ff, patch >> 10)
                };
                xor[p as usize] = x as u8;
            }
            for e in 0..1024 {
                let (l, s, j) = (e / 32, e / 8 % 4, e % 8);
                let (g, c0) = (l / 4, 16 * (l % 4) + 4 * s);
                let row = 16 * block + g + 8 * (j / 2 % 2);
                let col = 64 * (4 * i + t) + c0 + j % 2 + 2 * (j / 4);
                if row >= rows || col >= cols {
                    continue;
                }
                let p = 512 * (s / 2) + 16 * l + 8 * (s % 2) + j;
                let code_word = |plane: usize| u32_at(tile, 1024 + 128 * plane + 4 * l);
                let code = match mode {
                    0 if s < 3 => code_word(s) >> (4 * j) & 7,
                    0 => (0..3).map(|b| (code_word(b) >> (4 * j + 3) & 1) << b).sum(),
                    1 => code_word(s) >> (4 * j) & 15,
                    _ => 0,
                };
                let word = if mode == 2 {
                    u16_at(tile, 512 * s + 16 * l + 2 * j)
                } else {
                    let high = record[8 + code as usize] ^ xor[p];
                    u16::from(high) << 8 | u16::from(tile[p])
                };
                out[row * cols + col] = if shifted { word.wrapping_sub(0x80) } else { word };
            }
        }
    }
    out
}

/// Compares every weight of a file, its hash and the source id with the source. Gives back the codecs by weight and the
/// kinds of record.
fn compare(file: &File<'_>, source: &Memory) -> (Vec<String>, BTreeSet<(u16, bool, bool)>) {
    let mut kinds = BTreeSet::new();
    let lines: BTreeMap<String, Value> =
        serde_json::from_str(&file.metadata["snug.weights"]).unwrap();
    let mut all = Sha256::new();
    let mut codecs = Vec::new();
    assert_eq!(lines.len(), source.tensors.len());
    for (name, line) in &lines {
        let i = source.tensors.iter().position(|t| t.name == *name).unwrap();
        let shape = source.tensors[i].shape();
        let (rows, cols) = (shape.rows as usize, shape.cols as usize);
        assert_eq!(line["shape"], serde_json::json!(source.tensors[i].dims));
        assert_eq!(line["source_dtype"], "BF16");
        let words = if line["codec"] == "bf16" {
            let t = &file.tensors[name];
            assert_eq!(
                (t.dtype.as_str(), serde_json::json!(t.shape)),
                ("BF16", line["shape"].clone())
            );
            t.bytes.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
        } else {
            assert_eq!(line["codec"], "pairlut.1");
            let part = |p: &str| file.tensors[&format!("{name}:{p}")].bytes;
            decode_pairlut((rows, cols), part("records"), part("index"), &mut kinds)
        };
        let first = words.iter().zip(&source.words[i]).position(|(a, b)| a != b);
        assert_eq!(first, None, "{name}: first difference");
        assert_eq!(words.len(), source.words[i].len());
        let hash =
            Sha256::digest(le(&words)).iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(line["sha256"], hash.as_str());
        all.update(format!("{name} {hash}\n"));
        codecs.push(line["codec"].as_str().unwrap().to_owned());
    }
    let id = all.finalize().iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(
        file.metadata["snug.source"],
        format!(r#"{{"kind":"hf","name":"memory","exact":true,"id":"{id}"}}"#)
    );
    let kept: usize = file.tensors.keys().filter(|n| n.starts_with("file:")).count();
    let parts: usize = codecs.iter().map(|codec| if codec == "bf16" { 1 } else { 2 }).sum();
    assert_eq!(file.tensors.len(), kept + parts, "no tensor without an owner");
    (codecs, kinds)
}

#[test]
fn a_second_reader_finds_what_was_packed() {
    let source = Memory::tiny();
    let bytes = packed(&source, Format::Pairlut);
    let file = read(&bytes);
    assert_eq!(file.metadata["format"], "pt");
    assert_eq!(file.metadata["snug.version"], "1");
    assert_eq!(file.metadata["snug.requires"], "");
    assert_eq!(file.tensors["file:config.json"].bytes, CONFIG.as_bytes());
    assert_eq!(file.tensors["file:tokenizer.json"].bytes, TOKENIZER.as_bytes());
    assert_eq!(file.tensors["file:chat_template.jinja"].bytes, b"{{ messages }}");
    assert!(!file.tensors.contains_key("file:generation_config.json"));
    assert_eq!(compare(&file, &source).0, ["pairlut.1", "bf16", "bf16"]);
}

#[test]
fn a_second_reader_decodes_every_kind_of_record() {
    let source = Memory::every_kind();
    let (codecs, kinds) = compare(&read(&packed(&source, Format::Pairlut)), &source);
    assert!(codecs.iter().all(|c| c == "pairlut.1"), "{codecs:?}");
    // Mode, wide patches, shifted.
    for kind in [
        (0, false, false),
        (0, false, true),
        (0, true, false),
        (1, false, false),
        (2, false, false),
    ] {
        assert!(kinds.contains(&kind), "{kind:?} is not among {kinds:?}");
    }
}

/// The whole file, spelled out: header text, offsets, pads.
#[test]
fn a_small_file_is_as_the_document_draws_it() {
    let source = Memory::new(&[
        ("norm", &[3], vec![0x3f80, 0x4000, 0xc040]),
        ("w", &[2, 64], (0..128).collect()),
    ]);
    let file = packed(&source, Format::Bf16);
    let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    let hashes: [String; 2] = [hex(&le(&source.words[0])), hex(&le(&source.words[1]))];
    let id: String = hex(format!("norm {}\nw {}\n", hashes[0], hashes[1]).as_bytes());
    let json = [
        r#"{"__metadata__":{"format":"pt","#,
        r#""snug.packer":"snug VERSION","snug.requires":"","#,
        r#""snug.source":"{\"kind\":\"hf\",\"name\":\"memory\",\"exact\":true,\"id\":\"ID\"}","#,
        r#""snug.version":"1","#,
        r#""snug.weights":"{\"norm\":{\"codec\":\"bf16\",\"shape\":[3],\"source_dtype\":\"BF16\",\"sha256\":\"H0\"},"#,
        r#"\"w\":{\"codec\":\"bf16\",\"shape\":[2,64],\"source_dtype\":\"BF16\",\"sha256\":\"H1\"}}"},"#,
        r#""file:chat_template.jinja":{"dtype":"U8","shape":[14],"data_offsets":[0,14]},"#,
        r#""file:config.json":{"dtype":"U8","shape":[39],"data_offsets":[256,295]},"#,
        r#""file:tokenizer.json":{"dtype":"U8","shape":[47],"data_offsets":[512,559]},"#,
        r#""norm":{"dtype":"BF16","shape":[3],"data_offsets":[768,774]},"#,
        r#""pad:0":{"dtype":"U8","shape":[242],"data_offsets":[14,256]},"#,
        r#""pad:1":{"dtype":"U8","shape":[217],"data_offsets":[295,512]},"#,
        r#""pad:2":{"dtype":"U8","shape":[209],"data_offsets":[559,768]},"#,
        r#""pad:3":{"dtype":"U8","shape":[250],"data_offsets":[774,1024]},"#,
        r#""w":{"dtype":"BF16","shape":[2,64],"data_offsets":[1024,1280]}}"#,
    ]
    .concat()
    .replace("VERSION", env!("CARGO_PKG_VERSION"))
    .replace("ID", &id)
    .replace("H0", &hashes[0])
    .replace("H1", &hashes[1]);
    let mut want = 4088u64.to_le_bytes().to_vec();
    want.extend_from_slice(json.as_bytes());
    want.resize(4096, b' ');
    for (end, bytes) in [
        (256, b"{{ messages }}".as_slice()),
        (512, CONFIG.as_bytes()),
        (768, TOKENIZER.as_bytes()),
        (1024, &[0x80, 0x3f, 0x00, 0x40, 0x40, 0xc0]),
        (1280, &le(&source.words[1])),
    ] {
        want.extend_from_slice(bytes);
        want.resize(4096 + end, 0);
    }
    let first = file.iter().zip(&want).position(|(a, b)| a != b);
    if let Some(at) = first {
        let end = (at + 80).min(file.len());
        panic!("byte {at}: {:?}", String::from_utf8_lossy(&file[at..end]));
    }
    assert_eq!(file.len(), want.len());
}
