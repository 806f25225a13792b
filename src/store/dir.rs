//! A Hugging Face model directory: its texts, and where in which shard each tensor lies. Nothing is read but headers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::header::{self, Dtype, Header, UniqueMap};
use super::texts::{self, Texts};
use super::{Input, MAX_WEIGHTS, SourceTensor};
use crate::error::{Error, Kind, Result, visible};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Longest index, in bytes.
const MAX_INDEX: u64 = 64 << 20;
/// Tables that old checkpoints carry although they follow from `config.json`; they are no weights.
const DERIVED: &str = ".rotary_emb.inv_freq";

/// Where a tensor lies.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name, dimensions and type.
    pub tensor: SourceTensor,
    /// The same type, with its size.
    pub dtype: Dtype,
    /// Index into [`ModelDir::shards`].
    pub shard: usize,
    /// First byte, from the start of the file.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

/// An open directory.
#[derive(Debug)]
pub struct ModelDir {
    /// Its base name.
    pub name: String,
    /// Its texts.
    pub texts: Texts,
    /// Its safetensors files.
    pub shards: Vec<Input>,
    /// Its weights, sorted by name.
    pub tensors: Vec<Place>,
}

impl ModelDir {
    /// Reads texts, index and headers.
    ///
    /// # Errors
    /// `ModelNotFound` when there is no such directory; `BadFile` for damage, by name; what the system says.
    pub fn open(path: &Path) -> Result<ModelDir> {
        let what = format!("cannot open the model directory {}", visible(&path.to_string_lossy()));
        ModelDir::read(path).map_err(|e| e.while_doing(what))
    }

    fn read(path: &Path) -> Result<ModelDir> {
        if !path.is_dir() {
            let why = "there is no such directory";
            return Err(Error::new(Kind::ModelNotFound, "no model here", why, "check the path"));
        }
        let texts = read_texts(path)?;
        let index = if path.join(SINGLE).exists() { None } else { read_index(path)? };
        let names = match &index {
            Some(index) => index.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
            None => vec![only_file(path)?],
        };
        let mut shards = Vec::new();
        let mut tensors = BTreeMap::new();
        for (shard, name) in names.iter().enumerate() {
            let input = open_shard(path, name)?;
            let (header, start) = read_header(&input)?;
            if let Some(index) = &index {
                check_listed(name, &header, index)?;
            }
            add_tensors(&mut tensors, header, start, shard)?;
            shards.push(input);
        }
        if tensors.is_empty() {
            return Err(bad("its safetensors files hold no weights", "get the complete model"));
        }
        let tensors = tensors.into_values().collect();
        Ok(ModelDir { name: base_name(path), texts, shards, tensors })
    }
}

fn bad(why: impl Into<String>, todo: &str) -> Error {
    Error::bad_file("cannot use this model", why, todo)
}

/// The last component of a path, also of `.` and of `x/..`; of a directory in the hub's cache, the model's own name.
fn base_name(path: &Path) -> String {
    let full = path.canonicalize();
    let full = if matches!(path.components().next_back(), Some(Component::Normal(_))) {
        path
    } else {
        full.as_deref().unwrap_or(path)
    };
    let named =
        |p: Option<&Path>| p.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
    let repo = full.parent().filter(|p| p.file_name().is_some_and(|n| n == "snapshots"));
    let repo = repo.and_then(|p| named(p.parent())).and_then(|n| {
        n.strip_prefix("models--").map(|n| n.rsplit("--").next().unwrap_or(n).to_owned())
    });
    repo.or_else(|| named(Some(full))).unwrap_or_else(|| "model".into())
}

