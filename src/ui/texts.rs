//! Sentences and numbers that the client shows.

use super::events::Facts;
use crate::engine::protocol::{Explained, Loaded, Stats};

/// Bytes for people: three digits and a unit.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 10.0 => format!("{value:.2} {}", units[unit]),
        _ if value < 100.0 => format!("{value:.1} {}", units[unit]),
        _ => format!("{value:.0} {}", units[unit]),
    }
}

/// A count for people: `2 561`, `12.3k`, `1.2M`.
pub fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1}k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.2}B", n as f64 / 1e9),
    }
}

/// Tokens a second of a reply after its first token.
pub fn average(stats: &Stats) -> f64 {
    let tokens = f64::from(stats.completion_tokens.saturating_sub(1));
    let time = stats.decode.as_secs_f64();
    if time > 0.0 { tokens / time } else { 0.0 }
}

/// Tokens of the prompt a second, those from the cache not counted.
pub fn prefill(stats: &Stats) -> f64 {
    let tokens = f64::from(stats.prompt_tokens.saturating_sub(stats.cached_tokens));
    let time = stats.prefill.as_secs_f64();
    if time > 0.0 { tokens / time } else { 0.0 }
}

/// One line on what runs where.
pub fn headline(l: &Loaded) -> String {
    format!(
        "{} · {} · {} weights in {} · {} ({}) · context {}",
        l.name,
        l.variant,
        count(l.parameters),
        size(l.weight_bytes),
        l.card.id,
        l.card.path,
        l.context
    )
}

/// What an empty chat says.
pub fn welcome(l: &Loaded, first: bool, facts: &Facts) -> String {
    let mut text = headline(l);
    if l.name == "demo" {
        text += "\nThis is the tiny built-in model: simple stories and small talk, not facts. /model chooses another.";
    }
    if first {
        text += &format!(
            "\nConversations are kept in {} (readable by you only). /history off or SNUG_NO_HISTORY=1 stops that.",
            facts.state_dir
        );
    }
    text
}

/// A prompt, token by token: control tokens in ⟦ ⟧.
pub fn explained(e: &Explained, loaded: Option<&Loaded>) -> String {
    let mut text =
        format!("{} tokens, {} of them in the cache already\n", e.tokens.len(), e.cached);
    for (id, token, special) in &e.tokens {
        if *special {
            text += &format!("⟦{token} {id}⟧");
        } else {
            text += token;
        }
    }
    let Some(loaded) = loaded else { return text };
    for (id, origin) in &loaded.stops {
        text += &format!("\nstops at {id} ({origin})");
    }
    text
}

/// Counts and speeds of a reply, in words.
pub fn stats(s: &Stats, facts: &Facts) -> String {
    let mut text = format!(
        "prompt {} tokens ({} from the cache) at {:.0} tok/s · first token after {:.0} ms\nreply {} tokens ({} thinking) at {:.1} tok/s · {} read per token",
        s.prompt_tokens,
        s.cached_tokens,
        prefill(s),
        s.ttft.as_secs_f64() * 1e3,
        s.completion_tokens,
        s.reasoning_tokens,
        average(s),
        size(s.bytes_per_token),
    );
    let bandwidth = average(s) * s.bytes_per_token as f64;
    text += &format!(" · {:.1} GB/s", bandwidth / 1e9);
    if let Some(measured) = facts.measured_bytes_per_s {
        let percent = 100.0 * bandwidth / measured;
        text += &format!(", {percent:.0} % of the measured {:.1} GB/s", measured / 1e9);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        for (bytes, want) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (11 << 30, "11.0 GiB"),
            (150 << 20, "150 MiB"),
        ] {
            assert_eq!(size(bytes), want);
        }
        for (n, want) in [(16, "16"), (16_384, "16.4k"), (7_000_000, "7.0M")] {
            assert_eq!(count(n), want);
        }
    }
}
