//! Files that break a rule: each is refused as `BadFile`, with words that name the rule, and never panics.

use std::fs;

use serde_json::{Map, Value, json};
use snug::codec::Format;
use snug::error::{Error, Kind};
use snug::store::{Store, container, header};

use super::fixture::{Memory, Raw, frame, le, packed, raw};

/// A `.snug` file in pieces that can be changed one by one; putting it together works out the offsets again.
#[derive(Clone)]
pub struct Pieces {
    pub tensors: Vec<Raw>,
    pub metadata: Map<String, Value>,
}

impl Pieces {
    pub fn of(file: &[u8]) -> Pieces {
        let (header, start) = header::parse_file(file, container::MAX_JSON).unwrap();
        let data = &file[start as usize..];
        let piece = |t: header::Tensor| {
            let bytes = data[t.begin as usize..t.end as usize].to_vec();
            raw(&t.name, t.dtype.name, &t.shape, bytes)
        };
        let metadata = header.metadata.into_iter().map(|(k, v)| (k, Value::String(v))).collect();
        Pieces { tensors: header.tensors.into_iter().map(piece).collect(), metadata }
    }

    pub fn file(&self) -> Vec<u8> {
        self.file_with(|json| {
            let padded = (8 + json.len()).next_multiple_of(4096) - 8;
            format!("{json:padded$}")
        })
    }

    fn file_with(&self, pad: impl Fn(String) -> String) -> Vec<u8> {
        let mut header = Map::new();
        let mut data = Vec::new();
        for t in &self.tensors {
            let begin = data.len();
            data.extend_from_slice(&t.bytes);
            let info =
                json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [begin, data.len()]});
            header.insert(t.name.clone(), info);
        }
        header.insert("__metadata__".into(), Value::Object(self.metadata.clone()));
        frame(&pad(Value::Object(header).to_string()), &data)
    }

    fn at(&mut self, name: &str) -> usize {
        self.tensors.iter().position(|t| t.name == name).unwrap()
    }

    fn tensor(&mut self, name: &str) -> &mut Raw {
        let at = self.at(name);
        &mut self.tensors[at]
    }

    /// Edits a piece of metadata that is JSON itself.
    fn json(&mut self, key: &str, edit: impl FnOnce(&mut Value)) {
        let mut value: Value = serde_json::from_str(self.metadata[key].as_str().unwrap()).unwrap();
        edit(&mut value);
        self.metadata[key] = value.to_string().into();
    }

    fn weight(&mut self, name: &str, field: &str, value: Value) {
        self.json("snug.weights", |w| w[name][field] = value);
    }
}

fn refusal(file: &[u8]) -> Error {
    let error = match container::read(file) {
        Err(error) => error,
        // What only the codecs can tell.
        Ok(_) => Store::from_static("x", file.to_vec().leak()).err().expect("the file is refused"),
    };
    assert_eq!(error.kind, Kind::BadFile, "{error}");
    let shown = error.to_string();
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    error
}

#[test]
fn taking_a_file_apart_and_together_changes_nothing() {
    let file = packed(&Memory::tiny(), Format::Pairlut);
    let again = Pieces::of(&file).file();
    let (a, b) = (container::read(&file).unwrap(), container::read(&again).unwrap());
    assert_eq!(format!("{:?}", a.texts), format!("{:?}", b.texts));
    assert_eq!(a.weights.len(), b.weights.len());
    assert!(Store::from_static("x", again.leak()).is_ok());
}

type Edit = fn(&mut Pieces);

