//! Metadata values, and the cursor that walks them.

use std::collections::HashMap;

use super::parse::bad;
use crate::error::{Error, Result, visible};

/// Arrays inside arrays, at most. Nothing known nests at all.
pub(super) const MAX_DEPTH: usize = 4;
/// The longest key or tensor name.
const MAX_NAME_BYTES: usize = 65_535;

/// A metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// `f32` or `f64`.
    Float(f64),
    /// `bool`
    Bool(bool),
    /// A string; UTF-8 by the rules, checked when it is used.
    Str(&'a [u8]),
    /// An array.
    Array(Array<'a>),
}

/// An array of metadata values, undecoded: the parser has checked that `count` whole values of `kind` fill `raw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array<'a> {
    kind: Kind,
    count: usize,
    raw: &'a [u8],
}

/// Type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Kind; 13] = {
        use Kind::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64]
    };

    fn name(self) -> &'static str {
        match self {
            Kind::U8 => "u8",
            Kind::I8 => "i8",
            Kind::U16 => "u16",
            Kind::I16 => "i16",
            Kind::U32 => "u32",
            Kind::I32 => "i32",
            Kind::F32 => "f32",
            Kind::Bool => "bool",
            Kind::Str => "string",
            Kind::Array => "array",
            Kind::U64 => "u64",
            Kind::I64 => "i64",
            Kind::F64 => "f64",
        }
    }

    /// Size of a value that needs no look inside; a bool does.
    fn fixed_bytes(self) -> Option<usize> {
        match self {
            Kind::U8 | Kind::I8 => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::Bool | Kind::Str | Kind::Array => None,
        }
    }
}

impl<'a> Array<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its elements, decoded one at a time.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Value<'a>> {
        let mut c =
            Cursor { bytes: self.raw, at: 0, file_len: self.raw.len() as u64, short: false };
        (0..self.count).map(move |_| {
            c.value(self.kind, MAX_DEPTH, "array").expect("the parser walked this array to its end")
        })
    }
}

impl Value<'_> {
    /// Its type in words, for messages.
    pub fn type_name(&self) -> String {
        match self {
            Value::Unsigned(_) => "an unsigned integer".into(),
            Value::Signed(_) => "a signed integer".into(),
            Value::Float(_) => "a float".into(),
            Value::Bool(_) => "a bool".into(),
            Value::Str(_) => "a string".into(),
            Value::Array(a) => format!("an array of {} {}", a.count, a.kind.name()),
        }
    }

    /// As an integer ≥ 0, whatever its width and sign in the file.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(x) => Some(x),
            Value::Signed(x) => u64::try_from(x).ok(),
            _ => None,
        }
    }

    /// As a number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Float(x) => Some(x),
            Value::Unsigned(x) => Some(x as f64),
            Value::Signed(x) => Some(x as f64),
            _ => None,
        }
    }
}

/// The key–value pairs, with typed access. A missing key is `None`; a key of the wrong type is an error.
#[derive(Debug, Default)]
pub struct Metadata<'a> {
    pairs: Vec<(&'a str, Value<'a>)>,
    index: HashMap<&'a str, usize>,
}

impl<'a> Metadata<'a> {
    /// Adds a pair; false when the key is there already.
    pub(super) fn insert(&mut self, key: &'a str, value: Value<'a>) -> bool {
        let new = self.index.insert(key, self.pairs.len()).is_none();
        self.pairs.push((key, value));
        new
    }

    /// All pairs in file order.
    pub fn pairs(&self) -> &[(&'a str, Value<'a>)] {
        &self.pairs
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.index.get(key).map(|i| self.pairs[*i].1)
    }

    /// An integer ≥ 0.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer ≥ 0", |v| v.as_u64())
    }

    /// A number.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |v| v.as_f64())
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |v| match v {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a UTF-8 string", |v| match v {
            Value::Str(raw) => std::str::from_utf8(raw).ok(),
            _ => None,
        })
    }

    /// An array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>> {
        self.typed(key, "an array", |v| match v {
            Value::Array(a) => Some(a),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strs(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.elements(key, "a UTF-8 string", |v| match v {
            Value::Str(raw) => std::str::from_utf8(raw).ok(),
            _ => None,
        })
    }

    /// An array whose elements all satisfy `pick`; the first that does not is named.
    pub fn elements<T>(
        &self,
        key: &str,
        wanted: &str,
        pick: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        let mut out = Vec::with_capacity(array.len());
        for (i, v) in array.iter().enumerate() {
            let x = pick(v).ok_or_else(|| {
                bad(format!("element {i} of metadata {} is not {wanted}", visible(key)))
            })?;
            out.push(x);
        }
        Ok(Some(out))
    }

    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        pick: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        pick(value).map(Some).ok_or_else(|| {
            bad(format!("metadata {} is {}, not {wanted}", visible(key), value.type_name()))
        })
    }
}

