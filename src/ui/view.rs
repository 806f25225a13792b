//! The screen as a function of the state. It draws what fits and leaves out what does not, from 1 × 1 up.
//!
//! As the window shrinks: a panel at the side (from 100 columns), two lines, one line, no header, one status line.

use ratatui::Frame;
use ratatui::buffer::{Buffer, CellDiffOption};
use ratatui::layout::Rect;

use super::app::{App, Loading, Model, Overlay, Panel, Work};
use super::picker::Picker;
use super::rich::{self, Ink, Line, Row, Span};
use super::theme::Look;
use super::{panel, texts};

/// Columns of the panel, borders not counted.
const SIDE: u16 = 34;

/// Where things are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Areas {
    /// Borders around everything, with the panel at the side.
    pub boxed: bool,
    /// Model and context.
    pub header: Rect,
    /// A line across below the header.
    pub rule: Rect,
    /// What was said.
    pub text: Rect,
    /// Statistics: at the side, two lines or one.
    pub stats: Rect,
    /// A line across above the draft.
    pub line: Rect,
    /// The draft.
    pub draft: Rect,
    /// Keys, and what just happened.
    pub hints: Rect,
}

impl Areas {
    /// Columns of the draft's text, right of its mark.
    pub fn draft_width(&self) -> usize {
        usize::from(self.draft.width.saturating_sub(2)).max(1)
    }
}

/// Cuts so many rows off the top.
fn top(area: &mut Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    let cut = Rect { height: rows, ..*area };
    (area.y, area.height) = (area.y + rows, area.height - rows);
    cut
}

/// Cuts so many rows off the bottom.
fn bottom(area: &mut Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    area.height -= rows;
    Rect { y: area.y + area.height, height: rows, ..*area }
}

/// Where things are drawn at the present size.
pub fn areas(app: &App) -> Areas {
    let (columns, rows) = app.size;
    let mut rest = Rect { x: 0, y: 0, width: columns, height: rows };
    let mut areas = Areas::default();
    if columns < 20 || rows < 6 {
        areas.stats = top(&mut rest, 1);
        areas.draft = bottom(&mut rest, 1);
        areas.text = rest;
        return areas;
    }
    let side = app.panel == Panel::Auto && columns >= 100 && rows >= 24;
    areas.boxed = side;
    areas.hints = bottom(&mut rest, 1);
    if side {
        areas.header = top(&mut rest, 1);
        bottom(&mut rest, 1);
        rest.x += 1;
        rest.width -= 2;
    } else if rows >= 10 {
        areas.header = top(&mut rest, 1);
        areas.rule = top(&mut rest, 1);
    }
    let margin = if rest.width >= 40 { 1 } else { 0 };
    let (x, width) = (rest.x + margin, rest.width - 2 * margin);
    areas.draft = Rect { x, width, ..rest };
    let lines = app.composer.laid(areas.draft_width()).rows.len();
    let most = (usize::from(rows) * 2 / 5).max(1);
    let draft = bottom(&mut rest, lines.clamp(1, most) as u16);
    areas.draft = Rect { x, width, ..draft };
    let strip = if columns >= 60 && rows >= 16 { 2 } else { 1 };
    let strip = if app.panel == Panel::Off || side { 0 } else { strip };
    if strip == 1 {
        let stats = bottom(&mut rest, 1);
        areas.stats = Rect { x, width, ..stats };
    }
    areas.line = bottom(&mut rest, 1);
    if strip == 2 {
        let stats = bottom(&mut rest, 2);
        areas.stats = Rect { x, width, ..stats };
    }
    if side {
        rest.width -= SIDE + 3;
        let x = rest.x + rest.width + 2;
        areas.stats = Rect { x, width: SIDE, ..rest };
    }
    areas.text = Rect { x, width: rest.width.saturating_sub(2 * margin), ..rest };
    areas
}

/// Draws everything.
pub fn view(app: &App, frame: &mut Frame<'_>) {
    let whole = frame.area();
    let areas = areas(app);
    let mut canvas = Canvas { look: app.look, buffer: frame.buffer_mut(), whole };
    canvas.frame(app, &areas);
    canvas.text(app, areas.text);
    canvas.stats(app, &areas);
    canvas.hints(app, areas.hints);
    let cursor = canvas.draft(app, areas.draft);
    canvas.over_text(app, areas.text);
    if let Some(place) = cursor.filter(|_| app.overlay.is_none()) {
        frame.set_cursor_position(place);
    }
}

