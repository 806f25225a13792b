//! Limits on what a template may hold, so that every operation on a value is cheap.
//!
//! The engine's fuel pays for instructions and for bytes made, but not for walking a value: comparing or printing
//! `x` after forty times `{% set x = [x, x] %}` never ends, and forty lists in one another end on the stack. So
//! values are measured where they are made: [`source`](super::source) routes every list, tuple and mapping in a
//! template, every `set`, and the left side of every `+` through a filter of this module.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Filters by the names that the rewritten template calls them by.
pub(super) const BOUND: &str = "bound";
pub(super) const HELD: &str = "held";
pub(super) const SIZED: &str = "sized";
pub(super) const SCALAR: &str = "scalar";

/// A variable that no template can name: the most values and the most bytes of text in one value.
pub(super) const LIMITS: &str = "limits of a value";

/// What a value may hold before the size of the messages is added.
pub(super) const MAX_VALUES: usize = 20_000;
pub(super) const MAX_BYTES: usize = 4 << 20;

/// How deep a value may be nested; JSON that people send is less deep.
const MAX_DEPTH: usize = 160;

/// Registers the filters, and the functions that make mappings.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(BOUND, |state: &State, value: Value| bound(state, value, false));
    environment.add_filter(HELD, |state: &State, value: Value| bound(state, value, true));
    environment.add_filter(SIZED, sized);
    environment.add_filter(SCALAR, scalar);
    environment.add_filter("sum", sum);
    // Not Jinja's, and lazy; or printing without limit.
    for name in ["chain", "zip", "pprint"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment.add_function("dict", |state: &State, value: Option<Value>, named: Kwargs| {
        bound(state, minijinja::functions::dict(value, named)?, true)
    });
    environment.add_function("namespace", namespace);
}

fn fail(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// Walks a value and counts.
struct Scale {
    values: usize,
    bytes: usize,
}

impl Scale {
    /// What may be in one value during this rendering.
    fn new(state: &State) -> Scale {
        let limits = state.lookup(LIMITS);
        let limit = |i, least| {
            let limit = limits.as_ref().and_then(|limits| limits.get_item_by_index(i).ok());
            limit.and_then(|limit| limit.as_usize()).unwrap_or(least)
        };
        Scale { values: limit(0, MAX_VALUES), bytes: limit(1, MAX_BYTES) }
    }

    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        match (self.values.checked_sub(1), self.bytes.checked_sub(bytes)) {
            (Some(values), Some(bytes)) => {
                (self.values, self.bytes) = (values, bytes);
                Ok(())
            }
            _ => Err(fail("a value holds too much")),
        }
    }

    fn weigh(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fail("a value is nested too deep"));
        }
        self.take(value.as_str().map_or(0, str::len))?;
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()?.checked() {
                    self.weigh(&item?, depth + 1)?;
                }
            }
            ValueKind::Map if is_namespace(value) => {
                return Err(fail("a namespace cannot be part of a value"));
            }
            ValueKind::Map => {
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    self.weigh(&key, depth + 1)?;
                    self.weigh(&value.get_item(&key)?, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether templates can assign to the attributes of this mapping. (The engine's type is private; its name is not.)
fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Weighs a value that is made or stored. Lazy lists become plain ones, as they are in Python; so a list of a list
/// of a list cannot hide that it is one. `held` values go into a namespace, which must not contain itself.
fn bound(state: &State, value: Value, held: bool) -> Result<Value, Error> {
    if !held && is_namespace(&value) {
        return Ok(value);
    }
    let mut scale = Scale::new(state);
    let before = scale.values;
    let value = match value.kind() {
        ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                let item = item?;
                scale.weigh(&item, 1)?;
                items.push(item);
            }
            Value::from(items)
        }
        _ => {
            scale.weigh(&value, 0)?;
            value
        }
    };
    state.consume_fuel((before - scale.values) as u64 / 8)?;
    Ok(value)
}

/// The left side of a `+`: a list must be short enough to be made longer.
fn sized(state: &State, value: Value) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        if value.len().is_none() {
            return Err(fail("a generator cannot be added to"));
        }
        let mut scale = Scale::new(state);
        let before = scale.values;
        scale.weigh(&value, 0)?;
        state.consume_fuel((before - scale.values) as u64 / 8)?;
    }
    Ok(value)
}

/// A side of a `*`: numbers and texts multiply, lists (for which templates have no use) do not.
fn scalar(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => Err(fail("a list cannot be repeated")),
        _ => Ok(value),
    }
}

/// `namespace(mapping, name=value, …)`, of values that are not namespaces.
fn namespace(state: &mut State, mapping: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let values = bound(state, minijinja::functions::dict(mapping, named)?, true)?;
    Value::from_function(minijinja::functions::namespace).call(state, &[values])
}

/// `sum(attribute=None, start=0)` of numbers. (Python's also joins lists, which no template was seen to want.)
fn sum(
    state: &State,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let start = match start {
        Some(start) => Some(start),
        None => named.get("start")?,
    };
    if start.as_ref().is_some_and(|start| !start.is_number()) {
        return Err(fail("sum: the start is not a number"));
    }
    minijinja::filters::sum(state, values, attribute, start, named)
}
