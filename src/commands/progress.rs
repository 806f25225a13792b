//! A progress bar on stderr, when stderr is a terminal and nobody asked for quiet.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Redraws keep this distance.
const EVERY: Duration = Duration::from_millis(100);
const WIDTH: usize = 24;

/// One line that fills.
pub struct Progress {
    shown: bool,
    drawn: Option<Instant>,
    start: Instant,
    label: String,
}

impl Progress {
    /// A bar that shows nothing yet.
    pub fn new(label: &str, quiet: bool) -> Progress {
        let shown = !quiet && io::stderr().is_terminal();
        Progress { shown, drawn: None, start: Instant::now(), label: label.into() }
    }

    /// `done` of `of` bytes, with a speed.
    pub fn bytes(&mut self, done: u64, of: u64) {
        let speed = done as f64 / self.start.elapsed().as_secs_f64().max(1e-3) / 1e9;
        self.draw(done, of, &format!("{} of {}, {speed:.2} GB/s", size(done), size(of)));
    }

    /// `done` of `of` tokens.
    pub fn tokens(&mut self, done: u64, of: u64) {
        self.draw(done, of, &format!("{done} of {of} tokens"));
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }

    fn draw(&mut self, done: u64, of: u64, text: &str) {
        // Quick work needs no bar at all.
        let due = self.drawn.map_or(self.start.elapsed() > EVERY, |at| at.elapsed() > EVERY);
        if !self.shown || !due || of == 0 {
            return;
        }
        self.drawn = Some(Instant::now());
        let full = (u128::from(done) * WIDTH as u128 / u128::from(of)) as usize;
        let bar = "#".repeat(full.min(WIDTH)) + &"-".repeat(WIDTH - full.min(WIDTH));
        let _ = write!(io::stderr(), "\r\x1b[K{} [{bar}] {text}", self.label);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, want) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (13_910_360, "13.3 MiB"),
            (1_048_000_000, "999 MiB"),
            (1_048_100_000, "0.98 GiB"),
            (10_239_999_999, "9.54 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(size(bytes), want);
        }
    }
}
