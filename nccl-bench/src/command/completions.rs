//! `nccl-bench completions`: completions for shells, generated from the definition of the command line.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, value_parser};
use clap_complete::Shell;
use collectives::DataType;
use collectives::fabric::Algorithm;
use engine::collective::{Collective, on_fabric};
use engine::data::Op;

use super::help::{TOPIC, guide};
use super::{Command, Context};
use crate::exit::{ExitError, parser_refusal, print_text};

/// The argument with the name of the shell.
const SHELL: &str = "shell";

const EXAMPLES: &str = "\
Examples:
  source <(nccl-bench completions bash)                in ~/.bashrc
  nccl-bench completions zsh > _nccl-bench             in a folder of zsh's $fpath
  nccl-bench completions fish > ~/.config/fish/completions/nccl-bench.fish";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Completions;

impl Command for Completions {
    fn define_command(&self) -> clap::Command {
        clap::Command::new("completions")
            .about("Print the completions of a shell")
            .after_help(EXAMPLES)
            .arg(Arg::new(SHELL).required(true).value_parser(value_parser!(Shell)).help("Which shell"))
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let shell = matches.get_one::<Shell>(SHELL).ok_or_else(|| parser_refusal("a shell is missing"))?;
        print_text(&generate_completions(*shell, context.root.clone()))
    }
}

/// Returns the completions of `command` for `shell`.
fn generate_completions(shell: Shell, command: clap::Command) -> String {
    let name = command.get_name().to_owned();
    let mut command = with_values(command);
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name.clone(), &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        // clap_complete replaces the hyphen of a program's name differently in the assignments of a variable
        // and in the cases of this variable.
        Shell::Bash => text.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__")),
        // It omits the values of positional arguments.
        Shell::Fish => text + &positional_values_for_fish(&command),
        _ => text,
    }
}

/// Returns lines for fish with the values of positional arguments other than files.
fn positional_values_for_fish(root: &clap::Command) -> String {
    let (name, function) = (root.get_name(), root.get_name().replace('-', "_"));
    let mut lines = String::new();
    for command in root.get_subcommands() {
        let values: Vec<String> = command
            .get_positionals()
            .flat_map(|argument| argument.get_value_parser().possible_values().into_iter().flatten())
            .map(|value| value.get_name().to_owned())
            .collect();
        if !values.is_empty() {
            let condition = format!("__fish_{function}_using_subcommand {}", command.get_name());
            let values = values.join(" ");
            lines += &format!("complete -c {name} -n \"{condition}\" -f -a \"{values}\"\n");
        }
    }
    lines
}

/// Replaces the parsers of some arguments by lists of values. These arguments accept more, such as lists, and
/// so have parsers of their own.
fn with_values(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| {
            sub.mut_args(|argument| match argument_values(name, argument.get_id().as_str()) {
                Some(values) => argument.value_parser(PossibleValuesParser::new(values)),
                None => argument,
            })
        })
    })
}

/// Returns the values of an argument of a command.
fn argument_values(command: &str, argument: &str) -> Option<Vec<&'static str>> {
    match argument {
        "data_types" => Some(DataType::ALL.into_iter().map(DataType::name).chain(["all"]).collect()),
        "ops" => Some(Op::ALL.into_iter().map(Op::operator_name).chain(["all"]).collect()),
        "algorithms" | "between" => {
            let collective = command.parse::<Collective>().ok();
            let serves = |algorithm: &Algorithm| match collective.map(on_fabric) {
                // Every collective.
                None => true,
                Some(collective) => collective.is_some_and(|collective| algorithm.serves(collective, 2)),
            };
            Some(Algorithm::ALL.into_iter().filter(serves).map(Algorithm::name).collect())
        }
        TOPIC => {
            let collectives = Collective::ALL.into_iter().map(Collective::collective_name);
            Some(guide::all_topics().map(|(name, _)| name).chain(collectives).collect())
        }
        _ => None,
    }
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
            let script = generate_completions(*shell, command());
            for part in ["bench", "all", "minbytes"] {
                assert!(script.contains(part), "{shell}: {part} is missing");
            }
        }
    }
}
