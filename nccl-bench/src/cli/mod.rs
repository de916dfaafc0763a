//! The command line: parses the arguments and runs the command.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};
use std::path::Path;
use std::process::ExitCode;

use clap::ArgMatches;
use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use engine::collective::Collective;

use crate::command::measure::{ALL, EXAMPLES, Invocation, collectives};
use crate::command::{self, Context, Program};
use crate::exit::{ExitError, check_standard_output, parser_refusal};
use crate::{limits, log};
use engine::supervision::{Stop, hold_signals, ignore_file_size_signal};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Runs the program with the arguments of this process.
pub fn main(program: Program) -> ExitCode {
    ExitCode::from(run_program(&program).unwrap_or_else(ExitError::report_error))
}

fn run_program(program: &Program) -> Result<u8, ExitError> {
    limits::check_stack()?;
    hold_signals().map_err(Stop::from)?;
    log::start_log()?;
    check_standard_output()?;
    ignore_file_size_signal().map_err(Stop::from)?;
    tracing::debug!("started");
    let root = define_command_line();
    let (invocation, matches) = parse_command_line(std::env::args_os())?;
    let (name, matches) = matches.subcommand().ok_or_else(|| parser_refusal("a command is missing"))?;
    let command =
        command::all_commands().into_iter().find(|command| command.define_command().get_name() == name);
    let command = command.ok_or_else(|| parser_refusal(format!("there is no command '{name}'")))?;
    if !command.takes_over_signals() {
        command::take_over_signals()?;
    }
    command.run_command(matches, &Context { program, root: &root, invocation })
}

/// The definition of the whole command line, also for completions and manual pages.
pub fn define_command_line() -> clap::Command {
    let root = clap::Command::new("nccl-bench")
        .version(crate::build::VERSION)
        .about("Measures and verifies collectives: NCCL over GPUs, libfabric over host memory")
        .styles(STYLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .infer_long_args(true)
        // Of every command, as in nccl-tests: the last of repeated options counts.
        .args_override_self(true)
        .after_help(EXAMPLES)
        .disable_help_subcommand(true)
        .subcommands(command::all_commands().iter().map(|command| command.define_command()));
    allow_negative_numbers(root)
}

/// Makes options of the command and those below it take a negative number, so that the refusal says which
/// values they have.
fn allow_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_values =
        |argument: &clap::Arg| !argument.is_positional() && argument.get_action().takes_values();
    let command = command.mut_args(|argument| {
        let is_concerned = takes_values(&argument);
        if is_concerned { argument.allow_negative_numbers(true) } else { argument }
    });
    command.mut_subcommands(allow_negative_numbers)
}

/// The collective that the program is named after: `all_reduce_perf`, also with a suffix.
fn collective_of_program(program: &Path) -> Option<Collective> {
    let name = program.file_name()?.to_str()?;
    let stem = name.split_once("_perf").map_or(name, |(stem, _)| stem);
    stem.parse().ok()
}

/// Parses a command line, in which the program's name can stand for a command, and a list of collectives for
/// a command with a flag.
///
/// # Errors
/// The parser's answer, which includes those to `--help` and `--version`.
pub fn parse_command_line<I, T>(line: I) -> Result<(Invocation, ArgMatches), clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    let mut arguments: Vec<OsString> = line.into_iter().map(Into::into).collect();
    let command: Vec<String> = arguments.iter().map(|each| each.to_string_lossy().into_owned()).collect();
    let by_name = command.first().and_then(|program| collective_of_program(Path::new(program)));
    if let Some(collective) = by_name {
        arguments.insert(1, collective.collective_name().into());
    } else if let Some(list) = command.get(1).filter(|first| first.contains(',') && !first.starts_with('-')) {
        collectives(list).map_err(parser_refusal)?;
        arguments.splice(1..2, [ALL.into(), "--collectives".into(), list.into()]);
    }
    let matches = define_command_line().try_get_matches_from(arguments).map_err(with_advice)?;
    Ok((Invocation { as_nccl_tests: by_name.is_some(), command }, matches))
}

