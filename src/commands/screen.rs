//! What the full-screen client needs from the rest of the program: models by name, files, settings, devices.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::globals::Context;
use super::output::{Exit, Outcome, note};
use super::run::ReplyArgs;
use super::signals::Answer;
use super::{input, records, refs, sampling, threads};
use crate::backend::cuda::driver;
use crate::backend::{self, Device};
use crate::bench::bandwidth;
use crate::engine::model::Words;
use crate::engine::protocol::{Ask, Load, Loaded, Overflow, Prompt, Variant};
use crate::error::{Error, Kind, Result, visible};
use crate::history::{self, Record};
use crate::model::kv::KvFormat;
use crate::model::memory::MemoryPlan;
use crate::model::program::Program;
use crate::store::Listing;
use crate::ui::app::App;
use crate::ui::events::{AppEvent, Completing, Effect, Facts, Host, Meters, ModelRow, News};
use crate::ui::theme::{Look, Theme};
use crate::ui::vim::Vim;
use crate::ui::{self, texts};

/// Bytes that the bandwidth probe of the CPU reads.
const PROBE_BYTES: usize = 256 << 20;
/// Bytes that the probe of a GPU reads: many times its L2 cache.
const GPU_PROBE_BYTES: u64 = 2 << 30;
/// The widest step that a plan counts with.
const PLAN_STEP: u32 = 16;
/// Context that a list of models is planned with, unless one was asked for.
const PLAN_CONTEXT: u32 = 8192;

/// The keys of the draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Keymap {
    /// As in a shell.
    #[default]
    Emacs,
    /// As in vim.
    Vim,
}

/// How the client begins.
pub(super) struct Start {
    /// The model, if one was named.
    pub model: Option<String>,
    /// The system message.
    pub system: Option<String>,
    /// How replies are made.
    pub reply: ReplyArgs,
    /// The session to go on with.
    pub resume: Option<String>,
    /// The name of the session.
    pub session: Option<String>,
    /// The theme that was asked for.
    pub theme: Option<String>,
    /// The keys of the draft.
    pub keymap: Keymap,
}

/// Runs the client.
pub(super) fn run(cx: &mut Context, start: Start) -> Outcome {
    let device = cx.device()?;
    let look = look(cx, start.theme.as_deref())?;
    let size = crossterm::terminal::size().ok().filter(|s| s.0 > 0 && s.1 > 0).unwrap_or((80, 24));
    let keeps = history::allowed() && history::state_dir().is_some();
    let first_time = history::state_dir().is_some_and(|d| !d.join("sessions").exists());
    let mut app = App::new(size, look, if keeps { history::prompts() } else { Vec::new() });
    app.keeps = keeps;
    app.vim = (start.keymap == Keymap::Vim).then(Vim::default);
    app.first_time(first_time);
    app.system = start.system.clone();
    app.session_name = start.session.clone().filter(|n| history::find(n).is_err());
    let (outbox, inbox) = ui::inbox();
    let told = outbox.clone();
    cx.signals.hook(move |kind| {
        told.try_send(AppEvent::Signal(kind));
        match kind {
            Kind::Interrupted => Answer::Stays,
            _ => Answer::Ends(super::signals::GRACE),
        }
    });
    let mut desk = Desk { device: device.clone(), reply: start.reply.clone(), path: None };
    app.facts = desk.facts(None);
    probe(&device, start.reply.thread_count(), outbox.clone());
    let first = first_effects(&start);
    let ending = ui::run(app, first, &mut desk, sampler(&device), (outbox, inbox))?;
    farewell(&ending);
    match ending.reason {
        Some(kind) => Err(Exit::Told(kind)),
        None => Ok(()),
    }
}

fn first_effects(start: &Start) -> Vec<Effect> {
    let mut first = Vec::new();
    if let Some(id) = &start.resume {
        first.push(if id.is_empty() { Effect::Sessions } else { Effect::Resume(id.clone()) });
    }
    if let Some(name) = &start.session {
        first.push(match history::find(name) {
            Ok(id) => Effect::Resume(id),
            // Not there yet: the next session gets this name.
            Err(_) => return first,
        });
    }
    let others = || !refs::stored().is_empty();
    match &start.model {
        Some(model) => first.push(Effect::Load(model.clone())),
        None if others() => first.push(Effect::Models),
        None => first.push(Effect::Load(refs::DEMO.into())),
    }
    first
}

