//! The GGUF container, versions 2 and 3: a pure, total function from bytes to a borrowed index.
//!
//! ```text
//! "GGUF"  u32 version  u64 tensors  u64 pairs      little-endian throughout
//! pairs × { string key, u32 type, value }          string = u64 length, bytes; array = u32 type, u64 count, values
//! tensors × { string name, u32 n, n × u64 dims, u32 type, u64 offset }      dims: fastest first
//! zeros to `general.alignment`, then the data that the offsets count from
//! ```
//!
//! A claimed count or length is never believed before the bytes behind it have been seen: strings and arrays are
//! slices of the input, and lists grow one parsed entry at a time.

use std::collections::HashSet;
use std::ops::Range;

use super::types::GgmlType;
use super::value::{Cursor, MAX_DEPTH, Metadata};
use crate::error::{Error, Result, visible};

/// The most dimensions a tensor may have.
const MAX_DIMS: usize = 4;
/// Alignment of the data when the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest alignment taken seriously.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// A parsed file. Everything borrows from its bytes.
#[derive(Debug)]
pub struct Gguf<'a> {
    /// 2 or 3; they differ in nothing that matters to little-endian files.
    pub version: u32,
    /// The key–value pairs.
    pub metadata: Metadata<'a>,
    /// The tensors, in file order.
    pub tensors: Vec<Tensor<'a>>,
}

/// One tensor of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// Name as written.
    pub name: &'a str,
    /// Element type.
    pub ty: GgmlType,
    /// Dimensions in row-major order (the reverse of the file's): the last one is contiguous.
    pub dims: Vec<u64>,
    /// Where its bytes lie in the file.
    pub bytes: Range<u64>,
}

/// Parses the header of a file of `file_len` bytes, given its first ones: `None` when the header goes on beyond them.
///
/// # Errors
/// `BadFile`, naming what is wrong: a version or type not supported, anything beyond the end of the file, a
/// repeated name, tensors that overlap or lie unaligned.
pub fn parse(head: &[u8], file_len: u64) -> Result<Option<Gguf<'_>>> {
    let mut c = Cursor { bytes: head, at: 0, file_len, short: false };
    match index(&mut c) {
        Ok(gguf) => Ok(Some(gguf)),
        Err(_) if c.short => Ok(None),
        Err(e) => Err(e),
    }
}

fn index<'a>(c: &mut Cursor<'a>) -> Result<Gguf<'a>> {
    let version = preamble(c)?;
    let tensor_count = c.u64("the number of tensors")?;
    let pair_count = c.u64("the number of metadata pairs")?;

    let mut metadata = Metadata::default();
    for i in 0..pair_count {
        let key = c.name(&format!("metadata key {i} of {pair_count}"))?;
        let what = format!("metadata {}", visible(key));
        let kind = c.kind(&what)?;
        let value = c.value(kind, MAX_DEPTH, &what)?;
        if !metadata.insert(key, value) {
            return Err(bad(format!("{what} appears twice")));
        }
    }

    let alignment = alignment(&metadata)?;
    let mut infos = Vec::new();
    let mut seen = HashSet::new();
    for i in 0..tensor_count {
        let info = tensor_info(c, i, tensor_count)?;
        if !seen.insert(info.0.name) {
            return Err(bad(format!("tensor {} appears twice", visible(info.0.name))));
        }
        infos.push(info);
    }
    let tensors = place(infos, align_up(c.at as u64, alignment)?, alignment, c.file_len)?;
    Ok(Gguf { version, metadata, tensors })
}

/// Checks magic and version.
fn preamble(c: &mut Cursor<'_>) -> Result<u32> {
    let magic = c.take(4, "the magic number")?;
    match magic {
        b"GGUF" => {}
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => {
            return Err(Error::bad_file(
                "cannot read the file",
                "it is in a GGML format from before GGUF, which said too little about the model",
                "get the model as GGUF, or from its original files",
            ));
        }
        _ => {
            return Err(bad(format!(
                "it begins with {}, not GGUF",
                visible(&String::from_utf8_lossy(magic))
            )));
        }
    }
    let version = c.u32("the version")?;
    match version {
        2 | 3 => Ok(version),
        1 => Err(Error::bad_file(
            "cannot read the GGUF file",
            "it is of version 1, an early draft with 32-bit lengths",
            "convert the model again with a current converter",
        )),
        v if v & 0xffff == 0 && v != 0 => Err(Error::bad_file(
            "cannot read the GGUF file",
            format!(
                "it is big-endian (version {}); only little-endian files are read",
                v.swap_bytes()
            ),
            "get the little-endian file of the model",
        )),
        v => Err(Error::bad_file(
            "cannot read the GGUF file",
            format!("it is of version {v}; versions 2 and 3 are known"),
            "get a newer snug, or an older file",
        )),
    }
}