/// The rows of a drawn frame that hold clusters whose width is in doubt.
pub fn doubtful_rows(buffer: &Buffer) -> Vec<u16> {
    let area = buffer.area;
    let last = area.right().saturating_sub(1);
    let anew = |y: &u16| {
        buffer.cell((last, *y)).is_some_and(|c| c.diff_option == CellDiffOption::AlwaysUpdate)
    };
    (area.top()..area.bottom()).filter(anew).collect()
}

/// Has rows written from their first cell on: what stood there may have left something behind.
pub fn write_rows_anew(buffer: &mut Buffer, rows: &[u16]) {
    let area = buffer.area;
    for y in rows.iter().copied().filter(|y| *y < area.bottom()) {
        for x in area.left()..area.right() {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                cell.set_diff_option(CellDiffOption::AlwaysUpdate);
            }
        }
    }
}

/// Whether terminals disagree about the width of a cluster: emoji joined, modified, or made wide by a selector, and flags.
fn is_doubtful(piece: &str) -> bool {
    let mut chars = piece.chars();
    let first = chars.next();
    first.is_some_and(|c| !c.is_ascii())
        && chars.any(|c| {
            matches!(c, '\u{fe0f}' | '\u{200d}' | '\u{1f1e6}'..='\u{1f1ff}' | '\u{1f3fb}'..='\u{1f3ff}')
        })
}

/// The buffer and how to draw on it; nothing outside is ever touched.
struct Canvas<'a> {
    look: Look,
    buffer: &'a mut Buffer,
    whole: Rect,
}

