mod programs;

use proptest::prelude::*;

use super::*;
use crate::collective::UNKNOWN_COLLECTIVE;
use crate::files::read::source::{Source, decompress_source};
use crate::files::read::{parse_text, read_run, read_source};
use crate::run::{Measurement, Placement, RunOutcome};
use crate::settings::Blocking;
use programs::OLD;

const ALL_REDUCE: &str = include_str!("../../../../../../nccl-bench/tests/data/all_reduce_mpi.txt");
const ALL_GATHER: &str = include_str!("../../../../../../nccl-bench/tests/data/all_gather_mpi.txt");
const ALL_TO_ALL: &str = include_str!("../../../../../../nccl-bench/tests/data/alltoall_mpi.txt");
const BROADCAST: &str = include_str!("../../../../../../nccl-bench/tests/data/broadcast_mpi.txt");
const GRAPH: &str = include_str!("../../../../../../nccl-bench/tests/data/all_reduce_mpi_cudagraph.txt");
const ONE_THREAD: &str = include_str!("../../../../../../nccl-bench/tests/data/all_reduce_g8.txt");
const REDUCE_SCATTER: &str = include_str!("../../../../../../nccl-bench/tests/data/reduce_scatter_mpi.txt");
const SEND_RECV: &str = include_str!("../../../../../../nccl-bench/tests/data/sendrecv_mpi.txt");
const THREADS: &str = include_str!("../../../../../../nccl-bench/tests/data/all_reduce_t8.txt");

fn parse_runs(text: &str) -> Vec<Run> {
    match decompress_source(text.as_bytes()).unwrap() {
        Source::Text(mut source) => read_text(&mut source).unwrap(),
        Source::Json(_) => panic!("it is JSON"),
    }
}

fn parse_run(text: &str) -> Run {
    let mut runs = parse_runs(text);
    assert_eq!(runs.len(), 1, "{runs:#?}");
    runs.remove(0)
}

fn parse_error(text: &str) -> String {
    parse_text(text.as_bytes()).unwrap_err().to_string()
}

fn prefix_lines(text: &str, prefix: &str) -> String {
    text.lines().map(|line| format!("{prefix}{line}\n")).collect()
}

fn find(run: &Run, bytes: u64, placement: Placement) -> &Measurement {
    run.measurements.iter().find(|each| (each.bytes, each.placement) == (bytes, placement)).unwrap()
}

#[test]
fn text_and_json_of_one_run_are_equal() {
    let json = parse_text(include_bytes!("../../../../tests/data/all_reduce.json")).unwrap();
    let text = parse_run(ALL_REDUCE);
    assert_eq!((&text.ranks, &text.settings), (&json.ranks, &json.settings));
    assert_eq!(text.provenance.library_version, json.provenance.library_version);
    assert_eq!((text.outcome, text.program.as_str()), (RunOutcome::Complete, "nccl-tests 2.19.6"));
    assert_eq!(text.measurements.len(), json.measurements.len());
    for (text, json) in text.measurements.iter().zip(&json.measurements) {
        let exact = Measurement {
            time_us: text.time_us,
            algbw_gbps: text.algbw_gbps,
            busbw_gbps: text.busbw_gbps,
            ..json.clone()
        };
        assert_eq!(*text, exact);
        // The time has two decimals, or six digits.
        let close = |text: f64, json: f64, digits: f64| (text - json).abs() <= digits * json;
        let digits = (0.0051 / json.time_us).max(1e-5);
        assert!(close(text.time_us, json.time_us, digits), "{text:?} {json:?}");
        // JSON has six decimals.
        let digits = digits + 0.6e-6 / json.algbw_gbps;
        assert!(close(text.algbw_gbps, json.algbw_gbps, digits), "{text:?} {json:?}");
        assert!(close(text.busbw_gbps, json.busbw_gbps, digits), "{text:?} {json:?}");
    }
}

