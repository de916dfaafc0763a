//! `nccl-bench completions`: completions for shells, generated from the definition of the command line.

use clap::{Arg, ArgMatches, value_parser};
use clap_complete::Shell;

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
        print(&completions(*shell, context.root.clone()))
    }
}

/// The completions of `command` for `shell`.
fn completions(shell: Shell, mut command: clap::Command) -> String {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    String::from_utf8_lossy(&text).into_owned()
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
            let script = completions(*shell, command());
            for part in ["bench", "all", "minbytes"] {
                assert!(script.contains(part), "{shell}: {part} is missing");
            }
        }
    }
}
