//! `snug template`: the prompt as the model gets it.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command};
use serde::Deserialize;
use serde_json::json;

use super::globals::Context;
use super::output::{Exit, Outcome, note};
use super::{Verb, input, parsed, refs};
use crate::engine::model::Words;
use crate::engine::protocol::Message;
use crate::error::{Error, Kind, Result};

pub(super) const VERB: Verb = Verb {
    name: "template",
    aliases: &[],
    about: "Show a conversation as the model's chat template writes it",
    examples: &["snug template demo", "snug template MODEL --messages chat.json --ids"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// A JSON array of {"role", "content"}; `-` is standard input [default: a short example]
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// Print token ids and where the reply stops
    #[arg(long)]
    ids: bool,
    /// Use this chat template
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Variables for the template, as a JSON object
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Option<String>,
}

#[derive(Deserialize)]
struct MessageJson {
    role: String,
    content: String,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let messages = match &o.messages {
        None => example(),
        Some(path) => read_messages(path, cx)?,
    };
    let template = match &o.chat_template {
        Some(path) => Some(input::read_file(path, false)?),
        None => None,
    };
    let model = refs::list(&refs::find(&o.model)?)?;
    let words = Words::read(model.texts(), template.as_deref())?;
    let (text, ids) = words.chat(&messages, o.chat_template_kwargs.as_deref())?;
    let stops = words.stop_list();
    if cx.globals.json {
        return cx.out.json(&json!({
            "v": 1, "type": "template", "text": text, "ids": ids,
            "stop_ids": stops.iter().map(|(id, origin)| json!({"id": id, "origin": origin})).collect::<Vec<_>>(),
        }));
    }
    if !o.ids {
        cx.out.text(&text)?;
        return if cx.out.is_terminal() && !text.ends_with('\n') {
            cx.out.line("")
        } else {
            Ok(())
        };
    }
    for id in &ids {
        let piece = words.tokenizer.token(*id).unwrap_or_default();
        let mark = if words.tokenizer.is_special(*id) { "special" } else { "" };
        cx.out.text(format!("{id:>7}  {}  {mark}", crate::error::visible(&piece)).trim_end())?;
        cx.out.line("")?;
    }
    if !cx.globals.quiet {
        for (id, origin) in stops {
            note(format!(
                "snug: stops at {id} {} ({origin})",
                words.tokenizer.token(id).unwrap_or_default()
            ));
        }
    }
    Ok(())
}

fn example() -> Vec<Message> {
    [("user", "Hello!"), ("assistant", "Hello. How can I help?"), ("user", "Tell me a story.")]
        .map(|(role, content)| Message { role: role.into(), content: content.into() })
        .into()
}

fn read_messages(path: &Path, cx: &Context) -> Result<Vec<Message>, Exit> {
    let text = if path.as_os_str() == "-" {
        let bytes = input::read_stdin(None, cx.globals.quiet, &cx.signals)?.unwrap_or_default();
        input::decode(bytes, "standard input", false)?
    } else {
        input::read_file(path, false)?
    };
    let messages: Vec<MessageJson> = serde_json::from_str(&text).map_err(|e| {
        Error::new(
            Kind::Usage,
            format!("cannot read the messages in {}", path.display()),
            e.to_string(),
            r#"write [{"role": "user", "content": "…"}, …]"#,
        )
    })?;
    Ok(messages.into_iter().map(|m| Message { role: m.role, content: m.content }).collect())
}
