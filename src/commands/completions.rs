//! `snug completions`: scripts that teach a shell the command line.

use clap::{ArgMatches, Args, Command};
use clap_complete::Shell;

use super::globals::Context;
use super::output::Outcome;
use super::{Verb, command_line, parsed};

pub(super) const VERB: Verb = Verb {
    name: "completions",
    aliases: &[],
    about: "Print a completion script for a shell",
    examples: &["snug completions bash > ~/.local/share/bash-completion/completions/snug"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// Which shell: bash, zsh, fish, powershell or elvish
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    // Into memory first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(o.shell, &mut command_line(), "snug", &mut script);
    cx.out.bytes(&script)
}
