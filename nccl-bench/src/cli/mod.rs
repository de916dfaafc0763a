//! The command line: what may be asked for, and what it means once checked.
//!
//! [`parse`] finds out which command was given: `arguments` has the commands with their flags and help, `values` reads what
//! stands behind a flag, and `settings` makes of all flags of a measurement what it shall do.

mod arguments;
mod settings;
mod values;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::FromArgMatches as _;
use clap::error::ErrorKind;
use clap_complete::Shell;

pub use arguments::command;
pub use settings::{All, Settings};
pub(crate) use values::fabric_collective;
pub use values::{BackendChoice, Fault, Roots, Tuning, Versus, Wish};

use crate::collective::Collective;
use crate::compare;
use crate::environment::Variables;
use crate::fabric;
use crate::plot;
use arguments::{ALL, COMPARE, COMPLETIONS, FABRIC, FOLDER, HELP, MAN, Measure, PLOT, SHELL, TOPIC};

/// What shall be done.
#[derive(Debug)]
pub enum Command {
    /// Measure.
    Measure(Box<Settings>),
    /// Compare result files.
    Compare(compare::Arguments),
    /// Draw result files.
    Plot(plot::Arguments),
    /// Look at libfabric.
    Fabric(fabric::Command),
    /// Explain this topic, or a command with those that lead to it; without one list the topics.
    Help(Vec<String>),
    /// Print the completions of a shell.
    Completions(Shell),
    /// Print the manual page, or write all pages into a folder.
    Man(Option<PathBuf>),
}

/// The collective that the program's own name asks for: `all_reduce_perf`, also with a suffix.
fn from_program_name(program: &Path) -> Option<Collective> {
    let name = program.file_name()?.to_str()?;
    let stem = name.split_once("_perf").map_or(name, |(stem, _)| stem);
    stem.parse().ok()
}

/// Reads the command line, and nccl-tests' variables.
///
/// # Errors
/// What clap answers: also `--help` and `--version`. [`clap::Error::exit`] prints it and ends with 0 or 2.
pub fn parse<I, T>(arguments: I) -> Result<Command, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let variables = Variables::read(|name| env::var(name).ok());
    parse_with(arguments, variables)
}

fn parse_with<I, T>(arguments: I, variables: Result<Variables, String>) -> Result<Command, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let text: Vec<String> = arguments.iter().map(|each| each.to_string_lossy().into_owned()).collect();
    let by_name = text.first().and_then(|program| from_program_name(Path::new(program)));
    if let Some(collective) = by_name {
        arguments.insert(1, collective.name().into());
    } else if let Some(list) = text.get(1).filter(|first| first.contains(',') && !first.starts_with('-')) {
        if let Some(problem) = list.split(',').find_map(|name| name.parse::<Collective>().err()) {
            return Err(conflict(problem));
        }
        arguments.splice(1..2, [ALL.into(), "--collectives".into(), list.into()]);
    }
    let matches = command().try_get_matches_from(arguments)?;
    let (name, matches) = matches.subcommand().ok_or_else(|| conflict("a command is missing"))?;
    match name {
        COMPARE => return Ok(Command::Compare(compare::Arguments::from_arg_matches(matches)?)),
        PLOT => return Ok(Command::Plot(plot::Arguments::from_arg_matches(matches)?)),
        FABRIC => return Ok(Command::Fabric(fabric::Command::from_arg_matches(matches)?)),
        HELP => return Ok(Command::Help(matches.get_many(TOPIC).into_iter().flatten().cloned().collect())),
        COMPLETIONS => {
            let shell = matches.get_one(SHELL).ok_or_else(|| conflict("a shell is missing"))?;
            return Ok(Command::Completions(*shell));
        }
        MAN => return Ok(Command::Man(matches.get_one(FOLDER).cloned())),
        _ => {}
    }
    let measure = Measure::from_arg_matches(matches)?;
    let collectives = match name.parse::<Collective>() {
        Ok(collective) => vec![collective],
        Err(_) if measure.collectives.is_empty() => Collective::ALL.to_vec(),
        Err(_) => measure.collectives.clone(),
    };
    let variables = variables.map_err(conflict)?;
    settings::settle(measure, collectives, by_name.is_some(), variables, text)
        .map(Box::new)
        .map(Command::Measure)
}

