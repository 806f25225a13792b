//! `tojson` as chat templates expect it: Python's `json.dumps`, not minijinja's HTML-safe form.

use std::fmt::Write;
use std::ops::Range;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// The arguments of `json.dumps` that the Hugging Face filter passes on.
struct Style {
    ensure_ascii: bool,
    /// One level of indentation; `None` writes everything on one line.
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

fn fail(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

impl Style {
    /// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, by position or by name.
    fn new(positional: &[Value], named: &Kwargs) -> Result<Style, Error> {
        let get = |at: usize, name: &str| -> Result<Option<Value>, Error> {
            let value = match positional.get(at) {
                Some(value) => Some(value.clone()),
                None => named.get::<Option<Value>>(name)?,
            };
            Ok(value.filter(|value| !value.is_none()))
        };
        let truth = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let indent = match get(1, "indent")? {
            None => None,
            Some(value) => Some(match value.as_str() {
                Some(text) => text.to_owned(),
                None => {
                    let width =
                        i64::try_from(value).map_err(|_| fail("indent must be a number"))?;
                    " ".repeat(usize::try_from(width.clamp(0, 1000)).unwrap_or(0))
                }
            }),
        };
        let (mut item, mut key) =
            (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
        if let Some(pair) = get(2, "separators")? {
            let part = |at| {
                let part = pair.get_item_by_index(at)?;
                part.as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| fail("separators must be two strings"))
            };
            (item, key) = (part(0)?, part(1)?);
        }
        let style = Style {
            ensure_ascii: truth(get(0, "ensure_ascii")?),
            indent,
            item,
            key,
            sort_keys: truth(get(3, "sort_keys")?),
        };
        named.assert_all_used()?;
        Ok(style)
    }
}

/// A variable that no template can name: the codes of characters that stand for others (see `paint`), first and past
/// the last. `ensure_ascii` lets them be.
pub(super) const PAINT: &str = "painted characters";

fn painted(state: &State) -> Range<u32> {
    let bound = |value: &Value, i| {
        value.get_item_by_index(i).ok().and_then(|code| u32::try_from(code).ok()).unwrap_or(0)
    };
    state.lookup(PAINT).map_or(0..0, |codes| bound(&codes, 0)..bound(&codes, 1))
}

/// The filter.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let style = Style::new(&positional, &named)?;
    let mut writer = Writer { out: String::new(), paid: 0, state, style, painted: painted(state) };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'s, 't, 'e> {
    out: String,
    /// Bytes of `out` that fuel was charged for.
    paid: usize,
    state: &'s State<'t, 'e>,
    style: Style,
    painted: Range<u32>,
}

/// Values deeper than this are refused (Python's limit is of the same order).
const MAX_DEPTH: usize = 128;

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fail(format!("tojson: nested deeper than {MAX_DEPTH} levels")));
        }
        // Pay before the output grows: one unit for each value and for each 16 bytes.
        let units = 1 + (self.out.len() - self.paid) / 16;
        self.paid = self.out.len();
        self.state.consume_fuel(units as u64)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            // Slices and sums of lists are iterables that know their length.
            ValueKind::Seq => self.seq(value, depth)?,
            ValueKind::Iterable if value.len().is_some() => self.seq(value, depth)?,
            _ => {
                return Err(fail(format!("tojson: {} is not JSON serializable", value.kind())));
            }
        }
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn seq(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()? {
            if any {
                self.out.push_str(&self.style.item);
            }
            any = true;
            self.line(depth + 1);
            self.value(&item, depth + 1)?;
        }
        if any {
            self.line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let any = !keys.is_empty();
        for (i, key) in keys.into_iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.style.item);
            }
            self.line(depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool => {
                    self.out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" });
                }
                ValueKind::Number => {
                    let text = number(&key)?;
                    let _ = write!(self.out, "\"{text}\"");
                }
                kind => return Err(fail(format!("tojson: a key cannot be a {kind}"))),
            }
            self.out.push_str(&self.style.key);
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        if any {
            self.line(depth);
        }
        self.out.push('}');
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if self.painted.contains(&u32::from(c)) => self.out.push(c),
                c if c < ' ' || (self.style.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let x = f64::try_from(value.clone()).map_err(|_| fail("tojson: not a number"))?;
    Ok(match x {
        _ if x.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => float_repr(x),
    })
}

/// A float as Python's `str` writes it.
pub(super) fn float_str(x: f64) -> String {
    if x.is_finite() { float_repr(x) } else { x.to_string().to_lowercase() }
}

/// A finite float as Python's `repr` writes it: the shortest digits that read back, with an exponent below 1e-4 and
/// from 1e16 on.
fn float_repr(x: f64) -> String {
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[test]
    fn floats_as_python_writes_them() {
        for (x, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.25e300, "-1.25e+300"),
            (5e-324, "5e-324"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(float_repr(x), want);
        }
    }
}
