//! `snug inspect`: what a model file is and where its bytes go.

use std::collections::BTreeMap;

use clap::{ArgMatches, Args, Command};
use serde_json::{Value, json};

use super::globals::Context;
use super::output::{Outcome, note};
use super::progress::size;
use super::table::Table;
use super::{Verb, parsed, refs};
use crate::codec::{Breakdown, Format};
use crate::engine::model::template_source;
use crate::engine::protocol::Variant;
use crate::error::{Error, Kind, visible};
use crate::model::program::Program;
use crate::store::pack::class_name;
use crate::store::{Entry, Store, Texts};

pub(super) const VERB: Verb = Verb {
    name: "inspect",
    aliases: &["show"],
    about: "Show what a model file holds and where its bytes go",
    examples: &[
        "snug inspect demo",
        "snug inspect model.snug --tensors '*.mlp.*'",
        "snug inspect DIR --template",
    ],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// List tensors, all or those that match (`*` and `?`)
    #[arg(long, value_name = "GLOB", num_args = 0..=1, default_missing_value = "*")]
    tensors: Option<String>,
    /// Print the chat template
    #[arg(long, conflicts_with = "tensors")]
    template: bool,
}

/// Weights of one kind, or all.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    tensors: u64,
    weights: u64,
    bytes: u64,
    parts: Breakdown,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let model = refs::find(&o.model)?;
    let store = refs::open(&model)?;
    if o.template {
        return template(store.texts(), cx);
    }
    if let Some(glob) = &o.tensors {
        return tensors(&store, glob, cx);
    }
    let program = Program::read(&store.texts().config);
    let mut classes: BTreeMap<String, Sum> = BTreeMap::new();
    let (mut all, mut packed) = (Sum::default(), Sum::default());
    for e in store.entries() {
        let sum = Sum::of(&store, e);
        classes.entry(class_name(&e.name)).or_default().add(sum);
        all.add(sum);
        if e.format != Format::Bf16 {
            packed.add(sum);
        }
    }
    if cx.globals.json {
        let mut record = json!({
            "v": 1, "type": "model", "name": model.name,
            "path": model.path.as_ref().map(|p| p.display().to_string()),
            "variant": Variant::of(store.entries()).name(),
            "source": source_json(&store), "packer": store.packer(),
            "file_bytes": store.file_bytes(), "all": all.to_json(), "packed": packed.to_json(),
            "classes": classes.iter().map(|(n, s)| {
                let mut class = s.to_json();
                class["name"] = json!(n);
                class
            }).collect::<Vec<_>>(),
        });
        record["model"] = program.as_ref().map_or_else(super::output::error_record, model_json);
        return cx.out.json(&record);
    }
    cx.out.text(&format!(
        "{} · {}\n",
        visible(&model.name),
        Variant::of(store.entries()).name()
    ))?;
    for (label, value) in facts(&store, program.as_ref()) {
        cx.out.line(format_args!("{label:<14} {value}"))?;
    }
    cx.out.line("")?;
    cx.out.line(shares(&all, &packed).render())?;
    cx.out.line("")?;
    let mut table = Table::new(&["tensors", ">count", ">weights", ">size", ">bits/weight"]);
    for (name, s) in &classes {
        table.row([
            visible(name),
            s.tensors.to_string(),
            s.weights.to_string(),
            size(s.bytes),
            bits(s),
        ]);
    }
    cx.out.line(table.render())?;
    if let Err(e) = program {
        note(format!("snug: this model cannot be run: {}", e.why));
    }
    Ok(())
}

impl Sum {
    fn of(store: &Store, e: &Entry) -> Sum {
        let parts = e.format.codec().breakdown(e.shape, &store.parts(e));
        Sum { tensors: 1, weights: e.shape.len(), bytes: e.bytes, parts }
    }

    fn add(&mut self, other: Sum) {
        let (a, b) = (&mut self.parts, other.parts);
        self.tensors += other.tensors;
        self.weights += other.weights;
        self.bytes += other.bytes;
        a.low += b.low;
        a.codes += b.codes;
        a.patches += b.patches;
        a.tables += b.tables;
        a.index += b.index;
        a.padding += b.padding;
    }

    fn per_weight(&self, bytes: u64) -> f64 {
        8.0 * bytes as f64 / self.weights.max(1) as f64
    }

