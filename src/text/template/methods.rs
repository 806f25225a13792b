//! Methods of Python's `str`, `list` and `dict` that templates call and minijinja does not have, or has otherwise.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// What Python counts as white space: Unicode's, and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Where Python's `splitlines` splits.
fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn fail(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// Called for every method that minijinja itself does not know.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => sequence(value, method, args)?,
        ValueKind::Map if method == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    match own {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string(state: &State, s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" => strip(s, args, true, true)?,
        "lstrip" => strip(s, args, true, false)?,
        "rstrip" => strip(s, args, false, true)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "partition" => {
            let (sep,): (&str,) = from_args(args)?;
            parts(s, sep, s.split_once(non_empty(sep)?), false)
        }
        "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            parts(s, sep, s.rsplit_once(non_empty(sep)?), true)
        }
        "split" => split(s, args)?,
        "rsplit" => rsplit(s, args)?,
        "splitlines" => splitlines(s, args)?,
        "startswith" => affix(s, args, |s, affix| s.starts_with(affix))?,
        "endswith" => affix(s, args, |s, affix| s.ends_with(affix))?,
        "find" | "index" => search(s, args, method == "index", |s, what| s.find(what))?,
        "rfind" | "rindex" => search(s, args, method == "rindex", |s, what| s.rfind(what))?,
        "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (_, part) = window(s, start, end);
            let n =
                if what.is_empty() { part.chars().count() + 1 } else { part.matches(what).count() };
            Value::from(n)
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(state, s, method, args)?,
        "swapcase" => {
            let () = from_args(args)?;
            s.chars().map(swap_case).collect::<String>().into()
        }
        "casefold" => {
            let () = from_args(args)?;
            s.to_lowercase().replace('ß', "ss").into()
        }
        "title" => {
            let () = from_args(args)?;
            title(s).into()
        }
        "capitalize" => {
            let () = from_args(args)?;
            let mut rest = s.chars();
            let first: String = rest.next().into_iter().flat_map(char::to_uppercase).collect();
            (first + &rest.as_str().to_lowercase()).into()
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(is_space))
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(|c| c.is_ascii_digit()))
        }
        "istitle" => {
            let () = from_args(args)?;
            Value::from(s.chars().any(char::is_alphabetic) && title(s) == s)
        }
        "format" => {
            modest_format(s)?;
            return Ok(None);
        }
        "expandtabs" => expand_tabs(state, s, args)?,
        _ => return Ok(None),
    }))
}

/// The widest field that a format may ask for.
const MAX_FORMAT_WIDTH: u32 = 10_000;

/// The filter `format`: Python's `%`. minijinja takes specifiers apart by bytes, so they must be ASCII.
pub(super) fn printf(
    state: &mut State,
    format: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let mut rest = format.as_str().unwrap_or_default();
    while let Some((_, spec)) = rest.split_once('%') {
        let named = spec.strip_prefix('(').map(|spec| spec.split_once(')').unwrap_or((spec, "")));
        let (name, spec) = named.unwrap_or(("", spec));
        let end = spec.find(|c: char| c == '%' || c.is_alphabetic() || !c.is_ascii());
        let end = end.filter(|&end| name.is_ascii() && spec.as_bytes()[end].is_ascii());
        let Some(end) = end else {
            return Err(fail("format: a specifier is not ASCII, or has no end"));
        };
        rest = &spec[end + 1..];
    }
    minijinja::filters::format(state, format, args)
}

/// Refuses `'{:>999999999}'`, which would fill the memory before anything is charged, and widths that are fields
/// themselves.
fn modest_format(format: &str) -> Result<(), Error> {
    let text = format.replace("{{", "").replace("}}", "");
    for field in text.split('{').skip(1) {
        let Some((field, _)) = field.split_once('}') else {
            return Err(fail("format: a field has no end, or a field inside"));
        };
        if !field.is_ascii() {
            return Err(fail("format: a field must be ASCII"));
        }
        let numbers =
            field.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        for digits in numbers {
            if !digits.parse().is_ok_and(|n: u32| n <= MAX_FORMAT_WIDTH) {
                return Err(fail(format!("format: {digits} is too wide")));
            }
        }
    }
    Ok(())
}