fn conflict(message: impl std::fmt::Display) -> clap::Error {
    command().error(ErrorKind::ValueValidation, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{self, Op};
    use crate::record::{Average, Blocking, Registration};
    use crate::size::Step;
    use collectives::DataType;
    use std::time::Duration;

    fn settings(line: &str) -> Settings {
        match parse_with(line.split_whitespace(), Ok(Variables::default())).unwrap() {
            Command::Measure(settings) => *settings,
            other => panic!("{other:?} is no measurement"),
        }
    }

    fn refusal(arguments: &[&str]) -> String {
        let arguments = ["nccl-bench"].iter().chain(arguments);
        let error = parse_with(arguments, Ok(Variables::default())).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn the_flags_of_nccl_tests_have_their_meaning() {
        let found = settings(
            "nccl-bench all_reduce_perf -b 8 -e 8G -f 2 -w 5 -n 20 -c 1 -g 8 -t 1 -d half -o max -m 2 -N 3 -a 3 -z 2 \
             -R 2 -u 1 -C 1 -S 1 -I 1 -K 5 -M 1 -p 1 -T 30 -y 1 -x 1 -J out.json -D 0",
        );
        assert_eq!(found.collectives, [Collective::AllReduce]);
        assert_eq!((found.min_bytes, found.max_bytes), (8, Some(8 << 30)));
        assert_eq!(found.step, Step::Factor(2));
        assert_eq!((found.warm_up, found.iterations, found.checks), (5, 20, 1));
        assert_eq!((found.gpus, found.threads), (Some(8), Some(1)));
        assert_eq!((found.data_types, found.ops), (vec![DataType::Float16], vec![Op::Max]));
        assert_eq!((found.aggregated, found.cycles, found.unaligned), (2, 3, 1));
        assert_eq!((found.average, found.blocking), (Average::Max, Blocking::Wait));
        assert_eq!((found.registration, found.cta_policy), (Registration::Symmetric, Some(1)));
        assert!(found.cpu_time && found.time_stamps && found.per_iteration && found.memory_report);
        assert!(found.parallel_init && found.default_stream);
        assert_eq!((found.per_iteration_skip, found.timeout), (5, Some(Duration::from_secs(30))));
        assert_eq!(found.nccl_tests_json, Some(PathBuf::from("out.json")));
        assert_eq!(found.notes, [""; 0]);
        let long = settings(
            "nccl-bench broadcast --minbytes 0x10 --maxbytes 1e3 --root -1 --agg_iters 010 --cudagraph 2 --run_cycles 0",
        );
        assert_eq!((long.min_bytes, long.max_bytes), (16, Some(1000)));
        assert_eq!((long.roots, long.aggregated, long.graph_launches, long.cycles), (Roots::All, 8, 2, 0));
    }

    #[test]
    fn a_name_of_nccl_tests_brings_its_defaults() {
        for name in ["all_reduce_perf", "/opt/bin/all_reduce_perf_mpi", "./all_reduce"] {
            let found = settings(name);
            assert_eq!(found.collectives, [Collective::AllReduce]);
            assert_eq!((found.min_bytes, found.max_bytes), (32 << 20, Some(32 << 20)));
            assert_eq!((found.step, found.gpus), (Step::Bytes(1 << 20), Some(1)));
        }
        let found = settings("nccl-bench allreduce -b 8 -b 16 -e 1K -c 2 -c 0");
        assert_eq!((found.min_bytes, found.checks), (16, 0), "the last one counts");
        let found = settings("nccl-bench all_reduce_perf");
        assert_eq!((found.min_bytes, found.max_bytes, found.gpus), (8, None, None));
        assert_eq!(found.step, Step::Factor(2));
    }

    #[test]
    fn lists_and_all_expand_in_order() {
        for name in ["alltoallv", "alltoallv_perf", "all_to_all_v"] {
            assert_eq!(
                settings(&format!("nccl-bench {name}")).collectives,
                [Collective::AllToAllV],
                "{name}"
            );
        }
        let found = settings("nccl-bench allgather,sendrecv,all_reduce -d f32,int8 -o all -i 1M");
        let expected = [Collective::AllGather, Collective::SendRecv, Collective::AllReduce];
        assert_eq!(found.collectives, expected);
        assert_eq!(found.data_types, [DataType::Float32, DataType::Int8]);
        assert_eq!(found.ops, Op::ALL);
        assert_eq!(found.step, Step::Bytes(1 << 20));
        let all = settings("nccl-bench all -d all");
        assert_eq!(all.collectives, Collective::ALL);
        assert_eq!(all.data_types, data::supported_types());
    }

    #[test]
    fn two_sides_are_different_ones_in_nine_rounds() {
        let found = settings("nccl-bench allreduce");
        assert_eq!((found.versus, found.rounds, found.backend), (None, 1, BackendChoice::Auto));
        for line in ["nccl-bench allreduce --vs mpi", "nccl-bench allreduce --vs mpi --backend fabric"] {
            let found = settings(line);
            let expected = (Some(Versus::Mpi), 9, BackendChoice::Fabric);
            assert_eq!((found.versus, found.rounds, found.backend), expected);
        }
        assert_eq!(settings("nccl-bench allreduce --vs mpi --rounds 4").rounds, 4);
        assert!(refusal(&["allreduce", "--vs", "mpi", "--backend", "mpi"]).contains("with itself"));
        assert!(refusal(&["allreduce", "--vs", "fabric", "--backend", "fabric"]).contains("with itself"));
        for (line, versus, backend) in [
            ("nccl-bench allreduce --vs mpi --backend nccl", Versus::Mpi, BackendChoice::Nccl),
            ("nccl-bench allreduce --vs fabric", Versus::Fabric, BackendChoice::Nccl),
            ("nccl-bench allreduce --vs fabric --backend mpi", Versus::Fabric, BackendChoice::Mpi),
        ] {
            let found = settings(line);
            assert_eq!((found.versus, found.rounds, found.backend), (Some(versus), 9, backend));
        }
        assert!(refusal(&["allreduce", "--rounds", "2", "--until-stable", "1%"]).contains("--until-stable"));
    }

    #[test]
    fn the_check_on_the_stream_has_a_number_of_rounds() {
        assert_eq!(settings("nccl-bench allreduce").stream_checks, None);
        assert_eq!(settings("nccl-bench allreduce --check-on-stream").stream_checks, Some(200));
        assert_eq!(settings("nccl-bench allreduce --check-on-stream -R 2").stream_checks, Some(200));
        assert_eq!(settings("nccl-bench allreduce --check-on-stream 7 -G 1").stream_checks, Some(7));
        assert_eq!(settings("nccl-bench allreduce --check 3").checks, 3, "no abbreviation of the other");
        for (arguments, expected) in [
            (&["-c", "0"][..], "-c 0 does not"),
            (&["-y", "1"], "capture the default stream"),
            (&["--vs", "fabric"], "leave --vs out"),
        ] {
            let message = refusal(&[&["allreduce", "--check-on-stream"], arguments].concat());
            assert!(message.contains(expected), "{arguments:?} gave: {message}");
        }
        assert!(refusal(&["allreduce", "--check-on-stream", "0"]).contains("whole number from 1"));
    }

    #[test]
    fn what_does_not_go_together_is_refused_or_left_out_with_a_note() {
        let found = settings("nccl-bench allreduce -G 1 -z 3 -I 1 -K 2");
        assert_eq!((found.blocking, found.per_iteration, found.per_iteration_skip), (Blocking::No, false, 0));
        assert_eq!(found.notes.len(), 3);
        assert!(refusal(&["allreduce", "-G", "1", "-z", "1"]).contains("-G captures"));
        assert!(refusal(&["allreduce", "-G", "1", "-y", "1"]).contains("default stream"));
        assert!(refusal(&["allreduce", "-D", "1"]).contains("not supported"));
    }

    #[test]
    fn bad_input_is_refused_with_what_to_do() {
        for (arguments, expected) in [
            (&["allreduce", "-b", "0"][..], "at least one byte"),
            (
                &["allreduce", "-b", "64M", "-e", "1M"],
                "the largest size (-e 1M) is below the smallest (-b 64M)",
            ),
            (&["allreduce", "-f", "1.5"], "write a whole number from 2 on"),
            (&["allreduce", "-f", "1"], "write 2 or more"),
            (&["allreduce", "-f", "-2"], "write a whole number from 2 on"),
            (&["allreduce", "-d", "nonsense"], "'nonsense' is none of int8, uint8, int32, uint32"),
            (&["allreduce", "-o", "mean"], "'mean' is none of sum"),
            (&["allreduce", "-r", "-2"], "write a rank from 0 on, or all"),
            (&["allreduce", "-a", "4"], "write a number from 0 to 3"),
            (&["allreduce", "-C", "yes"], "write 0 or 1"),
            (&["allreduce", "-b", "1T"], "unit is unknown"),
            (&["allreduce", "-e", "-5"], "it is negative"),
            (&["allreduce", "-n", "0"], "whole number from 1 to 4294967295"),
            (&["allreduce", "-n", "ten"], "whole number from 1 to 4294967295"),
            (&["allreduce", "-g", "-1"], "whole number from 1 to 4294967295"),
            (&["allreduce", "-t", "0"], "whole number from 1 to 4096"),
            (&["allreduce", "-t", "4294967295"], "whole number from 1 to 4096"),
            (&["allreduce", "--stepfactr", "2"], "--stepfactor"),
            (&["allreduce", "--inject-fault", "x"], "RANK:INDEX"),
            (&["allreduce", "--until-stable", "100%"], "as in 1%"),
            (&["allreduce", "--budget", "0"], "write seconds"),
            (&["allredcue"], "allreduce"),
            (&["allreduce,alltoal"], "error: 'alltoal' is no collective; write one of allreduce"),
            (&["allreduce", "-w", "4294967296"], "whole number from 0 to 4294967295"),
            (&["allreduce", "--inject-fault", "1:0", "-c", "0"], "-c 0 verifies nothing"),
            (&["allreduce", "--between", "ring"], "add --algo hierarchical"),
            (&["allreduce", "-b", "1", "-e", "2"], "below one element of 4 bytes"),
        ] {
            let message = refusal(arguments);
            assert!(message.contains(expected), "{arguments:?} gave: {message}");
        }
    }

    #[test]
    fn help_is_not_an_error() {
        let answer = parse(["nccl-bench", "allreduce", "--help"]).unwrap_err();
        assert_eq!(answer.exit_code(), 0);
        let text = answer.to_string();
        assert!(text.contains("mpirun -np 16"));
        let names: Vec<_> = data::supported_types().into_iter().map(DataType::name).collect();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("or all: {} [default: float]", names.join(" "))), "{text}");
    }
}