#[test]
fn all_recorded_texts_are_complete_runs_of_their_collectives() {
    for (text, collective, rows, checked) in [
        (ALL_REDUCE, "allreduce", 62, 62),
        (ALL_GATHER, "allgather", 60, 60),
        (ALL_TO_ALL, "alltoall", 60, 30),
        (BROADCAST, "broadcast", 60, 60),
        (GRAPH, "allreduce", 28, 28),
        (ONE_THREAD, "allreduce", 62, 62),
        (REDUCE_SCATTER, "reducescatter", 60, 60),
        (SEND_RECV, "sendrecv", 60, 30),
        (THREADS, "allreduce", 28, 0),
    ] {
        let run = parse_run(text);
        assert_eq!((run.outcome, run.ranks.len()), (RunOutcome::Complete, 8), "{collective}");
        assert!(run.measurements.iter().all(|each| each.collective == collective && each.cycle == 0));
        let found = run.measurements.iter().filter(|each| each.wrong == Some(0)).count();
        assert_eq!((run.measurements.len(), found), (rows, checked), "{collective}");
    }
    let graph = parse_run(GRAPH);
    assert_eq!((graph.settings.graph_launches, graph.settings.step_factor), (5, Some(4)));
    assert_eq!(parse_run(BROADCAST).measurements[0].root, Some(0));
    let threads = parse_run(THREADS);
    assert_eq!((threads.settings.threads, threads.settings.checks), (8, 0));
    assert_eq!(threads.ranks[7].pci.as_deref(), Some("0000:00:0d"));
}

#[test]
fn prefixes_do_not_change_a_run() {
    let plain = parse_run(ALL_REDUCE);
    for prefix in [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "0: ",
        " 0: ",
        "[0] ",
        "[pod/nccl-launcher-abcde/main] ",
        "2024-01-01T00:00:00.0000000Z ",
        "2024-01-01T00:00:00.0000000Z [1,0]<stdout>:",
        "Jan 01 00:00:00 node1 srun[44]: ",
        "launcher-1  | ",
        "> ",
        "        ",
        "\u{1b}[0;32m",
    ] {
        assert_eq!(parse_run(&prefix_lines(ALL_REDUCE, prefix)), plain, "{prefix:?}");
    }
    let ended = ALL_REDUCE.replace('\n', "\r\n");
    assert_eq!(parse_run(&ended), plain);
    let coloured = ALL_REDUCE.replace("float", "\u{1b}[1mfloat\u{1b}[0m");
    assert_eq!(parse_run(&coloured), plain);
}

#[test]
fn lines_of_other_programs_are_skipped() {
    let other = "vm:2284:2291 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n\
                 15 more processes have sent help message help-mpi.txt\n\
                 WARNING: There was an error initializing an OpenFabrics device.\n\
                 Traceback (most recent call last):\n\
                 [node1:123] MCW rank 0 bound to socket 0\n\n";
    let mixed: String = ALL_REDUCE.lines().map(|line| format!("{line}\n{other}")).collect();
    assert_eq!(parse_run(&mixed), parse_run(ALL_REDUCE));
}

#[test]
fn rows_broken_by_messages_of_nccl_are_joined() {
    let message = "vm:2284:2291 [0] NCCL INFO AllReduce: 16384 Bytes -> Algo RING proto LL";
    let with_message = format!("     sum      -1{message}\n{message}\n  ");
    let mut broken = ALL_REDUCE.replace("     sum      -1  ", &with_message);
    assert!(parse_run(&broken) == parse_run(ALL_REDUCE));
    broken = broken.replace("       0   ", &format!("       0{message}\n   "));
    assert!(parse_run(&broken) == parse_run(ALL_REDUCE));
    assert!(parse_run(&prefix_lines(&broken, "[1,0]<stdout>:")) == parse_run(ALL_REDUCE));
    // Without the host's name, the end of the row cannot be told from it.
    let unknown = broken.replace("on         vm device", "on other device");
    assert!(
        decompress_source(unknown.as_bytes())
            .and_then(read_source)
            .is_ok_and(|runs| { runs[0].outcome == RunOutcome::Running && runs[0].measurements.is_empty() })
    );
}

#[test]
fn tables_of_several_writers_are_runs_of_their_own() {
    let (first, second) =
        (prefix_lines(ALL_REDUCE, "[1,0]<stdout>:"), prefix_lines(ALL_GATHER, "[1,1]<stdout>:"));
    let noise = "[1,2]<stderr>:node1: a warning\n";
    let mut mixed = String::new();
    let (mut ones, mut others) = (first.lines(), second.lines());
    loop {
        let pair = [ones.next(), others.next()];
        if pair == [None, None] {
            break;
        }
        for line in pair.into_iter().flatten() {
            mixed.push_str(line);
            mixed.push('\n');
            mixed.push_str(noise);
        }
    }
    // Runs are in the order of their heads, and a line precedes the head of the first text.
    let names = |runs: &[Run]| runs.iter().map(|run| run.measurements.len()).collect::<Vec<_>>();
    let runs = parse_runs(&mixed);
    assert_eq!(names(&runs), [60, 62]);
    assert!(runs == [parse_run(ALL_GATHER), parse_run(ALL_REDUCE)]);
}