fn non_empty(sep: &str) -> Result<&str, Error> {
    if sep.is_empty() { Err(fail("empty separator")) } else { Ok(sep) }
}

/// The filter `trim`, which is `str.strip` of the value as text.
pub(super) fn trim(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let chars: Option<Value> = match args.first() {
        Some(chars) => Some(chars.clone()),
        None => named.get("chars")?,
    };
    named.assert_all_used()?;
    let text = value.to_str().map_or_else(|| value.to_string(), |text| text.to_string());
    strip(&text, chars.as_slice(), true, true)
}

fn strip(s: &str, args: &[Value], left: bool, right: bool) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let s = if left { s.trim_start_matches(goes) } else { s };
    Ok(Value::from(if right { s.trim_end_matches(goes) } else { s }))
}

fn parts(s: &str, sep: &str, found: Option<(&str, &str)>, at_end: bool) -> Value {
    let parts = match found {
        Some((before, after)) => [before, sep, after],
        None if at_end => ["", "", s],
        None => [s, "", ""],
    };
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// `sep` and `maxsplit`, by position or by name; −1 is no limit.
fn split_args(args: &[Value]) -> Result<(Option<String>, usize), Error> {
    let (sep, max, named): (Option<Value>, Option<Value>, Kwargs) = from_args(args)?;
    let sep = match sep {
        Some(sep) => Some(sep),
        None => named.get("sep")?,
    };
    let max = match max {
        Some(max) => Some(max),
        None => named.get("maxsplit")?,
    };
    named.assert_all_used()?;
    let sep = match sep.filter(|sep| !sep.is_none()) {
        None => None,
        Some(sep) => {
            let sep = sep.as_str().ok_or_else(|| fail("the separator must be a string"))?;
            Some(non_empty(sep)?.to_owned())
        }
    };
    let max = match max {
        None => usize::MAX,
        Some(max) => usize::try_from(i64::try_from(max)?).unwrap_or(usize::MAX),
    };
    Ok((sep, max))
}

fn split(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (sep, max) = split_args(args)?;
    if let Some(sep) = sep {
        return Ok(s.splitn(max.saturating_add(1), &sep).map(Value::from).collect());
    }
    let mut found = Vec::new();
    let mut rest = s.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if found.len() < max { rest.find(is_space) } else { None };
        let Some(end) = end else {
            found.push(Value::from(if found.len() < max {
                rest
            } else {
                rest.trim_end_matches(is_space)
            }));
            break;
        };
        found.push(Value::from(&rest[..end]));
        rest = rest[end..].trim_start_matches(is_space);
    }
    Ok(Value::from(found))
}

fn rsplit(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (sep, max) = split_args(args)?;
    let mut found: Vec<Value> = match sep {
        Some(sep) => s.rsplitn(max.saturating_add(1), &sep).map(Value::from).collect(),
        None => {
            let mut found = Vec::new();
            let mut rest = s.trim_end_matches(is_space);
            while !rest.is_empty() {
                let cut = if found.len() < max {
                    rest.char_indices().rfind(|(_, c)| is_space(*c))
                } else {
                    None
                };
                let Some((at, c)) = cut else {
                    found.push(Value::from(rest.trim_start_matches(is_space)));
                    break;
                };
                found.push(Value::from(&rest[at + c.len_utf8()..]));
                rest = rest[..at].trim_end_matches(is_space);
            }
            found
        }
    };
    found.reverse();
    Ok(Value::from(found))
}