fn read_texts(dir: &Path) -> Result<Texts> {
    let tokenizer_model = dir.join("tokenizer.model").exists();
    let mut all = Texts::from_files(|name| {
        let text = texts::read(dir, name)?;
        if text.is_none() && name == "tokenizer.json" && tokenizer_model {
            return Err(bad(
                "its tokenizer is in tokenizer.model only",
                "convert it to tokenizer.json (transformers writes one when it saves a fast tokenizer)",
            ));
        }
        Ok(text)
    })?;
    if all.chat_template.is_none() {
        all.chat_template = json_template(dir)?;
    }
    let config = texts::json_object("config.json", &all.config)?;
    match config.get("quantization_config") {
        None | Some(Value::Null) => Ok(all),
        Some(q) => {
            let method =
                q.get("quant_method").and_then(Value::as_str).unwrap_or("of an unnamed kind");
            Err(bad(
                format!("its weights are quantized ({}), which is not supported", visible(method)),
                "use the original bf16, f16 or f32 model",
            ))
        }
    }
}

/// The template of `chat_template.json`, the form before `chat_template.jinja`.
fn json_template(dir: &Path) -> Result<Option<String>> {
    const NAME: &str = "chat_template.json";
    let Some(text) = texts::read(dir, NAME)? else { return Ok(None) };
    match texts::json_object(NAME, &text)?.remove("chat_template") {
        Some(Value::String(template)) => Ok(Some(template)),
        _ => Err(bad(format!("{NAME} holds no string named chat_template"), "get the model again")),
    }
}

/// Tensor → the file it is in.
type Index = BTreeMap<String, String>;

fn read_index(dir: &Path) -> Result<Option<Index>> {
    #[derive(Deserialize)]
    struct File {
        weight_map: UniqueMap<String>,
    }
    if !dir.join(INDEX).exists() {
        return Ok(None);
    }
    let input = Input::open(&dir.join(INDEX))?;
    if input.len() > MAX_INDEX {
        return Err(bad(format!("{INDEX} has {} bytes", input.len()), "get the model again"));
    }
    let mut bytes = vec![0; input.len() as usize];
    input.read_at(0, &mut bytes)?;
    let file: File = serde_json::from_slice(&bytes).map_err(|e| {
        bad(visible(&format!("{INDEX} does not parse: {e}")), "get the model again")
    })?;
    let index = file.weight_map.0;
    if let Some((tensor, shard)) = index.iter().find(|(_, shard)| !is_shard_name(shard)) {
        return Err(bad(
            format!(
                "{INDEX} puts {} into \"{}\", which is not the name of a .safetensors file in this directory",
                visible(tensor),
                visible(shard)
            ),
            "do not use this model: its index points elsewhere",
        ));
    }
    if index.is_empty() {
        return Err(bad(format!("{INDEX} lists no tensors"), "get the model again"));
    }
    Ok(Some(index))
}

/// Whether this names a file beside the index, and nothing else on any system.
fn is_shard_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        && !name.contains(['/', '\\', ':', '\0'])
        && name.ends_with(".safetensors")
}

/// The one safetensors file of a directory without an index.
fn only_file(dir: &Path) -> Result<String> {
    let what = || format!("cannot list {}", dir.display());
    let (mut tensors, mut pickles) = (Vec::new(), Vec::new());
    for entry in dir.read_dir().map_err(|e| Error::io(what(), &e))? {
        let name = entry.map_err(|e| Error::io(what(), &e))?.file_name();
        let name = name.to_string_lossy().into_owned();
        match Path::new(&name).extension().and_then(|e| e.to_str()) {
            Some("safetensors") => tensors.push(name),
            Some("bin" | "pt" | "pth" | "ckpt") => pickles.push(name),
            _ => {}
        }
    }
    tensors.sort_unstable();
    pickles.sort_unstable();
    match (tensors.as_slice(), pickles.first()) {
        ([one], _) if one.starts_with("adapter_") => {
            let why = format!("{} is an adapter, not a model", visible(one));
            Err(bad(why, "merge it into its base model first"))
        }
        ([one], _) => Ok(one.clone()),
        ([], Some(pickle)) => Err(bad(
            format!("its weights are in {}, a pickle, which is not read", visible(pickle)),
            "use a copy of the model in safetensors",
        )),
        ([], None) => Err(bad("it holds no .safetensors file", "get the complete model")),
        (many, _) => Err(bad(
            format!("it holds {} .safetensors files, but no {INDEX} and no {SINGLE}", many.len()),
            "get the complete model",
        )),
    }
}

