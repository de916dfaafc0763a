//! Command lines of nccl-tests' documentation, of guides and runbooks, and of this program's help. Each is
//! accepted, or refused with a reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/port/mod.rs"]
mod port;

use std::path::Path;
use std::process::{Command, Stdio};

use engine::request::Variables;
use nccl_bench::cli;
use nccl_bench::command::help::guide;
use nccl_bench::command::measure;
use port::reserve_port;

const EXAMPLES: &str = include_str!("data/command_lines.txt");

struct Example {
    from: String,
    program: String,
    arguments: Vec<String>,
    outcome: Outcome,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Runs,
    /// The message has these parts.
    Refused(Vec<String>),
    /// Number of processes and GPUs of a host.
    RefusedAtStart(usize, usize, Vec<String>),
}

fn examples() -> Vec<Example> {
    let text: Vec<&str> = EXAMPLES.lines().filter(|line| !line.starts_with('#')).collect();
    let text = text.join("\n");
    text.split("\n\n").filter(|block| !block.trim().is_empty()).map(example).collect()
}

fn example(block: &str) -> Example {
    let field = |name: &str| {
        let mut lines = block.lines().filter_map(|line| line.strip_prefix(name));
        let value = lines.next().unwrap_or_else(|| panic!("no {name:?} in {block}")).trim().to_owned();
        assert_eq!(lines.next(), None, "{name:?} twice in {block}");
        value
    };
    let (program, arguments) = program(&field("command:")).unwrap_or_else(|| panic!("no program in {block}"));
    let outcome = field("outcome:");
    let outcome = match outcome.split_once(": ") {
        None => {
            assert_eq!(outcome, "runs", "{block}");
            Outcome::Runs
        }
        Some((kind, words)) => {
            let words = words.split(" | ").map(str::to_owned).collect();
            let numbers: Vec<usize> = kind.split(' ').filter_map(|word| word.parse().ok()).collect();
            match (kind, &numbers[..]) {
                ("refused", []) => Outcome::Refused(words),
                (_, &[processes, gpus]) => {
                    assert_eq!(
                        kind,
                        format!("refused with {processes} processes on a host with {gpus} GPUs")
                    );
                    Outcome::RefusedAtStart(processes, gpus, words)
                }
                _ => panic!("what is {kind:?}?"),
            }
        }
    };
    Example { from: field("from:"), program, arguments, outcome }
}

/// The program of a command line and its arguments, without the launcher.
fn program(line: &str) -> Option<(String, Vec<String>)> {
    let mut words = shell_words::split(line).unwrap().into_iter().skip_while(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        !(name == "nccl-bench" || name.contains("_perf")) || word.contains('=')
    });
    Some((words.next()?, words.collect()))
}

fn parse(program: &str, arguments: &[String]) -> Result<(), clap::Error> {
    let (invocation, matches) =
        cli::parse_command_line([program].into_iter().chain(arguments.iter().map(String::as_str)))?;
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let collective = name.parse().ok();
    if collective.is_none() && name != measure::ALL {
        return Ok(());
    }
    let variables = Variables::read_values(|name| std::env::var(name).ok());
    measure::parse_measurement(collective, matches, &invocation, variables).map(drop)
}

#[test]
fn known_command_lines_are_understood_or_refused_with_a_reason() {
    let (mut wrong, mut seen) = (Vec::new(), [0; 3]);
    for Example { from, program, arguments, outcome } in examples() {
        let line = format!("{program} {} ({from})", arguments.join(" "));
        let answer = parse(&program, &arguments);
        match (&outcome, &answer) {
            (Outcome::Runs | Outcome::RefusedAtStart(..), Err(error)) => {
                wrong.push(format!("{line}\n{error}"))
            }
            (Outcome::Refused(_), Ok(())) => wrong.push(format!("{line}\nwas not refused")),
            (Outcome::Refused(words), Err(error)) => {
                let message = error.to_string();
                let missing = words.iter().filter(|word| !message.contains(*word));
                wrong.extend(missing.map(|word| format!("{line}\n{word:?} is not in: {message}")));
                if error.exit_code() != 2 {
                    wrong.push(format!("{line}\nends with {}", error.exit_code()));
                }
            }
            (_, Ok(())) => {}
        }
        let kind = match outcome {
            Outcome::Runs => 0,
            Outcome::Refused(_) => 1,
            Outcome::RefusedAtStart(..) => 2,
        };
        seen[kind] += 1;
    }
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
    assert!(
        wrong.is_empty(),
        "{} faults in {} command lines:\n\n{}",
        wrong.len(),
        seen.iter().sum::<u32>(),
        wrong.join("\n\n")
    );
}

