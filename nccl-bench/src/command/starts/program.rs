//! Programs that can be started: how their results are read, and where they are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Part of the names of nccl-tests' programs.
const NCCL_TESTS_SUFFIX: &str = "_perf";
/// Names of this project's programs.
const OWN_NAMES: [&str; 2] = ["nccl-bench", "nccl-bench-mpi"];

/// Source of the results of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum ResultSource {
    /// The file of `--output`, in this project's format.
    OwnJson,
    /// The file of `-J`, in nccl-tests' format.
    NcclTestsJson,
}

impl ResultSource {
    /// Returns the source of a program's results; `None` if it is not known.
    pub(in crate::command) fn of_program(program: &str) -> Option<Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        match name {
            _ if OWN_NAMES.contains(&name) => Some(Self::OwnJson),
            _ if name.contains(NCCL_TESTS_SUFFIX) => Some(Self::NcclTestsJson),
            _ => None,
        }
    }

    /// Option of the program for the file of its results.
    pub(super) const fn option(self) -> &'static str {
        match self {
            Self::OwnJson => "--output",
            Self::NcclTestsJson => "-J",
        }
    }

    /// Value of this option for a file. The name of `--output` is a template.
    pub(super) fn option_value(self, file: &Path) -> OsString {
        match (self, file.to_str()) {
            (Self::OwnJson, Some(text)) => text.replace('%', "%%").into(),
            _ => file.as_os_str().to_owned(),
        }
    }
}

/// Splits a text into words like a shell, without a shell.
///
/// # Errors
/// The message of a refusal, which names the option.
pub(in crate::command) fn split_words(option: &str, text: &str) -> Result<Vec<String>, String> {
    let words = shell_words::split(text).map_err(|error| format!("{option} '{text}': {error}"))?;
    if words.is_empty() {
        return Err(format!("{option} is empty: write a command, as in {option} 'mpirun -np 4'"));
    }
    Ok(words)
}

/// Finds the file of a program: by its path, or in the folders of `PATH`.
pub(in crate::command) fn find_program(word: &str) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if word.contains('/') {
        return Some(PathBuf::from(word)).filter(is_file);
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(word)).find(is_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_names() {
        for (program, source) in [
            ("nccl-bench", Some(ResultSource::OwnJson)),
            ("/opt/new/nccl-bench-mpi", Some(ResultSource::OwnJson)),
            ("./build/all_reduce_perf", Some(ResultSource::NcclTestsJson)),
            ("alltoall_perf_mpi", Some(ResultSource::NcclTestsJson)),
            ("python3", None),
            ("/", None),
        ] {
            assert_eq!(ResultSource::of_program(program), source, "{program}");
        }
    }

    #[test]
    fn words_are_split_like_those_of_a_shell() {
        assert_eq!(split_words("--launcher", "mpirun -x 'A=b c'").unwrap(), ["mpirun", "-x", "A=b c"]);
        let refusal = split_words("--launcher", "mpirun 'x").unwrap_err();
        assert_eq!(refusal, "--launcher 'mpirun 'x': missing closing quote");
        assert!(split_words("--a-program", " ").unwrap_err().starts_with("--a-program is empty"));
    }

    #[test]
    fn programs_are_found_like_by_a_shell() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert!(find_program("/bin/sh").is_some());
        for missing in ["/nowhere/sh", "no-such-program-anywhere", "", "/"] {
            assert_eq!(find_program(missing), None, "{missing}");
        }
    }
}
