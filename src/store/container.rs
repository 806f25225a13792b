//! The rules of FORMAT.md, section 1, on top of the safetensors header: what a `.snug` file must hold, and where.
//! Pure functions on slices.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::dir::weight_dims;
use super::header::{self, Dtype, Header, Object, Tensor, UniqueMap};
use super::{Entry, Source, SourceTensor, Texts};
use crate::codec::{Codec, Format};
use crate::error::{Error, Result, visible};

/// The version this build reads and writes.
pub const VERSION: u32 = 1;
/// Longest header of a `.snug` file.
pub const MAX_JSON: u64 = 64 << 20;
/// The data begin at a multiple of this.
pub const DATA_ALIGN: u64 = 4096;
/// Tensors begin at multiples of this.
pub const TENSOR_ALIGN: u64 = 256;
/// Features of `snug.requires` that this build knows.
pub const FEATURES: &[&str] = &[];

/// Keys of `__metadata__`.
pub(super) mod key {
    pub const FORMAT: &str = "format";
    pub const VERSION: &str = "snug.version";
    pub const REQUIRES: &str = "snug.requires";
    pub const PACKER: &str = "snug.packer";
    pub const SOURCE: &str = "snug.source";
    pub const WEIGHTS: &str = "snug.weights";
}

const TEXT: &str = "file:";
const PAD: &str = "pad:";

/// What a file holds, every rule but those of the codecs checked.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Its texts.
    pub texts: Texts,
    /// Where its weights came from.
    pub source: Source,
    /// Its weights, sorted by name.
    pub weights: Vec<Weight>,
    /// Program and version that wrote it.
    pub packer: String,
}

/// A weight and the bytes of its parts, in the order of [`Codec::part_names`], from the start of the file.
#[derive(Clone, Debug)]
pub struct Weight {
    /// What is known of it.
    pub entry: Entry,
    /// Its parts.
    pub parts: Vec<Range<usize>>,
}

/// One value of `snug.weights`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WeightLine {
    pub codec: String,
    pub shape: Vec<u32>,
    pub source_dtype: String,
    pub sha256: String,
}

/// The value of `snug.source`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SourceLine {
    pub kind: String,
    pub name: String,
    pub exact: bool,
    pub id: String,
}

const AGAIN: &str = "pack or download the model again";

fn bad(why: impl Into<String>) -> Error {
    Error::bad_file("cannot use this .snug file", why, AGAIN)
}

/// Reads a whole file.
///
/// # Errors
/// `BadFile`, naming the first rule that is broken, or what is newer than this build.
pub fn read(file: &[u8]) -> Result<Contents> {
    let (header, start) = header::parse_file(file, MAX_JSON)?;
    let meta = |key: &str| match header.metadata.get(key) {
        Some(value) => Ok(value.as_str()),
        None => Err(bad(format!("its metadata lack {key}"))),
    };
    if !header.metadata.contains_key(key::VERSION) {
        return Err(Error::bad_file(
            "cannot use this file",
            "it is a safetensors file, but not one that snug packed",
            "name the directory of the model, or make a .snug file of it with `snug pack`",
        ));
    }
    check_version(meta(key::VERSION)?, meta(key::REQUIRES)?)?;
    check_spaces(file, start)?;
    if meta(key::FORMAT)? != "pt" {
        return Err(bad(format!("its {} is not \"pt\"", key::FORMAT)));
    }
    let packer = meta(key::PACKER)?.to_owned();
    let mut tensors = Tensors::check(&header, &file[start as usize..], start as usize)?;
    let texts = read_texts(&mut tensors, file)?;
    let (weights, source) = read_weights(&mut tensors, meta(key::WEIGHTS)?, meta(key::SOURCE)?)?;
    match tensors.left.into_keys().min() {
        Some(name) => Err(bad(format!("tensor {} belongs to no weight", visible(name)))),
        None => Ok(Contents { texts, source, weights, packer }),
    }
}

fn check_version(version: &str, requires: &str) -> Result<()> {
    let newer = |why: String| {
        Error::bad_file("cannot use this .snug file", why, "use a newer version of snug")
    };
    match version.parse::<u32>() {
        Ok(VERSION) if version == "1" => {}
        Ok(n) if n > VERSION => {
            return Err(newer(format!("it has version {n}; this program reads up to {VERSION}")));
        }
        _ => return Err(bad(format!("its version is \"{}\"", visible(version)))),
    }
    if requires.is_empty() {
        return Ok(());
    }
    match requires.split(',').find(|f| !FEATURES.contains(f)) {
        Some(feature) => Err(newer(format!(
            "it requires the feature \"{}\", which this program does not know",
            visible(feature)
        ))),
        None => Ok(()),
    }
}

