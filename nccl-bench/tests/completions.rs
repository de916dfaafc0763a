//! The completions of the program in the shells that are installed: a shell that is not is a skipped test.

#![allow(clippy::unwrap_used, reason = "all of this is tests, though not marked as such")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::{Arguments, Completion, Trial};

/// Beginnings of command lines, each with what its last word becomes. Each has one completion.
const CASES: [(&str, &str); 10] = [
    ("allred", "allreduce"),
    ("allreduce --datat", "--datatype"),
    ("allreduce -d bfl", "bfloat16"),
    ("all_reduce --datatype uint6", "uint64"),
    ("reduce -o mul", "mulsum"),
    ("allreduce --backend fabric --algo rab", "rabenseifner"),
    ("help troub", "troubleshooting"),
    ("fabric info --prov", "--provider"),
    ("doctor log --jun", "--junit"),
    ("compare --thres", "--threshold"),
];

/// Text of the prompt.
const PROMPT: &str = "READY";
/// Time limit of a shell.
const SECONDS: &str = "60";

fn main() {
    let trials = [("bash", bash as fn()), ("zsh", zsh), ("fish", fish)].map(|(shell, test)| {
        Trial::ignorable_test(format!("{shell}_completes_commands_options_and_values"), move || {
            if !is_installed(shell) {
                return Ok(Completion::ignored_with(format!("skipped: no {shell}")));
            }
            test();
            Ok(Completion::Completed)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

fn is_installed(shell: &str) -> bool {
    let version = Command::new(shell).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// A folder with the completions of a shell.
fn completions(shell: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_nccl-bench")).args(["completions", shell]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::write(folder.path().join("_nccl-bench"), output.stdout).unwrap();
    folder
}

fn bash() {
    let folder = completions("bash");
    let start = format!("PS1='{PROMPT} '\nnccl-bench() {{ echo \"<$*>\"; }}\nsource _nccl-bench\n");
    fs::write(folder.path().join("bashrc"), start).unwrap();
    interactive(folder.path(), "bash --noprofile --rcfile bashrc -i");
}

fn zsh() {
    let folder = completions("zsh");
    let start = format!(
        "PS1='{PROMPT} '\nfpath=($PWD $fpath)\nautoload -U compinit\ncompinit -u -D\nfunction nccl-bench {{ \
         echo \"<$*>\" }}\n"
    );
    fs::write(folder.path().join(".zshrc"), start).unwrap();
    interactive(folder.path(), "ZDOTDIR=$PWD zsh -d -i");
}

fn fish() {
    let folder = completions("fish");
    for (typed, expected) in CASES {
        let line = format!("source _nccl-bench; complete --do-complete 'nccl-bench {typed}'");
        let output = Command::new("fish").arg("-c").arg(line).current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.lines().map(|line| line.split('\t').next().unwrap()).collect();
        assert_eq!(words, [expected], "{typed}");
    }
}

/// Types each case and a tab into a shell on a terminal, and expects the completed line as the arguments of
/// the command.
fn interactive(folder: &Path, shell: &str) {
    let mut child = Command::new("timeout")
        .args([SECONDS, "script", "--quiet", "--command", shell, "/dev/null"])
        .current_dir(folder)
        .env("TERM", "dumb")
        .env("HOME", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let mut shown = String::new();
    let mut read_to = |text: &str| {
        let mut piece = [0; 4096];
        // The prompt, and the arguments in angle brackets, which nobody types.
        while !shown.contains(text) {
            let count = screen.read(&mut piece).unwrap();
            assert!(count > 0, "{text} is missing in:\n{shown}");
            shown += &String::from_utf8_lossy(&piece[..count]);
        }
    };
    read_to(PROMPT);
    for (typed, expected) in CASES {
        writeln!(keys, "nccl-bench {typed}\t").unwrap();
        let before = typed.rsplit_once(' ').map(|(before, _)| format!("{before} ")).unwrap_or_default();
        read_to(&format!("<{before}{expected}>"));
    }
    writeln!(keys, "exit").unwrap();
    drop(keys);
    child.wait().unwrap();
}