#[test]
fn mixed_tables_without_prefixes_are_not_complete() {
    let mixed: String = ALL_REDUCE.lines().map(|line| format!("{line}\n{line}\n")).collect();
    assert!(parse_runs(&mixed).iter().all(|run| run.outcome != RunOutcome::Complete));
    let last = parse_runs(&mixed).pop().unwrap();
    assert!(last.notes.iter().any(|note| note.contains("are mixed")), "{:?}", last.notes);
}

#[test]
fn a_head_that_a_page_has_without_its_first_sign_is_read() {
    let page = ALL_REDUCE.replace("# nThread", "nThread").replace("#  Rank  0", "  Rank  0");
    assert!(parse_run(&page) == parse_run(ALL_REDUCE));
    let binding = ALL_REDUCE.replacen("#\n# Using", "Rank 0 bound to package[0][core:0]\n#\n# Using", 1);
    assert!(parse_run(&binding) == parse_run(ALL_REDUCE));
}

#[test]
fn each_head_begins_a_run() {
    let all = format!("{ALL_REDUCE}{ALL_GATHER}\nsome text\n{ALL_REDUCE}{OLD}");
    let runs = parse_runs(&all);
    let expected = [ALL_REDUCE, ALL_GATHER, ALL_REDUCE, OLD].map(parse_run);
    assert_eq!(runs, expected);
    let said = parse_error(&all);
    assert!(said.contains("it has 4 runs, and one is expected"), "{said}");
}

#[test]
fn a_run_that_has_not_reached_its_table_is_not_complete() {
    let head: String = ALL_GATHER.lines().take(12).map(|line| format!("{line}\n")).collect();
    let runs = parse_runs(&format!("{ALL_REDUCE}{head}"));
    assert_eq!((runs.len(), runs[1].measurements.len()), (2, 0));
    assert_eq!(runs[1].outcome, RunOutcome::Running);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, &head).unwrap();
    let said = read_run(file.path()).unwrap_err().to_string();
    assert!(said.contains("has not reached its first measurement"), "{said}");
}

#[test]
fn a_cut_text_is_never_complete() {
    let complete = parse_run(ALL_REDUCE).measurements;
    let foot = ALL_REDUCE.find("# Avg bus bandwidth    : 127").unwrap();
    let first_row = ALL_REDUCE.find("  8             2     float").unwrap() + 200;
    for end in (first_row..foot).step_by(31) {
        let run = parse_run(&ALL_REDUCE[..end]);
        assert_eq!(run.outcome, RunOutcome::Running, "{end}");
        assert_eq!(run.measurements[..], complete[..run.measurements.len()], "{end}");
    }
}

#[test]
fn missing_and_damaged_rows_are_found() {
    let without = ALL_REDUCE.replacen("    8388608       2097152", "#", 1);
    assert_eq!(without.matches('\n').count(), ALL_REDUCE.matches('\n').count());
    let lines = ALL_REDUCE.lines().filter(|line| !line.starts_with("     8388608 "));
    let lost: String = lines.map(|line| format!("{line}\n")).collect();
    let is_incomplete = |text: &str, gap: &str| {
        let run = parse_run(text);
        run.outcome == RunOutcome::Running && run.notes.iter().any(|note| note.contains(gap))
    };
    assert!(is_incomplete(&lost, "its text lacks rows"));
    let broken = ALL_REDUCE.replacen("1.62       0    17.08", "1.62       0 a message\n    17.08", 1);
    assert!(is_incomplete(&broken, "1 of the rows"));
    let failed = ALL_REDUCE.replace("values : 0 OK", "values : 2 FAILED");
    assert!(matches!(parse_run(&failed).outcome, RunOutcome::Failed { .. }));
    let rows_end = ALL_REDUCE.find("# Out of bounds").unwrap();
    let error =
        "vm: Test NCCL failure common.cu:777 'unhandled cuda error / x'\n .. vm pid 1: Test failure x\n";
    let stopped = prefix_lines(&format!("{}{error}", &ALL_REDUCE[..rows_end]), "[1,0]<stdout>:");
    let RunOutcome::Failed { message } = parse_run(&stopped).outcome else { panic!("it failed") };
    assert!(message.starts_with("vm: Test NCCL failure common.cu:777"), "{message}");
}

