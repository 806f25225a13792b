//! The commands that can be typed into a chat.

use super::chat::Chat;
use super::globals::Context;
use super::output::{Outcome, note};
use super::progress::size;
use super::{input, replies, sampling};
use crate::engine::protocol::Message;
use crate::error::{Error, Result, visible};

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Send this.
    Ask(String),
    /// Reply once more to the turns as they are.
    Again,
    /// Nothing more.
    Nothing,
    /// End the conversation.
    Quit,
}

const HELP: &str = "\
/help            this list                 /quit (/bye, /exit)  end
/new (/clear)    forget the conversation   /undo                take back the last exchange
/regen           another reply             /model MODEL         load another model
/system [TEXT]   show or set the system message; `-` removes it
/set KEY=VALUE   temp, top_k, top_p, min_p, repeat_penalty, seed, ...
/params          the sampler               /stats               counts and speeds of the last reply
/mem             memory held               /read FILE           send a file
A line that ends in \\ goes on; // at the start sends a literal slash.";

/// Reads a typed line: a command does its work, anything else is a message.
pub(super) fn read(line: &str, chat: &mut Chat, cx: &mut Context) -> Outcome<Next> {
    let Some(rest) = line.strip_prefix('/') else { return Ok(Next::Ask(line.to_owned())) };
    if rest.starts_with('/') {
        return Ok(Next::Ask(rest.to_owned()));
    }
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    match run(word, argument.trim(), chat, cx) {
        Ok(next) => Ok(next),
        Err(e) => {
            note(e);
            Ok(Next::Nothing)
        }
    }
}

fn run(word: &str, argument: &str, chat: &mut Chat, cx: &mut Context) -> Result<Next> {
    match word {
        "help" | "?" => note(HELP),
        "quit" | "bye" | "exit" => return Ok(Next::Quit),
        "new" | "clear" => {
            chat.turns.clear();
            chat.last = None;
            note("snug: a new conversation");
        }
        "undo" => {
            take_reply(&mut chat.turns);
            match chat.turns.pop() {
                Some(_) => note(format!("snug: {} messages left", chat.turns.len())),
                None => note("snug: there is nothing to take back"),
            }
        }
        "regen" | "retry" => {
            take_reply(&mut chat.turns);
            if !chat.turns.is_empty() {
                return Ok(Next::Again);
            }
            note("snug: there is nothing to reply to");
        }
        "model" => switch(argument, chat, cx)?,
        "system" => system(argument, chat),
        "set" => set(argument, chat)?,
        "params" => {
            let sampler = chat.reply.sampling.over(&chat.answering.loaded.defaults)?;
            let seed = chat.reply.sampling.seed.map_or("random".into(), |s| s.to_string());
            note(format!("snug: {} seed {seed}", sampling::to_json(&sampler)));
        }
        "stats" => {
            note(chat.last.as_ref().map_or("snug: no reply yet".into(), super::run::summary))
        }
        "mem" => memory(chat),
        "read" => {
            let path = std::path::Path::new(argument);
            return input::read_file(path, false).map(Next::Ask);
        }
        _ => note(format!(
            "snug: there is no command /{}; /help lists them, // sends a slash",
            visible(word)
        )),
    }
    Ok(Next::Nothing)
}

/// Removes the last reply, if the last turn is one.
fn take_reply(turns: &mut Vec<Message>) {
    if turns.last().is_some_and(|m| m.role == "assistant") {
        turns.pop();
    }
}

fn switch(reference: &str, chat: &mut Chat, cx: &mut Context) -> Result<()> {
    if reference.is_empty() {
        let l = &chat.answering.loaded;
        note(format!("snug: {} · {} · {}", visible(&l.name), l.variant, l.card.id));
        return Ok(());
    }
    // Only now is the old model let go: a typing error must not end the conversation.
    let opened = replies::open(cx, reference, chat.reply.load_options()?);
    if let Ok(answering) = opened {
        chat.answering = answering;
        chat.attend(cx);
        return Ok(());
    }
    chat.attend(cx);
    opened.map(drop)
}

fn system(argument: &str, chat: &mut Chat) {
    match argument {
        "" => {
            note(format!("snug: system: {}", visible(chat.system.as_deref().unwrap_or("(none)"))))
        }
        "-" => chat.system = None,
        text => chat.system = Some(text.to_owned()),
    }
}

fn set(argument: &str, chat: &mut Chat) -> Result<()> {
    let Some((key, value)) = argument.split_once('=') else {
        return Err(Error::new(
            crate::error::Kind::Usage,
            "cannot set that",
            "it is not KEY=VALUE",
            "/set temp=0.5",
        ));
    };
    // Checked on a copy, so that a bad value changes nothing.
    let mut changed = chat.reply.sampling.clone();
    changed.set(key.trim(), value.trim())?;
    changed.over(&chat.answering.loaded.defaults)?;
    chat.reply.sampling = changed;
    Ok(())
}

fn memory(chat: &Chat) {
    let l = &chat.answering.loaded;
    let kv = chat.last.as_ref().map(|r| r.stats.ledger);
    match kv {
        Some(m) => note(format!(
            "snug: weights {}, cache {} of {}, scratch {}; context {} of {}",
            size(m.weights),
            size(m.kv_used),
            size(m.kv_reserved),
            size(m.scratch),
            chat.last.as_ref().map_or(0, |r| r.stats.context_used),
            l.context,
        )),
        None => note(format!("snug: weights {}; context {}", size(l.weight_bytes), l.context)),
    }
}
