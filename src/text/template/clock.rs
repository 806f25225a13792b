//! `strftime_now`: the date as Python's `datetime.now().strftime` writes it.

use std::fmt::Write;

use jiff::civil::{DateTime, Weekday};

const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A field of a time: a number with its usual width and filler, or text.
enum Field {
    Number(i64, usize, char),
    Text(String),
}

/// What `%letter` stands for; `None` for a letter that stands for nothing.
fn field(now: DateTime, letter: char) -> Option<Field> {
    let zero = |value: i64, width: usize| Field::Number(value, width, '0');
    let blank = |value: i64| Field::Number(value, 2, ' ');
    let text = |text: &str| Field::Text(text.to_owned());
    let format = |pattern: &str| Field::Text(strftime(now, pattern));
    let day = DAYS[usize::try_from(now.weekday().to_monday_zero_offset()).unwrap_or(0)];
    let month = MONTHS[usize::try_from(now.month() - 1).unwrap_or(0)];
    let hour12 = i64::from((now.hour() + 11) % 12 + 1);
    let year = i64::from(now.year());
    // Week of the year: days before the first Sunday (or Monday) are in week 0.
    let yday = i64::from(now.day_of_year());
    let week = |first: Weekday| (yday + 6 - i64::from(now.weekday().since(first))) / 7;
    let iso = now.date().iso_week_date();
    Some(match letter {
        'A' => text(day),
        'a' => text(&day[..3]),
        'B' => text(month),
        'b' | 'h' => text(&month[..3]),
        'C' => zero(year.div_euclid(100), 2),
        'c' => format("%a %b %e %H:%M:%S %Y"),
        'D' | 'x' => format("%m/%d/%y"),
        'd' => zero(i64::from(now.day()), 2),
        'e' => blank(i64::from(now.day())),
        'F' => format("%Y-%m-%d"),
        'f' => zero(i64::from(now.subsec_nanosecond() / 1000), 6),
        'G' => zero(i64::from(iso.year()), 4),
        'g' => zero(i64::from(iso.year()).rem_euclid(100), 2),
        'H' => zero(i64::from(now.hour()), 2),
        'I' => zero(hour12, 2),
        'j' => zero(yday, 3),
        'k' => blank(i64::from(now.hour())),
        'l' => blank(hour12),
        'M' => zero(i64::from(now.minute()), 2),
        'm' => zero(i64::from(now.month()), 2),
        'n' => text("\n"),
        'P' => text(if now.hour() < 12 { "am" } else { "pm" }),
        'p' => text(if now.hour() < 12 { "AM" } else { "PM" }),
        'R' => format("%H:%M"),
        'r' => format("%I:%M:%S %p"),
        'S' => zero(i64::from(now.second()), 2),
        'T' | 'X' => format("%H:%M:%S"),
        't' => text("\t"),
        'U' => zero(week(Weekday::Sunday), 2),
        'u' => zero(i64::from(now.weekday().to_monday_one_offset()), 1),
        'V' => zero(i64::from(iso.week()), 2),
        'W' => zero(week(Weekday::Monday), 2),
        'w' => zero(i64::from(now.weekday().to_sunday_zero_offset()), 1),
        'Y' => zero(year, 1),
        'y' => zero(year.rem_euclid(100), 2),
        'Z' | 'z' => text(""), // a time without zone
        '%' => text("%"),
        _ => return None,
    })
}

/// Formats a time without zone in the C locale. Flags and widths of the GNU C library work (`%-d`, `%_H`, `%^a`,
/// `%10Y`); what is not a directive stays as it is.
pub(super) fn strftime(now: DateTime, pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let spec = &rest[at + 1..];
        let flags = spec.len() - spec.trim_start_matches(['-', '_', '0', '^', '#']).len();
        let digits = spec[flags..].len()
            - spec[flags..].trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let letter = spec[flags + digits..].chars().next();
        let Some((letter, field)) = letter.and_then(|c| Some((c, field(now, c)?))) else {
            out.push('%');
            rest = spec;
            continue;
        };
        put(&mut out, field, &spec[..flags], spec[flags..flags + digits].parse().ok());
        rest = &spec[flags + digits + letter.len_utf8()..];
    }
    out.push_str(rest);
    out
}

/// The widest field that a pattern may ask for.
const MAX_WIDTH: usize = 1000;

fn put(out: &mut String, field: Field, flags: &str, width: Option<usize>) {
    let flag = flags.chars().rev().find(|c| matches!(c, '-' | '_' | '0'));
    let width = width.map(|width| width.min(MAX_WIDTH));
    match field {
        Field::Number(value, usual, fill) => {
            let (width, fill) = match flag {
                Some('-') => (width.unwrap_or(0), fill),
                Some('_') => (width.unwrap_or(usual), ' '),
                Some(_) => (width.unwrap_or(usual), '0'),
                None => (width.unwrap_or(usual), fill),
            };
            let text = value.to_string();
            out.extend(std::iter::repeat_n(fill, width.saturating_sub(text.len())));
            out.push_str(&text);
        }
        Field::Text(text) => {
            let text = if flags.contains('^') { text.to_uppercase() } else { text };
            let text = if !flags.contains('#') {
                text
            } else if text.chars().all(|c| !c.is_lowercase()) {
                text.to_lowercase()
            } else {
                text.to_uppercase()
            };
            let fill = if flag == Some('0') { '0' } else { ' ' };
            let missing = width.unwrap_or(0).saturating_sub(text.chars().count());
            out.extend(std::iter::repeat_n(fill, missing));
            let _ = write!(out, "{text}");
        }
    }
}
