//! Filters and tests of Python's Jinja that minijinja lacks, or has with other arguments or answers.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};

use super::{json, methods};

/// Registers them.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(print);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", methods::trim);
    environment.add_filter("format", methods::printf);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("wordcount", |text: &str| text.split_whitespace().count());
    environment.add_filter("center", |state: &mut State, value: &Value, width: Option<i64>| {
        methods::call(state, value, "center", &[Value::from(width.unwrap_or(80))])
    });
    for name in ["e", "escape", "forceescape"] {
        environment.add_filter(name, escape);
    }
    environment.add_test("sequence", is_sequence);
    environment
        .add_test("iterable", |value: &Value| is_sequence(value) || value.try_iter().is_ok());
    environment.add_test("callable", is_callable);
}

/// Prints a value; floats as Python does.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        let x = f64::try_from(value.clone())?;
        return out.write_str(&json::float_str(x)).map_err(Error::from);
    }
    escape_formatter(out, state, value)
}

/// In Python whatever has a length and items is a sequence: texts, mappings, and even `Undefined`.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        // `range` and its like; generators have no length.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

/// HTML escapes as MarkupSafe writes them.
fn escape(value: &Value) -> Value {
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(out)
}

/// Functions and macros.
fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain && value.as_object().is_some()
}

/// `default(default_value='', boolean=False)`
fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let other = match other {
        Some(other) => other,
        None => named.get::<Option<Value>>("default_value")?.unwrap_or_else(|| Value::from("")),
    };
    let boolean = match boolean {
        Some(boolean) => boolean.is_true(),
        None => named.get::<Option<Value>>("boolean")?.is_some_and(|value| value.is_true()),
    };
    named.assert_all_used()?;
    let missing = value.is_undefined() || (boolean && !value.is_true());
    Ok(if missing { other } else { value.clone() })
}

fn defined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() { Err(Error::from(ErrorKind::UndefinedError)) } else { Ok(()) }
}

/// `int(default=0, base=10)`: what is not a number becomes the default.
fn int(
    value: &Value,
    other: Option<Value>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Value, Error> {
    let other = match other {
        Some(other) => other,
        None => named.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0)),
    };
    let base = match base {
        Some(base) => base,
        None => named.get::<Option<u32>>("base")?.unwrap_or(10),
    };
    named.assert_all_used()?;
    defined(value)?;
    let number = match value.as_str() {
        Some(text) => {
            parse_int(text.trim(), base).or_else(|| float_to_int(text.trim().parse().ok()?))
        }
        None if value.kind() == ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        None if value.is_integer() => Some(value.clone()),
        None => f64::try_from(value.clone()).ok().and_then(float_to_int),
    };
    Ok(number.unwrap_or(other))
}

fn parse_int(text: &str, base: u32) -> Option<Value> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let digits = match base {
        2 => lower.strip_prefix("0b").unwrap_or(&lower),
        8 => lower.strip_prefix("0o").unwrap_or(&lower),
        16 => lower.strip_prefix("0x").unwrap_or(&lower),
        3..=36 => &lower,
        _ => return None,
    };
    // Python allows single underscores between digits.
    let tidy =
        !digits.starts_with(['_', '+', '-']) && !digits.ends_with('_') && !digits.contains("__");
    let number = i64::from_str_radix(&digits.replace('_', ""), base).ok().filter(|_| tidy)?;
    Some(Value::from(sign * number))
}

fn float_to_int(x: f64) -> Option<Value> {
    // Casting truncates towards zero, as Python does; the range is checked first.
    (x.is_finite() && x.abs() < 1e18).then(|| Value::from(x as i64))
}

/// `float(default=0.0)`
fn float(value: &Value, other: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let other = match other {
        Some(other) => other,
        None => named.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0.0)),
    };
    named.assert_all_used()?;
    defined(value)?;
    let number = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    Ok(number.map_or(other, Value::from))
}
