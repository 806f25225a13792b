//! The rows of `snug bench`, in four spellings.

use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{OutputFormat, rates};
use super::output::{Out, Outcome};
use super::progress::size;
use crate::backend::Card;
use crate::backend::cuda::images::BUILD_ID;
use crate::bench::speed::{Summary, Test};
use crate::error::visible;

/// One test of one model.
pub struct Row<'a> {
    /// How people call the model.
    pub model: &'a str,
    /// `bf16` or `lossless`.
    pub variant: &'static str,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Number of its weights.
    pub parameters: u64,
    /// What it ran on.
    pub card: &'a Card,
    /// What was timed.
    pub test: Test,
    /// How long each repetition took.
    pub times: &'a [Duration],
    /// Bytes of weights and cache that one token reads, where tokens are chosen one by one.
    pub bytes_per_token: Option<u64>,
    /// Bytes a second that the device can read.
    pub bandwidth: Option<f64>,
}

impl Row<'_> {
    fn speed(&self) -> Summary {
        Summary::of(rates(&self.test, self.times).iter().copied())
    }

    /// Bytes read a second.
    fn read_rate(&self) -> Option<f64> {
        self.bytes_per_token.map(|bytes| bytes as f64 * self.speed().mean)
    }

    fn share(&self) -> Option<f64> {
        Some(100.0 * self.read_rate()? / self.bandwidth?)
    }

    fn to_json(&self) -> Value {
        let speed = self.speed();
        let ns: Vec<u64> = self.times.iter().map(|t| t.as_nanos() as u64).collect();
        let time = Summary::of(ns.iter().map(|ns| *ns as f64));
        json!({
            "v": 1, "type": "bench", "model": self.model, "variant": self.variant,
            "model_size": self.bytes, "model_n_params": self.parameters,
            "device": self.card.id, "device_name": self.card.name, "device_path": self.card.path,
            "test": self.test.name(), "n_prompt": self.test.prompt, "n_gen": self.test.generate,
            "n_depth": self.test.depth, "repetitions": self.times.len(),
            "avg_ns": time.mean, "stddev_ns": time.deviation,
            "avg_ts": speed.mean, "stddev_ts": speed.deviation,
            "samples_ns": ns, "samples_ts": rates(&self.test, self.times),
            "bytes_per_token": self.bytes_per_token, "gbps": self.read_rate().map(|r| r / 1e9),
            "measured_gbps": self.bandwidth.map(|b| b / 1e9), "pct_of_measured": self.share(),
            "version": env!("CARGO_PKG_VERSION"), "kernels": BUILD_ID,
        })
    }
}

/// The columns of csv, by their names in JSON.
const CSV: [&str; 19] = [
    "model",
    "variant",
    "model_size",
    "model_n_params",
    "device",
    "device_name",
    "device_path",
    "n_prompt",
    "n_gen",
    "n_depth",
    "repetitions",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
    "bytes_per_token",
    "gbps",
    "measured_gbps",
    "pct_of_measured",
];

/// Prints rows as they come.
pub struct Printer {
    format: OutputFormat,
    /// Whether there is a column for the share of the bandwidth.
    shares: bool,
    rows: usize,
}

impl Printer {
    /// Nothing is printed yet.
    pub fn new(format: OutputFormat, shares: bool) -> Printer {
        Printer { format, shares, rows: 0 }
    }

    /// What stands above the rows.
    pub fn begin(&self, out: &mut Out) -> Outcome {
        match self.format {
            OutputFormat::Md => {
                let mut heads = vec!["model", "size", "params", "device", "test"];
                heads.extend(["t/s", "GB/s"]);
                heads.extend(self.shares.then_some("of measured"));
                let rule = heads.iter().enumerate().map(|(i, _)| match i {
                    0 | 3 => "---",
                    _ => "---:",
                });
                out.line(line(&heads))?;
                out.line(line(&rule.collect::<Vec<_>>()))?;
                out.flush()
            }
            OutputFormat::Csv => out.line(CSV.join(",")),
            OutputFormat::Json => out.line("["),
            OutputFormat::Jsonl => Ok(()),
        }
    }

    /// One row.
    pub fn row(&mut self, row: &Row<'_>, out: &mut Out) -> Outcome {
        match self.format {
            OutputFormat::Md => out.line(line(&self.cells(row)))?,
            OutputFormat::Csv => out.line(csv(&row.to_json()))?,
            OutputFormat::Json => {
                out.line(format_args!(
                    "{}{}",
                    if self.rows > 0 { "," } else { " " },
                    row.to_json()
                ))?;
            }
            OutputFormat::Jsonl => out.json(&row.to_json())?,
        }
        self.rows += 1;
        out.flush()
    }

    /// What stands below them.
    pub fn end(&self, out: &mut Out) -> Outcome {
        match self.format {
            OutputFormat::Json => out.line("]"),
            _ => Ok(()),
        }
    }

    fn cells(&self, row: &Row<'_>) -> Vec<String> {
        let speed = row.speed();
        let optional =
            |x: Option<f64>, unit: &str| x.map_or(String::new(), |x| format!("{x:.1}{unit}"));
        let mut cells = vec![
            format!("{} {}", visible(row.model), row.variant),
            size(row.bytes),
            count(row.parameters),
            format!("{}, {}", row.card.name, row.card.path),
            row.test.name(),
            format!("{:.2} ± {:.2}", speed.mean, speed.deviation),
            optional(row.read_rate().map(|r| r / 1e9), ""),
        ];
        cells.extend(self.shares.then(|| optional(row.share(), " %")));
        cells
    }
}

/// A line of a table; a bar inside a cell must not end it.
fn line<S: AsRef<str>>(cells: &[S]) -> String {
    let cells: Vec<String> = cells.iter().map(|c| c.as_ref().replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | "))
}

fn csv(record: &Value) -> String {
    let cell = |name: &&str| match &record[*name] {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    CSV.iter().map(cell).collect::<Vec<_>>().join(",")
}

/// 8.03 B, 134.5 M.
fn count(n: u64) -> String {
    match n {
        1_000_000_000.. => format!("{:.2} B", n as f64 / 1e9),
        _ => format!("{:.1} M", n as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_a_table() {
        assert_eq!(line(&["a|b", "c"]), "| a\\|b | c |");
        let record = json!({ "model": "a,\"b\"", "variant": "bf16", "avg_ts": 1.5 });
        let line = csv(&record);
        assert!(line.starts_with("\"a,\"\"b\"\"\",bf16,"), "{line}");
        assert_eq!(line.matches(',').count(), CSV.len(), "one of the commas is inside a cell");
    }

    #[test]
    fn counts_have_a_unit() {
        assert_eq!(count(8_030_261_248), "8.03 B");
        assert_eq!(count(134_515_008), "134.5 M");
    }
}
