//! `snug list`: the models that are here.

use clap::{ArgMatches, Args, Command};
use serde_json::{Value, json};

use super::globals::Context;
use super::output::Outcome;
use super::progress::size;
use super::table::Table;
use super::{Verb, parsed, refs};
use crate::engine::protocol::Variant;
use crate::error::{Result, visible};
use crate::store::Listing;

pub(super) const VERB: Verb = Verb {
    name: "list",
    aliases: &["ls"],
    about: "List the models in the store",
    examples: &["snug list", "snug list -q", "snug list --json"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {}

/// One line of the list.
struct Row {
    name: String,
    path: Option<String>,
    model: Result<Facts>,
}

struct Facts {
    variant: Variant,
    bytes: u64,
    parameters: u64,
    exact: bool,
}

fn main(_: Options, cx: &mut Context) -> Outcome {
    let models = std::iter::once((refs::DEMO.to_owned(), None))
        .chain(refs::stored().into_iter().map(|(name, path)| (name, Some(path))));
    if cx.globals.quiet && !cx.globals.json {
        for (name, _) in models {
            cx.out.line(visible(&name))?;
        }
        return Ok(());
    }
    let rows = models.map(|(name, path)| {
        let model = Listing::read(path.as_deref()).map(|listing| facts(&listing));
        Row { name, path: path.map(|p| p.display().to_string()), model }
    });
    if cx.globals.json {
        for row in rows {
            cx.out.json(&row.to_json())?;
        }
        return Ok(());
    }
    let mut table =
        Table::new(&["name", "stored as", ">size", ">weights", ">bits/weight", "source"]);
    for row in rows {
        table.row(row.cells());
    }
    cx.out.line(table.render())
}

fn facts(model: &Listing) -> Facts {
    Facts {
        variant: Variant::of(model.entries()),
        bytes: model.file_bytes(),
        parameters: model.entries().iter().map(|e| e.shape.len()).sum(),
        exact: model.source().exact,
    }
}

impl Row {
    fn to_json(&self) -> Value {
        let mut record = json!({ "v": 1, "type": "model", "name": self.name, "path": self.path });
        match &self.model {
            Ok(f) => {
                record["variant"] = json!(f.variant.name());
                record["bytes"] = json!(f.bytes);
                record["parameters"] = json!(f.parameters);
                record["exact"] = json!(f.exact);
            }
            Err(e) => record["error"] = super::output::error_record(e),
        }
        record
    }

    fn cells(&self) -> [String; 6] {
        let name = visible(&self.name);
        match &self.model {
            Ok(f) => [
                name,
                f.variant.name().into(),
                size(f.bytes),
                f.parameters.to_string(),
                format!("{:.2}", 8.0 * f.bytes as f64 / f.parameters.max(1) as f64),
                if f.exact { "bf16, exact" } else { "converted to bf16" }.into(),
            ],
            Err(e) => {
                let none = String::new;
                [name, "unreadable".into(), none(), none(), none(), e.why.clone()]
            }
        }
    }
}
