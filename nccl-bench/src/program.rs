//! The program `nccl-bench`: from its arguments to what they ask for.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use collectives::world;

use crate::backend;
use crate::cli::{self, Command};
use crate::compare;
use crate::dry_run;
use crate::fabric;
use crate::files;
use crate::guide;
use crate::handover::Meeting;
use crate::interrupt::{Signal, ignore_file_size_signal};
use crate::plot;
use crate::run;
use crate::shell;
use crate::stop::{CLOSED_PIPE, Stop, Verdict};

/// Runs `nccl-bench` with the arguments of this process. For a measurement `hand_over` may first replace this program by
/// another, `join` joins the world that the settings ask for, and `mpi` finds the MPI library that the program is linked
/// to.
#[must_use]
pub fn main(
    hand_over: impl FnOnce(&Meeting) -> Result<(), Stop>,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
    mpi: Option<backend::Find>,
) -> ExitCode {
    if let Err(stop) = start_log().and_then(|()| Ok(ignore_file_size_signal()?)) {
        return stop.tell();
    }
    tracing::debug!("started");
    match cli::parse(std::env::args_os()) {
        Ok(Command::Measure(settings)) if settings.dry_run => print(&dry_run::render(&settings)),
        Ok(Command::Measure(settings)) => match hand_over(&Meeting::from(&*settings)) {
            Ok(()) => run::measure(&settings, join, mpi),
            Err(stop) => stop.tell(),
        },
        Ok(Command::Compare(arguments)) => match compare::run(&arguments, &mut io::stdout().lock()) {
            Ok(verdict) => ExitCode::from(verdict.code()),
            Err(compare::Error::Output(error)) => unwritable(error),
            Err(error) => Stop::Refused(error.to_string()).tell(),
        },
        Ok(Command::Plot(arguments)) => match plot::run(&arguments, |path| {
            files::read(path).map_err(|error| anyhow::anyhow!(error.problem))
        }) {
            Ok(written) => print(&lines(&written)),
            Err(error) => Stop::Refused(format!("{error:#}")).tell(),
        },
        Ok(Command::Fabric(command)) => look_at_fabric(&command, |meeting| {
            hand_over(meeting)?;
            join(meeting)
        }),
        Ok(Command::Help(words)) => help(&words),
        Ok(Command::Completions(shell)) => {
            let mut text = Vec::new();
            match shell::completions(shell, &mut cli::command(), &mut text) {
                Ok(()) => print(&String::from_utf8_lossy(&text)),
                Err(error) => Stop::Failed(error.into()).tell(),
            }
        }
        Ok(Command::Man(folder)) => manual(folder.as_deref()),
        Err(error) => answer(&error),
    }
}

fn look_at_fabric(
    command: &fabric::Command,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
) -> ExitCode {
    let out = &mut io::stdout().lock();
    let ended = match command {
        fabric::Command::Info(arguments) => {
            return match fabric::info::run(arguments, out) {
                Ok(verdict) => ExitCode::from(verdict.code()),
                Err(fabric::info::Error::Output(error)) => unwritable(error),
                Err(fabric::info::Error::Fabric(error)) => Stop::Failed(error.into()).tell(),
                Err(error @ fabric::info::Error::Library(_)) => Stop::Refused(error.to_string()).tell(),
            };
        }
        fabric::Command::Algorithms(arguments) => {
            return match fabric::algorithms::run(arguments, out) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => unwritable(error),
            };
        }
        fabric::Command::Pingpong(arguments) => fabric::transfer::pingpong(arguments, out, join),
        fabric::Command::Bw(arguments) => fabric::transfer::bandwidth(arguments, out, join),
        fabric::Command::Rma(arguments) => fabric::transfer::remote(arguments, out, join),
    };
    match ended {
        Ok(verdict) => {
            if let Verdict::Stopped(signal) = verdict
                && signal != Signal::Pipe
            {
                eprintln!("nccl-bench: interrupted by {}; not all sizes were measured", signal.name());
            }
            verdict.code()
        }
        Err(stop) => stop.tell(),
    }
}

/// The variable that says how much is told on standard error.
const LOG: &str = "NCCL_BENCH_LOG";

/// Warnings go to standard error, or as much as [`LOG`] says.
fn start_log() -> Result<(), Stop> {
    use tracing_subscriber::filter::LevelFilter;
    let level = match std::env::var_os(LOG).filter(|level| !level.is_empty()) {
        Some(level) => {
            let level = level.to_string_lossy();
            level.parse().map_err(|_| {
                Stop::Refused(format!("{LOG}={level}: give off, error, warn, info, debug or trace"))
            })?
        }
        None => LevelFilter::WARN,
    };
    tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(level).init();
    Ok(())
}

/// Prints a whole text.
fn print(text: &str) -> ExitCode {
    io::stdout().write_all(text.as_bytes()).map_or_else(unwritable, |()| ExitCode::SUCCESS)
}

/// Prints what the command line's parser answers: help, the version, or what is wrong.
fn answer(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        Err(problem) if !error.use_stderr() => unwritable(problem),
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(crate::stop::REFUSED)),
    }
}

/// Standard output cannot be written: quietly when its reader has gone.
fn unwritable(error: io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ExitCode::from(CLOSED_PIPE),
        _ => Stop::Failed(anyhow::Error::new(error).context("writing to standard output")).tell(),
    }
}

/// Explains a topic or, of several words, a command of a command.
fn help(words: &[String]) -> ExitCode {
    let name = words.join(" ");
    if words.is_empty() {
        return print(&guide::list());
    }
    if let Some(text) = guide::text(&name) {
        return print(text);
    }
    let mut root = cli::command();
    // So that a command knows which others lead to it.
    root.build();
    let mut known = None;
    let found = words.iter().enumerate().try_fold(&mut root, |command, (place, word)| {
        known = (place > 0).then(|| guide::commands(command));
        command.find_subcommand_mut(word)
    });
    match (found, known) {
        (Some(command), _) => print(&command.render_long_help().to_string()),
        (None, Some(known)) => Stop::Refused(format!("there is no command '{name}'{known}")).tell(),
        (None, None) => Stop::Refused(guide::unknown(&name)).tell(),
    }
}

fn manual(folder: Option<&Path>) -> ExitCode {
    let command = cli::command();
    let Some(folder) = folder else {
        let mut text = Vec::new();
        return match shell::man(&command, &mut text) {
            Ok(()) => print(&String::from_utf8_lossy(&text)),
            Err(error) => Stop::Failed(error.into()).tell(),
        };
    };
    match shell::write_pages(&command, folder) {
        Ok(written) => print(&lines(&written)),
        Err(error) => Stop::Refused(error.to_string()).tell(),
    }
}

/// What was written, a line each.
fn lines(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("{}\n", path.display())).collect()
}
