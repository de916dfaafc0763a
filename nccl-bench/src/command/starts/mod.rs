//! Fresh starts of programs that measure: the command line of a start, its processes, and its results.

mod child;
mod failure;
mod program;
mod runner;
mod text;

use std::ffi::OsString;
use std::path::Path;

use collectives::world::Started;
use engine::supervision::REFUSED;

use crate::exit::ExitError;

pub(super) use failure::StartFailure;
pub(super) use program::{ResultSource, find_program, split_words};
pub(super) use runner::{ResultNames, Runner, StartEnd, convert_start};
pub(super) use text::{describe_two_speeds, format_share};

/// The program that sets variables for another one, on every host of a launcher.
const SET_VARIABLES: &str = "env";

/// The command line of a start, but for the file of its results.
#[derive(Clone, Debug)]
pub(super) struct StartCommand {
    /// Words of the launcher, such as `mpirun -np 4`; empty without one.
    pub(super) launcher: Vec<String>,
    /// Variables of the program, each as `NAME=VALUE`.
    pub(super) variables: Vec<String>,
    /// Words of the program.
    pub(super) program: Vec<String>,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
    /// Source of its results.
    pub(super) source: ResultSource,
}

impl StartCommand {
    /// The words of the command line, without the option for the results.
    pub(super) fn words(&self) -> Vec<String> {
        let set = (!self.variables.is_empty()).then(|| SET_VARIABLES.to_owned());
        let variables = set.into_iter().chain(self.variables.iter().cloned());
        let program = self.program.iter().chain(&self.arguments).cloned();
        self.launcher.iter().cloned().chain(variables).chain(program).collect()
    }

    /// The command line, in which words with blanks are quoted.
    pub(super) fn command_line(&self) -> String {
        shell_words::join(self.words())
    }

    /// The words of the command line, with the option that makes the program write its results to `file`.
    fn words_with_results(&self, file: &Path) -> Vec<OsString> {
        let option = self.source.option().into();
        let file = self.source.option_value(file);
        self.words().into_iter().map(OsString::from).chain([option, file]).collect()
    }
}

/// Refuses starts by several processes of a launcher, because each would start all of them. Returns the
/// result of the command, or `None` if this process may start others. Rank 0 alone prints the message.
pub(super) fn refuse_inner_launcher(what: &str) -> Option<Result<u8, ExitError>> {
    let started = Started::detect();
    let size = started.size.filter(|&size| size > 1)?;
    if started.rank.is_some_and(|rank| rank != 0) {
        return Some(Ok(REFUSED));
    }
    Some(Err(ExitError::refused(format!(
        "{what} starts the processes of each start itself, and {} started {size} of this program: run it once, \
         without a launcher, and name the launcher, as in --launcher 'mpirun -np {size}'",
        started.launcher
    ))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn variables_are_set_behind_the_launcher() {
        let command = StartCommand {
            launcher: words(&["mpirun", "-np", "4"]),
            variables: words(&["NCCL_ALGO=Ring", "X=a b"]),
            program: words(&["/opt/nccl-bench"]),
            arguments: words(&["allreduce", "-b", "8"]),
            source: ResultSource::OwnJson,
        };
        assert_eq!(
            command.command_line(),
            "mpirun -np 4 env 'NCCL_ALGO=Ring' 'X=a b' /opt/nccl-bench allreduce -b 8"
        );
        let plain = StartCommand { launcher: Vec::new(), variables: Vec::new(), ..command };
        assert_eq!(plain.command_line(), "/opt/nccl-bench allreduce -b 8");
        let words = plain.words_with_results(Path::new("/tmp/5%/x.json"));
        assert_eq!(words[4..], [OsString::from("--output"), "/tmp/5%%/x.json".into()]);
    }
}