/// A position in the bytes; every read names what it wanted.
pub(super) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    /// Bytes of the whole file, of which `bytes` is the beginning.
    pub file_len: u64,
    /// Set when something ended beyond `bytes`, but not beyond the file.
    pub short: bool,
}

impl<'a> Cursor<'a> {
    pub fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let left = &self.bytes[self.at..];
        if n > left.len() {
            let file_left = self.file_len.saturating_sub(self.at as u64);
            self.short = n as u64 <= file_left;
            return Err(Error::bad_file(
                "cannot read the GGUF file",
                format!(
                    "{what} at byte {} wants {n} bytes, and only {file_left} are left in the file",
                    self.at
                ),
                "the file is probably incomplete: get it again",
            ));
        }
        self.at += n;
        Ok(&left[..n])
    }

    fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &str) -> Result<&'a [u8]> {
        let n = self.u64(what)?;
        self.take(usize::try_from(n).unwrap_or(usize::MAX), what)
    }

    /// A key or tensor name: not empty, UTF-8, of bounded length.
    pub fn name(&mut self, what: &str) -> Result<&'a str> {
        let raw = self.string(what)?;
        if raw.is_empty() || raw.len() > MAX_NAME_BYTES {
            return Err(bad(format!(
                "{what} has {} bytes; 1 to {MAX_NAME_BYTES} are allowed",
                raw.len()
            )));
        }
        std::str::from_utf8(raw).map_err(|_| {
            bad(format!("{what} is not UTF-8: {}", visible(&String::from_utf8_lossy(raw))))
        })
    }

    pub fn kind(&mut self, what: &str) -> Result<Kind> {
        let id = self.u32(what)?;
        let kind = usize::try_from(id).ok().and_then(|i| Kind::ALL.get(i).copied());
        kind.ok_or_else(|| bad(format!("{what} has the unknown value type {id}")))
    }

    pub fn value(&mut self, kind: Kind, depth: usize, what: &str) -> Result<Value<'a>> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(u8::from_le_bytes(self.fixed(what)?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(self.fixed(what)?).into()),
            Kind::U32 => Value::Unsigned(u32::from_le_bytes(self.fixed(what)?).into()),
            Kind::U64 => Value::Unsigned(u64::from_le_bytes(self.fixed(what)?)),
            Kind::I8 => Value::Signed(i8::from_le_bytes(self.fixed(what)?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(self.fixed(what)?).into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(self.fixed(what)?).into()),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.fixed(what)?)),
            Kind::F32 => Value::Float(f32::from_le_bytes(self.fixed(what)?).into()),
            Kind::F64 => Value::Float(f64::from_le_bytes(self.fixed(what)?)),
            Kind::Bool => match self.fixed::<1>(what)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                x => return Err(bad(format!("{what} is a bool of value {x}"))),
            },
            Kind::Str => Value::Str(self.string(what)?),
            Kind::Array => Value::Array(self.array(depth, what)?),
        })
    }

    /// Walks an array to find its end. Every element takes at least one byte, so time is bounded by the file.
    fn array(&mut self, depth: usize, what: &str) -> Result<Array<'a>> {
        if depth == 0 {
            return Err(bad(format!("{what} nests arrays more than {MAX_DEPTH} deep")));
        }
        let kind = self.kind(what)?;
        let count = self.u64(what)?;
        let start = self.at;
        match kind.fixed_bytes() {
            Some(size) => {
                let total = usize::try_from(count).ok().and_then(|n| n.checked_mul(size));
                self.take(total.unwrap_or(usize::MAX), what)?;
            }
            None => {
                for _ in 0..count {
                    self.value(kind, depth - 1, what)?;
                }
            }
        }
        // Seen in full, so it fits: every element took a byte of the file.
        Ok(Array { kind, count: count as usize, raw: &self.bytes[start..self.at] })
    }
}
