//! One verb per file. [`COMMANDS`] is the list; help, man pages and completions are made from it.

mod batch;
mod bench;
mod bench_kernels;
mod bench_rows;
mod chat;
mod completions;
mod devices;
mod files;
mod globals;
mod input;
mod inspect;
mod list;
mod man;
mod output;
mod pack;
mod progress;
mod reading;
mod records;
mod refs;
mod replies;
mod rm;
mod run;
mod sampling;
mod screen;
mod sessions;
mod signals;
mod slash;
mod table;
mod template;
mod threads;
mod tokens;
mod verify;
mod version;
mod work;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::error::{Error, Kind};
use globals::{Color, Context, Globals};
use output::{Exit, Out, Outcome};

/// A command.
pub struct Verb {
    /// What people type.
    pub name: &'static str,
    /// What they may type as well.
    pub aliases: &'static [&'static str],
    /// One line.
    pub about: &'static str,
    /// Command lines to learn from.
    pub examples: &'static [&'static str],
    /// Adds its arguments.
    args: fn(Command) -> Command,
    /// Does it.
    main: fn(&ArgMatches, &mut Context) -> Outcome,
}

/// Every command, in the order of the help.
pub static COMMANDS: &[Verb] = &[
    run::VERB,
    chat::VERB,
    sessions::VERB,
    pack::VERB,
    inspect::VERB,
    verify::VERB,
    list::VERB,
    rm::VERB,
    devices::VERB,
    bench::VERB,
    template::VERB,
    tokens::VERB,
    version::VERB,
    completions::VERB,
    man::VERB,
];

/// Arguments of a verb, parsed.
fn parsed<T: FromArgMatches>(matches: &ArgMatches) -> Outcome<T> {
    T::from_arg_matches(matches).map_err(|e| usage_error(&e, "snug").into())
}

/// The whole command line, for the parser, the man pages and the completions.
pub fn command_line() -> Command {
    // First, because a set of options comes with a description of its own.
    let mut root = Globals::augment_args(Command::new("snug"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Chat with language models, losslessly compressed, on this machine. No telemetry.")
        .disable_help_subcommand(true)
        .args_override_self(true)
        .help_template("{about}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}")
        .before_help(examples(&[
            "snug run demo 'Tell me a story about a fox.'",
            "snug pack ./SmolLM2-135M-Instruct -o smollm2.snug",
            "snug run ./smollm2.snug --json 'Why is the sky blue?'",
        ]))
        .after_help(
            "MODEL is `demo` (built in), a .snug file, a model directory or a name in the store (`snug list`).\n\
             Every long option can be set by an environment variable: SNUG_TEMP=0.2 is --temp 0.2.",
        );
    for verb in COMMANDS {
        let command = (verb.args)(Command::new(verb.name))
            .about(verb.about)
            .args_override_self(true)
            .before_help(examples(verb.examples))
            .visible_aliases(verb.aliases.iter().copied())
            .help_template(
                "{about}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}",
            );
        root = root.subcommand(with_environment(command));
    }
    with_environment(root)
}

fn examples(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// Lets `SNUG_<LONG NAME>` stand in for every long option but those that destroy.
fn with_environment(command: Command) -> Command {
    command.mut_args(|arg| {
        let name = arg.get_long().map(|l| format!("SNUG_{}", l.to_uppercase().replace('-', "_")));
        match (name, arg.get_long()) {
            (None, _) | (_, Some("help" | "version" | "force" | "yes" | "store")) => arg,
            (Some(name), _) => {
                let flag = matches!(arg.get_action(), ArgAction::SetTrue);
                let arg = arg.env(name).hide_env(true);
                if flag { arg.value_parser(clap::builder::FalseyValueParser::new()) } else { arg }
            }
        }
    })
}

/// Runs the program: arguments → command → error printed → exit code.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    std::panic::set_hook(Box::new(panicked));
    let args: Vec<OsString> = args.map(long_spelling).collect();
    // What a JSON reader must see even when the rest of the command line makes no sense.
    let mut json = args.iter().take_while(|a| *a != "--").any(|a| a == "--json" || a == "--jsonl");
    let work = || match command_line().try_get_matches_from(&args) {
        Ok(matches) => dispatch(&matches, &mut json),
        Err(e) => explain(&e, &args),
    };
    // The hook has said what there is to say.
    let exit = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Exit::Told(Kind::Failure)));
    match exit {
        Ok(()) | Err(Exit::Closed) => ExitCode::SUCCESS,
        Err(Exit::Told(kind)) => ExitCode::from(kind.exit_code()),
        Err(Exit::Error(e)) => {
            output::print_error(&e, json);
            ExitCode::from(e.kind.exit_code())
        }
    }
}

