//! Arguments → command → print the error → exit code. Nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    snug::commands::main(std::env::args_os())
}