/// The header ends in spaces, and the data begin at a page.
fn check_spaces(file: &[u8], start: u64) -> Result<()> {
    if !start.is_multiple_of(DATA_ALIGN) {
        return Err(bad(format!("its data begin at {start}, no multiple of {DATA_ALIGN}")));
    }
    let json = &file[header::PREFIX as usize..start as usize];
    let end = json.iter().rposition(|b| !b" \t\r\n".contains(b)).map_or(0, |i| i + 1);
    if json[end..].iter().any(|b| *b != b' ') {
        return Err(bad("its header is followed by something other than spaces"));
    }
    Ok(())
}

/// The tensors by name, each taken out when its owner is known.
struct Tensors<'a> {
    left: HashMap<&'a str, &'a Tensor>,
    start: usize,
}

impl<'a> Tensors<'a> {
    /// Checks types, alignment and pads; `data` begin at `start` of the file.
    fn check(header: &'a Header, data: &[u8], start: usize) -> Result<Tensors<'a>> {
        let mut left = HashMap::new();
        let mut pads = 0;
        for t in &header.tensors {
            if t.dtype != Dtype::U8 && t.dtype != Dtype::BF16 {
                return Err(bad(format!(
                    "tensor {} has the type {}",
                    visible(&t.name),
                    t.dtype.name
                )));
            }
            if t.name.starts_with(PAD) {
                check_pad(t, pads, &data[t.begin as usize..t.end as usize])?;
                pads += 1;
                continue;
            }
            if !t.begin.is_multiple_of(TENSOR_ALIGN) {
                return Err(bad(format!(
                    "tensor {} begins at {}, no multiple of {TENSOR_ALIGN}",
                    visible(&t.name),
                    t.begin
                )));
            }
            left.insert(t.name.as_str(), t);
        }
        if !(data.len() as u64).is_multiple_of(TENSOR_ALIGN) {
            return Err(bad(format!(
                "its data end at {}, no multiple of {TENSOR_ALIGN}",
                data.len()
            )));
        }
        Ok(Tensors { left, start })
    }

    /// Takes a tensor out: its place in the file.
    fn take(&mut self, name: &str, dtype: Dtype, shape: Option<&[u64]>) -> Result<Range<usize>> {
        let Some(t) = self.left.remove(name) else {
            return Err(bad(format!("tensor {} is missing", visible(name))));
        };
        let fits = match shape {
            Some(shape) => t.shape == shape,
            None => t.shape.len() == 1,
        };
        if t.dtype != dtype || !fits {
            let want = shape.map_or("one dimension".into(), |s| format!("the shape {s:?}"));
            return Err(bad(format!(
                "tensor {} is {} of shape {:?}; {} of {want} belongs there",
                visible(name),
                t.dtype.name,
                t.shape,
                dtype.name
            )));
        }
        Ok(self.start + t.begin as usize..self.start + t.end as usize)
    }
}

fn check_pad(t: &Tensor, number: usize, bytes: &[u8]) -> Result<()> {
    let well_formed = t.name == pad_name(number)
        && t.dtype == Dtype::U8
        && t.shape.len() == 1
        && (1..TENSOR_ALIGN).contains(&(bytes.len() as u64));
    if !well_formed {
        return Err(bad(format!(
            "{} is not {}, U8, of 1 to {} bytes",
            visible(&t.name),
            pad_name(number),
            TENSOR_ALIGN - 1
        )));
    }
    if !t.end.is_multiple_of(TENSOR_ALIGN) {
        return Err(bad(format!("{} ends at {}, no multiple of {TENSOR_ALIGN}", t.name, t.end)));
    }
    match bytes.iter().position(|b| *b != 0) {
        Some(i) => Err(bad(format!("{} holds {:#04x} at {i} instead of zeros", t.name, bytes[i]))),
        None => Ok(()),
    }
}

pub(super) fn pad_name(number: usize) -> String {
    format!("{PAD}{number}")
}

pub(super) fn text_name(name: &str) -> String {
    format!("{TEXT}{name}")
}

/// Names of the tensors that hold a weight, in the order of its parts.
pub(super) fn part_names(weight: &str, codec: &dyn Codec) -> Vec<String> {
    match codec.part_names() {
        [] => vec![weight.to_owned()],
        parts => parts.iter().map(|part| format!("{weight}:{part}")).collect(),
    }
}

fn read_texts(tensors: &mut Tensors<'_>, file: &[u8]) -> Result<Texts> {
    Texts::from_files(|name| {
        let tensor = text_name(name);
        if !tensors.left.contains_key(tensor.as_str()) {
            return Ok(None);
        }
        let bytes = &file[tensors.take(&tensor, Dtype::U8, None)?];
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(e) => Err(bad(format!("its {name} is not UTF-8: {e}"))),
        }
    })
}