#[test]
fn every_rule_of_the_container_is_checked() {
    let good = Pieces::of(&packed(&Memory::tiny(), Format::Pairlut));
    let cases: &[(&str, Edit)] = &[
        // Version and metadata.
        ("has version 2;", |p| p.metadata["snug.version"] = "2".into()),
        ("version 4294967295;", |p| p.metadata["snug.version"] = "4294967295".into()),
        ("version is \"4294967296\"", |p| p.metadata["snug.version"] = "4294967296".into()),
        ("version is \"0\"", |p| p.metadata["snug.version"] = "0".into()),
        ("version is \"+1\"", |p| p.metadata["snug.version"] = "+1".into()),
        ("version is \"1␛[2J\"", |p| p.metadata["snug.version"] = "1\u{1b}[2J".into()),
        ("not one that snug packed", |p| drop(p.metadata.shift_remove("snug.version"))),
        ("feature \"teleport\"", |p| p.metadata["snug.requires"] = "teleport".into()),
        ("feature \" \"", |p| p.metadata["snug.requires"] = " ".into()),
        ("lack snug.requires", |p| drop(p.metadata.shift_remove("snug.requires"))),
        ("lack snug.packer", |p| drop(p.metadata.shift_remove("snug.packer"))),
        ("lack snug.source", |p| drop(p.metadata.shift_remove("snug.source"))),
        ("lack snug.weights", |p| drop(p.metadata.shift_remove("snug.weights"))),
        ("lack format", |p| drop(p.metadata.shift_remove("format"))),
        ("format is not \"pt\"", |p| p.metadata["format"] = "tf".into()),
        // The source.
        ("unknown kind \"onnx\"", |p| p.json("snug.source", |s| s["kind"] = "onnx".into())),
        ("exact: false", |p| p.json("snug.source", |s| s["exact"] = false.into())),
        ("exact: true", |p| p.weight("b.weight", "source_dtype", "F16".into())),
        ("source id does not follow", |p| p.json("snug.source", |s| s["id"] = "00".into())),
        ("missing field `id`", |p| {
            p.json("snug.source", |s| drop(s.as_object_mut().unwrap().shift_remove("id")));
        }),
        ("unknown field `time`", |p| p.json("snug.source", |s| s["time"] = 1.into())),
        ("snug.source does not parse", |p| p.metadata["snug.source"] = "{".into()),
        ("snug.source does not parse", |p| {
            p.metadata["snug.source"] = r#"["hf","x",true,"00"]"#.into();
        }),
        // The weights.
        ("snug.weights does not parse", |p| p.metadata["snug.weights"] = "[]".into()),
        ("holds no weights", |p| {
            p.metadata["snug.weights"] = "{}".into();
            p.tensors.retain(|t| t.name.starts_with("file:") || t.name.starts_with("pad:"));
            let zeros = |t: &Raw| t.name.starts_with("file:") || t.bytes.iter().all(|b| *b == 0);
            assert!(p.tensors.iter().all(zeros));
            renumber(p);
        }),
        ("\"b.weight\" is there twice", |p| {
            let text = p.metadata["snug.weights"].as_str().unwrap();
            p.metadata["snug.weights"] = text.replace("a.weight", "b.weight").into();
        }),
        ("codec \"pairlut.9\"", |p| p.weight("a.weight", "codec", "pairlut.9".into())),
        ("tensor a.weight is missing", |p| p.weight("a.weight", "codec", "bf16".into())),
        ("tensor b.weight:records is missing", |p| {
            p.weight("b.weight", "codec", "pairlut.1".into())
        }),
        ("not 64 lower-case hex", |p| p.weight("a.weight", "sha256", "AB".repeat(32).into())),
        ("not 64 lower-case hex", |p| p.weight("a.weight", "sha256", "ab".repeat(31).into())),
        ("source id does not follow", |p| p.weight("a.weight", "sha256", "ab".repeat(32).into())),
        ("shape [5, 0]", |p| p.weight("b.weight", "shape", json!([5, 0]))),
        ("shape [5, 7, 1]", |p| p.weight("b.weight", "shape", json!([5, 7, 1]))),
        ("shape []", |p| p.weight("b.weight", "shape", json!([]))),
        ("does not parse", |p| p.weight("b.weight", "shape", json!([5, -7]))),
        ("does not parse", |p| p.weight("b.weight", "shape", json!([5, 1u64 << 32]))),
        ("shape [4294967295, 257]", |p| {
            p.weight("a.weight", "shape", json!([u32::MAX, 257]));
        }),
        ("BF16 of the shape [7, 5]", |p| p.weight("b.weight", "shape", json!([7, 5]))),
        ("weight a.weight: ", |p| p.weight("a.weight", "shape", json!([96, 192]))),
        ("weight a.weight: ", |p| p.weight("a.weight", "shape", json!([80, 256]))),
        ("tensor b.weight belongs to no weight", |p| {
            p.json("snug.weights", |w| drop(w.as_object_mut().unwrap().shift_remove("b.weight")));
            p.json("snug.source", |s| s["id"] = id_of(&["a.weight", "c.weight"]).into());
        }),
        ("tensor zz is missing", |p| p.json("snug.weights", |w| w["zz"] = w["b.weight"].clone())),
        ("it has a colon", |p| p.json("snug.weights", |w| w["z:z"] = w["b.weight"].clone())),
        ("unknown field `codecs`", |p| p.weight("b.weight", "codecs", "bf16".into())),
        // Tensors.
        ("type F32", |p| {
            let t = p.tensor("c.weight");
            (t.dtype, t.shape) = ("F32", vec![50]);
        }),
        ("U8 of shape [70]", |p| {
            let t = p.tensor("b.weight");
            (t.dtype, t.shape) = ("U8", vec![70]);
        }),
        ("is BF16 of shape", |p| {
            let t = p.tensor("a.weight:index");
            (t.dtype, t.shape) = ("BF16", vec![t.bytes.len() as u64 / 2]);
        }),
        ("U8 of one dimension", |p| {
            let t = p.tensor("a.weight:index");
            t.shape = vec![2, t.bytes.len() as u64 / 2];
        }),
        ("tensor spare belongs to no weight", |p| {
            p.tensors.push(raw("spare", "U8", &[256], vec![1; 256]));
        }),
        ("tensor file:extra.json belongs to no weight", |p| {
            p.tensors.push(raw("file:extra.json", "U8", &[256], vec![b' '; 256]));
        }),
        // Alignment and pads.
        ("pad:0 holds 0x01 at 3", |p| p.tensor("pad:0").bytes[3] = 1),
        ("pad:9 is not pad:0", |p| p.tensor("pad:0").name = "pad:9".into()),
        ("pad:0x is not pad:0", |p| p.tensor("pad:0").name = "pad:0x".into()),
        ("pad:0 is not pad:0, U8", |p| {
            let t = p.tensor("pad:0");
            (t.dtype, t.shape) = ("BF16", vec![t.bytes.len() as u64 / 2]);
        }),
        ("pad:0 is not pad:0, U8", |p| {
            let t = p.tensor("pad:0");
            t.bytes.extend([0; 256]);
            t.shape = vec![t.bytes.len() as u64];
        }),
        ("pad:0 ends at", |p| {
            let t = p.tensor("pad:0");
            t.bytes.pop();
            t.shape = vec![t.bytes.len() as u64];
        }),
        ("begins at 14, no multiple of 256", |p| drop(p.tensors.remove(1))),
        ("data end at", |p| {
            assert!(p.tensors.pop().unwrap().name.starts_with("pad:"));
        }),
        // Texts.
        ("it is missing", |p| {
            p.tensor("file:config.json").name = "file:tokenizer_config.json".into()
        }),
        ("it is missing", |p| {
            p.tensor("file:tokenizer.json").name = "file:tokenizer_config.json".into();
        }),
        ("it is no JSON object", |p| p.tensor("file:config.json").bytes[0] = b'['),
        ("config.json is not UTF-8", |p| p.tensor("file:config.json").bytes[4] = 0xff),
        ("file:config.json is U8 of shape [39, 1]", |p| {
            p.tensor("file:config.json").shape = vec![39, 1];
        }),
    ];
    for (i, (want, edit)) in cases.iter().enumerate() {
        let mut pieces = good.clone();
        edit(&mut pieces);
        let error = refusal(&pieces.file());
        let text = error.to_string();
        assert!(text.contains(want), "case {i}: \"{want}\" is not in:\n{text}");
    }
}