/// Colours and marks for this terminal.
fn look(cx: &Context, theme: Option<&str>) -> Result<Look> {
    let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let theme = match theme {
        Some(name) => Theme::named(name).ok_or_else(|| {
            let names = Theme::ALL.map(Theme::name).join(", ");
            let what = format!("there is no theme {}", visible(name));
            Error::new(Kind::Usage, what, "it is not known", format!("use one of {names}"))
        })?,
        None if cx.globals.color.shows(true) => Theme::Auto,
        None => Theme::Mono,
    };
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| set(name));
    // Without any locale most systems today still mean UTF-8; one that says otherwise is believed.
    let ascii = locale.is_some_and(|l| {
        let l = l.to_lowercase();
        !l.contains("utf-8") && !l.contains("utf8")
    });
    Ok(Look { theme, ascii })
}

/// Three lines on the normal screen, when something was said.
fn farewell(ending: &ui::Ending) {
    if ending.tokens == 0 {
        return;
    }
    if let Some(path) = &ending.session {
        note(format!("snug: the conversation is in {path}"));
    }
    let average = texts::average(&ending.stats);
    note(format!("snug: {} tokens, the last reply at {average:.1} tok/s", ending.tokens));
    if ending.session.is_some() {
        note("snug: `snug chat MODEL --resume` goes on");
    }
}

/// Measures once how fast this machine reads memory, beside everything else; what was measured before is kept.
fn probe(device: &Device, threads: Option<usize>, to: ui::Outbox) {
    let on_cpu = match device {
        Device::Auto => driver::check().is_err(),
        Device::Cpu => true,
        Device::Cuda(_) | Device::Scripted(_) => false,
    };
    let known = known_bandwidth(device, on_cpu);
    if let Some(speed) = known {
        return to.try_send(AppEvent::News(News::Bandwidth(speed)));
    }
    if !on_cpu {
        return probe_gpu(device, &to);
    }
    let work = move || {
        if let Ok(Ok(speed)) = threads::on(threads, || bandwidth::cpu(PROBE_BYTES)) {
            keep_bandwidth("cpu", speed);
            to.send(AppEvent::News(News::Bandwidth(speed)));
        }
    };
    // Without the thread there is no figure, which the panel says.
    let _ = std::thread::Builder::new().name("probe".into()).spawn(work);
}

/// The same for a GPU that was never measured: before the model is loaded, because then there is room.
fn probe_gpu(device: &Device, to: &ui::Outbox) {
    let index = match device {
        Device::Auto => 0,
        Device::Cuda(index) => *index as usize,
        Device::Cpu | Device::Scripted(_) => return,
    };
    let Some(key) = bandwidth_key(device, false) else { return };
    note("snug: measuring the GPU's memory bandwidth, once");
    let speed = bandwidth::gpu(index, &[GPU_PROBE_BYTES])
        .ok()
        .and_then(|s| s.first().map(|(_, speed)| *speed));
    if let Some(speed) = speed {
        keep_bandwidth(&key, speed);
        to.try_send(AppEvent::News(News::Bandwidth(speed)));
    }
}

/// What bandwidths are kept under: the device itself, so that another card is measured anew.
fn bandwidth_key(device: &Device, on_cpu: bool) -> Option<String> {
    if on_cpu {
        return Some("cpu".into());
    }
    let index = match device {
        Device::Auto => 0,
        Device::Cuda(index) => *index as usize,
        _ => return None,
    };
    Some(driver::devices().ok()?.get(index)?.uuid.clone())
}

fn known_bandwidth(device: &Device, on_cpu: bool) -> Option<f64> {
    let key = bandwidth_key(device, on_cpu)?;
    let text = fs::read_to_string(history::state_dir()?.join("bandwidth.json")).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    json[&key]["bytes_per_s"].as_f64()
}

/// Keeps a measured bandwidth for the next start; a disk that cannot hold it only costs the next start a probe.
fn keep_bandwidth(key: &str, speed: f64) {
    let Some(dir) = history::state_dir() else { return };
    if !history::allowed() || fs::create_dir_all(&dir).is_err() {
        return;
    }
    let path = dir.join("bandwidth.json");
    let known = fs::read_to_string(&path).unwrap_or_default();
    let mut json: serde_json::Value = serde_json::from_str(&known).unwrap_or_default();
    json[key] = serde_json::json!({ "bytes_per_s": speed });
    let _ = fs::write(path, json.to_string());
}