#[test]
fn wrong_elements_are_counted() {
    let wrong = ALL_REDUCE.replacen("12.94    0.00    0.00       0", "12.94    0.00    0.00  1.23457e+07", 1);
    assert_eq!(parse_run(&wrong).measurements[0].wrong, Some(12_345_700));
    for not_a_number in ["nan", "-1"] {
        let wrong = ALL_REDUCE.replacen("0.00    0.00       0", &format!("0.00    0.00  {not_a_number}"), 1);
        assert_eq!(parse_run(&wrong).outcome, RunOutcome::Running, "{not_a_number}");
    }
}

#[test]
fn cycles_are_numbered_by_the_sizes_of_the_head() {
    let (head, rest) = ALL_GATHER.split_at(ALL_GATHER.find("(GB/s)         \n").unwrap() + 16);
    let (rows, foot) = rest.split_at(rest.find("# Out").unwrap());
    let run = parse_run(&format!("{head}{rows}{rows}{rows}{foot}"));
    let once = parse_run(ALL_GATHER).measurements;
    assert_eq!((run.outcome, run.settings.cycles), (RunOutcome::Complete, 3));
    for (index, each) in run.measurements.iter().enumerate() {
        let first = Measurement { cycle: index / once.len(), ..once[index % once.len()].clone() };
        assert_eq!(*each, first);
    }
    // The first sizes are all 0.
    assert_eq!(once.iter().filter(|each| each.bytes == 0).map(|each| each.cycle).max(), Some(0));
}