fn renumber(p: &mut Pieces) {
    let pads = p.tensors.iter_mut().filter(|t| t.name.starts_with("pad:"));
    pads.enumerate().for_each(|(k, t)| t.name = format!("pad:{k}"));
    // Only the texts' pads still fit.
    let mut at = 0;
    p.tensors.retain(|t| {
        let keep = t.name.starts_with("file:") || at % 256 != 0;
        at += if keep { t.bytes.len() } else { 0 };
        keep
    });
}

fn id_of(names: &[&str]) -> String {
    let source = Memory::tiny();
    let hash = |name: &str| {
        let i = source.tensors.iter().position(|t| t.name == name).unwrap();
        container::hex(&<sha2::Sha256 as sha2::Digest>::digest(le(&source.words[i])).into())
    };
    container::source_id(names.iter().map(|n| (n, hash(n))))
}

#[test]
fn spaces_around_the_header_are_part_of_the_format() {
    let good = Pieces::of(&packed(&Memory::tiny(), Format::Bf16));
    type Pad = fn(String) -> String;
    let cases: &[(&str, Pad)] = &[
        ("no multiple of 4096", |json| json),
        ("other than spaces", |json| {
            let padded = (8 + json.len()).next_multiple_of(4096) - 9;
            format!("{json:padded$}\n")
        }),
        ("does not parse", |json| {
            let padded = (8 + json.len()).next_multiple_of(4096) - 9;
            format!("{json:padded$}\0")
        }),
        ("does not begin with {", |json| {
            let padded = (8 + json.len()).next_multiple_of(4096) - 9;
            format!(" {json:padded$}")
        }),
    ];
    for (want, pad) in cases {
        let text = refusal(&good.file_with(pad)).to_string();
        assert!(text.contains(want), "\"{want}\" is not in:\n{text}");
    }
    // More spaces than needed are allowed.
    let roomy = good.file_with(|json| format!("{json:16376}"));
    assert!(container::read(&roomy).is_ok());
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let file = packed(&Memory::tiny(), Format::Pairlut);
    for len in 0..file.len() {
        let error = container::read(&file[..len]).err();
        assert_eq!(error.map(|e| e.kind), Some(Kind::BadFile), "{len} of {} bytes", file.len());
    }
    let mut longer = file.clone();
    longer.push(0);
    assert!(refusal(&longer).why.contains("the file holds"));

    let at = tempfile::tempdir().unwrap();
    let path = at.path().join("x.snug");
    for len in (0..file.len()).step_by(1013) {
        fs::write(&path, &file[..len]).unwrap();
        let error = Store::open(&path).err().unwrap();
        assert_eq!(error.kind, Kind::BadFile, "{len}");
        assert!(
            error.what.starts_with("cannot open ") && error.what.ends_with("x.snug"),
            "{error}"
        );
    }
}