/// Reads the meters of the machine, and of the GPU when one is used.
fn sampler(device: &Device) -> ui::Sampler {
    let gpu = match device {
        Device::Auto if driver::check().is_ok() => Some(0),
        Device::Cuda(index) => Some(*index as usize),
        _ => None,
    };
    let scripted = matches!(device, Device::Scripted(_));
    let uuid = gpu.and_then(|i| driver::devices().ok()?.get(i).map(|d| d.uuid.clone()));
    let mut gpu = crate::telemetry::Gpu::open(uuid.as_deref());
    Box::new(move || match &mut gpu {
        // What this process holds in the machine's memory says nothing about the GPU's.
        Some(gpu) => meters(&gpu.read()),
        // A script computes nothing: this machine's memory would say nothing about it.
        None if scripted => Meters::default(),
        None => Meters {
            rss: crate::telemetry::resident_bytes(),
            memory: backend::available_memory().zip(records::total_memory()),
            ..Meters::default()
        },
    })
}

fn meters(r: &crate::telemetry::Reading) -> Meters {
    Meters {
        rss: None,
        memory: r.memory,
        held: r.held,
        busy_percent: r.busy_percent,
        celsius: r.celsius,
        watts: r.watts,
        mhz: r.mhz,
    }
}

/// The client's desk: what it may ask of the program.
struct Desk {
    device: Device,
    reply: ReplyArgs,
    /// The file of the model that was loaded last.
    path: Option<PathBuf>,
}

impl Host for Desk {
    fn load(&mut self, reference: &str) -> Result<Load> {
        let (name, context) = with_context(reference)?;
        let model = refs::find(name)?;
        if let Some(context) = context {
            self.reply.set_context(context);
        }
        let options = self.reply.load_options()?;
        let load = super::replies::load(&model, self.device.clone(), options);
        self.path.clone_from(&load.path);
        Ok(load)
    }

    fn ask(&mut self, loaded: &Loaded, prompt: Prompt, overflow: Overflow) -> Result<Ask> {
        let mut ask = self.reply.ask(loaded, prompt)?;
        if overflow != Overflow::Refuse {
            ask.overflow = overflow;
        }
        Ok(ask)
    }

    fn perform(&mut self, effect: Effect, loaded: Option<&Loaded>) -> Result<Vec<News>> {
        let one = |news: News| Ok(vec![news]);
        match effect {
            Effect::Models => one(News::Models(self.models())),
            Effect::Set(key, value) => self.set(&key, &value, loaded),
            Effect::Params => one(News::Note(self.params(loaded)?)),
            Effect::Think(on) => {
                self.reply.set_think(on);
                let state = if on { "on" } else { "off" };
                one(News::Hint(format!(
                    "thinking is asked for: {state} (where the model's template knows it)"
                )))
            }
            Effect::Read(paths) => one(News::Said(read(&paths)?)),
            Effect::SystemFile(path) => one(News::System(input::read_file(&expand(&path), false)?)),
            Effect::Export(format, records, path) => export(format, &records, &path),
            Effect::ForgetPrompts => {
                let text = if history::clear_prompts() { "are forgotten" } else { "were none" };
                one(News::Hint(format!("the messages sent before {text}")))
            }
            Effect::Complete(what) => one(News::Completions(complete(&what))),
            Effect::Fit => one(News::Note(self.fit())),
            Effect::Devices => one(News::Note(self.devices(loaded))),
            Effect::Tokens(text) => one(News::Note(tokens(&text, self.path.as_deref())?)),
            Effect::Dump(path, text) => dump(&path, &text),
            _ => Ok(Vec::new()),
        }
    }
}

impl Desk {
    fn facts(&self, loaded: Option<&Loaded>) -> Facts {
        let dir = history::state_dir().map_or(String::new(), |d| d.display().to_string());
        Facts { state_dir: dir, sampler: self.sampler_line(loaded), ..Facts::default() }
    }

    fn sampler_line(&self, loaded: Option<&Loaded>) -> String {
        let defaults = loaded.map(|l| l.defaults.clone()).unwrap_or_default();
        match self.reply.sampling.over(&defaults) {
            Ok(s) if s.temperature == 0.0 => "greedy".into(),
            Ok(s) => format!("temp {}", s.temperature),
            Err(_) => String::new(),
        }
    }

