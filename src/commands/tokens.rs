//! `snug tokens`: text as the model's ids.

use std::ffi::OsString;

use clap::{ArgMatches, Args, Command};
use serde_json::json;

use super::globals::Context;
use super::output::Outcome;
use super::reading::PromptArgs;
use super::{Verb, parsed, refs};
use crate::engine::model::Words;
use crate::error::visible;

pub(super) const VERB: Verb = Verb {
    name: "tokens",
    aliases: &["tokenize"],
    about: "Show text as the model's token ids",
    examples: &["snug tokens demo 'hello there'", "snug tokens demo --json - < text.txt"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// The text; `-`, or none, is standard input
    #[arg(value_name = "TEXT")]
    text: Vec<OsString>,
    /// Recognise special tokens such as <|im_end|>, as a template does
    #[arg(long)]
    special: bool,
    /// Replace bytes that are not UTF-8 instead of refusing them
    #[arg(long)]
    lossy: bool,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let input = PromptArgs { words: o.text, lossy: o.lossy, ..PromptArgs::default() };
    let text = input.text(cx, true)?;
    let model = refs::list(&refs::find(&o.model)?)?;
    let words = Words::read(model.texts(), None)?;
    let t = &words.tokenizer;
    let ids = if o.special { t.encode_scaffold(&text)? } else { t.encode_text(&text)? };
    if cx.globals.json {
        let tokens: Vec<_> = ids
            .iter()
            .map(|id| {
                json!({
                    "id": id,
                    "token": t.token(*id),
                    "bytes": crate::text::base64::base64(t.token_bytes(*id)),
                    "special": t.is_special(*id),
                })
            })
            .collect();
        return cx.out.json(
            &json!({ "v": 1, "type": "tokens", "count": ids.len(), "ids": ids, "tokens": tokens }),
        );
    }
    for id in &ids {
        let shown = visible(&String::from_utf8_lossy(t.token_bytes(*id)));
        cx.out.line(format_args!("{id:>7}  {shown}"))?;
    }
    Ok(())
}
