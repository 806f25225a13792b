//! Typed access to a JSON object that names the key in every complaint.

use serde_json::{Map, Value};

use crate::error::{Error, Result, visible};

/// An object of config.json. A key with the value `null` counts as absent.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
}

/// What a key may say without changing the result.
#[derive(Clone, Copy)]
pub enum Neutral {
    /// `null`, `false`, zero, or nothing in it.
    Off,
    /// `null` or one.
    One,
}

pub fn bad(why: impl Into<String>) -> Error {
    Error::bad_file(
        "cannot use this config.json",
        why,
        "use a model of a supported kind, or check that the file is intact",
    )
}

/// A value as it stands in the file, short and safe to show.
pub fn shown(value: &Value) -> String {
    visible(&value.to_string())
}

impl<'a> Fields<'a> {
    pub fn of(json: &'a Value) -> Result<Fields<'a>> {
        match json {
            Value::Object(map) => Ok(Fields { map }),
            _ => Err(bad("it is not a JSON object")),
        }
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is there at all, even as `null`.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(v) => Err(bad(format!("{key} is {}, not a string", shown(v)))),
        }
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => Err(bad(format!("{key} is {}, not true or false", shown(v)))),
        }
    }

    /// A finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(Some(x)),
                None => Err(bad(format!("{key} is {}, not a number", shown(v)))),
            },
        }
    }

    /// A finite number above zero.
    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.number(key)? {
            Some(x) if x <= 0.0 => Err(bad(format!("{key} is {x}, and must be above zero"))),
            x => Ok(x),
        }
    }

    /// A whole number in `1..=most`, when the key is there.
    pub fn size(&self, key: &str, most: u32) -> Result<Option<u32>> {
        let Some(v) = self.get(key) else { return Ok(None) };
        match v.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(n) if (1..=most).contains(&n) => Ok(Some(n)),
            _ => Err(bad(format!("{key} is {}, not a whole number from 1 to {most}", shown(v)))),
        }
    }

    /// A whole number in `1..=most` that must be there.
    pub fn required(&self, key: &str, most: u32) -> Result<u32> {
        self.size(key, most)?.ok_or_else(|| bad(format!("{key} is missing")))
    }

    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { map })),
            Some(v) => Err(bad(format!("{key} is {}, not an object", shown(v)))),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// Refuses a key by name unless it says nothing that matters.
    pub fn refuse_unless(&self, key: &str, neutral: Neutral) -> Result<()> {
        let Some(v) = self.get(key) else { return Ok(()) };
        let harmless = match (neutral, v) {
            (Neutral::Off, Value::Bool(b)) => !b,
            (Neutral::Off, Value::Number(n)) => n.as_f64() == Some(0.0),
            (Neutral::Off, Value::Array(a)) => a.is_empty(),
            (Neutral::Off, Value::Object(o)) => o.is_empty(),
            (Neutral::One, Value::Number(n)) => n.as_f64() == Some(1.0),
            _ => false,
        };
        if harmless {
            return Ok(());
        }
        Err(bad(format!("{key} = {} is not supported", shown(v))))
    }
}