impl Canvas<'_> {
    /// Draws a row of ours from a cell on, in at most `width` cells.
    fn row(&mut self, x: u16, y: u16, row: &[Span], width: u16) {
        self.spans(x, y, row, width, |_| true);
    }

    /// Draws a row with text of users and models: only what we added to it may be replaced by ASCII marks.
    fn said(&mut self, x: u16, y: u16, row: &[Span], width: u16) {
        let ours = |ink| matches!(ink, Ink::Dim | Ink::Accent | Ink::Warn | Ink::User);
        self.spans(x, y, row, width, ours);
        let mut at = 0;
        for (piece, cells) in row.iter().flat_map(|span| rich::pieces(&span.text)) {
            at += cells;
            if is_doubtful(piece) {
                return self.write_anew(x.saturating_add(at as u16), y);
            }
        }
    }

    /// Has the rest of a row written again with every frame, whatever the terminal is thought to show there.
    fn write_anew(&mut self, x: u16, y: u16) {
        for x in x..self.whole.right() {
            if let Some(cell) = self.buffer.cell_mut((x, y)) {
                cell.set_diff_option(CellDiffOption::AlwaysUpdate);
            }
        }
    }

    fn spans(&mut self, x: u16, y: u16, row: &[Span], width: u16, ours: impl Fn(Ink) -> bool) {
        let end = x.saturating_add(width).min(self.whole.right());
        let mut at = x;
        if y >= self.whole.bottom() {
            return;
        }
        for span in row {
            if at >= end {
                break;
            }
            let style = self.look.style(span);
            let text =
                if ours(span.ink) { self.look.mark(&span.text) } else { span.text.as_str().into() };
            (at, _) = self.buffer.set_stringn(at, y, text, usize::from(end - at), style);
        }
    }

    fn label(&mut self, x: u16, y: u16, text: &str, ink: Ink, width: u16) {
        self.row(x, y, &[Span::new(text, ink)], width);
    }

    fn rule(&mut self, area: Rect) {
        if area.height > 0 {
            let line = "─".repeat(area.width.into());
            self.label(area.x, area.y, &line, Ink::Dim, area.width);
        }
    }

    fn blank(&mut self, area: Rect) {
        for y in area.top()..area.bottom() {
            let text = " ".repeat(area.width.into());
            self.row(area.x, y, &[Span::plain(text)], area.width);
        }
    }

    fn frame(&mut self, app: &App, areas: &Areas) {
        let header = areas.header;
        if areas.boxed {
            self.borders(areas);
        } else {
            self.rule(areas.rule);
            self.rule(areas.line);
        }
        if header.height == 0 {
            return;
        }
        let left = title(app);
        let right = match app.loaded() {
            Some(l) if areas.boxed => format!("{} · {}", l.card.id, l.card.name),
            Some(l) if header.width >= 60 => format!("{} · {}", l.card.id, panel::context(app)),
            _ => String::new(),
        };
        let inset = if areas.boxed { 2 } else { 1 };
        let room = usize::from(header.width.saturating_sub(2 * inset));
        let right = rich::fit(&right, room / 2);
        let left = rich::fit(&left, room.saturating_sub(rich::width(&right) + 2));
        let pad = |text: &str| {
            if text.is_empty() || !areas.boxed { text.into() } else { format!(" {text} ") }
        };
        let (left, right) = (pad(&left), pad(&right));
        self.row(header.x + inset, header.y, &[Span::new(left, Ink::Accent).bold()], header.width);
        let cells = rich::width(&right) as u16;
        let x = header.right().saturating_sub(inset + cells);
        self.label(x, header.y, &right, Ink::Text, cells);
    }

    fn borders(&mut self, areas: &Areas) {
        let (width, line) = (self.whole.width, areas.line);
        let end = areas.hints.y.saturating_sub(1);
        let split = areas.stats.x.saturating_sub(2);
        let across = "─".repeat(usize::from(width).saturating_sub(2));
        self.label(0, 0, &format!("┌{across}┐"), Ink::Dim, width);
        self.label(0, end, &format!("└{across}┘"), Ink::Dim, width);
        for y in 1..end {
            self.label(0, y, "│", Ink::Dim, 1);
            self.label(width - 1, y, "│", Ink::Dim, 1);
            if y < line.y {
                self.label(split, y, "│", Ink::Dim, 1);
            }
        }
        self.label(0, line.y, &format!("├{across}┤"), Ink::Dim, width);
        self.label(split, 0, "┬", Ink::Dim, 1);
        self.label(split, line.y, "┴", Ink::Dim, 1);
    }

    fn text(&mut self, app: &App, area: Rect) {
        for (y, at) in (area.top()..area.bottom()).zip(app.transcript.window()) {
            if let Some(row) = app.transcript.row(at) {
                self.said(area.x, y, row, area.width);
            }
        }
    }

    /// What lies over the transcript: how much is below, what is queued, lists and questions.
    fn over_text(&mut self, app: &App, area: Rect) {
        if area.height == 0 {
            return;
        }
        let below = app.transcript.below();
        let last = area.bottom() - 1;
        if let Some(text) = &app.queued {
            let first = text.lines().next().unwrap_or_default();
            let text =
                format!(" queued: {}  Esc takes it back ", crate::text::sanitize::visible(first));
            self.right(area, last, &rich::fit(&text, area.width.into()), Ink::Warn);
        } else if below > 0 {
            let text = format!("── {below} lines below · PgDn PgUp scroll · End follows ──");
            self.right(area, last, &rich::fit(&text, area.width.into()), Ink::Dim);
        }
        if let Model::Loading(loading) = &app.model {
            self.loading(loading, area);
        }
        match &app.overlay {
            Some(Overlay::Pick(picker)) => self.picker(picker, area),
            Some(Overlay::Search { query, skip }) => self.search(app, query, *skip, area),
            Some(Overlay::Overflow(e)) => self.question(e, area),
            None => {}
        }
        if let Some((words, chosen)) = &app.completion {
            self.completions(words, *chosen, area);
        }
    }

    fn right(&mut self, area: Rect, y: u16, text: &str, ink: Ink) {
        let cells = rich::width(text) as u16;
        self.label(area.right().saturating_sub(cells), y, text, ink, cells);
    }

    fn completions(&mut self, words: &[String], chosen: usize, area: Rect) {
        let shown = usize::from(area.height.min(8)).min(words.len());
        let first = chosen.saturating_sub(shown.saturating_sub(1));
        let width = words.iter().map(|w| rich::width(w) + 2).max().unwrap_or(0) as u16;
        let box_ = bottom(&mut { area }, shown as u16);
        let box_ = Rect { width: width.min(area.width), ..box_ };
        self.blank(box_);
        for (y, (n, word)) in (box_.y..).zip(words.iter().enumerate().skip(first).take(shown)) {
            let mut span = Span::plain(format!(" {word} "));
            span.emphasis.reverse = n == chosen;
            self.row(box_.x, y, &[span], box_.width);
        }
    }

    /// A box for rows at the bottom of the text.
    fn sheet(&mut self, area: Rect, height: usize) -> Rect {
        let height = (height as u16).min(area.height);
        let sheet = bottom(&mut { area }, height);
        self.blank(sheet);
        sheet
    }

    fn picker(&mut self, picker: &Picker, area: Rect) {
        let lines = picker.matching();
        let sheet = self.sheet(area, lines.len() + 3);
        let typed = if picker.filter.is_empty() { "type to narrow" } else { &picker.filter };
        self.rule(Rect { height: 1, ..sheet });
        let title = format!("{} · {typed}", picker.title);
        let head = [Span::new(rich::fit(&title, sheet.width.into()), Ink::Accent).bold()];
        self.row(sheet.x, sheet.y + 1, &head, if sheet.height > 1 { sheet.width } else { 0 });
        let rows = usize::from(sheet.height.saturating_sub(3));
        let first = picker.selected().saturating_sub(rows.saturating_sub(1));
        for (y, (n, choice)) in (sheet.y + 2..).zip(lines.iter().enumerate().skip(first).take(rows))
        {
            let mark = if n == picker.selected() { "› " } else { "  " };
            let ink = if choice.usable { Ink::Text } else { Ink::Dim };
            let mut label = Span::new(crate::text::sanitize::visible(&choice.label), ink);
            label.emphasis.reverse = n == picker.selected();
            let detail = crate::text::sanitize::visible(&choice.detail).into_owned();
            let row =
                [Span::new(mark, Ink::Accent), label, Span::new(format!("  {detail}"), Ink::Dim)];
            self.row(sheet.x, y, &row, sheet.width);
        }
        if sheet.height > 2 {
            let keys = "Up Down choose · Enter takes it · Esc closes";
            self.label(sheet.x, sheet.bottom() - 1, keys, Ink::Dim, sheet.width);
        }
    }

    fn search(&mut self, app: &App, query: &str, skip: usize, area: Rect) {
        let sheet = self.sheet(area, 2);
        let found = app.found(query, skip).unwrap_or("(nothing)");
        let shown = crate::text::sanitize::visible(found.lines().next().unwrap_or_default());
        self.label(sheet.x, sheet.y, &format!("search: {query}"), Ink::Accent, sheet.width);
        if sheet.height > 1 {
            let line = format!("{shown}   Enter takes it · Ctrl-R the one before · Esc");
            self.label(sheet.x, sheet.y + 1, &line, Ink::Text, sheet.width);
        }
    }

    fn question(&mut self, e: &crate::error::Error, area: Rect) {
        let mut rows = Line::of(vec![Span::new(e.why.clone(), Ink::Warn)]).rows(area.width.into());
        for text in [
            "d  leave out the oldest turns from now on (a marker shows where)",
            "s  let the model summarise the older turns",
            "e  take the message back and change it (Esc)",
        ] {
            rows.extend(Line::of(vec![Span::plain(text)]).rows(area.width.into()));
        }
        let sheet = self.sheet(area, rows.len() + 1);
        self.rule(Rect { height: 1, ..sheet });
        for (y, row) in (sheet.y + 1..sheet.bottom()).zip(&rows) {
            self.row(sheet.x, y, row, sheet.width);
        }
    }

    fn loading(&mut self, l: &Loading, area: Rect) {
        let sheet = self.sheet(area, 3);
        let seconds = (l.now - l.since).as_secs_f64();
        let share = if l.of > 0 { l.done as f64 / l.of as f64 } else { 0.0 };
        let name = crate::text::sanitize::visible(&l.name);
        self.label(
            sheet.x,
            sheet.y,
            &format!("{} {name}", l.phase.name()),
            Ink::Accent,
            sheet.width,
        );
        let cells = usize::from(sheet.width).min(40);
        let full = ((share * cells as f64) as usize).min(cells);
        let bar = [
            Span::new("█".repeat(full), Ink::Good),
            Span::new("░".repeat(cells - full), Ink::Dim),
            Span::plain(format!(" {:.0} %", share * 100.0)),
        ];
        if sheet.height > 1 {
            self.row(sheet.x, sheet.y + 1, &bar, sheet.width);
        }
        if sheet.height > 2 && l.of > 0 {
            let speed = if seconds > 0.0 { l.done as f64 / seconds } else { 0.0 };
            let rest = if speed > 0.0 { (l.of - l.done.min(l.of)) as f64 / speed } else { 0.0 };
            let text = format!(
                "{} of {} · {:.2} GB/s · {rest:.0} s left · Ctrl-C stops",
                texts::size(l.done),
                texts::size(l.of),
                speed / 1e9
            );
            self.label(sheet.x, sheet.y + 2, &text, Ink::Dim, sheet.width);
        }
    }

    fn stats(&mut self, app: &App, areas: &Areas) {
        let area = areas.stats;
        if area.height == 0 {
            return;
        }
        let rows = if areas.boxed {
            panel::side(app, area.width.into())
        } else if area.height == 2 {
            panel::strip(app, area.width.into())
        } else {
            vec![vec![Span::plain(panel::line(app, area.width.into()))]]
        };
        for (y, row) in (area.top()..area.bottom()).zip(&rows) {
            self.row(area.x, y, row, area.width);
        }
    }

    fn hints(&mut self, app: &App, area: Rect) {
        if area.height == 0 {
            return;
        }
        let (text, ink) = match &app.hint {
            Some(hint) => (hint.clone(), Ink::Warn),
            None => (doing(app, area.width), Ink::Dim),
        };
        let text =
            rich::fit(&crate::text::sanitize::visible(&text), area.width.saturating_sub(1).into());
        self.label(area.x + 1, area.y, &text, ink, area.width);
    }

    /// Draws the draft; gives back the place of the cursor.
    fn draft(&mut self, app: &App, area: Rect) -> Option<(u16, u16)> {
        if area.height == 0 || area.width == 0 {
            return None;
        }
        let mark = if area.width >= 4 { "› " } else { "" };
        let left = mark.chars().count() as u16;
        let laid = app.composer.laid(usize::from(area.width - left).max(1));
        let rows = usize::from(area.height);
        let first = (laid.cursor.0 + 1).saturating_sub(rows);
        self.label(area.x, area.y, mark, Ink::User, left);
        if app.composer.is_empty() {
            let hint = "write your message; Enter sends, Ctrl-J new line, / commands";
            let hint = rich::fit(hint, usize::from(area.width - left));
            self.label(area.x + left, area.y, &hint, Ink::Dim, area.width);
        }
        for (y, text) in (area.top()..area.bottom()).zip(laid.rows.iter().skip(first)) {
            self.said(area.x + left, y, &[Span::plain(text.as_str())], area.width - left);
        }
        let y = area.y + (laid.cursor.0 - first) as u16;
        let x = area.x + left + laid.cursor.1 as u16;
        Some((x.min(self.whole.right().saturating_sub(1)), y))
    }
}

