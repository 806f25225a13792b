//! Commands that are typed into the draft. [`COMMANDS`] is the list; help and completion come from it.

use super::app::{App, Model};
use super::events::Effect;
use super::keys::KEYS;
use super::texts;
use super::theme::Theme;
use super::transcript::Entry;
use crate::engine::protocol::Prompt;
use crate::history::{Format, Record};

/// A command.
pub struct Command {
    /// What people type.
    pub name: &'static str,
    /// What they may type as well.
    pub aliases: &'static [&'static str],
    /// What follows.
    pub arguments: &'static str,
    /// One line.
    pub about: &'static str,
    run: fn(&mut App, &str, &mut Vec<Effect>),
}

macro_rules! commands {
    ($($name:literal $aliases:tt $arguments:literal $about:literal $run:expr;)*) => {
        /// Every command, in the order of the help.
        pub static COMMANDS: &[Command] = &[$(Command {
            name: $name, aliases: &$aliases, arguments: $arguments, about: $about, run: $run,
        }),*];
    };
}

commands! {
    "regen" ["retry"] "[--seed N]" "another reply" regen;
    "edit" [] "[N]" "take back a message into the draft" edit;
    "undo" [] "" "take back the last exchange" |app, _, e| undo(app, e);
    "continue" [] "" "let the last reply go on" |app, _, e| go_on(app, e);
    "model" [] "[NAME [-c N]]" "choose or load another model" model;
    "copy" [] "[all|code|N]" "copy the last reply, or parts of it" copy;
    "new" ["clear"] "" "begin a new conversation" |app, _, e| new(app, e);
    "load" ["resume"] "[ID]" "go on with a conversation" load;
    "quit" ["exit", "bye"] "" "leave" |app, _, _| app.finished = true;
    "keys" [] "" "what the keys do" |app, _, _| app.page(keys());
    "help" ["?"] "[COMMAND]" "commands, or what one does" |app, a, _| app.page(explain(a));
    "system" [] "[TEXT|@FILE|-]" "show, set or remove it" system;
    "set" [] "KEY=VALUE" "temp, top_k, top_p, min_p, seed, ..." set;
    "params" [] "" "the sampler" |_, _, e| e.push(Effect::Params);
    "think" [] "on|off|show" "ask for thinking; show it" think;
    "read" [] "FILE..." "send files" |_, a, e| e.push(Effect::Read(a.into()));
    "save" [] "[NAME]" "name this conversation" save;
    "sessions" [] "" "choose a conversation" |_, _, e| e.push(Effect::Sessions);
    "export" [] "md|json|jsonl FILE" "write the conversation to a file" export;
    "history" [] "off|on|clear" "keep conversations, or not" history;
    "stats" [] "[reset]" "counts and speeds of the last reply" stats;
    "mem" [] "" "memory held, by purpose" |app, _, _| app.note(memory(app));
    "fit" [] "" "what would fit here now" |_, _, e| e.push(Effect::Fit);
    "device" [] "" "what there is to run on" |_, _, e| e.push(Effect::Devices);
    "prompt" [] "" "the prompt as the model gets it" |app, _, e| prompt(app, e);
    "tokens" [] "TEXT" "text as tokens" |_, a, e| e.push(Effect::Tokens(a.into()));
    "pager" [] "" "the conversation in $PAGER" |app, _, e| e.push(Effect::Pager(app.transcript.raw()));
    "raw" [] "" "everything as plain text" |app, _, e| e.push(Effect::Raw(app.transcript.raw()));
    "theme" [] "[NAME]" "auto, dark, light, mono, high-contrast" theme;
    "mouse" [] "on|off" "let the wheel scroll (hold Shift to select text)" mouse;
    "debug" [] "dump FILE|panic" "write the state to a file; fail on purpose" debug;
}

/// The command of this name.
pub fn find(word: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|c| c.name == word || c.aliases.contains(&word))
}

/// Commands that begin with what was typed, the slash included.
pub fn beginning_with(typed: &str) -> Vec<String> {
    let word = typed.trim_start_matches('/');
    let names = COMMANDS.iter().filter(|c| c.name.starts_with(word));
    names.map(|c| format!("/{}", c.name)).collect()
}