    /// Name and bytes of every kind of part.
    fn shares(&self) -> [(&'static str, u64); 6] {
        let p = &self.parts;
        [
            ("low_bytes", p.low),
            ("codes", p.codes),
            ("patches", p.patches),
            ("tables", p.tables),
            ("index", p.index),
            ("padding", p.padding),
        ]
    }

    fn to_json(self) -> Value {
        let shares: serde_json::Map<String, Value> = self
            .shares()
            .into_iter()
            .map(|(name, bytes)| {
                (name.into(), json!({ "bytes": bytes, "bits_per_weight": self.per_weight(bytes) }))
            })
            .collect();
        json!({
            "tensors": self.tensors, "weights": self.weights, "bytes": self.bytes,
            "bits_per_weight": self.per_weight(self.bytes), "parts": shares,
        })
    }
}

fn bits(s: &Sum) -> String {
    format!("{:.3}", s.per_weight(s.bytes))
}

fn facts(store: &Store, program: Result<&Program, &Error>) -> Vec<(&'static str, String)> {
    let s = store.source();
    let exact = if s.exact { "bf16 throughout: exact" } else { "rounded to bf16" };
    let mut facts = vec![("source", format!("{} {}, {exact}", visible(&s.kind), visible(&s.name)))];
    facts.extend(s.id.as_ref().map(|id| ("source id", visible(id))));
    facts.extend(store.packer().map(|p| ("packed by", visible(p))));
    let weights: u64 = store.entries().iter().map(|e| e.shape.len()).sum();
    let file = store.file_bytes();
    facts.push((
        "file",
        format!(
            "{} ({file} bytes), {:.3} bits a weight",
            size(file),
            8.0 * file as f64 / weights.max(1) as f64
        ),
    ));
    facts.push(("weights", format!("{weights} in {} tensors", store.entries().len())));
    if let Ok(p) = program {
        let c = &p.config;
        facts.push(("model", format!(
            "{}, {} layers, hidden {}, ffn {}, {} heads of {} ({} for keys and values), vocabulary {}",
            visible(&c.model_type), c.layers, c.hidden, c.ffn, c.heads, c.head_dim, c.kv_heads, c.vocab
        )));
        facts.push(("context", format!("{} tokens", c.max_positions)));
    }
    facts
}

fn shares(all: &Sum, packed: &Sum) -> Table {
    let mut table = Table::new(&[
        "where the bytes are",
        ">all weights",
        ">bits/weight",
        ">packed weights",
        ">bits/weight",
    ]);
    let row = |name: &str, a: u64, b: u64| {
        [
            name.replace('_', " "),
            size(a),
            format!("{:.3}", all.per_weight(a)),
            size(b),
            format!("{:.3}", packed.per_weight(b)),
        ]
    };
    for ((name, a), (_, b)) in all.shares().into_iter().zip(packed.shares()) {
        table.row(row(name, a, b));
    }
    table.row(row("total", all.bytes, packed.bytes));
    table
}

fn source_json(store: &Store) -> Value {
    let s = store.source();
    json!({ "kind": s.kind, "name": s.name, "exact": s.exact, "id": s.id })
}

fn model_json(p: &Program) -> Value {
    let c = &p.config;
    json!({
        "model_type": c.model_type, "layers": c.layers, "hidden": c.hidden, "ffn": c.ffn,
        "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim, "vocab": c.vocab,
        "context": c.max_positions, "parameters": p.parameters(),
    })
}

fn template(texts: &Texts, cx: &mut Context) -> Outcome {
    let text = template_source(texts)
        .map_err(|e| Error { what: "cannot show the chat template".into(), ..e })?;
    if cx.globals.json {
        return cx.out.json(&json!({ "v": 1, "type": "template_source", "template": text }));
    }
    cx.out.text(&text)
}

fn tensors(store: &Store, glob: &str, cx: &mut Context) -> Outcome {
    let chosen: Vec<&Entry> = store.entries().iter().filter(|e| matches(glob, &e.name)).collect();
    if chosen.is_empty() {
        return Err(Error::new(
            Kind::Failure,
            format!("cannot find tensors like {}", visible(glob)),
            "no name matches",
            "leave out the pattern to see all names",
        )
        .into());
    }
    if cx.globals.json {
        for e in chosen {
            let mut record = Sum::of(store, e).to_json();
            record["v"] = json!(1);
            record["type"] = json!("tensor");
            record["name"] = json!(e.name);
            record["codec"] = json!(e.format.codec().id());
            record["shape"] = json!(e.dims);
            record["source_dtype"] = json!(e.source_dtype);
            record["sha256"] =
                json!(e.sha256.map(|h| h.iter().map(|b| format!("{b:02x}")).collect::<String>()));
            cx.out.json(&record)?;
        }
        return Ok(());
    }
    let mut table = Table::new(&["name", "shape", "source", "codec", ">bytes", ">bits/weight"]);
    for e in chosen {
        let dims: Vec<String> = e.dims.iter().map(u32::to_string).collect();
        table.row([
            visible(&e.name),
            dims.join(" × "),
            visible(&e.source_dtype),
            e.format.codec().id().into(),
            e.bytes.to_string(),
            bits(&Sum::of(store, e)),
        ]);
    }
    cx.out.line(table.render())
}

/// Whether a name matches a pattern of `*` (any run) and `?` (any one).
fn matches(glob: &str, name: &str) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    let (mut g, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, n));
                g += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                g += 1;
                n += 1;
            }
            // Let the last star take one more.
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    g = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_whole_names() {
        for (glob, name, want) in [
            ("*", "", true),
            ("*.mlp.*", "model.layers.0.mlp.up_proj.weight", true),
            ("model.layers.?.mlp", "model.layers.0.mlp", true),
            ("model", "model.norm", false),
            ("*norm*weight", "model.norm.weight", true),
            ("a*b*c", "axbxbxc", true),
            ("a*b*c", "axbxbx", false),
            ("?", "", false),
        ] {
            assert_eq!(matches(glob, name), want, "{glob} {name}");
        }
    }
}
