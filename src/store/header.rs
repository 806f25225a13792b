//! The safetensors header: parse, check, write. Pure functions on slices, for our own files and for other people's.
//!
//! serde_json keeps the last of two equal keys without a word, and the format allows neither holes nor overlaps,
//! so everything goes through visitors and checks of our own. Limits are constants.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::error::{Error, Result, visible};

/// Bytes before the JSON: its length as a little-endian u64.
pub const PREFIX: u64 = 8;
/// The smallest header, `{}`.
pub const MIN_JSON: u64 = 2;
/// Longest header of a safetensors file by other programs (the limit that the format's own library has).
pub const MAX_JSON: u64 = 100_000_000;
/// Most tensors in one file.
pub const MAX_TENSORS: usize = 1 << 20;
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 8;
/// Longest tensor name, in bytes.
pub const MAX_NAME: usize = 512;

const METADATA: &str = "__metadata__";

/// An element type that safetensors files name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtype {
    /// As written in files.
    pub name: &'static str,
    /// Size of an element.
    pub bits: u64,
}

impl Dtype {
    /// One byte, unsigned.
    pub const U8: Dtype = Dtype { name: "U8", bits: 8 };
    /// The upper half of a float.
    pub const BF16: Dtype = Dtype { name: "BF16", bits: 16 };
    /// IEEE half precision.
    pub const F16: Dtype = Dtype { name: "F16", bits: 16 };
    /// IEEE single precision.
    pub const F32: Dtype = Dtype { name: "F32", bits: 32 };

    /// Every type the format has, so that messages can name what is not supported.
    pub const ALL: &'static [Dtype] = &[
        Dtype::U8,
        Dtype::BF16,
        Dtype::F16,
        Dtype::F32,
        Dtype { name: "BOOL", bits: 8 },
        Dtype { name: "F4", bits: 4 },
        Dtype { name: "F6_E2M3", bits: 6 },
        Dtype { name: "F6_E3M2", bits: 6 },
        Dtype { name: "F8_E4M3", bits: 8 },
        Dtype { name: "F8_E4M3FNUZ", bits: 8 },
        Dtype { name: "F8_E5M2", bits: 8 },
        Dtype { name: "F8_E5M2FNUZ", bits: 8 },
        Dtype { name: "F8_E8M0", bits: 8 },
        Dtype { name: "F64", bits: 64 },
        Dtype { name: "C64", bits: 64 },
        Dtype { name: "I8", bits: 8 },
        Dtype { name: "I16", bits: 16 },
        Dtype { name: "I32", bits: 32 },
        Dtype { name: "I64", bits: 64 },
        Dtype { name: "U16", bits: 16 },
        Dtype { name: "U32", bits: 32 },
        Dtype { name: "U64", bits: 64 },
    ];

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|d| d.name == name)
    }
}

/// A tensor as the header lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Unique in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// First byte, relative to the start of the data.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A header that follows every rule of the format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sorted by place; they tile the data without holes.
    pub tensors: Vec<Tensor>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

fn bad(why: impl Into<String>) -> Error {
    Error::bad_file(
        "cannot use this safetensors header",
        why,
        "the file is damaged or incomplete: get it again",
    )
}

/// The length of the JSON, from a file's first eight bytes.
///
/// # Errors
/// The length is below [`MIN_JSON`], above `max`, or does not fit in a file of `file_len` bytes.
pub fn json_len(prefix: [u8; PREFIX as usize], file_len: u64, max: u64) -> Result<u64> {
    let len = u64::from_le_bytes(prefix);
    if !(MIN_JSON..=max).contains(&len) {
        return Err(bad(format!("its length is {len} bytes; {MIN_JSON} to {max} are allowed")));
    }
    match len.checked_add(PREFIX) {
        Some(end) if end <= file_len => Ok(len),
        _ => Err(bad(format!("it claims {len} bytes, and the file has {file_len} in all"))),
    }
}

/// Parses a whole file's header.
///
/// # Errors
/// See [`json_len`] and [`parse`]; also a file shorter than [`PREFIX`].
pub fn parse_file(file: &[u8], max: u64) -> Result<(Header, u64)> {
    let file_len = file.len() as u64;
    let Some((prefix, rest)) = file.split_first_chunk() else {
        return Err(bad(format!("the file has {file_len} bytes; a header takes at least 10")));
    };
    let len = json_len(*prefix, file_len, max)?;
    let start = PREFIX + len;
    let header = parse(&rest[..len as usize], file_len - start)?;
    Ok((header, start))
}

/// Parses the JSON of a file whose data are `data_len` bytes.
///
/// # Errors
/// Anything but one JSON object of well-formed tensors with unique names that tile the data exactly.
pub fn parse(json: &[u8], data_len: u64) -> Result<Header> {
    if json.first() != Some(&b'{') {
        return Err(bad("it does not begin with {"));
    }
    let text = std::str::from_utf8(json).map_err(|e| bad(format!("it is not UTF-8: {e}")))?;
    let raw: RawHeader =
        serde_json::from_str(text).map_err(|e| bad(visible(&format!("it does not parse: {e}"))))?;
    let mut names: Vec<&str> = raw.tensors.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(bad(format!("tensor {} is listed twice", visible(twice[0]))));
    }
    let mut tensors = raw
        .tensors
        .into_iter()
        .map(|(name, info)| checked(name, info))
        .collect::<Result<Vec<_>>>()?;
    tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
    check_tiling(&tensors, data_len)?;
    Ok(Header { tensors, metadata: raw.metadata.0 })
}