/// Replaces the parser's suggestions for an unknown command by the command that needs the fewest corrections,
/// if there is a similar one: the parser also suggests beginnings of the name. Of text that is no whole
/// number, it says which are.
fn with_advice(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(name) = likeliest_command(typed)
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name]));
    }
    let reason = error.source().and_then(|source| source.downcast_ref::<ParseIntError>());
    let is_no_number = reason.is_some_and(|reason| *reason.kind() != IntErrorKind::PosOverflow);
    match (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue)) {
        (Some(argument), Some(value)) if is_no_number => parser_refusal(format!(
            "invalid value '{value}' for '{argument}': it is not a whole number from 0 on"
        )),
        _ => error,
    }
}

/// The command from which a name differs in the fewest letters, up to a third of them.
fn likeliest_command(typed: &str) -> Option<String> {
    let commands = command::all_commands();
    let names = commands.iter().map(|command| command.define_command().get_name().to_owned());
    let distances = names.map(|name| (strsim::osa_distance(&name, typed), name));
    let (corrections, name) = distances.min()?;
    (corrections * 3 <= typed.chars().count()).then_some(name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::command::measure::{self, ParsedMeasurement};

    use collectives::DataType;
    use engine::data::Op;
    use engine::request::SizeStep;
    use engine::request::{BackendChoice, Request, Roots, Variables, Versus};
    use record::{Average, Blocking, Registration};
    use std::time::Duration;

    #[test]
    fn the_command_line_is_well_formed() {
        define_command_line().debug_assert();
    }

    fn parsed<'a>(line: impl IntoIterator<Item = &'a str>) -> Result<ParsedMeasurement, clap::Error> {
        let (invocation, matches) = parse_command_line(line)?;
        let (name, matches) = matches.subcommand().unwrap();
        measure::parse_measurement(name.parse().ok(), matches, &invocation, Ok(Variables::default()))
    }

    /// The measurement of a command line.
    pub(crate) fn measurement(line: &str) -> ParsedMeasurement {
        parsed(line.split_whitespace()).unwrap()
    }

    fn settings(line: &str) -> Request {
        measurement(line).request
    }

    fn refused(arguments: &[&str]) -> String {
        let error = parsed(["nccl-bench"].iter().chain(arguments).copied()).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn the_flags_of_nccl_tests_have_their_meaning() {
        let found = settings(
            "nccl-bench all_reduce_perf -b 8 -e 8G -f 2 -w 5 -n 20 -c 1 -g 8 -t 1 -d half -o max -m 2 -N 3 \
             -a 3 -z 2 -R 2 -u 1 -C 1 -S 1 -I 1 -K 5 -M 1 -p 1 -T 30 -y 1 -x 1 -J out.json -D 0",
        );
        assert_eq!(found.collectives, [Collective::AllReduce]);
        assert_eq!((found.settings.min_bytes, found.max_bytes), (8, Some(8 << 30)));
        assert_eq!(found.size_step(), SizeStep::Factor(2));
        assert_eq!((found.settings.warm_up, found.settings.iterations, found.settings.checks), (5, 20, 1));
        assert_eq!((found.gpus, found.threads), (Some(8), Some(1)));
        assert_eq!((found.data_types, found.ops), (vec![DataType::Float16], vec![Op::Max]));
        assert_eq!((found.settings.aggregated, found.settings.cycles, found.settings.unaligned), (2, 3, 1));
        assert_eq!((found.settings.average, found.settings.blocking), (Average::Max, Blocking::Wait));
        assert_eq!(
            (found.settings.registration, found.settings.cta_policy),
            (Registration::Symmetric, Some(1))
        );
        assert!(
            found.settings.cpu_time
                && found.settings.time_stamps
                && found.settings.per_iteration
                && found.memory_report
        );
        assert!(found.settings.parallel_init && found.settings.default_stream);
        assert_eq!((found.settings.per_iteration_skip, found.timeout), (5, Some(Duration::from_secs(30))));
        assert_eq!(found.notes, [""; 0]);
        let long = settings(
            "nccl-bench broadcast --minbytes 0x10 --maxbytes 1e3 --root -1 --agg_iters 010 --cudagraph 2 \
             --run_cycles 0",
        );
        assert_eq!((long.settings.min_bytes, long.max_bytes), (16, Some(1000)));
        assert_eq!(
            (long.roots, long.settings.aggregated, long.settings.graph_launches, long.settings.cycles),
            (Roots::All, 8, 2, 0)
        );
    }

    #[test]
    fn a_name_of_nccl_tests_brings_its_defaults() {
        for name in ["all_reduce_perf", "/opt/bin/all_reduce_perf_mpi", "./all_reduce"] {
            let found = settings(name);
            assert_eq!(found.collectives, [Collective::AllReduce]);
            assert_eq!((found.settings.min_bytes, found.max_bytes), (32 << 20, Some(32 << 20)));
            assert_eq!((found.size_step(), found.gpus), (SizeStep::Bytes(1 << 20), Some(1)));
        }
        let found = settings("nccl-bench allreduce -b 8 -b 16 -e 1K -c 2 -c 0");
        assert_eq!((found.settings.min_bytes, found.settings.checks), (16, 0), "the last one counts");
        let found = settings("nccl-bench all_reduce_perf");
        assert_eq!((found.settings.min_bytes, found.max_bytes, found.gpus), (8, None, None));
        assert_eq!(found.size_step(), SizeStep::Factor(2));
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
        assert_eq!(found.size_step(), SizeStep::Bytes(1 << 20));
        let all = settings("nccl-bench all -d all");
        assert_eq!(all.collectives, Collective::ALL);
        assert_eq!(all.data_types, DataType::ALL);
    }

    #[test]
    fn two_sides_are_different_ones_in_nine_rounds() {
        let found = settings("nccl-bench allreduce");
        assert_eq!((found.versus, found.settings.rounds, found.backend), (None, None, BackendChoice::Auto));
        for line in ["nccl-bench allreduce --vs mpi", "nccl-bench allreduce --vs mpi --backend fabric"] {
            let found = settings(line);
            let expected = (Some(Versus::Mpi), Some(9), BackendChoice::Fabric);
            assert_eq!((found.versus, found.settings.rounds, found.backend), expected);
        }
        assert_eq!(settings("nccl-bench allreduce --vs mpi --rounds 4").settings.rounds, Some(4));
        assert!(refused(&["allreduce", "--vs", "mpi", "--backend", "mpi"]).contains("with itself"));
        assert!(refused(&["allreduce", "--vs", "fabric", "--backend", "fabric"]).contains("with itself"));
        for (line, versus, backend) in [
            ("nccl-bench allreduce --vs mpi --backend nccl", Versus::Mpi, BackendChoice::Nccl),
            ("nccl-bench allreduce --vs fabric", Versus::Fabric, BackendChoice::Nccl),
            ("nccl-bench allreduce --vs fabric --backend mpi", Versus::Fabric, BackendChoice::Mpi),
        ] {
            let found = settings(line);
            assert_eq!(
                (found.versus, found.settings.rounds, found.backend),
                (Some(versus), Some(9), backend)
            );
        }
        assert!(refused(&["allreduce", "--rounds", "2", "--until-stable", "1%"]).contains("--until-stable"));
    }

    #[test]
    fn the_check_on_the_stream_has_a_number_of_rounds() {
        assert_eq!(settings("nccl-bench allreduce").settings.stream_checks, None);
        assert_eq!(settings("nccl-bench allreduce --check-on-stream").settings.stream_checks, Some(200));
        assert_eq!(settings("nccl-bench allreduce --check-on-stream -R 2").settings.stream_checks, Some(200));
        assert_eq!(settings("nccl-bench allreduce --check-on-stream 7 -G 1").settings.stream_checks, Some(7));
        assert_eq!(
            settings("nccl-bench allreduce --check 3").settings.checks,
            3,
            "no abbreviation of the other"
        );
        for (arguments, expected) in [
            (&["-c", "0"][..], "-c 0 does not"),
            (&["-y", "1"], "capture the default stream"),
            (&["--vs", "fabric"], "remove --vs"),
        ] {
            let message = refused(&[&["allreduce", "--check-on-stream"], arguments].concat());
            assert!(message.contains(expected), "{arguments:?} gave: {message}");
        }
        assert!(refused(&["allreduce", "--check-on-stream", "0"]).contains("whole number from 1"));
    }

    #[test]
    fn what_does_not_go_together_is_refused_or_left_out_with_a_note() {
        let found = settings("nccl-bench allreduce -G 1 -z 3 -I 1 -K 2");
        assert_eq!(
            (found.settings.blocking, found.settings.per_iteration, found.settings.per_iteration_skip),
            (Blocking::No, false, 0)
        );
        assert_eq!(found.notes.len(), 3);
        assert!(refused(&["allreduce", "-G", "1", "-z", "1"]).contains("the capture of -G"));
        assert!(refused(&["allreduce", "-G", "1", "-y", "1"]).contains("default stream"));
        assert!(refused(&["allreduce", "-D", "1"]).contains("not supported"));
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
            (&["allreduce", "-r", "-2"], "write a rank (0 or larger), or all"),
            (&["allreduce", "-a", "4"], "write a number from 0 to 3"),
            (&["allreduce", "-C", "yes"], "write 0 or 1"),
            (&["allreduce", "-b", "1P"], "unit is unknown"),
            (&["allreduce", "-e", "-5"], "it is negative"),
            (&["allreduce", "-n", "0"], "whole number from 1 to 4294967295"),
            (&["allreduce", "-n", "ten"], "whole number from 1 to 4294967295"),
            (&["allreduce", "-g", "-1"], "whole number from 1 to 4294967295"),
            (&["allreduce", "-t", "0"], "whole number from 1 to 4096"),
            (&["allreduce", "--in-flight", "16385"], "whole number from 1 to 16384"),
            (&["allreduce", "-t", "4294967295"], "whole number from 1 to 4096"),
            (&["allreduce", "--stepfactr", "2"], "--stepfactor"),
            (&["allreduce", "--inject-fault", "x"], "RANK:INDEX"),
            (&["allreduce", "--until-stable", "100%"], "as in 1%"),
            (&["allreduce", "--until-stable", "0.01"], "'0.01' has no percent sign"),
            (&["allreduce", "--budget", "0"], "write seconds"),
            (&["allreduce", "--budget", "-1"], "write seconds"),
            (&["allreduce", "--until-stable", "-1%"], "write it as in 5% or 0.5%"),
            (&["allreduce", "-d", "fp16,float,float16"], "'float16' names half again: list each once"),
            (&["allreduce", "-o", "sum,sum"], "'sum' names sum again: list each once"),
            (&["allreduce,all_reduce"], "error: 'all_reduce' names allreduce again: list each once"),
            (&["allredcue"], "tip: a similar subcommand exists: 'allreduce'"),
            (&["allreduce,alltoal"], "error: 'alltoal' is not a collective; write one of allreduce"),
            (&["allreduce", "-w", "4294967296"], "whole number from 0 to 4294967295"),
            (&["allreduce", "--inject-fault", "1:0", "-c", "0"], "-c 0 verifies nothing"),
            (&["allreduce", "--between", "ring"], "add --algo hierarchical"),
            (&["allreduce", "-b", "1", "-e", "2"], "below one element of 4 bytes"),
        ] {
            let message = refused(arguments);
            assert!(message.contains(expected), "{arguments:?} gave: {message}");
        }
    }

    #[test]
    fn a_refusal_of_arguments_has_no_usage_line() {
        let message = "error: the largest size (-e 8) is below the smallest (-b 1M)\n";
        assert_eq!(refused(&["allreduce", "-b", "1M", "-e", "8"]), message);
    }

    #[test]
    fn types_have_the_names_that_other_programs_give_them() {
        let (half, float, double) = (DataType::Float16, DataType::Float32, DataType::Float64);
        for (names, expected) in [
            (
                "fp16,BF16,fp32,fp64,fp8_e4m3",
                vec![half, DataType::Bfloat16, float, double, DataType::Float8E4M3],
            ),
            ("float16,float32,float64", vec![half, float, double]),
        ] {
            assert_eq!(settings(&format!("nccl-bench allreduce -d {names}")).data_types, expected);
        }
    }

    #[test]
    fn a_negative_number_is_refused_as_a_value() {
        for (line, reason) in [
            ("doctor host --expect-gpus -1", "'--expect-gpus <COUNT>': it is not a whole number from 0 on"),
            ("fabric bw --pause -1", "'--pause <NANOSECONDS>': it is not a whole number from 0 on"),
            ("fabric bw --pause 9999999999999999999999", "number too large"),
            ("allreduce --segment -1", "it is negative"),
            ("fabric bw -b -1", "it is negative"),
        ] {
            let error = parse_command_line(format!("nccl-bench {line}").split_whitespace()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{line}: {error}");
            assert!(error.to_string().contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn the_last_of_repeated_options_counts_with_every_command() {
        let (_, matches) =
            parse_command_line(["nccl-bench", "fabric", "bw", "--window", "2", "--window", "8"]).unwrap();
        let (_, matches) = matches.subcommand().unwrap();
        let (_, matches) = matches.subcommand().unwrap();
        assert_eq!(matches.get_one::<u64>("window"), Some(&8));
    }

    #[test]
    fn a_root_or_operator_without_effect_is_left_out_with_a_note() {
        let found = settings("nccl-bench allreduce,alltoall -r 5 -o max");
        assert_eq!((found.roots, found.ops), (Roots::One(0), vec![Op::Max]));
        assert_eq!(found.notes, ["-r is ignored: no measured collective has a root"]);
        let found = settings("nccl-bench broadcast,sendrecv -r 1 -o all");
        assert_eq!((found.roots, found.ops), (Roots::One(1), vec![Op::Sum]));
        assert_eq!(found.notes, ["-o is ignored: no measured collective reduces"]);
        assert_eq!(settings("nccl-bench alltoall -r 0 -o sum").notes, [""; 0]);
    }

    #[test]
    fn help_is_not_an_error() {
        let answer = parse_command_line(["nccl-bench", "allreduce", "--help"]).unwrap_err();
        assert_eq!(answer.exit_code(), 0);
        let text = answer.to_string();
        assert!(text.contains("mpirun -np 16"));
        let long: Vec<_> = EXAMPLES.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "wrapped by a terminal of 80 columns: {long:#?}");
        let names: Vec<_> = DataType::ALL.into_iter().map(DataType::name).collect();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("or all: {} [default: float]", names.join(" "))), "{text}");
    }
    #[test]
    fn the_help_is_short_and_the_long_one_has_all_flags() {
        let help = |flag| parse_command_line(["nccl-bench", "allreduce", flag]).unwrap_err().to_string();
        let (short, long) = (help("-h"), help("--help"));
        assert!(short.lines().count() <= 70, "{} lines", short.lines().count());
        assert!(long.lines().count() <= 275, "{} lines", long.lines().count());
        let definition = define_command_line();
        let command = definition.find_subcommand("allreduce").unwrap();
        let words = long.split_whitespace().collect::<Vec<_>>().join(" ");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let flag = format!("--{}", argument.get_long().unwrap());
            assert!(words.contains(&flag), "{flag}");
            // Defaults are within the text, where they take no lines of their own.
            for default in argument.get_default_values() {
                let text = argument.get_help().unwrap().to_string();
                let default = format!("[default: {}]", default.to_string_lossy());
                assert!(text.contains(&default) || !argument.is_hide_default_value_set(), "{flag}: {text}");
            }
        }
        for rare in ["--inject-fault", "--cta_policy", "--in-flight"] {
            assert!(!short.contains(rare) && long.contains(rare), "{rare}");
        }
        assert!(short.contains("--output <FILE>") && short.contains("nccl-bench help"), "{short}");
    }
}
