//! `nccl-bench help`: explains a topic or a command.

pub mod guide;

use clap::{Arg, ArgMatches};

use super::{Command, Context};
use crate::exit::{Exit, print};

/// The argument with the words of a topic or a command.
const TOPIC: &str = "topic";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Help;

impl Command for Help {
    fn definition(&self) -> clap::Command {
        clap::Command::new("help")
            .about("Explain a topic: busbw, sizes, launchers, troubleshooting, ...")
            .arg(
                Arg::new(TOPIC)
                    .num_args(0..)
                    .help("A topic or a command (fabric info); without one all topics are listed"),
            )
    }

    fn run(&self, matches: &ArgMatches, context: &Context<'_>) -> Exit {
        let words: Vec<String> = matches.get_many(TOPIC).into_iter().flatten().cloned().collect();
        explain(&words, context.root)
    }
}

/// Explains a topic or, by several words, a command of a command.
fn explain(words: &[String], root: &clap::Command) -> Exit {
    let name = words.join(" ");
    if words.is_empty() {
        return print(&guide::list());
    }
    if let Some(text) = guide::text(&name) {
        return print(text);
    }
    let mut root = root.clone();
    // So that a command knows which others lead to it.
    root.build();
    let mut known = None;
    let found = words.iter().enumerate().try_fold(&mut root, |command, (place, word)| {
        known = (place > 0).then(|| guide::commands(command));
        command.find_subcommand_mut(word)
    });
    match (found, known) {
        (Some(command), _) => print(&command.render_long_help().to_string()),
        (None, Some(known)) => Exit::refused(format!("there is no command '{name}'{known}")),
        (None, None) => Exit::refused(guide::unknown(&name)),
    }
}
