//! Command lines of the test programs in a log: `$ mpirun -np 8 ./all_reduce_perf -b 8`.

use crate::collective::Collective;
use crate::settings::Settings;

/// Programs that start other programs.
const STARTERS: [&str; 14] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "prterun",
    "srun",
    "env",
    "sudo",
    "time",
    "numactl",
    "docker",
    "podman",
    "singularity",
    "apptainer",
    "kubectl",
];

/// A command line that starts a test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// The test program and its arguments.
    pub(super) arguments: Vec<String>,
    /// The collective of the program.
    pub(super) collective: Collective,
}

/// The part of a command line on this line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt<'a> {
    /// The line is no command.
    None,
    /// A command: the text after the prompt.
    Command(&'a str),
    /// The beginning of a command that the next line continues.
    Continued(&'a str),
}

/// Finds a command on a line: after a prompt (`$`, `+`, `user@host:~$`), or without one if it begins with a
/// launcher or a test program.
pub(super) fn find_command(line: &str) -> Prompt<'_> {
    let line = line.trim();
    let prompted = after_prompt(line);
    let Some(command) = prompted.or_else(|| begins_command(line).then_some(line)) else {
        return Prompt::None;
    };
    match command.strip_suffix('\\') {
        Some(beginning) => Prompt::Continued(beginning),
        None if prompted.is_none() && Command::from_text(command).is_none() => Prompt::None,
        None => Prompt::Command(command),
    }
}

/// Returns the text after the prompt of a shell, or after the mark of `set -x`.
fn after_prompt(line: &str) -> Option<&str> {
    let (word, rest) = line.split_once(' ')?;
    let is_trace = word.bytes().all(|byte| byte == b'+');
    // Of a root's prompt, # alone begins a comment.
    let is_prompt = word == "$>" || word.ends_with('$') || word.ends_with('#') && word.contains('@');
    // A prefix of Open MPI can end in the # of a head.
    if is_trace || is_prompt && !word.contains('<') {
        return Some(rest.trim_start());
    }
    // [user@host folder]$
    let (prompt, rest) = line.strip_prefix('[')?.split_once(']')?;
    let rest = rest.strip_prefix(['$', '#'])?;
    prompt.contains('@').then(|| rest.trim_start())
}

/// Returns true for a line that begins with a launcher, or with a test program.
fn begins_command(line: &str) -> bool {
    let Some(word) = line.split_whitespace().next() else { return false };
    STARTERS.contains(&file_name(word)) || program_collective(word).is_some()
}

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Returns the collective of a test program: of `./build/all_reduce_perf` and `all_reduce_perf_mpi`.
fn program_collective(word: &str) -> Option<Collective> {
    let (stem, _) = file_name(word.trim_matches(['"', '\'', '`'])).split_once("_perf")?;
    stem.parse().ok()
}

impl Command {
    /// Parses the text after the prompt. `None` unless it starts one test program.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut programs =
            words.iter().enumerate().filter_map(|(index, word)| Some((index, program_collective(word)?)));
        let (first, collective) = programs.next()?;
        if programs.any(|(_, other)| other != collective) {
            return None;
        }
        let is_end = |word: &&str| ["|", "||", "&", "&&", ";", "#"].contains(word) || word.contains('>');
        let arguments = words[first..].iter().take_while(|word| !is_end(word));
        let arguments: Vec<String> =
            arguments.map(|word| word.trim_matches(['"', '\'', '`', ';']).to_owned()).collect();
        // A sentence about a program is no command.
        let has_options = arguments.get(1).is_none_or(|next| next.starts_with('-') || next.starts_with('$'));
        has_options.then_some(Self { arguments, collective })
    }

    /// Returns true unless an option contradicts the settings in the head of the table.
    pub(super) fn agrees_with(&self, head: &Settings) -> bool {
        let pairs: [(&str, usize); 6] = [
            ("-t", head.threads),
            ("-g", head.gpus),
            ("-n", head.iterations),
            ("-w", head.warm_up),
            ("-m", head.aggregated),
            ("-c", head.checks),
        ];
        self.arguments.windows(2).all(|pair| {
            let option = pairs.iter().find(|(name, _)| *name == pair[0]);
            match (option, pair[1].parse::<usize>()) {
                (Some(&(_, found)), Ok(asked)) => asked == found,
                _ => true,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<Collective> {
        match find_command(line) {
            Prompt::Command(text) => Command::from_text(text).map(|command| command.collective),
            _ => None,
        }
    }

    #[test]
    fn command_lines_name_their_collective() {
        for line in [
            "$ mpirun -np 8 ./build/all_gather_perf -b 8 -e 8G",
            "$> srun -n 2 all_gather_perf",
            "+ ./all_gather_perf -g 8 2>&1 | tee log",
            "++ /opt/nccl-tests/all_gather_perf_mpi",
            "root@dkh:~/nccl-tests# ./build/all_gather_perf -b 8",
            "[user@node1 nccl-tests]$ NCCL_DEBUG=INFO ./build/all_gather_perf -b 8",
            "mpirun -x NCCL_ALGO=Ring /x/all_gather_perf -b 8",
            "./all_gather_perf",
        ] {
            assert_eq!(found(line), Some(Collective::AllGather), "{line}");
        }
    }

    #[test]
    fn sentences_and_several_programs_are_no_command() {
        for line in [
            "all_gather_perf is slower than all_reduce_perf",
            "# ./build/all_gather_perf -b 8",
            "## all_gather_perf",
            "Running all_gather_perf -b 8",
            "$ ls all_gather_perf all_reduce_perf",
            "$ ./all_gather_perf -b 8 && ./all_reduce_perf -b 8",
            "$ make",
            "",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
        assert_eq!(find_command("$ mpirun -np 8 \\"), Prompt::Continued("mpirun -np 8 "));
    }

    #[test]
    fn a_command_with_other_options_than_the_table_is_not_its_command() {
        let head = Settings { threads: 1, gpus: 8, iterations: 20, ..Settings::of_collectives() };
        let command = |text| Command::from_text(text).unwrap();
        assert!(command("./all_reduce_perf -b 8 -g 8 -n 20").agrees_with(&head));
        assert!(!command("./all_reduce_perf -b 8 -g 4").agrees_with(&head));
        assert!(!command("./all_reduce_perf -n 100").agrees_with(&head));
    }
}