#[test]
fn absurd_lengths_are_refused_before_anything_is_read() {
    let file = packed(&Memory::tiny(), Format::Bf16);
    let real = u64::from_le_bytes(file[..8].try_into().unwrap());
    for (len, want) in [
        (0, "its length is 0 bytes"),
        (1, "its length is 1 bytes"),
        (2, "does not begin with {"),
        (real - 1, "and the file holds"),
        (real + 1, "does not parse"),
        (file.len() as u64 - 7, "and the file has"),
        (64 << 20, "and the file has"),
        ((64 << 20) + 1, "67108864 are allowed"),
        (1 << 63, "are allowed"),
        (u64::MAX - 7, "are allowed"),
        (u64::MAX, "are allowed"),
    ] {
        let mut bytes = file.clone();
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        if len == 2 {
            bytes[8] = b'[';
        }
        let error = container::read(&bytes).err().unwrap();
        assert!(error.why.contains(want), "{len}: {error}");
        assert_eq!(error.kind, Kind::BadFile);
    }
}

#[test]
fn every_rule_of_the_safetensors_header_is_checked() {
    let t = |dtype: &str, shape: &str, at: &str| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{at}}}"#)
    };
    let one = |info: &str| format!(r#"{{"x":{info}}}"#);
    let two =
        |a: &str, b: &str| format!(r#"{{"x":{},"y":{}}}"#, t("U8", "[4]", a), t("U8", "[4]", b));
    let long = "n".repeat(513);
    let cases: Vec<(String, &str)> = vec![
        ("[]".into(), "does not begin with {"),
        ("".into(), "does not begin with {"),
        (" {}".into(), "does not begin with {"),
        ("{".into(), "does not parse"),
        ("{}x".into(), "does not parse"),
        ("{".repeat(100_000), "does not parse"),
        (format!(r#"{{"x":{}"#, "[".repeat(100_000)), "does not parse"),
        (one("1"), "does not parse"),
        (one(r#"["U8",[8],[0,8]]"#), "does not parse"),
        (one(r#"{"dtype":"U8","shape":[8]}"#), "missing field `data_offsets`"),
        (one(r#"{"dtype":"U8","shape":[8],"data_offsets":[0,8],"z":0}"#), "unknown field `z`"),
        (one(r#"{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}"#), "duplicate field"),
        (one(r#"{"dtype":"U8","shape":[8],"data_offsets":[0,8],"shape":[8]}"#), "duplicate field"),
        (one(&t("U8", "[8]", "[0]")), "does not parse"),
        (one(&t("U8", "[8]", "[0,4,8]")), "does not parse"),
        (one(&t("U8", "[8]", "[0,8.0]")), "does not parse"),
        (one(&t("U8", "[8]", "[-8,0]")), "does not parse"),
        (one(&t("U8", "[8]", r#"[0,"8"]"#)), "does not parse"),
        (one(&t("U8", "[18446744073709551616]", "[0,8]")), "does not parse"),
        (one(&t("U8", "8", "[0,8]")), "does not parse"),
        (one(&t("U9", "[8]", "[0,8]")), "unknown type U9"),
        (one(&t("\\u001b[2J", "[8]", "[0,8]")), "unknown type ␛[2J"),
        (one(&t("U8", "[7]", "[0,8]")), "takes 7 bytes, its offsets are 0 to 8"),
        (one(&t("BF16", "[8]", "[0,8]")), "takes 16 bytes"),
        (one(&t("U8", "[8]", "[8,0]")), "its offsets are 8 to 0"),
        (one(&t("F4", "[15]", "[0,8]")), "no whole number"),
        (one(&t("U8", "[4294967296,4294967296]", "[0,0]")), "no whole number"),
        (one(&t("F64", "[2305843009213693952]", "[0,0]")), "no whole number"),
        (one(&t("U8", "[1,1,1,1,1,1,1,1,8]", "[0,8]")), "9 dimensions"),
        (one(&t("U8", "[8]", "[18446744073709551608,18446744073709551615]")), "takes 8 bytes"),
        (two("[0,4]", "[5,9]"), "y leaves a hole: it begins at 5"),
        (two("[0,4]", "[3,7]"), "y overlaps"),
        (two("[0,4]", "[0,4]"), "y overlaps"),
        (two("[1,5]", "[5,9]"), "x leaves a hole: it begins at 1"),
        (one(&t("U8", "[4]", "[0,4]")), "the tensors take 4 bytes, and the file holds 8"),
        (one(&t("U8", "[12]", "[0,12]")), "the tensors take 12 bytes, and the file holds 8"),
        ("{}".into(), "the tensors take 0 bytes"),
        (format!(r#"{{"x":{0},"x":{0}}}"#, t("U8", "[8]", "[0,8]")), "x is listed twice"),
        (
            format!(r#"{{"x":{},"\u0078":{}}}"#, t("U8", "[4]", "[0,4]"), t("U8", "[4]", "[4,8]")),
            "x is listed twice",
        ),
        (format!(r#"{{"":{}}}"#, t("U8", "[8]", "[0,8]")), "0 bytes; 1 to 512"),
        (format!(r#"{{"{long}":{}}}"#, t("U8", "[8]", "[0,8]")), "513 bytes; 1 to 512"),
        (r#"{"__metadata__":{"a":1}}"#.into(), "does not parse"),
        (r#"{"__metadata__":{"a":null}}"#.into(), "does not parse"),
        (r#"{"__metadata__":["a"]}"#.into(), "does not parse"),
        (r#"{"__metadata__":{"a":"1","a":"1"}}"#.into(), "\"a\" is there twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), "__metadata__ is there twice"),
    ];
    for (json, want) in &cases {
        let error = header::parse(json.as_bytes(), 8).expect_err(json);
        assert_eq!(error.kind, Kind::BadFile);
        assert!(error.why.contains(want), "\"{want}\" is not in: {}\n{json:.200}", error.why);
    }
    let error = header::parse(b"{\"\xff\":1}", 0).unwrap_err();
    assert!(error.why.contains("not UTF-8"), "{error}");
    // Written in any order, spaces wherever JSON has them, a scalar, an empty tensor.
    let fine = r#"{ "y" : {"shape":[2,0],"dtype":"F32","data_offsets":[4,4]},
        "x":{"data_offsets":[0,4],"dtype":"F32","shape":[]},"z":{"dtype":"I8","shape":[4],"data_offsets":[4,8]}}  "#;
    let header = header::parse(fine.as_bytes(), 8).unwrap();
    assert_eq!(header.tensors.iter().map(|t| t.name.as_str()).collect::<String>(), "xyz");
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let at = tempfile::tempdir().unwrap();
    let open = |name: &str, bytes: &[u8]| {
        let path = at.path().join(name);
        fs::write(&path, bytes).unwrap();
        Store::open(&path).err().unwrap()
    };
    let error = open("x.snug", b"GGUF\x03\0\0\0rest");
    assert_eq!((error.kind, error.why.as_str()), (Kind::BadFile, "it is a GGUF file"));
    let plain = super::fixture::safetensors(&[raw("x", "U8", &[1], vec![0])]);
    let error = open("plain.safetensors", &plain);
    assert!(error.todo.contains("name the directory"), "{error}");
    assert_eq!(open("empty", b"").kind, Kind::BadFile);
    assert_eq!(Store::open(&at.path().join("absent")).err().unwrap().kind, Kind::ModelNotFound);
}

#[test]
fn opening_reports_its_progress_and_can_be_given_up() {
    let at = tempfile::tempdir().unwrap();
    let path = at.path().join("x.snug");
    fs::write(&path, packed(&Memory::tiny(), Format::Pairlut)).unwrap();
    let error = Store::open_with(&path, &|_, _| (), &|| true).err().unwrap();
    assert_eq!(error.kind, Kind::Interrupted);
    let calls = std::cell::RefCell::new(Vec::new());
    let store = Store::open_with(&path, &|done, of| calls.borrow_mut().push((done, of)), &|| false);
    let of: u64 = store.unwrap().entries().iter().map(|e| e.bytes).sum();
    let calls = calls.into_inner();
    assert!(calls.is_sorted() && calls.iter().all(|c| c.1 == of), "{calls:?}");
    assert_eq!((calls.first(), calls.last()), (Some(&(0, of)), Some(&(of, of))));
    // On the only thread of a pool, waiting must not wait for itself.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert!(pool.install(|| Store::open(&path)).is_ok());
}