fn open_shard(dir: &Path, name: &str) -> Result<Input> {
    let path: PathBuf = dir.join(name);
    if !path.exists() {
        return Err(bad(
            format!("the file {} is missing", visible(name)),
            "get the complete model",
        ));
    }
    Input::open(&path)
}

fn read_header(input: &Input) -> Result<(Header, u64)> {
    let shown = || format!("cannot use {}", input.path().display());
    let read = || {
        let mut start = [0; (header::PREFIX + header::MIN_JSON) as usize];
        let there = input.len().min(start.len() as u64) as usize;
        input.read_at(0, &mut start[..there])?;
        let (Some(prefix), true) = (start.first_chunk(), there == start.len()) else {
            return header::parse_file(&start[..there], header::MAX_JSON);
        };
        let len = header::json_len(*prefix, input.len(), header::MAX_JSON)?;
        let mut json = vec![0; len as usize];
        input.read_at(header::PREFIX, &mut json)?;
        let data = header::PREFIX + len;
        Ok((header::parse(&json, input.len() - data)?, data))
    };
    read().map_err(|e| Error { what: shown(), ..e })
}

/// The index and the shards must tell the same story: a difference means files of two downloads.
fn check_listed(shard: &str, header: &Header, index: &Index) -> Result<()> {
    let fault = |name: &str, fault: String| {
        let why = format!("tensor {} {fault}", visible(name));
        Err(bad(why, "get the model again, all files from one place"))
    };
    let file = visible(shard);
    for t in &header.tensors {
        match index.get(&t.name) {
            Some(owner) if owner == shard => {}
            Some(owner) => {
                let why = format!("is in {file}, but {INDEX} puts it into {}", visible(owner));
                return fault(&t.name, why);
            }
            None => return fault(&t.name, format!("is in {file}, but not in {INDEX}")),
        }
    }
    let there: HashSet<&str> = header.tensors.iter().map(|t| t.name.as_str()).collect();
    match index.iter().find(|(name, s)| *s == shard && !there.contains(name.as_str())) {
        Some((name, _)) => fault(name, format!("is not in {file}, where {INDEX} puts it")),
        None => Ok(()),
    }
}

/// Adds the tensors of a shard; that none comes twice is the index's and the header's doing.
fn add_tensors(
    all: &mut BTreeMap<String, Place>,
    header: Header,
    start: u64,
    shard: usize,
) -> Result<()> {
    for t in header.tensors {
        if t.name.ends_with(DERIVED) {
            continue;
        }
        let dims = weight_dims(&t.name, &t.shape)?;
        let tensor = SourceTensor { name: t.name.clone(), dims, dtype: t.dtype.name.to_owned() };
        let (begin, end) = (start + t.begin, start + t.end);
        all.insert(t.name, Place { tensor, dtype: t.dtype, shard, begin, end });
    }
    Ok(())
}

/// The dimensions of a weight, checked against the limits of `.snug` files.
///
/// # Errors
/// `BadFile` when the name holds a colon, or there are not one or two dimensions of 1 to 2³² − 1, or too many weights.
pub fn weight_dims(name: &str, shape: &[u64]) -> Result<Vec<u32>> {
    if name.contains(':') || name.is_empty() || name.len() > header::MAX_NAME {
        return Err(bad(
            format!(
                "\"{}\" cannot name a weight: it has a colon, or not 1 to {} bytes",
                visible(name),
                header::MAX_NAME
            ),
            "use another model",
        ));
    }
    let dims: Option<Vec<u32>> =
        shape.iter().map(|d| u32::try_from(*d).ok().filter(|d| *d > 0)).collect();
    let count = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
    match dims {
        Some(dims) if matches!(dims.len(), 1 | 2) && count.is_some_and(|n| n <= MAX_WEIGHTS) => {
            Ok(dims)
        }
        _ => Err(bad(
            format!(
                "tensor {} has the shape {shape:?}; one or two dimensions, none of them zero, are supported",
                visible(name)
            ),
            "use a model of another kind",
        )),
    }
}