/// Does what a line says; anything unknown is said and not sent.
pub fn run(app: &mut App, line: &str, effects: &mut Vec<Effect>) {
    let line = line.trim_start_matches('/');
    let (word, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match find(word) {
        Some(command) => (command.run)(app, argument.trim(), effects),
        None => {
            let near = COMMANDS.iter().find(|c| word.len() > 1 && c.name.starts_with(&word[..1]));
            let near = near.map_or(String::new(), |c| format!(", did you mean /{}?", c.name));
            app.hint = Some(format!(
                "there is no command /{word}{near} (/help lists them, // sends a slash)"
            ));
            app.composer.set(&format!("/{line}"));
        }
    }
}

/// The list of commands, with the most important keys.
pub fn help() -> String {
    let mut text = String::from(
        "Enter sends · Ctrl-C stops · Ctrl-D quits · Alt-X copies code · /keys lists keys\n",
    );
    for c in COMMANDS {
        let call = format!("/{} {}", c.name, c.arguments);
        text += &format!("\n{call:<28} {}", c.about);
    }
    text
}

fn explain(word: &str) -> String {
    match find(word.trim_start_matches('/')) {
        Some(c) => {
            let aliases: String = c.aliases.iter().map(|a| format!(" (also /{a})")).collect();
            format!("/{} {}\n{}{aliases}", c.name, c.arguments, c.about)
        }
        None => help(),
    }
}

fn keys() -> String {
    let line = |(keys, what): &(&str, &str)| format!("{keys:<29} {what}");
    KEYS.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Whether the conversation may be changed now; says so when not.
fn at_rest(app: &mut App) -> bool {
    if app.is_busy() {
        app.hint = Some("a reply is being written: Ctrl-C stops it".into());
    }
    !app.is_busy()
}

fn new(app: &mut App, effects: &mut Vec<Effect>) {
    if at_rest(app) {
        app.transcript.clear();
        (app.since, app.summary) = (0, None);
        app.session = None;
        effects.push(Effect::NewSession);
        app.note("a new conversation");
    }
}

fn last_user(app: &App) -> Option<usize> {
    app.transcript.entries().iter().rposition(|e| matches!(e, Entry::User(_)))
}

fn regen(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    if !at_rest(app) {
        return;
    }
    let seed = argument.strip_prefix("--seed").map(|s| s.trim_matches([' ', '=']).to_owned());
    match (last_user(app), &app.model) {
        (None, _) => app.hint = Some("there is nothing to reply to".into()),
        (_, Model::None | Model::Loading(_)) => app.hint = Some("no model is loaded".into()),
        (Some(at), Model::Ready(_)) => {
            if let Some(seed) = seed {
                effects.push(Effect::Set("seed".into(), seed));
            }
            app.cut(at + 1, effects);
            app.ask(effects);
        }
    }
}

fn go_on(app: &mut App, effects: &mut Vec<Effect>) {
    if at_rest(app) && matches!(app.model, Model::Ready(_)) {
        app.go_on(effects);
    }
}

fn undo(app: &mut App, effects: &mut Vec<Effect>) {
    if !at_rest(app) {
        return;
    }
    match last_user(app) {
        Some(at) => {
            app.cut(at, effects);
            app.hint = Some("the last message and its reply are taken back".into());
        }
        None => app.hint = Some("there is nothing to take back".into()),
    }
}

fn edit(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    if !at_rest(app) {
        return;
    }
    let users: Vec<usize> = (0..app.transcript.entries().len())
        .filter(|n| matches!(app.transcript.entries()[*n], Entry::User(_)))
        .collect();
    let at = match argument {
        "" => users.last(),
        n => n.parse::<usize>().ok().and_then(|n| users.get(n.checked_sub(1)?)),
    };
    let Some(&at) = at else {
        app.hint = Some("there is no such message".into());
        return;
    };
    if let Entry::User(text) = &app.transcript.entries()[at] {
        let text = text.clone();
        app.composer.set(&text);
        app.cut(at, effects);
        app.hint = Some("change it and send it again".into());
    }
}

fn model(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    if at_rest(app) {
        effects.push(match argument {
            "" => Effect::Models,
            name => Effect::Load(name.into()),
        });
    }
}

fn system(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    if let Some(path) = argument.strip_prefix('@') {
        effects.push(Effect::SystemFile(path.into()));
        return;
    }
    match argument {
        "" => {
            let text = app.system.clone().unwrap_or_else(|| "(none)".into());
            app.note(format!("system: {text}"));
            return;
        }
        "-" => app.system = None,
        text => app.system = Some(text.into()),
    }
    effects.push(Effect::Record(Record::System { text: app.system.clone() }));
    app.hint = Some("the system message counts from the next message on".into());
}

fn set(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    match argument.split_once('=').or_else(|| argument.split_once(' ')) {
        Some((key, value)) => {
            effects.push(Effect::Set(key.trim().into(), value.trim().into()));
        }
        None if argument == "nohistory" => effects.push(Effect::Keep(false)),
        None => app.hint = Some("write it as /set temp=0.5".into()),
    }
}

fn think(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    match argument {
        "on" => effects.push(Effect::Think(true)),
        "off" => effects.push(Effect::Think(false)),
        "show" | "" => match app.transcript.last_reply_mut() {
            Some(reply) if !reply.reasoning.is_empty() => {
                reply.unfolded = !reply.unfolded;
                app.transcript.touch();
            }
            _ => app.hint = Some("the last reply has no thinking".into()),
        },
        _ => app.hint = Some("/think on, off or show".into()),
    }
}

/// Copies a reply, its code, or everything.
pub fn copy(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    let Some(reply) = app.transcript.last_reply() else {
        app.hint = Some("there is no reply yet".into());
        return;
    };
    let copied = match argument {
        "" => Some((reply.text.clone(), "the last reply")),
        "all" => Some((app.transcript.raw(), "the conversation")),
        "code" => reply.code_blocks().pop().map(|code| (code, "the last block of code")),
        n => {
            let at = n.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
            at.and_then(|at| reply.code_blocks().into_iter().nth(at))
                .map(|c| (c, "a block of code"))
        }
    };
    match copied {
        Some((text, what)) => effects.push(Effect::Copy(text, what.into())),
        None => app.hint = Some("there is no such block of code in the last reply".into()),
    }
}

fn save(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    match (&app.session, argument) {
        (None, _) => {
            app.hint = Some("this conversation is not kept: it is empty, or /history is off".into())
        }
        (Some(id), "") => app.hint = Some(format!("every message is saved already, as {id}")),
        (Some(_), name) => {
            effects.push(Effect::Record(Record::Name { text: name.into() }));
            app.hint = Some(format!("this conversation is called {name}"));
        }
    }
}

fn load(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    if at_rest(app) {
        effects.push(match argument {
            "" => Effect::Sessions,
            id => Effect::Resume(id.into()),
        });
    }
}

fn export(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    let (format, path) = argument.split_once(' ').unwrap_or((argument, ""));
    match (Format::named(format), path.trim()) {
        (Some(format), path) if !path.is_empty() => {
            effects.push(Effect::Export(format, app.records(), path.into()));
        }
        _ => app.hint = Some("write it as /export md notes.md (or json, jsonl)".into()),
    }
}

fn history(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    match argument {
        "off" => effects.push(Effect::Keep(false)),
        "on" => effects.push(Effect::Keep(true)),
        "clear" => effects.push(Effect::ForgetPrompts),
        _ => app.hint = Some("/history on, off or clear".into()),
    }
}

fn stats(app: &mut App, argument: &str, _: &mut Vec<Effect>) {
    if argument == "reset" {
        app.speeds = Default::default();
        app.hint = Some("the speeds are forgotten".into());
        return;
    }
    app.note(texts::stats(&app.stats, &app.facts));
}

fn memory(app: &App) -> String {
    let Some(loaded) = app.loaded() else { return "no model is loaded".into() };
    let m = app.stats.ledger;
    let size = texts::size;
    let known = m.weights + m.kv_reserved + m.scratch + m.context;
    let mut text = format!(
        "weights  {}\ncache    {} used of {} reserved\nscratch  {}\ncontext  {}\ntogether {}",
        size(m.weights),
        size(m.kv_used),
        size(m.kv_reserved),
        size(m.scratch),
        size(m.context),
        size(known),
    );
    if let Some(held) = app.meters.held.or(app.meters.rss) {
        let rest = held as i128 - i128::from(known);
        let sign = if rest < 0 { "-" } else { "" };
        let rest = size(rest.unsigned_abs() as u64);
        text += &format!("\nmeasured {} (unexplained {sign}{rest})", size(held));
    }
    text + &format!("\ncontext  {} of {} tokens", app.stats.context_used, loaded.context)
}

fn prompt(app: &mut App, effects: &mut Vec<Effect>) {
    if at_rest(app) {
        effects.push(Effect::Explain(Prompt::Chat(app.messages())));
    }
}

fn theme(app: &mut App, argument: &str, _: &mut Vec<Effect>) {
    match Theme::named(argument) {
        Some(theme) => app.look.theme = theme,
        None => {
            let names = Theme::ALL.map(Theme::name).join(", ");
            app.hint = Some(format!("this is {}; there are {names}", app.look.theme.name()));
        }
    }
}

fn mouse(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    match argument {
        "on" | "off" => {
            app.mouse = argument == "on";
            effects.push(Effect::Mouse(app.mouse));
            let on = "the wheel scrolls; hold Shift to select text";
            app.hint = Some(if app.mouse { on } else { "the mouse is the terminal's" }.into());
        }
        _ => app.hint = Some("/mouse on or off".into()),
    }
}

#[expect(clippy::panic, reason = "asked for, to see that a fault gives the terminal back")]
fn debug(app: &mut App, argument: &str, effects: &mut Vec<Effect>) {
    if argument == "panic" {
        panic!("asked to by /debug panic");
    }
    match argument.strip_prefix("dump").map(str::trim) {
        Some(path) if !path.is_empty() => {
            effects.push(Effect::Dump(path.into(), format!("{app:#?}")))
        }
        _ => app.hint = Some("write it as /debug dump FILE".into()),
    }
}