fn alignment(metadata: &Metadata<'_>) -> Result<u64> {
    let alignment = metadata.u64("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(bad(format!(
            "general.alignment is {alignment}; it must be a power of two up to {MAX_ALIGNMENT}"
        )));
    }
    Ok(alignment)
}

/// Reads one entry of the tensor list; its byte range is still relative, `0..size`, and its offset comes beside it.
fn tensor_info<'a>(c: &mut Cursor<'a>, i: u64, count: u64) -> Result<(Tensor<'a>, u64)> {
    let name = c.name(&format!("the name of tensor {i} of {count}"))?;
    let what = format!("tensor {}", visible(name));
    let n = c.u32(&format!("the number of dimensions of {what}"))? as usize;
    if n == 0 || n > MAX_DIMS {
        return Err(bad(format!("{what} has {n} dimensions; 1 to {MAX_DIMS} are allowed")));
    }
    let mut dims = Vec::with_capacity(n);
    for _ in 0..n {
        dims.push(c.u64(&format!("a dimension of {what}"))?);
    }
    let ty = GgmlType::from_id(c.u32(&format!("the type of {what}"))?)
        .map_err(|why| unsupported(format!("{what} {why}")))?;
    let offset = c.u64(&format!("the offset of {what}"))?;
    let size = byte_size(ty, &dims).map_err(|why| bad(format!("{what}, {dims:?}, {why}")))?;
    dims.reverse();
    Ok((Tensor { name, ty, dims, bytes: 0..size }, offset))
}

/// Bytes of a tensor; `dims` with the contiguous one first.
fn byte_size(ty: GgmlType, dims: &[u64]) -> Result<u64, String> {
    if dims.contains(&0) {
        return Err("is empty".into());
    }
    let block = ty.block_len() as u64;
    if !dims[0].is_multiple_of(block) {
        return Err(format!("has rows that are no multiple of {}'s {block} elements", ty.name()));
    }
    dims.iter()
        .try_fold(1u64, |n, d| n.checked_mul(*d))
        .map(|n| n / block)
        .and_then(|blocks| blocks.checked_mul(ty.block_bytes() as u64))
        .ok_or_else(|| "has more bytes than 64 bits can count".into())
}

/// Turns offsets into file positions and checks that tensors lie aligned, apart and inside the file.
fn place<'a>(
    infos: Vec<(Tensor<'a>, u64)>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<Tensor<'a>>> {
    let mut tensors = Vec::with_capacity(infos.len());
    for (mut t, offset) in infos {
        if offset % alignment != 0 {
            return Err(bad(format!(
                "tensor {} begins at offset {offset}, no multiple of the alignment, {alignment}",
                visible(t.name)
            )));
        }
        let size = t.bytes.end;
        let begin = data_start.checked_add(offset);
        let range = begin.and_then(|b| Some(b..b.checked_add(size)?));
        t.bytes = range.filter(|r| r.end <= file_len).ok_or_else(|| {
            Error::bad_file(
                "cannot read the GGUF file",
                format!(
                    "tensor {} ends {size} bytes after offset {offset} of the data, beyond the end of the file ({file_len} bytes)",
                    visible(t.name)
                ),
                "the file is probably incomplete: get it again",
            )
        })?;
        tensors.push(t);
    }
    let mut order: Vec<&Tensor<'_>> = tensors.iter().collect();
    order.sort_by_key(|t| t.bytes.start);
    for pair in order.windows(2) {
        if pair[1].bytes.start < pair[0].bytes.end {
            return Err(bad(format!(
                "tensors {} and {} overlap",
                visible(pair[0].name),
                visible(pair[1].name)
            )));
        }
    }
    Ok(tensors)
}

fn align_up(at: u64, alignment: u64) -> Result<u64> {
    at.checked_next_multiple_of(alignment).ok_or_else(|| bad("its header has no end"))
}

/// A broken file.
pub(super) fn bad(why: impl Into<String>) -> Error {
    Error::bad_file(
        "cannot read the GGUF file",
        why,
        "the file is damaged or was written by a faulty converter: get it again",
    )
}

/// A sound file that asks for something snug does not do.
pub(super) fn unsupported(why: impl Into<String>) -> Error {
    Error::bad_file(
        "cannot import the GGUF file",
        why,
        "use another quantisation or the model's original safetensors files",
    )
}
