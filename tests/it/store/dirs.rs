//! Model directories: shards, texts, and what is refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use snug::error::{Error, Kind};
use snug::import;
use snug::store::Store;

use super::fixture::{CONFIG, TOKENIZER, le, model_dir, raw, safetensors, tiny_tensors, weights};

const INDEX: &str = "model.safetensors.index.json";

/// The tiny model in two shards; the first holds the first two tensors.
fn sharded(at: &Path) -> PathBuf {
    let dir = model_dir(at, &[]);
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    let tensors = tiny_tensors();
    let mut map = serde_json::Map::new();
    for (shard, tensors) in [("a.safetensors", &tensors[..2]), ("b.safetensors", &tensors[2..])] {
        fs::write(dir.join(shard), safetensors(tensors)).unwrap();
        map.extend(tensors.iter().map(|t| (t.name.clone(), Value::from(shard))));
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(dir.join(INDEX), index.to_string()).unwrap();
    dir
}

fn edit_index(dir: &Path, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let path = dir.join(INDEX);
    let mut index: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    fs::write(path, index.to_string()).unwrap();
}

/// Both ways into a directory must refuse it, in the same words but for the first line.
fn refusal(dir: &Path) -> Error {
    let error = import::open(dir).err().expect("the directory is refused");
    let opened = Store::open(dir).err().expect("the directory is refused");
    assert_eq!((opened.kind, &opened.why), (error.kind, &error.why));
    error
}

#[test]
fn shards_are_one_model() {
    let at = tempfile::tempdir().unwrap();
    let dir = sharded(at.path());
    let source = import::open(&dir).unwrap();
    assert_eq!((source.kind(), source.name(), source.exact()), ("hf", "tiny-model", true));
    let tensors = tiny_tensors();
    assert_eq!(source.tensors().len(), tensors.len());
    let store = Store::open(&dir).unwrap();
    for (i, (listed, raw)) in source.tensors().iter().zip(&tensors).enumerate() {
        assert_eq!(listed.name, raw.name);
        let shape = listed.shape();
        // Any run of rows, not only whole tensors.
        for rows in [0..shape.rows, shape.rows / 2..shape.rows, shape.rows - 1..shape.rows, 0..0] {
            let cols = shape.cols as usize;
            let mut words = vec![0; rows.len() * cols];
            source.read_rows(i, rows.clone(), &mut words).unwrap();
            let bytes = 2 * rows.start as usize * cols..2 * rows.end as usize * cols;
            assert!(le(&words) == raw.bytes[bytes], "{} {rows:?}", raw.name);
        }
        assert_eq!(store.parts(store.entry(&raw.name).unwrap()).0, [raw.bytes.as_slice()]);
    }
    // A file of the model stands for its directory.
    assert_eq!(import::open(&dir.join("b.safetensors")).unwrap().tensors(), source.tensors());
}

#[test]
fn a_wrong_index_is_refused_by_name() {
    type Break = fn(&Path);
    let cases: &[(&str, Break)] = &[
        ("the file b.safetensors is missing", |d| {
            fs::remove_file(d.join("b.safetensors")).unwrap()
        }),
        ("tensor lm_head.weight is not in a.safetensors, where", |d| {
            edit_index(d, |m| drop(m.insert("lm_head.weight".into(), "a.safetensors".into())));
        }),
        ("model.norm.weight is in b.safetensors, but not in model.safetensors.index.json", |d| {
            edit_index(d, |m| drop(m.shift_remove("model.norm.weight")));
        }),
        (
            "model.norm.weight is not in a.safetensors, where model.safetensors.index.json puts it",
            |d| {
                edit_index(d, |m| m["model.norm.weight"] = "a.safetensors".into());
            },
        ),
        (
            "model.embed_tokens.weight is in b.safetensors, but model.safetensors.index.json puts it into a",
            |d| {
                fs::write(d.join("b.safetensors"), safetensors(&tiny_tensors())).unwrap();
            },
        ),
        ("\"../a.safetensors\", which is not the name", |d| {
            edit_index(d, |m| m["model.norm.weight"] = "../a.safetensors".into());
        }),
        ("\"/etc/x.safetensors\", which is not the name", |d| {
            edit_index(d, |m| m["model.norm.weight"] = "/etc/x.safetensors".into());
        }),
        ("\"..\", which is not the name", |d| {
            edit_index(d, |m| m["model.norm.weight"] = "..".into())
        }),
        ("\"./a.safetensors\", which is not", |d| {
            edit_index(d, |m| m["model.norm.weight"] = "./a.safetensors".into());
        }),
        ("\"c:a.safetensors\", which is not", |d| {
            edit_index(d, |m| m["model.norm.weight"] = "c:a.safetensors".into());
        }),
        ("\"s\\a.safetensors\", which is not", |d| {
            edit_index(d, |m| m["model.norm.weight"] = "s\\a.safetensors".into());
        }),
        ("\"a.bin\", which is not", |d| edit_index(d, |m| m["model.norm.weight"] = "a.bin".into())),
        ("does not parse", |d| edit_index(d, |m| m["model.norm.weight"] = 1.into())),
        ("lists no tensors", |d| edit_index(d, serde_json::Map::clear)),
        ("does not parse", |d| fs::write(d.join(INDEX), "{}").unwrap()),
        ("\"x\" is there twice", |d| {
            let twice = r#"{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}"#;
            fs::write(d.join(INDEX), twice).unwrap();
        }),
        ("the tensors take", |d| {
            let path = d.join("b.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        }),
    ];
    for (want, broken) in cases {
        let at = tempfile::tempdir().unwrap();
        let dir = sharded(at.path());
        broken(&dir);
        let error = refusal(&dir);
        assert_eq!(error.kind, Kind::BadFile);
        assert!(error.why.contains(want), "\"{want}\" is not in: {error}");
    }
}

#[test]
fn what_a_directory_lacks_or_is_not_is_named() {
    type Break = fn(&Path);
    let cases: &[(&str, Break)] = &[
        ("cannot use config.json: it is missing", |d| {
            fs::remove_file(d.join("config.json")).unwrap()
        }),
        ("cannot use tokenizer.json: it is missing", |d| {
            fs::remove_file(d.join("tokenizer.json")).unwrap();
        }),
        ("its tokenizer is in tokenizer.model only", |d| {
            fs::rename(d.join("tokenizer.json"), d.join("tokenizer.model")).unwrap();
        }),
        ("config.json: it is no JSON object", |d| fs::write(d.join("config.json"), "[]").unwrap()),
        ("config.json: it is no JSON object", |d| fs::write(d.join("config.json"), "{").unwrap()),
        ("config.json: it is not UTF-8", |d| {
            fs::write(d.join("config.json"), b"{\"\xff\":1}").unwrap()
        }),
        ("generation_config.json: it is no JSON", |d| {
            fs::write(d.join("generation_config.json"), "1").unwrap();
        }),
        ("holds no string named chat_template", |d| {
            fs::write(d.join("chat_template.json"), r#"{"chat_template":[]}"#).unwrap();
        }),
        ("its weights are quantized (fp8)", |d| {
            let config = r#"{"quantization_config":{"quant_method":"fp8"}}"#;
            fs::write(d.join("config.json"), config).unwrap();
        }),
        ("its weights are quantized (of an unnamed kind)", |d| {
            fs::write(d.join("config.json"), r#"{"quantization_config":{}}"#).unwrap();
        }),
        ("holds no .safetensors file", |d| fs::remove_file(d.join("model.safetensors")).unwrap()),
        ("in pytorch_model-00001-of-00002.bin, a pickle", |d| {
            fs::remove_file(d.join("model.safetensors")).unwrap();
            fs::write(d.join("pytorch_model-00001-of-00002.bin"), "").unwrap();
            fs::write(d.join("pytorch_model-00002-of-00002.bin"), "").unwrap();
        }),
        ("holds 2 .safetensors files, but no", |d| {
            fs::rename(d.join("model.safetensors"), d.join("x.safetensors")).unwrap();
            fs::copy(d.join("x.safetensors"), d.join("y.safetensors")).unwrap();
        }),
        ("is an adapter", |d| {
            fs::rename(d.join("model.safetensors"), d.join("adapter_model.safetensors")).unwrap();
        }),
        ("hold no weights", |d| fs::write(d.join("model.safetensors"), safetensors(&[])).unwrap()),
        ("has 0 bytes; a header takes", |d| fs::write(d.join("model.safetensors"), "").unwrap()),
        ("its length is 144680345676153346 bytes; 2 to 100000000", |d| {
            fs::write(d.join("model.safetensors"), [2; 9]).unwrap()
        }),
        ("does not begin with {", |d| {
            fs::write(d.join("model.safetensors"), [2, 0, 0, 0, 0, 0, 0, 0, b'[', b']']).unwrap();
        }),
    ];
    for (want, broken) in cases {
        let at = tempfile::tempdir().unwrap();
        let dir = model_dir(at.path(), &tiny_tensors());
        broken(&dir);
        let error = refusal(&dir);
        assert_eq!(error.kind, Kind::BadFile);
        assert!(error.why.contains(want), "\"{want}\" is not in: {error}");
    }
}

#[test]
fn tensors_that_are_no_weights_are_named() {
    let cases = [
        ("x is F8_E4M3", raw("x", "F8_E4M3", &[4, 4], vec![0; 16])),
        ("x is I64", raw("x", "I64", &[2], vec![0; 16])),
        ("x has the shape [2, 2, 2]", raw("x", "BF16", &[2, 2, 2], vec![0; 16])),
        ("x has the shape []", raw("x", "BF16", &[], vec![0; 2])),
        ("x has the shape [0, 4]", raw("x", "BF16", &[0, 4], vec![])),
        ("it has a colon", raw("a:b", "BF16", &[1], vec![0; 2])),
    ];
    for (want, tensor) in cases {
        let at = tempfile::tempdir().unwrap();
        let dir = model_dir(at.path(), &[tensor]);
        let error = import::open(&dir).err().unwrap();
        assert_eq!(error.kind, Kind::BadFile);
        assert!(error.why.contains(want), "\"{want}\" is not in: {error}");
        assert_eq!(Store::open(&dir).err().unwrap().kind, Kind::BadFile);
    }
    // A table that follows from the configuration is left out, whatever its type.
    let at = tempfile::tempdir().unwrap();
    let table = raw("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[2], vec![0; 8]);
    let weight = raw("w", "BF16", &[2], le(&weights(1, 2)));
    let dir = model_dir(at.path(), &[table, weight]);
    let source = import::open(&dir).unwrap();
    assert_eq!((source.tensors().len(), source.exact()), (1, true));
    assert_eq!(Store::open(&dir).unwrap().entries().len(), 1);
}

#[test]
fn texts_come_from_where_they_lie() {
    let at = tempfile::tempdir().unwrap();
    let dir = model_dir(at.path(), &tiny_tensors());
    let texts = || import::open(&dir).unwrap().texts().clone();
    assert_eq!((texts().config.as_str(), texts().tokenizer.as_str()), (CONFIG, TOKENIZER));
    assert_eq!(
        (texts().generation_config, texts().tokenizer_config, texts().chat_template),
        (None, None, None)
    );
    fs::write(dir.join("tokenizer_config.json"), r#"{"chat_template":"in the config"}"#).unwrap();
    fs::write(dir.join("generation_config.json"), "{}").unwrap();
    // The template inside tokenizer_config.json stays there.
    assert_eq!(texts().chat_template, None);
    assert_eq!(texts().tokenizer_config.as_deref(), Some(r#"{"chat_template":"in the config"}"#));
    assert_eq!(texts().generation_config.as_deref(), Some("{}"));
    fs::write(dir.join("chat_template.json"), r#"{"chat_template":"{{ x }}\n"}"#).unwrap();
    assert_eq!(texts().chat_template.as_deref(), Some("{{ x }}\n"));
    fs::write(dir.join("chat_template.jinja"), "{{ y }}").unwrap();
    assert_eq!(texts().chat_template.as_deref(), Some("{{ y }}"));
    assert_eq!(Store::open(&dir).unwrap().texts(), &texts());
}

#[test]
fn names_of_models_are_names_people_know() {
    let at = tempfile::tempdir().unwrap();
    let dir = model_dir(at.path(), &tiny_tensors());
    let name = |path: &Path| import::open(path).unwrap().name().to_owned();
    assert_eq!(name(&dir), "tiny-model");
    assert_eq!(name(&dir.join(".")), "tiny-model");
    fs::create_dir(dir.join("sub")).unwrap();
    assert_eq!(name(&dir.join("sub/..")), "tiny-model");
    let snapshot = at.path().join("models--some-org--Some-Model-7B/snapshots/0123abcd");
    fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    fs::rename(&dir, &snapshot).unwrap();
    fs::remove_dir(snapshot.join("sub")).unwrap();
    assert_eq!(name(&snapshot), "Some-Model-7B");
    let error = import::open(&dir).err().unwrap();
    assert_eq!(error.kind, Kind::ModelNotFound);
    fs::write(at.path().join("x.onnx"), "").unwrap();
    assert_eq!(import::open(&at.path().join("x.onnx")).err().unwrap().kind, Kind::BadFile);
}

#[test]
fn a_file_that_shrinks_under_the_reader_is_an_error() {
    let at = tempfile::tempdir().unwrap();
    let dir = model_dir(at.path(), &tiny_tensors());
    let source = import::open(&dir).unwrap();
    let file = fs::OpenOptions::new().write(true).open(dir.join("model.safetensors")).unwrap();
    file.set_len(1000).unwrap();
    let mut words = vec![0; 96 * 64];
    let error = source.read_rows(0, 0..96, &mut words).unwrap_err();
    assert_eq!(error.kind, Kind::BadFile);
    assert!(error.why.contains("the file ends before"), "{error}");
}
