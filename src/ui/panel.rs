//! Live numbers: where the memory went, how fast tokens come, how much of the bandwidth that is.
//!
//! Everything comes from the engine's ledger and counts; what the driver or the system measures stands beside it, and
//! what neither explains is shown as such.

use super::app::{App, Work};
use super::rich::{Ink, Row, Span};
use super::texts::{self, count};

const GIB: f64 = (1u64 << 30) as f64;

/// The parts of a bar: glyph, ink, share.
type Parts = Vec<(char, Ink, f64)>;

fn dim(text: impl Into<String>) -> Span {
    Span::new(text, Ink::Dim)
}

/// GiB without the unit; what is too small for that, in MiB with an `M`.
fn gib(bytes: u64) -> String {
    let value = bytes as f64 / GIB;
    match value {
        _ if bytes == 0 => "0".into(),
        0.0..0.01 => format!("{:.1}M", value * 1024.0),
        0.01..0.0977 => format!("{:.0}M", value * 1024.0),
        0.0977..100.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// Cells in proportion to the parts; nothing that exists is left without a cell while there is room.
fn bar(parts: &Parts, cells: usize) -> Row {
    let total: f64 = parts.iter().map(|p| p.2).sum();
    let mut row = Row::new();
    let mut left = cells;
    for (n, (glyph, ink, share)) in parts.iter().enumerate() {
        let exact = if total > 0.0 { share / total * cells as f64 } else { 0.0 };
        let last = n + 1 == parts.len();
        let wanted = if *share > 0.0 { (exact.round() as usize).max(1) } else { 0 };
        let length = if last { left } else { wanted.min(left) };
        left -= length;
        if length > 0 {
            row.push(Span::new(glyph.to_string().repeat(length), *ink));
        }
    }
    row
}

/// Memory by purpose, in bytes.
struct Memory {
    weights: u64,
    kv_used: u64,
    kv_reserved: u64,
    scratch: u64,
    /// Held by others, when that is known.
    other: Option<u64>,
    free: Option<u64>,
    total: Option<u64>,
    /// What is measured beyond the ledger.
    unexplained: Option<i64>,
}

impl Memory {
    fn of(app: &App) -> Memory {
        let l = app.stats.ledger;
        let scratch = l.scratch + l.context;
        let known = l.weights + l.kv_reserved + scratch;
        let held = app.meters.held.or(app.meters.rss);
        let (free, total) = app.meters.memory.unzip();
        let ours = held.unwrap_or(known);
        let other = total.zip(free).map(|(t, f)| t.saturating_sub(f).saturating_sub(ours));
        Memory {
            weights: l.weights,
            kv_used: l.kv_used.min(l.kv_reserved),
            kv_reserved: l.kv_reserved,
            scratch,
            other,
            free,
            total,
            unexplained: held.map(|h| h as i64 - known as i64),
        }
    }

    fn parts(&self) -> Parts {
        let waiting = self.kv_reserved - self.kv_used;
        [
            ('█', Ink::Accent, self.weights),
            ('▓', Ink::Good, self.kv_used),
            ('░', Ink::Good, waiting),
            ('▒', Ink::Warn, self.scratch),
            ('▒', Ink::Dim, self.other.unwrap_or(0)),
            ('·', Ink::Dim, self.free.unwrap_or(0)),
        ]
        .map(|(glyph, ink, bytes)| (glyph, ink, bytes as f64))
        .into()
    }
}

/// What is known of speed, of the reply at work or the last.
struct Speed {
    now: f64,
    average: f64,
    gbps: f64,
    percent: Option<f64>,
}

impl Speed {
    fn of(app: &App) -> Speed {
        let average = texts::average(&app.stats);
        let writing = app.work == Work::Writing;
        let now = app.speeds.recent.back().copied().filter(|_| writing).unwrap_or(average);
        let bytes = now * app.stats.bytes_per_token as f64;
        let percent = app.facts.measured_bytes_per_s.map(|m| 100.0 * bytes / m);
        Speed { now, average, gbps: bytes / 1e9, percent: percent.filter(|_| bytes > 0.0) }
    }
}

fn sparkline(app: &App, cells: usize) -> String {
    let speeds = &app.speeds.recent;
    let most = speeds.iter().copied().fold(0.0, f64::max);
    let levels = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let skip = speeds.len().saturating_sub(cells);
    let level = |s: &f64| if most > 0.0 { (s / most * 7.0).round() as usize } else { 0 };
    speeds.iter().skip(skip).map(|s| levels[level(s).min(7)]).collect()
}

/// The panel at the side, for this width and as many rows as there are.
pub fn side(app: &App, width: usize) -> Vec<Row> {
    let mut rows = memory_rows(app, width);
    rows.extend(speed_rows(app, width));
    rows.extend(context_rows(app, width));
    rows.extend(gpu_row(app));
    rows
}

fn title(text: &str, right: String, width: usize) -> Row {
    let blank = width.saturating_sub(text.len() + right.chars().count());
    vec![Span::new(text, Ink::Heading).bold(), Span::plain(" ".repeat(blank)), dim(right)]
}

fn memory_rows(app: &App, width: usize) -> Vec<Row> {
    let m = Memory::of(app);
    let total = m.total.map_or(String::new(), |t| format!("{} GiB", gib(t)));
    let mut rows = vec![title("MEMORY", total, width), bar(&m.parts(), width)];
    let mark = |glyph: &str, ink, text: String| vec![Span::new(glyph, ink), Span::plain(text)];
    rows.push(mark("█", Ink::Accent, format!(" weights {:>5}", gib(m.weights))));
    let kv = format!(" kv used {:>5}  ", gib(m.kv_used));
    let reserved = format!(" reserved {:>5}", gib(m.kv_reserved - m.kv_used));
    rows.push([mark("▓", Ink::Good, kv), mark("░", Ink::Good, reserved)].concat());
    let scratch = format!(" scratch {:>5}  ", gib(m.scratch));
    let other =
        m.other.map_or(Row::new(), |o| mark("▒", Ink::Dim, format!(" other    {:>5}", gib(o))));
    rows.push([mark("▒", Ink::Warn, scratch), other].concat());
    let free = m.free.map_or("    ?".into(), |f| format!("{:>5}", gib(f)));
    let rest = m.unexplained.map_or(String::new(), |d| {
        let sign = if d < 0 { '-' } else { '+' };
        format!("ledger Δ {sign}{}", gib(d.unsigned_abs()))
    });
    rows.push([mark("·", Ink::Dim, format!(" free    {free}  ")), vec![dim(rest)]].concat());
    rows
}

fn speed_rows(app: &App, width: usize) -> Vec<Row> {
    let s = Speed::of(app);
    let st = &app.stats;
    let mut rows = vec![
        title("SPEED", String::new(), width),
        vec![Span::plain(format!("now {:.1}  avg {:.1} tok/s", s.now, s.average))],
        vec![
            Span::new(sparkline(app, width.saturating_sub(14)), Ink::Good),
            Span::plain(format!("  TTFT {:.0} ms", st.ttft.as_secs_f64() * 1e3)),
        ],
        vec![Span::plain(format!(
            "prefill {:.0} tok/s · {} + {} hit",
            texts::prefill(st),
            st.prompt_tokens.saturating_sub(st.cached_tokens),
            st.cached_tokens
        ))],
        title("BANDWIDTH", String::new(), width),
        vec![Span::plain(format!(
            "{:.3} GB/token  {:.1} GB/s",
            st.bytes_per_token as f64 / 1e9,
            s.gbps
        ))],
    ];
    match (s.percent, app.facts.measured_bytes_per_s) {
        (Some(percent), Some(measured)) => {
            let text = format!(" {percent:.0} % of {:.0}", measured / 1e9);
            let cells = width.saturating_sub(text.len());
            let share = percent.clamp(0.0, 100.0);
            let parts = vec![('█', Ink::Good, share), ('░', Ink::Dim, 100.0 - share)];
            rows.push([bar(&parts, cells), vec![Span::plain(text)]].concat());
        }
        _ => rows.push(vec![dim("share of the measured: no figure yet")]),
    }
    rows
}

fn context_rows(app: &App, width: usize) -> Vec<Row> {
    let Some(loaded) = app.loaded() else { return Vec::new() };
    let used = app.stats.context_used;
    let percent = f64::from(used) / f64::from(loaded.context.max(1)) * 100.0;
    let text =
        format!(" {} / {}  {percent:.0} %", count(used.into()), count(loaded.context.into()));
    let parts = vec![
        ('█', Ink::Accent, f64::from(used)),
        ('░', Ink::Dim, f64::from(loaded.context.saturating_sub(used))),
    ];
    let cells = width.saturating_sub(text.len());
    vec![
        title("CONTEXT", String::new(), width),
        [bar(&parts, cells), vec![Span::plain(text)]].concat(),
    ]
}

/// As many parts as fit, the first ones first.
fn joined(parts: Vec<String>, between: &str, width: usize) -> String {
    let mut out = String::new();
    for part in parts {
        let more = if out.is_empty() { part } else { format!("{between}{part}") };
        if super::rich::width(&out) + super::rich::width(&more) > width && !out.is_empty() {
            break;
        }
        out += &more;
    }
    out
}

/// Load, heat, power and clock of the GPU, as far as they are known.
fn gpu_parts(app: &App) -> Vec<String> {
    let m = &app.meters;
    let mut parts = Vec::new();
    parts.extend(m.busy_percent.map(|p| format!("{p} %")));
    parts.extend(m.celsius.map(|c| format!("{c} °C")));
    parts.extend(
        m.watts.map(|(w, of)| if of > 0 { format!("{w}/{of} W") } else { format!("{w} W") }),
    );
    parts.extend(m.mhz.map(|c| format!("{c} MHz")));
    parts
}

fn gpu_row(app: &App) -> Vec<Row> {
    let text = gpu_parts(app).join("  ");
    if text.is_empty() {
        let rss = app.meters.rss.map_or(String::new(), |r| format!("resident {} GiB", gib(r)));
        return vec![vec![Span::new("PROCESS ", Ink::Heading).bold(), Span::plain(rss)]];
    }
    vec![vec![Span::new("GPU", Ink::Heading).bold()], vec![Span::plain(text)]]
}

/// Two lines for windows without room for the panel.
pub fn strip(app: &App, width: usize) -> Vec<Row> {
    let m = Memory::of(app);
    let free = m.free.map_or("?".into(), gib);
    let text = format!(
        "  W {}  K {}/{}  S {}  free {free} GiB",
        gib(m.weights),
        gib(m.kv_used),
        gib(m.kv_reserved),
        gib(m.scratch)
    );
    let cells = width.saturating_sub(super::rich::width(&text)).min(32);
    let first = [bar(&m.parts(), cells), vec![Span::plain(text)]].concat();
    let s = Speed::of(app);
    let mut parts = vec![
        format!("{:.1} tok/s (avg {:.1})", s.now, s.average),
        format!("TTFT {:.0}ms", app.stats.ttft.as_secs_f64() * 1e3),
        format!("{:.2} GB/tok", app.stats.bytes_per_token as f64 / 1e9),
    ];
    parts.extend(s.percent.map(|percent| format!("{percent:.0}% bw")));
    parts.extend(gpu_parts(app));
    vec![first, vec![Span::plain(joined(parts, "  ", width))]]
}

/// One line for small windows.
pub fn line(app: &App, width: usize) -> String {
    let s = Speed::of(app);
    let mut parts = vec![format!("{:.0}t/s", s.now)];
    parts.extend(s.percent.map(|percent| format!("{percent:.0}%bw")));
    if let Some(loaded) = app.loaded() {
        let percent = 100.0 * f64::from(app.stats.context_used) / f64::from(loaded.context.max(1));
        parts.push(format!("ctx{percent:.0}%"));
    }
    if let Some((free, _)) = app.meters.memory {
        parts.push(format!("free{:.1}G", free as f64 / GIB));
    }
    joined(parts, " ", width)
}

/// Context used, for the header: `ctx 2.6k/16k 16%`.
pub fn context(app: &App) -> String {
    let Some(loaded) = app.loaded() else { return String::new() };
    let percent = 100.0 * f64::from(app.stats.context_used) / f64::from(loaded.context.max(1));
    let used = count(app.stats.context_used.into());
    format!("ctx {used}/{} {percent:.0}%", count(loaded.context.into()))
}
