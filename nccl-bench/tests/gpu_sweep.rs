//! Measurements on GPUs: every collective is verified in every mode, wrong data is found on its rank, and
//! impossible requests are refused.
//!
//! The tests start this program again with `GPU_SWEEP_PROGRAM` set: then it is `nccl-bench` in a world of its
//! own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

#[path = "../../tests/gpu/mod.rs"]
mod gpu;

use std::process::{Command, ExitCode};

use collectives::{nccl, world};
use engine::collective::Collective;
use nccl_bench::cli;
use nccl_bench::command::Program;
use record::files;
use record::{Run, RunOutcome};

fn main() -> ExitCode {
    if std::env::var_os("GPU_SWEEP_PROGRAM").is_some() {
        return cli::main(Program { hand_over: |_| Ok(()), join: |_| Ok(world::single()), mpi: None });
    }
    gpu::run(gpu::tests! {
        1 => [
            every_collective_type_operator_and_root_is_right,
            every_way_of_running_is_right,
            statistics_and_the_hosts_time_are_measured,
            memory_is_reported,
            the_choice_of_nccl_is_reported,
            the_choice_of_nccl_is_known_without_its_log,
            a_damaged_element_is_reported_with_rank_index_and_values,
            every_collective_is_right_on_the_stream,
            a_damaged_element_is_found_on_the_stream,
            more_gpus_than_there_are_are_refused,
            a_size_that_does_not_fit_is_reduced_or_refused,
        ],
        2 => [the_race_of_symmetric_windows_is_found_without_the_fence],
    })
}