    fn set(&mut self, key: &str, value: &str, loaded: Option<&Loaded>) -> Result<Vec<News>> {
        // Checked on a copy, so that a bad value changes nothing.
        let mut changed = self.reply.sampling.clone();
        changed.set(key, value)?;
        changed.over(&loaded.map(|l| l.defaults.clone()).unwrap_or_default())?;
        self.reply.sampling = changed;
        let line = self.sampler_line(loaded);
        Ok(vec![News::Hint(format!("{key} is {value} from now on")), News::Sampler(line)])
    }

    fn params(&self, loaded: Option<&Loaded>) -> Result<String> {
        let defaults = loaded.map(|l| l.defaults.clone()).unwrap_or_default();
        let sampler = self.reply.sampling.over(&defaults)?;
        let seed =
            self.reply.sampling.seed.map_or("another one each time".into(), |s| s.to_string());
        let mut text = String::new();
        if let serde_json::Value::Object(map) = sampling::to_json(&sampler) {
            for (key, value) in map {
                text += &format!("{key:<18} {value}\n");
            }
        }
        Ok(text + &format!("{:<18} {seed}", "seed"))
    }

    fn models(&self) -> Vec<ModelRow> {
        let (free, format) = self.room();
        let mut rows = vec![self.model_row(refs::DEMO, None, free, format)];
        for (name, path) in refs::stored() {
            rows.push(self.model_row(&name, Some(&path), free, format));
        }
        rows
    }

    /// Free bytes where a model would run, and how its cache would be kept there.
    fn room(&self) -> (Option<u64>, KvFormat) {
        let index = match &self.device {
            Device::Auto if driver::check().is_ok() => Some(0),
            Device::Cuda(index) => Some(*index as usize),
            _ => None,
        };
        match index {
            Some(index) => {
                let free = driver::Device::open(index).and_then(|d| d.memory()).ok();
                (free.map(|m| m.0), KvFormat::Bf16)
            }
            None => (backend::available_memory(), KvFormat::F32),
        }
    }

    fn model_row(
        &self,
        name: &str,
        path: Option<&Path>,
        free: Option<u64>,
        format: KvFormat,
    ) -> ModelRow {
        let mut row = ModelRow {
            reference: name.into(),
            variant: String::new(),
            bytes: 0,
            needs: None,
            free,
            error: None,
        };
        let listed = Listing::read(path).and_then(|l| {
            let program = Program::read(&l.texts().config)?;
            Ok((l, program))
        });
        match listed {
            Err(e) => row.error = Some(e.why),
            Ok((listing, program)) => {
                row.variant = Variant::of(listing.entries()).name().into();
                row.bytes = listing.entries().iter().map(|e| e.bytes).sum();
                let most = program.config.max_positions;
                let context = self.reply.context().unwrap_or(PLAN_CONTEXT).min(most);
                let plan = MemoryPlan::new(&program, row.bytes, format, context, PLAN_STEP);
                row.needs = Some((plan.total(), context));
            }
        }
        row
    }

    fn fit(&self) -> String {
        let free = self.room().0.map_or("an unknown amount".into(), texts::size);
        let mut text = format!("{free} of memory is free here");
        for row in self.models() {
            let verdict = match (&row.error, row.needs, row.free) {
                (Some(e), ..) => format!("cannot be used: {e}"),
                (None, Some((bytes, context)), Some(free)) => {
                    let fits = if bytes <= free { "✓ fits" } else { "✗ does not fit" };
                    format!("{} with a context of {context}: {fits}", texts::size(bytes))
                }
                _ => String::new(),
            };
            text += &format!("\n{:<24} {:<9} {verdict}", row.reference, row.variant);
        }
        text
    }

    fn devices(&self, loaded: Option<&Loaded>) -> String {
        let mut text = match loaded {
            Some(l) => {
                format!("this model runs on {} · {} ({})", l.card.id, l.card.name, l.card.path)
            }
            None => "no model is loaded".into(),
        };
        match driver::devices() {
            Ok(list) => {
                for d in list.iter() {
                    text += &format!("\ncuda:{}  {}  {}", d.index, d.name, texts::size(d.memory));
                }
            }
            Err(e) => text += &format!("\nno GPU: {}", e.why),
        }
        text + &format!("\ncpu     {} ({})", backend::cpu_name(), backend::cpu_path())
    }
}