fn read_weights(
    tensors: &mut Tensors<'_>,
    weights: &str,
    source: &str,
) -> Result<(Vec<Weight>, Source)> {
    let parse_error =
        |key: &str, e: serde_json::Error| bad(visible(&format!("its {key} does not parse: {e}")));
    let lines: UniqueMap<Object<WeightLine>> =
        serde_json::from_str(weights).map_err(|e| parse_error(key::WEIGHTS, e))?;
    let Object(source): Object<SourceLine> =
        serde_json::from_str(source).map_err(|e| parse_error(key::SOURCE, e))?;
    if !["hf", "gguf"].contains(&source.kind.as_str()) {
        return Err(bad(format!(
            "its source is of the unknown kind \"{}\"",
            visible(&source.kind)
        )));
    }
    let id = source_id(lines.0.iter().map(|(name, Object(line))| (name, &line.sha256)));
    let mut out = Vec::with_capacity(lines.0.len());
    for (name, Object(line)) in lines.0 {
        out.push(read_weight(tensors, name, line)?);
    }
    let exact = out.iter().all(|w| w.entry.source_dtype == Dtype::BF16.name);
    if out.is_empty() || source.exact != exact {
        return Err(bad(match out.len() {
            0 => "it holds no weights".to_owned(),
            _ => {
                format!("it says exact: {}, and the types of its weights say {exact}", source.exact)
            }
        }));
    }
    if id != source.id {
        return Err(bad("its source id does not follow from its weights"));
    }
    let SourceLine { kind, name, exact, .. } = source;
    Ok((out, Source { kind, name, exact, id: Some(id) }))
}

fn read_weight(tensors: &mut Tensors<'_>, name: String, line: WeightLine) -> Result<Weight> {
    let shown = || visible(&name);
    let shape: Vec<u64> = line.shape.iter().map(|d| u64::from(*d)).collect();
    let dims = weight_dims(&name, &shape).map_err(|e| bad(e.why))?;
    let Some(format) = Format::from_id(&line.codec) else {
        return Err(Error::bad_file(
            "cannot use this .snug file",
            format!(
                "weight {} uses the codec \"{}\", which this program does not know",
                shown(),
                visible(&line.codec)
            ),
            "use a newer version of snug",
        ));
    };
    let Some(sha256) = parse_hex(&line.sha256) else {
        return Err(bad(format!("the hash of weight {} is not 64 lower-case hex digits", shown())));
    };
    let codec = format.codec();
    let parts = match codec.part_names() {
        [] => vec![tensors.take(&name, Dtype::BF16, Some(&shape))?],
        _ => part_names(&name, codec)
            .iter()
            .map(|part| tensors.take(part, Dtype::U8, None))
            .collect::<Result<_>>()?,
    };
    let listed = SourceTensor { name, dims, dtype: line.source_dtype };
    let bytes = parts.iter().map(|p| p.len() as u64).sum();
    Ok(Weight { entry: Entry::of(listed, format, Some(sha256), bytes), parts })
}

/// SHA-256, in hex, of the lines `name SP hash LF`; names come sorted, hashes are in hex.
pub fn source_id(weights: impl Iterator<Item = (impl AsRef<str>, impl AsRef<str>)>) -> String {
    let mut all = Sha256::new();
    for (name, hash) in weights {
        all.update(format!("{} {}\n", name.as_ref(), hash.as_ref()));
    }
    hex(&all.finalize().into())
}

/// Lower-case hex digits of a hash.
pub fn hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let bytes = text.as_bytes();
    let digits = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if bytes.len() != 64 || !bytes.iter().all(digits) {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

/// The metadata of a new file.
pub(super) fn metadata(
    source: &SourceLine,
    weights: &BTreeMap<String, WeightLine>,
) -> BTreeMap<String, String> {
    let json = |value: serde_json::Value| value.to_string();
    [
        (key::FORMAT, "pt".to_owned()),
        (key::VERSION, VERSION.to_string()),
        (key::REQUIRES, String::new()),
        (key::PACKER, concat!("snug ", env!("CARGO_PKG_VERSION")).to_owned()),
        (key::SOURCE, json(serde_json::json!(source))),
        (key::WEIGHTS, json(serde_json::json!(weights))),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect()
}