/// Runs `nccl-bench` on all GPUs of this machine, which ranks may share. Returns its exit code, standard
/// output and error.
fn nccl_bench(arguments: &str, variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let all = if shared() && !arguments.contains(" -g ") { format!("-g {}", ranks()) } else { String::new() };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(arguments.split_whitespace().chain(all.split_whitespace()))
        .envs(variables.iter().copied())
        .env("GPU_SWEEP_PROGRAM", "1")
        .output()
        .unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

fn ranks() -> usize {
    gpu::ranks().unwrap()
}

/// True when ranks share GPUs.
fn shared() -> bool {
    ranks() > nccl::device_count().unwrap()
}

/// The same, with the record of a run that must succeed.
fn measure(arguments: &str, variables: &[(&str, &str)]) -> (Run, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let arguments = format!("{arguments} --backend nccl --output {}", path.display());
    let (code, out, err) = nccl_bench(&arguments, variables);
    assert_eq!(code, Some(0), "{arguments}: {out}{err}");
    let run = files::read_run(&path).unwrap();
    assert_eq!(run.outcome, RunOutcome::Complete);
    (run, out)
}

/// Asserts that all data is verified, except of sizes without bytes, and in place of collectives without that
/// placement.
fn assert_right(run: &Run) {
    for measurement in &run.measurements {
        let collective: Collective = measurement.collective.parse().unwrap();
        let in_place = measurement.placement == record::Placement::InPlace;
        let verified = measurement.bytes > 0 && (collective.has_in_place() || !in_place);
        let expected = verified.then_some(0);
        assert_eq!(measurement.wrong, expected, "{measurement:?}");
        assert!(measurement.time_us > 0.0, "{measurement:?}");
    }
}

fn every_collective_type_operator_and_root_is_right() {
    let ranks = ranks();
    let (run, _) = measure("all -b 16000 -e 1M -f 60 -n 2 -d all -o all -r all", &[]);
    assert_right(&run);
    let types = {
        let mut types: Vec<_> = run.measurements.iter().map(|each| &each.data_type).collect();
        types.dedup();
        types.sort_unstable();
        types.dedup();
        types.len()
    };
    assert!(types >= 10, "{types} types");
    for collective in Collective::ALL {
        let rows =
            run.measurements.iter().filter(|each| each.collective == collective.collective_name()).count();
        let ops = if collective.is_reduction() { 6 } else { 1 };
        let roots = if collective.has_root() { ranks } else { 1 };
        let expected = if collective.runs_over(ranks) { types * ops * roots * 2 * 2 } else { 0 };
        assert_eq!(rows, expected, "{collective}");
    }
    let moved = run.measurements.iter().filter(|each| each.bytes > 15_000).count();
    assert_eq!(moved, run.measurements.len());
}

fn every_way_of_running_is_right() {
    let all = "all -b 1K -e 256K -f 16 -n 3 -c 2 -d float,half";
    for way in [
        "-m 3",
        "-G 2",
        "-G 1 -m 2",
        "-R 1",
        "-R 2",
        "-R 2 -G 1",
        "-z 1",
        "-z 2",
        "-z 3",
        "-u 1",
        "-y 1",
        "-a 0",
        "-a 2",
        "-a 3",
        "-N 2",
        "-w 0",
        "-t 1 -p 1",
        "-c 0",
        "--budget 0.01",
        "--until-stable 50% --budget 0.2",
    ] {
        if way == "-y 1" && shared() {
            let (code, out, err) = nccl_bench(&format!("{all} {way} --backend nccl"), &[]);
            assert_eq!(code, Some(2), "{out}{err}");
            assert!(err.contains("default stream"), "{err}");
            continue;
        }
        let (run, _) = measure(&format!("{all} {way}"), &[]);
        if way == "-c 0" {
            assert!(run.measurements.iter().all(|each| each.wrong.is_none()));
        } else {
            assert_right(&run);
        }
        let cycles = if way == "-N 2" { 2 } else { 1 };
        let allreduce = run.measurements.iter().filter(|each| each.collective == "allreduce").count();
        // 1K, 16K, 256K; two placements, two types.
        assert_eq!(allreduce, 3 * 2 * 2 * cycles, "{way}");
    }
    let (run, out) = measure(
        "alltoallv -b 64K -e 64K",
        &[("NCCL_TESTS_ALLTOALLV_SPREAD", "0.5"), ("NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY", "1")],
    );
    assert_right(&run);
    assert!(out.contains("spread=0.500"), "{out}");
}

fn statistics_and_the_hosts_time_are_measured() {
    let (run, out) = measure("allreduce -b 1M -e 1M -n 30 -I 1 -K 5 -C 1 -S 1 --stats", &[]);
    for measurement in &run.measurements {
        let statistics = measurement.statistics.unwrap();
        assert_eq!(statistics.samples, 25);
        assert!(0.0 < statistics.min_us && statistics.min_us <= statistics.median_us, "{statistics:?}");
        assert!(statistics.median_us <= statistics.p99_us && statistics.p99_us <= statistics.max_us);
        assert_eq!(measurement.per_iteration.as_ref().unwrap().times_us.len(), 30);
        assert!(
            measurement.cpu_time_us.unwrap() > 0.0 && measurement.cpu_time_us.unwrap() <= measurement.time_us
        );
    }
    for column in ["cputime", "i_p99", "i_med", "timestamp"] {
        assert!(out.contains(column), "{out}");
    }
    // Without -I they are of a run of its own.
    let (run, _) = measure("allreduce -b 1M -e 1M -n 30", &[]);
    assert!(run.measurements.iter().all(|each| each.statistics.unwrap().samples == 30));
    assert!(run.measurements.iter().all(|each| each.per_iteration.is_none()));
}

fn memory_is_reported() {
    let (_, out) = measure("allreduce -b 64M -e 64M -n 2 -M 1", &[]);
    let Some(line) = out.lines().find(|line| line.starts_with("# GPU memory usage")) else { panic!("{out}") };
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|&word| word == "User-Allocated").unwrap();
    let megabytes: f64 = words[at + 1].parse().unwrap();
    // Ranks that share a GPU count what the others allocate meanwhile.
    let most = 140.0 * ranks().div_ceil(nccl::device_count().unwrap()) as f64;
    assert!((128.0..most).contains(&megabytes) && words[at + 2] == "MB", "{line}");
}