fn splitlines(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = match keep {
        Some(keep) => keep,
        None => named.get::<Option<bool>>("keepends")?.unwrap_or(false),
    };
    named.assert_all_used()?;
    let mut lines = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(is_line_end) {
        let c = rest[at..].chars().next().map_or(1, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { c };
        lines.push(Value::from(&rest[..if keep { end } else { at }]));
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}

/// The characters `start..end` of `s`, counted as Python slices count, and how many come before.
fn window(s: &str, start: Option<i64>, end: Option<i64>) -> (usize, &str) {
    if start.is_none() && end.is_none() {
        return (0, s);
    }
    let len = s.chars().count();
    let place = |at: i64| {
        let from_end = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
        if at < 0 { len.saturating_sub(from_end) } else { from_end.min(len) }
    };
    let start = place(start.unwrap_or(0));
    let end = end.map_or(len, place).max(start);
    let byte = |n: usize| s.char_indices().nth(n).map_or(s.len(), |(at, _)| at);
    (start, &s[byte(start)..byte(end)])
}

fn affix(s: &str, args: &[Value], test: fn(&str, &str) -> bool) -> Result<Value, Error> {
    let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let (_, part) = window(s, start, end);
    if let Some(affix) = what.as_str() {
        return Ok(Value::from(test(part, affix)));
    }
    if !what.is_tuple() {
        return Err(fail(format!("expected a string or a tuple of strings, not {}", what.kind())));
    }
    for affix in what.try_iter()? {
        let affix = affix.as_str().ok_or_else(|| fail("the tuple must hold strings only"))?;
        if test(part, affix) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn search(
    s: &str,
    args: &[Value],
    must: bool,
    find: fn(&str, &str) -> Option<usize>,
) -> Result<Value, Error> {
    let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let (before, part) = window(s, start, end);
    match find(part, what) {
        Some(at) => Ok(Value::from(before + part[..at].chars().count())),
        None if must => Err(fail("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn pad(state: &State, s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let mut fill_chars = fill.unwrap_or(if method == "zfill" { "0" } else { " " }).chars();
    let (Some(fill), None) = (fill_chars.next(), fill_chars.next()) else {
        return Err(fail("the fill character must be exactly one character long"));
    };
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(s.chars().count());
    state.consume_fuel(missing as u64 / 16)?; // before it is allocated
    let fills = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    Ok(Value::from(match method {
        "ljust" => s.to_owned() + &fills(missing),
        "rjust" => fills(missing) + s,
        "center" => {
            // Python puts the odd one on the left when the width is odd.
            let left = missing / 2 + (missing & width & 1);
            fills(left) + s + &fills(missing - left)
        }
        _ => match s.strip_prefix(['+', '-']) {
            Some(digits) => s[..1].to_owned() + &fills(missing) + digits,
            None => fills(missing) + s,
        },
    }))
}

fn swap_case(c: char) -> String {
    if c.is_lowercase() { c.to_uppercase().collect() } else { c.to_lowercase().collect() }
}

/// Python's `str.title`: a letter after a letter is lower, any other is upper.
fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
    }
    out
}

fn expand_tabs(state: &State, s: &str, args: &[Value]) -> Result<Value, Error> {
    let (size,): (Option<i64>,) = from_args(args)?;
    let size = usize::try_from(size.unwrap_or(8)).unwrap_or(0);
    let mut out = String::new();
    let mut column = 0;
    for c in s.chars() {
        if c == '\t' {
            let blanks = if size == 0 { 0 } else { size - column % size };
            state.consume_fuel(1 + blanks as u64 / 16)?;
            out.extend(std::iter::repeat_n(' ', blanks));
            column += blanks;
        } else {
            out.push(c);
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
        }
    }
    Ok(Value::from(out))
}

fn sequence(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *what);
            at.map(|at| Some(Value::from(at))).ok_or_else(|| fail("the value is not in the list"))
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            Err(fail(format!("{method} would change a list, which templates may not")))
        }
        _ => Ok(None),
    }
}
