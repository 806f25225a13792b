//! `snug man`: manual pages, made from the same descriptions as the help.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command};

use super::globals::Context;
use super::output::{Outcome, note};
use super::{COMMANDS, Verb, command_line, files, parsed};
use crate::error::{Error, Kind, Result};

pub(super) const VERB: Verb = Verb {
    name: "man",
    aliases: &[],
    about: "Print the manual page, or write all of them into a directory",
    examples: &["snug man | man -l -", "snug man ~/.local/share/man/man1"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// Write snug.1 and a page for every command here
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let mut root = command_line();
    root.build();
    let Some(dir) = o.dir else {
        return cx.out.bytes(&page(root, "snug")?);
    };
    files::write(&dir.join("snug.1"), &page(root.clone(), "snug")?)?;
    for verb in COMMANDS {
        if let Some(command) = root.find_subcommand(verb.name) {
            let name = format!("snug-{}", verb.name);
            files::write(&dir.join(format!("{name}.1")), &page(command.clone(), &name)?)?;
        }
    }
    if !cx.globals.quiet {
        note(format!("snug: wrote {} pages to {}", COMMANDS.len() + 1, Path::new(&dir).display()));
    }
    Ok(())
}

/// What can be pressed and typed in a chat, from the lists that the client itself shows.
fn keys_and_commands() -> String {
    let plain = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let mut out = String::from(".SH KEYS\n");
    for (keys, what) in crate::ui::KEYS {
        out += &format!(".TP\n\\fB{}\\fR\n{}\n", plain(keys), plain(what));
    }
    out += ".SH COMMANDS IN A CHAT\n";
    for c in crate::ui::slash::COMMANDS {
        let arguments = plain(c.arguments);
        out += &format!(".TP\n\\fB/{}\\fR {arguments}\n{}\n", plain(c.name), plain(c.about));
    }
    out
}

fn page(command: Command, name: &str) -> Result<Vec<u8>> {
    let command = command.display_name(name.to_owned()).name(name.to_owned());
    let mut out = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut out)
        .map_err(|e| Error::io("cannot make a manual page", &e))?;
    if name == "snug-chat" {
        out.extend_from_slice(keys_and_commands().as_bytes());
    }
    out.extend_from_slice(
        b".SH \"EXIT STATUS\"\n.TP\n0\nsuccess; also when the reader of a pipe went away\n",
    );
    for kind in Kind::ALL {
        let line = format!(".TP\n{}\n{}\n", kind.exit_code(), kind.name().replace('_', " "));
        out.extend_from_slice(line.as_bytes());
    }
    Ok(out)
}