/// Bytes that a tensor of this type and shape takes; `None` when that is no whole number below 2⁶⁴.
pub fn tensor_bytes(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let bits = shape.iter().try_fold(dtype.bits, |n, d| n.checked_mul(*d));
    // Counting bits first would refuse tensors above 2⁶¹ bytes, which no file holds.
    bits.filter(|b| b % 8 == 0).map(|b| b / 8)
}

fn checked(name: String, info: Info) -> Result<Tensor> {
    let shown = || visible(&name);
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(bad(format!(
            "a tensor name has {} bytes; 1 to {MAX_NAME} are allowed",
            name.len()
        )));
    }
    let Some(dtype) = Dtype::from_name(&info.dtype) else {
        return Err(bad(format!(
            "tensor {} has the unknown type {}",
            shown(),
            visible(&info.dtype)
        )));
    };
    if info.shape.len() > MAX_RANK {
        return Err(bad(format!(
            "tensor {} has {} dimensions; {MAX_RANK} are allowed",
            shown(),
            info.shape.len()
        )));
    }
    let [begin, end] = info.data_offsets;
    let Some(want) = tensor_bytes(dtype, &info.shape) else {
        return Err(bad(format!(
            "tensor {}: {} of shape {:?} is no whole number of bytes below 2^61",
            shown(),
            dtype.name,
            info.shape
        )));
    };
    if end.checked_sub(begin) != Some(want) {
        return Err(bad(format!(
            "tensor {}: {} of shape {:?} takes {want} bytes, its offsets are {begin} to {end}",
            shown(),
            dtype.name,
            info.shape
        )));
    }
    Ok(Tensor { name, dtype, shape: info.shape, begin, end })
}

fn check_tiling(tensors: &[Tensor], data_len: u64) -> Result<()> {
    let mut at = 0;
    for t in tensors {
        if t.begin != at {
            let fault =
                if t.begin > at { "leaves a hole" } else { "overlaps the tensor before it" };
            return Err(bad(format!(
                "tensor {} {fault}: it begins at {}, the data before it end at {at}",
                visible(&t.name),
                t.begin
            )));
        }
        at = t.end;
    }
    if at != data_len {
        return Err(bad(format!("the tensors take {at} bytes, and the file holds {data_len}")));
    }
    Ok(())
}

/// Writes a header: keys sorted, and spaces so that the whole takes a multiple of `align` bytes and at least `room`.
/// The tensors' offsets are taken as they are.
pub fn write(header: &Header, room: u64, align: u64) -> Vec<u8> {
    let mut lines = BTreeMap::new();
    for t in &header.tensors {
        let info = serde_json::json!({
            "dtype": t.dtype.name, "shape": t.shape, "data_offsets": [t.begin, t.end],
        });
        lines.insert(t.name.as_str(), info);
    }
    if !header.metadata.is_empty() {
        lines.insert(METADATA, serde_json::json!(header.metadata));
    }
    let json = serde_json::json!(lines).to_string();
    let total = (PREFIX + json.len() as u64).max(room).next_multiple_of(align);
    let mut out = Vec::with_capacity(total as usize);
    out.extend_from_slice(&(total - PREFIX).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    out.resize(total as usize, b' ');
    out
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

struct RawHeader {
    tensors: Vec<(String, Info)>,
    metadata: UniqueMap<String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<RawHeader, D::Error> {
        d.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<RawHeader, A::Error> {
        use serde::de::Error as _;
        let (mut tensors, mut metadata) = (Vec::new(), None);
        while let Some(key) = map.next_key::<String>()? {
            if key == METADATA {
                if metadata.replace(map.next_value()?).is_some() {
                    return Err(A::Error::custom("__metadata__ is there twice"));
                }
            } else if tensors.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            } else {
                tensors.push((key, map.next_value::<Object<Info>>()?.0));
            }
        }
        Ok(RawHeader { tensors, metadata: metadata.unwrap_or_default() })
    }
}

/// A value written as a JSON object; a derived reader alone would also take an array of the fields in order.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Object<T>, D::Error> {
        d.deserialize_map(ObjectVisitor(PhantomData)).map(Object)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// A JSON object in which no key may come twice.
#[derive(Debug)]
pub struct UniqueMap<T>(pub BTreeMap<String, T>);

impl<T> Default for UniqueMap<T> {
    fn default() -> UniqueMap<T> {
        UniqueMap(BTreeMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<UniqueMap<T>, D::Error> {
        d.deserialize_map(UniqueVisitor(PhantomData)).map(UniqueMap)
    }
}

struct UniqueVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for UniqueVisitor<T> {
    type Value = BTreeMap<String, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        use serde::de::Error as _;
        let mut out = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, T>()? {
            match out.entry(key) {
                Entry::Vacant(place) => place.insert(value),
                Entry::Occupied(twice) => {
                    return Err(A::Error::custom(format!("{:?} is there twice", twice.key())));
                }
            };
        }
        Ok(out)
    }
}