#[test]
fn a_collective_is_named_only_when_it_is_certain() {
    let nameless = |text: &str| {
        text.lines()
            .filter(|line| !line.contains("_perf"))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let collective = |text: &str| parse_run(text).measurements[0].collective.clone();
    for (text, expected) in [
        (ALL_REDUCE, "allreduce"),
        (ALL_GATHER, "allgather"),
        (BROADCAST, "broadcast"),
        (REDUCE_SCATTER, "reducescatter"),
        (SEND_RECV, "sendrecv"),
        // It can be alltoallv.
        (ALL_TO_ALL, UNKNOWN_COLLECTIVE),
        // Nothing was verified, but only one has twice the factor.
        (THREADS, "allreduce"),
    ] {
        assert_eq!(collective(&nameless(text)), expected);
        let run = parse_run(&nameless(text));
        assert!(run.notes.iter().any(|note| note.contains("does not name the collective")), "{expected}");
    }
    let alltoall = nameless(ALL_TO_ALL);
    for before in [
        "$ mpirun -np 8 ./build/alltoall_perf -b 8 -e 4G -f 2 -w 5 -n 20\n",
        "+ mpirun -np 8 ./build/alltoall_perf\n",
        "$ mpirun -np 8 \\\n  -x NCCL_DEBUG=INFO \\\n  ./build/alltoall_perf -b 8\n",
        "2024-01-01T00:00:00Z + ./alltoall_perf\n",
    ] {
        assert_eq!(collective(&format!("{before}{alltoall}")), "alltoall", "{before}");
    }
    for before in [
        // Another program, other options, and a later command.
        "$ ./build/all_reduce_perf\n",
        "$ ./build/alltoall_perf -n 7\n",
        "$ ./build/alltoall_perf\n$ ./run.sh\n",
    ] {
        assert_eq!(collective(&format!("{before}{alltoall}")), UNKNOWN_COLLECTIVE, "{before}");
    }
    // nccl-tests before 2.18 has no alltoallv, but rccl-tests has.
    let older = alltoall.replace(" unalign: 0", "");
    assert_eq!(collective(&older), "alltoall");
    assert_eq!(collective(&older.replace("NVIDIA H200", "AMD Instinct MI300X")), UNKNOWN_COLLECTIVE);
    // A command is that of one table.
    let twice = parse_runs(&format!("$ ./alltoall_perf\n{alltoall}{alltoall}"));
    assert_eq!(twice[1].measurements[0].collective, UNKNOWN_COLLECTIVE);
}

#[test]
fn options_of_the_command_become_settings() {
    let run = parse_run(&format!("$ mpirun ./all_reduce_perf -b 8 -e 8G -f 2 -a 3 -R 2 -w 5\n{ALL_REDUCE}"));
    assert_eq!(run.command[0], "./all_reduce_perf");
    assert_eq!(run.settings.average, crate::settings::Average::Max);
    assert_eq!(run.settings.registration, crate::settings::Registration::Symmetric);
    let blocking = ALL_REDUCE.replacen(
        "#\n# Using",
        "# Blocking Enabled: wait after each inner iteration (-m), no barrier \n#\n# Using",
        1,
    );
    assert_eq!(parse_run(&blocking).settings.blocking, Blocking::Wait);
}

#[test]
fn the_time_of_the_host_is_not_taken_for_the_time() {
    let text = ALL_REDUCE.replacen("root     time", "root  cputime", 1).replacen(
        "#wrong     time",
        "#wrong  cputime",
        1,
    );
    let run = parse_run(&text);
    assert!(run.settings.cpu_time);
    let small = find(&run, 8, Placement::OutOfPlace);
    assert_eq!((small.cpu_time_us, small.time_us.is_nan()), (Some(12.94), true));
    let large = find(&run, 1 << 30, Placement::OutOfPlace);
    assert!((large.time_us - 5217.6).abs() < 0.2 && large.cpu_time_us == Some(5217.62), "{large:?}");
}

#[test]
fn ranks_are_known_only_when_all_are_listed() {
    assert_eq!(parse_run(ONE_THREAD).ranks.len(), 8);
    for damage in [
        ("#  Rank  7 Group  0 Pid   2376 on         vm device  7 [0000:00:0d] NVIDIA H200", "# x"),
        ("[0000:00:0d] NVIDIA H200", "[0000:00:0d] NVIDIA..."),
        ("#  Rank  3 Group", "#  Rank 33 Group"),
    ] {
        let text = ONE_THREAD.replacen(damage.0, damage.1, 1);
        let run = parse_run(&text);
        assert!(
            run.ranks.is_empty() && run.notes.iter().any(|note| note.contains("number of ranks")),
            "{damage:?}"
        );
    }
}

#[test]
fn texts_without_a_table_are_refused() {
    for text in ["hello\n", "[1, 2]", "# nccl-bench allreduce\n", "8 2\n", "a,b\n1,2\n"] {
        let said = parse_error(text);
        assert!(said.contains("expected JSON") && said.contains("it is text without"), "{said}");
    }
    for binary in ["\u{0}\u{1}\u{2}", "\u{7f}ELF\u{2}\u{1}"] {
        assert!(parse_error(binary).ends_with("it is neither JSON nor text"), "{}", parse_error(binary));
    }
    let rows = &ALL_REDUCE[ALL_REDUCE.find("  8             2").unwrap()..];
    let said = parse_error(rows);
    assert!(said.contains("without the head of a table"), "{said}");
}

/// Lines that the reader knows, and parts of them.
fn any_line() -> impl Strategy<Value = String> {
    let known: Vec<String> = [ALL_REDUCE, OLD, SEND_RECV]
        .iter()
        .flat_map(|text| text.lines().map(str::to_owned))
        .chain(
            ["# OSU MPI Latency Test v7", "# Size  Latency (us)", "1 2.0", "$ ./all_gather_perf \\", ""]
                .map(str::to_owned),
        )
        .collect();
    let prefix =
        prop::sample::select(vec!["", "[1,0]<stdout>:", "1: ", "2024-01-01T00:00:00Z ", "> ", "[a] "]);
    (prefix, prop::sample::select(known), 0..200_usize, any::<Option<char>>()).prop_map(
        |(prefix, line, end, letter)| {
            let cut: String = line.chars().take(end).chain(letter).collect();
            format!("{prefix}{cut}\n")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse_text(&bytes);
    }

    #[test]
    fn no_mixture_of_lines_panics(lines in prop::collection::vec(any_line(), 0..60)) {
        if let Ok(Source::Text(mut source)) = decompress_source(lines.concat().as_bytes())
            && let Ok(runs) = read_text(&mut source)
        {
            let found: usize = runs.iter().map(|run| run.measurements.len()).sum();
            prop_assert!(found <= 2 * lines.len());
        }
    }
}
