//! `snug version`.

use clap::{ArgMatches, Args, Command};
use serde_json::json;

use super::globals::Context;
use super::output::Outcome;
use super::{Verb, parsed};
use crate::backend::cuda::images::{BUILD_ID, IMAGES};
use crate::codec::CODECS;
use crate::model::arch::ARCHS;

pub(super) const VERB: Verb = Verb {
    name: "version",
    aliases: &[],
    about: "Say which build this is",
    examples: &["snug version", "snug version -v"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {}

fn main(_: Options, cx: &mut Context) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let codecs: Vec<&str> = CODECS.iter().map(|c| c.id()).collect();
    let archs: Vec<&str> = ARCHS.iter().map(|a| a.model_type).collect();
    let cpu = crate::backend::cpu_path();
    if cx.globals.json {
        return cx.out.json(&json!({
            "v": 1, "type": "version", "version": version, "target": target, "profile": profile,
            "cpu": cpu, "codecs": codecs, "architectures": archs, "cuda": BUILD_ID,
        }));
    }
    cx.out.line(format_args!("snug {version}"))?;
    if cx.globals.verbose > 0 {
        cx.out.line(format_args!("target         {target}, {profile}"))?;
        cx.out.line(format_args!("cpu            {cpu}"))?;
        cx.out
            .line(format_args!("cuda           kernels {BUILD_ID}, {} families", IMAGES.len()))?;
        cx.out.line(format_args!("codecs         {}", codecs.join(", ")))?;
        cx.out.line(format_args!("architectures  {}", archs.join(", ")))?;
    }
    Ok(())
}