/// A panic is our fault, and is said like any other error. On the engine's thread, and on the pool's, it becomes an error
/// that this thread prints; the place would be lost with it, so it is noted here.
fn panicked(info: &std::panic::PanicHookInfo<'_>) {
    if crate::text::contained::panics_are_contained() {
        return;
    }
    let on_main = std::thread::current().name() == Some("main");
    if on_main {
        crate::ui::term::restore();
    } else if crate::ui::term::is_on() {
        // A line in the middle of the screen helps nobody; the error stands in the conversation.
        return;
    }
    let place = info.location().map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
    if on_main {
        let mut e = crate::engine::panic_error("the command", info.payload());
        e.why += &place;
        output::note(e);
    } else {
        output::note(format_args!("snug: internal error{place}"));
    }
}

/// `-hf` is what other programs take for `--hf-repo`; a parser would read it as `-h -f`.
fn long_spelling(arg: OsString) -> OsString {
    if arg == "-hf" { "--hf-repo".into() } else { arg }
}

/// Runs the verb; `json` becomes what it decided about its output.
fn dispatch(matches: &ArgMatches, json: &mut bool) -> Outcome {
    match matches.subcommand() {
        Some((name, sub)) => {
            let verb = COMMANDS.iter().find(|v| v.name == name).ok_or_else(|| no_command(name))?;
            let mut cx = Context::new(parsed(sub)?)?;
            let ended = (verb.main)(sub, &mut cx);
            *json |= cx.globals.json;
            ended?;
            cx.out.flush()
        }
        None if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => {
            let mut cx = Context::new(parsed(matches)?)?;
            chat::bare(&mut cx)
        }
        None => Err(Error::new(
            Kind::Usage,
            "cannot tell what to do",
            "no command was given, and there is no terminal to chat in",
            "snug run demo 'hello'; `snug --help` lists the commands",
        )
        .into()),
    }
}

fn no_command(name: &str) -> Error {
    Error::new(Kind::Usage, format!("there is no command {name}"), "it is not known", "snug --help")
}

/// Help and version go to stdout and are no failure; the rest is said in our three lines.
fn explain(e: &clap::Error, args: &[OsString]) -> Outcome {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let mut out = Out::new();
        let text = e.render();
        let coloured = Color::asked_for(args).shows(out.is_terminal());
        let text = if coloured { text.ansi().to_string() } else { text.to_string() };
        out.bytes(text.as_bytes())?;
        return out.flush();
    }
    let mut words = args.iter().skip(1).filter_map(|a| a.to_str());
    let verb = words.find(|a| COMMANDS.iter().any(|v| v.answers_to(a)));
    Err(usage_error(e, &verb.map_or("snug".into(), |v| format!("snug {v}"))).into())
}

impl Verb {
    fn answers_to(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }
}

/// A fault of the command line in three lines.
fn usage_error(e: &clap::Error, program: &str) -> Error {
    let text = e.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let head = paragraphs.next().unwrap_or_default().trim_start_matches("error: ");
    let mut lines = head.lines().map(str::trim);
    let what = lines.next().unwrap_or_default().trim_end_matches(':').to_owned();
    let mut why: Vec<String> = lines.map(str::to_owned).collect();
    why.extend(paragraphs.filter_map(|p| p.trim().strip_prefix("tip: ").map(str::to_owned)));
    if let Some(usage) = e.get(ContextKind::Usage) {
        let usage = usage.to_string();
        let usage = usage.split_whitespace().collect::<Vec<_>>().join(" ");
        why.push(usage.replace("Usage: ", "the usage is "));
    }
    if why.is_empty() {
        why.push("the command line is not understood".into());
    }
    Error::new(Kind::Usage, what, why.join("; "), format!("`{program} --help` lists what it takes"))
}
