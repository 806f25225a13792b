//! The options that every command takes, and what a command gets to work with.

use std::ffi::OsString;
use std::fs;
use std::io::IsTerminal;

use clap::{ArgAction, Args, ValueEnum};

use super::output::{Out, note};
use super::signals::Signals;
use crate::backend::Device;
use crate::backend::cuda::driver;
use crate::error::{Error, Kind, Result};

/// Options of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Say less on stderr
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more on stderr
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours: auto, always or never
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        global = true,
        hide_possible_values = true
    )]
    pub color: Color,
    /// Never use the network (this version never does)
    #[arg(long, global = true, hide = true)]
    pub offline: bool,
    /// Where to run: cpu, cuda, cuda:N, cuda:GPU-UUID or auto
    #[arg(short, long, value_name = "DEV", default_value = "auto", global = true)]
    pub device: String,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// What a command line that has not been understood says of colours, for help and version.
    pub fn asked_for(args: &[OsString]) -> Color {
        let words = args.iter().filter_map(|a| a.to_str());
        let after = words.clone().skip(1);
        words
            .zip(after.chain([""]))
            .filter_map(|(word, next)| match word.strip_prefix("--color") {
                Some("") => Color::from_str(next, true).ok(),
                Some(rest) => Color::from_str(rest.strip_prefix('=')?, true).ok(),
                None => None,
            })
            .last()
            .unwrap_or(Color::Auto)
    }

    /// Whether to use them on an output.
    pub fn shows(self, terminal: bool) -> bool {
        let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
                terminal && !dumb && !set("NO_COLOR")
            }
        }
    }
}

/// What a command works with.
pub struct Context {
    /// Options of every command.
    pub globals: Globals,
    /// stdout.
    pub out: Out,
    /// Reasons to stop.
    pub signals: Signals,
}

impl Context {
    /// Begins to listen for signals.
    pub fn new(globals: Globals) -> Result<Context> {
        Ok(Context { globals, out: Out::new(), signals: Signals::listen()? })
    }

    /// Whether somebody wants to read what is going on.
    pub fn chatty(&self) -> bool {
        !self.globals.quiet && (self.globals.verbose > 0 || std::io::stderr().is_terminal())
    }

    /// Where to run: what `--device` says, or the best there is. When that is the CPU although there is a GPU, stderr
    /// hears why.
    pub fn device(&self) -> Result<Device> {
        let (device, why_not) = self.named_device()?.chosen();
        if let Some(why) = why_not.filter(|_| !self.globals.quiet) {
            note(format!("snug: the GPU is not used: {why}"));
        }
        Ok(device)
    }

    /// What `--device` says.
    pub fn named_device(&self) -> Result<Device> {
        parse_device(&self.globals.device)
    }
}

/// The device that `--device` names.
pub fn parse_device(text: &str) -> Result<Device> {
    let unknown = || {
        Error::new(
            Kind::Usage,
            format!("cannot run on {}", crate::error::visible(text)),
            "there is no such device",
            "use --device cpu, cuda, cuda:N, cuda:GPU-UUID or auto; `snug devices` lists them",
        )
    };
    match text.split_once(':') {
        None if text == "auto" => Ok(Device::Auto),
        None if text == "cpu" => Ok(Device::Cpu),
        None if text == "cuda" => Ok(Device::Cuda(0)),
        Some(("cuda", uuid)) if begins_uuid(uuid) => Ok(Device::Cuda(driver::find(uuid)? as u32)),
        Some(("cuda", index)) => index.parse().map(Device::Cuda).map_err(|_| unknown()),
        None if begins_uuid(text) => Ok(Device::Cuda(driver::find(text)? as u32)),
        Some(("script", path)) => script(path),
        _ => Err(unknown()),
    }
}

/// Whether this is a UUID as the driver and other tools spell them, or the beginning of one.
fn begins_uuid(text: &str) -> bool {
    text.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("GPU-"))
}

/// `script:FILE` replays token ids from a JSON file instead of computing them: a testing aid (CONTRIBUTING.md).
fn script(path: &str) -> Result<Device> {
    let text = fs::read_to_string(path)
        .map_err(|e| Error::io(format!("cannot read the script {path}"), &e))?;
    serde_json::from_str(&text).map(Device::Scripted).map_err(|e| {
        let what = format!("cannot read the script {path}");
        Error::new(Kind::Usage, what, e.to_string(), "see backend::scripted::Script")
    })
}