/// `NAME -c N`: a reference, and the context to reserve.
fn with_context(reference: &str) -> Result<(&str, Option<u32>)> {
    let Some((name, number)) = reference.rsplit_once(" -c ") else { return Ok((reference, None)) };
    match number.trim().parse() {
        Ok(context) => Ok((name.trim(), Some(context))),
        Err(_) => Err(Error::new(
            Kind::Usage,
            "cannot load that",
            format!("`{}` is not a number of tokens", visible(number)),
            "write it as /model NAME -c 8192",
        )),
    }
}

fn expand(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), directories::BaseDirs::new()) {
        (Some(rest), Some(dirs)) => dirs.home_dir().join(rest),
        _ => PathBuf::from(path),
    }
}

/// The text of files; one path may contain blanks.
fn read(paths: &str) -> Result<String> {
    let whole = expand(paths);
    if whole.is_file() {
        return input::read_file(&whole, false);
    }
    let texts: Result<Vec<String>> =
        paths.split_whitespace().map(|p| input::read_file(&expand(p), false)).collect();
    let texts = texts?;
    if texts.is_empty() {
        return Err(Error::new(
            Kind::Usage,
            "cannot send files",
            "none was named",
            "/read notes.txt",
        ));
    }
    Ok(texts.join("\n"))
}

fn export(format: history::Format, records: &[Record], path: &str) -> Result<Vec<News>> {
    let path = expand(path);
    let shown = visible(&path.to_string_lossy());
    let mut file = new_file(&path)?;
    file.write_all(history::export(records, format).as_bytes())
        .map_err(|e| Error::io(format!("cannot write {shown}"), &e))?;
    Ok(vec![News::Hint(format!("the conversation is in {shown}"))])
}

/// Writes what is known of this client, for a report of a fault.
fn dump(path: &str, text: &str) -> Result<Vec<News>> {
    let path = expand(path);
    let mut file = new_file(&path)?;
    file.write_all(text.as_bytes()).map_err(|e| Error::io("cannot write the state", &e))?;
    Ok(vec![News::Hint(format!("the state is in {}", visible(&path.to_string_lossy())))])
}

fn new_file(path: &Path) -> Result<fs::File> {
    let shown = visible(&path.to_string_lossy());
    let failed = |e: &std::io::Error| Error::io(format!("cannot write {shown}"), e);
    fs::OpenOptions::new().write(true).create_new(true).open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(
            Kind::Failure,
            format!("cannot write {shown}"),
            "there is such a file already",
            "choose another name",
        ),
        _ => failed(&e),
    })
}

fn complete(what: &Completing) -> Vec<String> {
    match what {
        Completing::Model(begin) => {
            let mut names = vec![refs::DEMO.to_owned()];
            names.extend(refs::stored().into_iter().map(|(name, _)| name));
            names.retain(|n| n.starts_with(begin.as_str()));
            if names.is_empty() { paths(begin) } else { names }
        }
        Completing::Path(begin) => paths(begin),
    }
}

/// Paths that begin like this, directories with a slash at the end; at most a hundred.
fn paths(begin: &str) -> Vec<String> {
    let (dir, name) =
        begin.rsplit_once('/').map_or(("", begin), |(d, n)| (&begin[..d.len() + 1], n));
    let place = if dir.is_empty() { PathBuf::from(".") } else { expand(dir) };
    let mut found: Vec<String> = fs::read_dir(place)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let own = entry.file_name().into_string().ok()?;
            let hidden = own.starts_with('.') && !name.starts_with('.');
            let fits = own.starts_with(name) && !hidden && !own.contains(char::is_control);
            let slash = if entry.path().is_dir() { "/" } else { "" };
            fits.then(|| format!("{dir}{own}{slash}"))
        })
        .collect();
    found.sort();
    found.truncate(100);
    found
}

/// Text as the loaded model's tokens.
fn tokens(text: &str, path: Option<&Path>) -> Result<String> {
    let words = Words::read(Listing::read(path)?.texts(), None)?;
    let ids = words.tokenizer.encode_text(text)?;
    let piece = |id: &u32| {
        let bytes = String::from_utf8_lossy(words.tokenizer.token_bytes(*id)).into_owned();
        format!("{id:>7}  {}", visible(&bytes))
    };
    let lines: Vec<String> = ids.iter().map(piece).collect();
    Ok(format!("{} tokens\n{}", ids.len(), lines.join("\n")))
}
