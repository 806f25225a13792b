//! `snug rm`: removes models from the store.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command};
use serde_json::json;

use super::globals::Context;
use super::output::{Outcome, note};
use super::progress::size;
use super::{Verb, parsed, refs};
use crate::error::{Error, Kind, Result, visible};

pub(super) const VERB: Verb = Verb {
    name: "rm",
    aliases: &[],
    about: "Remove models from the store",
    examples: &["snug rm qwen3-4b", "snug rm -y old-model another"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// Names in the store, or .snug files
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// A file that will go.
struct Doomed {
    name: String,
    path: PathBuf,
    bytes: u64,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    // All of them are found before the first is removed.
    let doomed: Vec<Doomed> = o.models.iter().map(|m| find(m)).collect::<Result<_>>()?;
    if !o.dry_run && !o.yes && !confirmed(&doomed)? {
        note("snug: nothing was removed");
        return Ok(());
    }
    for d in &doomed {
        if !o.dry_run {
            fs::remove_file(&d.path)
                .map_err(|e| Error::io(format!("cannot remove {}", d.path.display()), &e))?;
        }
        if cx.globals.json {
            cx.out.json(&json!({
                "v": 1, "type": "removed", "name": d.name, "path": d.path.display().to_string(),
                "bytes": d.bytes, "dry_run": o.dry_run,
            }))?;
        } else if !cx.globals.quiet {
            let verb = if o.dry_run { "would remove" } else { "removed" };
            cx.out.line(format_args!("{verb} {} ({})", visible(&d.name), size(d.bytes)))?;
        }
    }
    Ok(())
}

fn find(reference: &str) -> Result<Doomed> {
    let model = refs::find(reference)?;
    let refuse = |why: &str| {
        Err(Error::new(
            Kind::Usage,
            format!("cannot remove {}", visible(reference)),
            why,
            "name a model of `snug list`, or a .snug file",
        ))
    };
    let Some(path) = model.path else { return refuse("it is built into the program") };
    if path.is_dir() || path.extension().is_none_or(|e| e != "snug") {
        return refuse("it is not a .snug file, and other files are not touched");
    }
    let bytes = fs::metadata(&path).map_or(0, |m| m.len());
    Ok(Doomed { name: model.name, path, bytes })
}

fn confirmed(doomed: &[Doomed]) -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(Error::new(
            Kind::Usage,
            "cannot ask whether to remove",
            "standard input is not a terminal",
            "add --yes, or --dry-run to see what would go",
        ));
    }
    let total: u64 = doomed.iter().map(|d| d.bytes).sum();
    let names: Vec<String> = doomed.iter().map(|d| visible(&d.name)).collect();
    let _ = write!(io::stderr(), "remove {} ({})? [y/N] ", names.join(", "), size(total));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|e| Error::io("cannot read the answer", &e))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