fn the_choice_of_nccl_is_reported() {
    let (run, out) = measure("allreduce -b 1K -e 1M -f 1024 --show-algorithm", &[]);
    if ranks() < 2 || nccl::Library::load().unwrap().version() < nccl::Version::new(2, 24, 0) {
        assert!(run.measurements.iter().all(|each| each.algorithm.is_none()));
        return;
    }
    for measurement in &run.measurements {
        let choice = measurement.algorithm.as_ref().unwrap_or_else(|| panic!("{measurement:?}\n{out}"));
        assert!(!choice.algorithm.is_empty(), "{choice:?}");
        assert!(choice.channels.is_none_or(|channels| channels > 0), "{choice:?}");
        assert!(out.contains(&choice.algorithm), "{out}");
    }
}

fn the_choice_of_nccl_is_known_without_its_log() {
    let version = nccl::Library::load().unwrap().version();
    if ranks() < 2 || version < nccl::Version::new(2, 27, 0) {
        return;
    }
    let line = "allreduce,allgather,sendrecv,alltoall -b 1K -e 1M -f 1024 -n 2";
    for line in [line.to_owned(), format!("{line} -m 3"), format!("{line} -G 1")] {
        let (run, out) = measure(&line, &[]);
        assert!(!out.contains("# NCCL's choices"), "{line}: {out}");
        assert!(!run.provenance.environment.contains_key("NCCL_PROFILER_PLUGIN"), "{line}");
        for measurement in &run.measurements {
            let choice = measurement.algorithm.as_ref();
            let Some(choice) = choice else { panic!("{line}: nothing is known of {measurement:?}") };
            assert!(choice.channels.is_some_and(|channels| channels > 0), "{line}: {choice:?}");
            let made_of_parts = ["sendrecv", "alltoall"].contains(&measurement.collective.as_str());
            assert_eq!(choice.algorithm == "p2p", made_of_parts, "{line}: {measurement:?}");
            assert_eq!(choice.protocol.is_none(), made_of_parts, "{line}: {measurement:?}");
        }
    }
    let (run, _) = measure("allreduce -b 1M -e 1M -n 2", &[("NCCL_PROFILER_PLUGIN", "none")]);
    assert!(run.measurements.iter().all(|each| each.algorithm.is_none()), "{:?}", run.measurements);
    assert_eq!(run.provenance.environment.get("NCCL_PROFILER_PLUGIN").map(String::as_str), Some("none"));
}

fn a_damaged_element_is_reported_with_rank_index_and_values() {
    let last = ranks() - 1;
    for collective in ["allreduce", "allgather", "alltoall"] {
        let (code, out, err) = nccl_bench(
            &format!("{collective} --backend nccl -b 64K -e 64K -n 1 --inject-fault {last}:777"),
            &[],
        );
        assert_eq!(code, Some(7), "{out}{err}");
        let start = format!("# WRONG out of place: rank {last} has 1 wrong");
        let Some(note) = out.lines().find(|line| line.starts_with(&start)) else { panic!("{out}") };
        for part in ["element 777", "expected ", "found "] {
            assert!(note.contains(part), "{note}");
        }
        let checks = if collective == "alltoall" { 1 } else { 2 };
        assert!(out.contains(&format!("# Out of bounds values : {checks} FAILED")), "{out}");
    }
}

/// No round of the check on the stream finds anything wrong, queued one by one and as a graph. With `-R 2` on
/// a version of NCCL whose symmetric windows race, that is so because the layer orders them, and a note says
/// so.
fn every_collective_is_right_on_the_stream() {
    let version = nccl::Library::load().unwrap().version();
    let (run, _) = measure("all -b 16000 -e 1M -f 60 -n 1 -d all -o all -r all --check-on-stream 6", &[]);
    assert_right(&run);
    assert_eq!(run.settings.stream_checks, Some(6));
    for way in ["", "-R 1", "-R 2", "-R 2 -G 1", "-m 3", "-u 1", "-z 1"] {
        let line = format!("all -b 8 -e 4M -f 32 -n 2 -d float,half --check-on-stream 40 {way}");
        let (run, out) = measure(&line, &[]);
        assert_right(&run);
        assert!(out.contains("# Check on the stream: 40 rounds"), "{out}");
        let expected = way.contains("-R 2") && nccl::SYMMETRIC_RACE.contains(&version);
        assert_eq!(out.contains("[symmetric-without-grid-sync]"), expected, "{way}: {out}");
    }
}