fn title(app: &App) -> String {
    match &app.model {
        Model::None => "snug · no model".into(),
        Model::Loading(l) => {
            format!("snug · {} {}", l.phase.name(), crate::text::sanitize::visible(&l.name))
        }
        Model::Ready(l) => {
            format!("snug · {} · {}", crate::text::sanitize::visible(&l.name), l.variant)
        }
    }
}

/// What goes on, and the keys that matter now; less of it in narrow windows.
fn doing(app: &App, width: u16) -> String {
    let state = match (&app.work, &app.model) {
        (Work::Reading { done, of, .. }, _) if *of > 0 => {
            format!("reading {done} of {of} tokens · Ctrl-C stop")
        }
        (Work::Reading { .. }, _) => "reading · Ctrl-C stop".into(),
        (Work::Writing, _) => "writing · Ctrl-C stop".into(),
        (Work::Summarising(_), _) => "summarising · Ctrl-C stop".into(),
        (Work::Idle, Model::Loading(_)) => "loading · Ctrl-C stop".into(),
        (Work::Idle, Model::None) => "/model chooses a model · Ctrl-D quit".into(),
        (Work::Idle, Model::Ready(_)) => "Enter send · Ctrl-D quit".into(),
    };
    let normal = app.vim.is_some_and(|v| v.normal);
    let mut text = if normal { format!("NORMAL · {state}") } else { state };
    for (from, more) in [
        (44, " · F1 help"),
        (60, " · Ctrl-O raw"),
        (78, " · Ctrl-T stats"),
        (90, " · Ctrl-J new line"),
    ] {
        if width >= from {
            text += more;
        }
    }
    let session = app.session.as_ref().map_or(String::new(), |s| format!(" · {s}"));
    if width >= 130 {
        text += &format!(" · {}{session}", app.facts.sampler);
    } else if width >= 100 {
        text += &session;
    }
    text
}

/// Rows of text as they would be drawn, for tests and the manual.
pub fn plain(row: &Row) -> String {
    row.iter().map(|s| s.text.as_str()).collect()
}
