//! `nccl-bench completions`: completions for shells, generated from the definition of the command line.

use std::io::{self, Write};

use clap::{Arg, ArgMatches, value_parser};
use clap_complete::Shell;
use engine::supervision::Stop;

use super::{Command, Context};
use crate::exit::{ExitError, print};

/// The argument that names the shell.
const SHELL: &str = "shell";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Completions;

impl Command for Completions {
    fn definition(&self) -> clap::Command {
        clap::Command::new("completions")
            .about("Print the completions of a shell")
            .arg(Arg::new(SHELL).required(true).value_parser(value_parser!(Shell)).help("Which shell"))
    }

    fn run(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let shell = matches.get_one::<Shell>(SHELL).ok_or_else(|| context.refuse("a shell is missing"))?;
        let mut text = Vec::new();
        completions(*shell, &mut context.root.clone(), &mut text).map_err(Stop::from)?;
        print(&String::from_utf8_lossy(&text))
    }
}

/// Writes the completions of `command` for `shell`.
///
/// # Errors
/// When `out` cannot be written.
fn completions(shell: Shell, command: &mut clap::Command, out: &mut dyn Write) -> io::Result<()> {
    let name = command.get_name().to_owned();
    // The generator panics when it cannot write, which memory always lets it.
    let mut text = Vec::new();
    clap_complete::generate(shell, command, name, &mut text);
    out.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    fn command() -> clap::Command {
        clap::Command::new("bench")
            .subcommand(clap::Command::new("all").arg(Arg::new("minbytes").long("minbytes")))
    }

    #[test]
    fn each_shell_completes_commands_and_flags() {
        for shell in Shell::value_variants() {
            let mut out = Vec::new();
            completions(*shell, &mut command(), &mut out).unwrap();
            let script = String::from_utf8(out).unwrap();
            for part in ["bench", "all", "minbytes"] {
                assert!(script.contains(part), "{shell}: {part} is missing");
            }
        }
    }

    #[test]
    fn a_closed_output_is_an_error_and_no_panic() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = completions(Shell::Bash, &mut command(), &mut Closed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