/// The check on the stream finds what the layer's fence prevents, on the versions of NCCL that have the
/// fault.
fn the_race_of_symmetric_windows_is_found_without_the_fence() {
    let line = "allreduce --backend nccl -b 8 -e 4M -f 32 -n 2 -R 2 --check-on-stream";
    let (code, out, err) = nccl_bench(line, &[("NCCL_BENCH_SYMMETRIC_FENCE", "0")]);
    let racing = nccl::SYMMETRIC_RACE.contains(&nccl::Library::load().unwrap().version());
    assert_eq!(out.contains("NCCL_BENCH_SYMMETRIC_FENCE=0"), racing, "{out}");
    let expected = if racing && !out.contains("makes no symmetric windows") { 7 } else { 0 };
    assert_eq!(code, Some(expected), "{out}{err}");
    // In graphs the race was not seen (docs/limits.md): it is not asked for.
    assert_eq!(out.contains("on the stream, eager"), expected == 7, "{out}");
}

/// Each round finds the element, of every collective, and nothing else.
fn a_damaged_element_is_found_on_the_stream() {
    let last = ranks() - 1;
    // One of the verification, 8 queued one by one, and 4 launches of a graph of 2.
    let (rounds, wrong) = (8, 1 + 8 + 8);
    for types in ["float -o sum", "int8 -o prod", "double -o avg", "bfloat16 -o mulsum"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        // The last rank is the root, so that it has a result in every collective.
        let line = format!(
            "all --backend nccl -b 64K -e 64K -n 1 -r {last} -d {types} --inject-fault {last}:77 \
             --check-on-stream {rounds} --output {}",
            path.display()
        );
        let (code, out, err) = nccl_bench(&line, &[]);
        assert_eq!(code, Some(7), "{line}: {out}{err}");
        let run = files::read_run(&path).unwrap();
        let verified = || run.measurements.iter().filter(|each| each.wrong.is_some());
        for collective in Collective::ALL {
            let rows = verified().filter(|each| each.collective == collective.collective_name()).count();
            assert_eq!(rows > 0, collective.runs_over(last + 1), "{line}: {collective}: {out}");
        }
        for measurement in verified() {
            assert_eq!(measurement.wrong, Some(wrong), "{line}: {measurement:?}");
            let [mismatch] = &measurement.mismatches[..] else { panic!("{line}: {measurement:?}") };
            assert_eq!(mismatch.rank, last, "{line}");
            for part in [
                "element 77: expected ",
                "element 77 (on the stream, eager: 8 wrong in 8 rounds",
                "element 77 (on the stream, as a graph: 8 wrong in 8 rounds",
            ] {
                assert!(mismatch.first.contains(part), "no '{part}' in {mismatch:?}");
            }
            assert!(out.contains(&mismatch.first), "{out}");
        }
    }
}

fn more_gpus_than_there_are_are_refused() {
    let gpus = nccl::device_count().unwrap();
    for variable in ["0", "1"] {
        let variables = [("NCCL_MULTI_RANK_GPU_ENABLE", variable)];
        let (code, out, err) = nccl_bench("allreduce --backend nccl -g 999", &variables);
        assert_eq!(code, Some(2), "{out}{err}");
        assert!(err.contains("999 GPUs (-g 999)") && err.contains(&format!("it has {gpus}.")), "{err}");
        assert!(!out.contains("# nccl-bench"), "{out}");
    }
}

fn a_size_that_does_not_fit_is_reduced_or_refused() {
    let (code, out, err) = nccl_bench("allreduce --backend nccl -b 900000G -e 900000G", &[]);
    assert_eq!(code, Some(2), "{out}{err}");
    for part in ["does not fit", "GPU ", "at most (-e)"] {
        assert!(err.contains(part), "no '{part}' in: {err}");
    }
    assert!(!out.contains("# nccl-bench"), "{out}");
    // The last size is the largest power of two that fits.
    let (code, out, err) = nccl_bench("allreduce --backend nccl -b 1G -e 900000G -f 1024 -n 1 -c 0", &[]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("# Reducing maxBytes to "), "{out}");
}
