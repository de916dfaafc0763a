//! `nccl-bench help`: explains a topic or a command.

pub mod guide;

use clap::{Arg, ArgMatches};

use super::{Command, Context};
use crate::exit::{ExitError, print_text};

/// The argument with the words of a topic or a command.
pub(super) const TOPIC: &str = "topic";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Help;

impl Command for Help {
    fn define_command(&self) -> clap::Command {
        clap::Command::new("help")
            .about("Explain a topic: busbw, sizes, launchers, troubleshooting, ...")
            .arg(
                Arg::new(TOPIC)
                    .num_args(0..)
                    .help("A topic or a command (fabric info); without it, all topics are listed"),
            )
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let words: Vec<String> = matches.get_many(TOPIC).into_iter().flatten().cloned().collect();
        explain_words(&words, context.root)
    }
}

/// Explains a topic, a command, or a command of a command.
fn explain_words(words: &[String], root: &clap::Command) -> Result<u8, ExitError> {
    let name = words.join(" ");
    if words.is_empty() {
        return print_text(&guide::list_topics());
    }
    if let Some(text) = guide::topic_text(&name) {
        return print_text(text);
    }
    let mut root = root.clone();
    // Gives each command its full name.
    root.build();
    let mut known = None;
    let found = words.iter().enumerate().try_fold(&mut root, |command, (place, word)| {
        known = (place > 0).then(|| guide::list_subcommands(command));
        command.find_subcommand_mut(word)
    });
    match (found, known) {
        (Some(command), _) => print_text(&command.render_long_help().to_string()),
        (None, Some(known)) => Err(ExitError::refused(format!("there is no command '{name}'{known}"))),
        (None, None) => Err(ExitError::refused(guide::describe_unknown_topic(&name))),
    }
}
