//! `snug sessions`: the conversations that are kept on this machine.

use std::fs;
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, Subcommand};
use serde_json::json;

use super::globals::Context;
use super::output::{Outcome, note};
use super::table::Table;
use super::{Verb, files, parsed};
use crate::error::{Error, Kind, Result, visible};
use crate::history::{self, Format, Log, Record};

pub(super) const VERB: Verb = Verb {
    name: "sessions",
    aliases: &[],
    about: "List, export, rename and remove conversations",
    examples: &[
        "snug sessions",
        "snug sessions export 2026-11-30-142501 notes.md",
        "snug chat MODEL --resume 2026-11-30",
    ],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// List them, newest first
    #[command(alias = "ls")]
    List,
    /// Print one
    Show {
        /// Its id, the beginning of it, or its name
        id: String,
    },
    /// Write one to a file: .md, .json or .jsonl
    Export {
        /// Its id, the beginning of it, or its name
        id: String,
        /// The file; `-` is standard output, as Markdown
        file: PathBuf,
    },
    /// Give one a name
    Rename {
        /// Its id, the beginning of it, or its name
        id: String,
        /// The name
        name: String,
    },
    /// Remove some
    Rm {
        /// Their ids or names
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Remove all, and the list of messages sent
    Clear {
        /// Do it
        #[arg(short, long)]
        yes: bool,
    },
    /// Print where they are kept
    Path,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    match o.what.unwrap_or(What::List) {
        What::List => list(cx),
        What::Show { id } => {
            let records = history::read(&history::find(&id)?)?;
            if cx.globals.json {
                return cx.out.text(&history::export(&records, Format::Lines));
            }
            cx.out.text(&history::export(&records, Format::Markdown))
        }
        What::Export { id, file } => export(&id, &file, cx),
        What::Rename { id, name } => {
            let (mut log, _) = Log::open(&history::find(&id)?)?;
            Ok(log.append(&Record::Name { text: name })?)
        }
        What::Rm { ids } => {
            // All are found before the first is removed.
            let ids: Vec<String> = ids.iter().map(|id| history::find(id)).collect::<Result<_>>()?;
            Ok(ids.iter().try_for_each(|id| history::remove(id))?)
        }
        What::Clear { yes } => clear(yes, cx),
        What::Path => {
            let dir = history::state_dir().ok_or_else(no_home)?;
            cx.out.line(visible(&dir.display().to_string()))
        }
    }
}

fn list(cx: &mut Context) -> Outcome {
    let all = history::list();
    if cx.globals.json {
        return all.iter().try_for_each(|s| {
            cx.out.json(&json!({
                "v": 1, "type": "session", "id": s.id, "name": s.name, "model": s.model,
                "messages": s.turns,
            }))
        });
    }
    if cx.globals.quiet {
        return all.iter().try_for_each(|s| cx.out.line(visible(&s.id)));
    }
    let mut table = Table::new(&["id", "name", "model", ">messages"]);
    for s in &all {
        table.row([visible(&s.id), visible(&s.name), visible(&s.model), s.turns.to_string()]);
    }
    cx.out.line(table.render())
}

fn export(id: &str, file: &std::path::Path, cx: &mut Context) -> Outcome {
    let records = history::read(&history::find(id)?)?;
    if file.as_os_str() == "-" {
        return cx.out.text(&history::export(&records, Format::Markdown));
    }
    let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let format = Format::named(extension).ok_or_else(|| {
        Error::new(
            Kind::Usage,
            format!("cannot tell how to write {}", visible(&file.display().to_string())),
            "its name ends neither in .md nor in .json or .jsonl",
            "name it notes.md, for instance",
        )
    })?;
    Ok(files::write(file, history::export(&records, format).as_bytes())?)
}

fn clear(yes: bool, cx: &Context) -> Outcome {
    let dir = history::state_dir().ok_or_else(no_home)?.join("sessions");
    let count = history::list().len();
    if !yes {
        note(format!("snug: {count} conversations would be removed; --yes does it"));
        return Ok(());
    }
    match fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io("cannot remove the conversations", &e).into());
        }
        _ => {}
    }
    history::clear_prompts();
    if !cx.globals.quiet {
        note(format!("snug: removed {count} conversations"));
    }
    Ok(())
}

fn no_home() -> Error {
    Error::new(
        Kind::Failure,
        "cannot find conversations",
        "this user has no home directory",
        "set XDG_STATE_HOME",
    )
}