#[test]
fn the_examples_of_the_help_are_understood() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (topic, _) in guide::all_topics() {
        let lines = guide::topic_text(topic).unwrap().lines().filter_map(|line| line.strip_prefix("  $ "));
        for line in lines.filter(|line| !line.starts_with("ln ")) {
            // What comes after the program is the shell's.
            let ours = line.split(" || ").next().unwrap();
            let (program, arguments) = program(ours).unwrap_or_else(|| panic!("no program: {line}"));
            count += 1;
            if let Err(error) = parse(&program, &arguments) {
                wrong.push(format!("{topic}: {line}\n{error}"));
            }
        }
    }
    assert!(count > 30, "{count}");
    assert!(wrong.is_empty(), "{} of {count}:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Builds a shared library.
fn compile(sources: &[&Path], output: &Path, flags: &[&str]) {
    let status = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-pthread"])
        .args(flags)
        .args(sources)
        .arg("-o")
        .arg(output)
        .status()
        .expect("a C compiler, for this test");
    assert!(status.success(), "{output:?} does not compile");
}

#[test]
fn more_gpus_than_a_host_has_are_explained_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    compile(
        &[&here.join("tests/data/eight_gpus.c")],
        &folder.path().join("libcuda.so"),
        &["-Wall", "-Werror"],
    );
    let fakes = here.join("../tests/fake");
    let sources = [
        "log.c",
        "cuda.c",
        "memory.c",
        "effects.c",
        "order.c",
        "graphs.c",
        "nccl.c",
        "communicators.c",
        "objects.c",
        "exchange.c",
        "worker.c",
        "parameters.c",
    ];
    let sources = sources.map(|name| fakes.join(name));
    let sources: Vec<&Path> = sources.iter().map(AsRef::as_ref).collect();
    let nccl = folder.path().join("libnccl.so.2");
    compile(&sources, &nccl, &["-DFAKE_VERSION=22809", "-Wl,-Bsymbolic"]);

    let mut count = 0;
    for Example { from, program, arguments, outcome } in examples() {
        let Outcome::RefusedAtStart(processes, gpus, words) = outcome else { continue };
        assert_eq!(gpus, 8, "{from}: the driver of this test has 8");
        count += 1;
        // The program's name selects defaults.
        let link = folder.path().join(program.rsplit('/').next().unwrap());
        if !link.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nccl-bench"), &link).unwrap();
        }
        let port = reserve_port();
        let started: Vec<_> = (0..processes)
            .map(|rank| {
                Command::new(&link)
                    .args(&arguments)
                    .env_clear()
                    .env("LD_LIBRARY_PATH", folder.path())
                    .env("NCCL_LIBRARY", &nccl)
                    .env("NCCL_BENCH_RANK", rank.to_string())
                    .env("NCCL_BENCH_SIZE", processes.to_string())
                    .env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"))
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let outputs: Vec<_> = started.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let message = String::from_utf8_lossy(&outputs[0].stderr);
        for word in words {
            assert!(message.contains(&word), "{from}: {word:?} is not in: {message}");
        }
        for output in &outputs {
            assert_eq!(output.status.code(), Some(2), "{from}: {output:?}");
            assert!(output.stdout.is_empty(), "{from}: {output:?}");
        }
        // Started by hand, each has a terminal of its own.
        let said = outputs.iter().filter(|output| output.stderr == outputs[0].stderr).count();
        assert_eq!(said, outputs.len(), "{from}: all processes say the same");
    }
    assert!(count > 0);
}

#[test]
fn command_lines_are_divided_as_a_shell_does() {
    let (name, arguments) = program(r#"A=x_perf mpirun --mca a "b c" ./all_reduce_perf -b 8"#).unwrap();
    assert_eq!((name.as_str(), arguments), ("./all_reduce_perf", vec!["-b".to_owned(), "8".to_owned()]));
    assert!(program("mpirun hostname").is_none());
}
