//! The program on a machine without a GPU.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../tests/port/mod.rs"]
mod port;
mod program;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use port::reserve_port;
use program::{err, nccl_bench, out, run};

/// The fields of the rows.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn the_program_links_none_of_the_libraries_that_it_uses() {
    let output = Command::new("ldd").arg(env!("CARGO_BIN_EXE_nccl-bench")).output().unwrap();
    assert!(output.status.success());
    let linked = out(&output);
    assert!(linked.contains("libc.so.6"), "{linked}");
    for library in ["libmpi", "libmpich", "libnccl", "libfabric", "libcuda"] {
        assert!(!linked.contains(library), "{linked}");
    }
}

#[test]
fn without_any_library_it_says_what_was_looked_for_and_what_to_install() {
    let output = nccl_bench("allreduce").env("FABRIC_LIBRARY", "/nowhere/libfabric.so.1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(out(&output), "");
    let text = err(&output);
    for part in ["CUDA driver", "libfabric", "/nowhere/libfabric.so.1", "install"] {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}

#[test]
fn bad_input_is_refused_before_anything_starts() {
    for arguments in [
        "allreduce -b 0",
        "allreduce -b 64M -e 1M",
        "allreduce -f 1.5",
        "allreduce -f 1",
        "allreduce -g 99",
        "allreduce -d nonsense",
        "allreduce -d half,f8",
        "allreduce --stepfacto=r",
        "allreduce -b 1P",
        "allreduce -b -5",
        "allreduce --backend fabric -b 900000G -e 900000G",
        "allreduce --backend fabric -o sum,mulsum",
        "reduce --backend fabric -o mulsum",
        "allreduce --backend fabric -G 1",
        "allreduce --backend fabric -u 1",
        "allreduce --backend fabric --check-on-stream",
        "allreduce --backend mpi --check-on-stream 20",
        "allreduce --check-on-stream -c 0",
        "allreduce --check-on-stream -y 1",
        "allreduce --check-on-stream --vs mpi",
        "allreduce --check-on-stream=0",
        "broadcast --backend fabric -r 9",
        "allreduce --backend fabric --inject-fault 9:0",
        "allreduce --backend fabric --provider nonsense",
        "allreduce --backend nccl",
        "allreduce --backend mpi",
        "allreduce --backend mpi --world tcp",
        "allreduce --vs mpi",
        "allreduce --vs mpi --backend mpi",
        "allreduce --vs mpi --backend nccl",
        "allreduce --vs gloo",
        "allreduce --rounds 0",
        "alreduce",
        "",
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", err(&output));
        assert_eq!(out(&output), "", "{arguments}");
        assert!(!err(&output).is_empty(), "{arguments}");
    }
}

#[test]
fn help_explains_topics_and_commands_of_commands() {
    for (words, parts) in [
        ("help", &["Topics (nccl-bench help TOPIC):"][..]),
        ("help exit codes", &["a time limit passed"]),
        ("help allreduce", &["Usage: nccl-bench allreduce [OPTIONS]", "--minbytes"]),
        ("help fabric", &["Usage: nccl-bench fabric <COMMAND>", "pingpong"]),
        ("help fabric info", &["Usage: nccl-bench fabric info [OPTIONS]", "--ep-type"]),
    ] {
        let output = run(words);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""), "{words}");
        for part in parts {
            assert!(out(&output).contains(part), "no '{part}' in {words}: {}", out(&output));
        }
    }
    for (words, part) in [
        ("help enviroment", "there is no topic 'enviroment'; did you mean 'environment'?"),
        ("help fabric inof", "there is no command 'fabric inof'; fabric has info, "),
        ("help allreduce info", "there is no command 'allreduce info'; allreduce has no commands"),
        ("help nonsense info", "there is no topic 'nonsense info'"),
    ] {
        let output = run(words);
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""), "{words}");
        assert!(err(&output).contains(part), "no '{part}' in {words}: {}", err(&output));
    }
}

#[test]
fn the_log_goes_to_standard_error_as_far_as_its_variable_says() {
    let measure = |level: Option<&str>| {
        let mut command = nccl_bench("allreduce --backend fabric -t 2 -b 8 -e 8 -n 1");
        command.env_remove("NCCL_BENCH_LOG");
        if let Some(level) = level {
            command.env("NCCL_BENCH_LOG", level);
        }
        command.output().unwrap()
    };
    for level in [None, Some(""), Some("off"), Some("error"), Some("warn"), Some("info"), Some("INFO")] {
        let output = measure(level);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""), "{level:?}");
        assert_eq!(rows(&out(&output)).len(), 1, "{level:?}: {}", out(&output));
    }
    for level in ["debug", "trace"] {
        let output = measure(Some(level));
        assert_eq!(output.status.code(), Some(0), "{level}: {}", err(&output));
        assert_eq!(rows(&out(&output)).len(), 1, "{level}: {}", out(&output));
        assert!(!out(&output).contains("DEBUG"), "{}", out(&output));
        // The starts of each rank, by name.
        for rank in ["rank 0", "rank 1"] {
            let begun = format!("{rank}: the timed operations of allreduce float sum of 8 bytes, in place");
            let line = |line: &str| line.contains(" DEBUG ") && line.contains(&begun);
            assert!(err(&output).lines().any(line), "{level}: no '{begun}' in {}", err(&output));
        }
    }
    for level in ["loud", "nccl_bench=debug", "6"] {
        let output = measure(Some(level));
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""), "{level}");
        let text = err(&output);
        let expected = format!("NCCL_BENCH_LOG={level}: give off, error, warn, info, debug or trace");
        assert!(text.contains(&expected) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn a_misspelt_variable_is_noted() {
    let mut command = nccl_bench("allreduce --backend fabric -b 8 -e 8 -n 1");
    let output = command.env("NCCL_BENCH_TIMEOT", "5").env("NCCL_BENCH_TIMEOUT", "60").output().unwrap();
    let note = "# NCCL_BENCH_TIMEOT is set, and nothing reads it: did you mean NCCL_BENCH_TIMEOUT?";
    assert!(out(&output).lines().any(|line| line == note), "{}", out(&output));
    assert!(!out(&output).contains("NCCL_BENCH_TIMEOUT is set"));
}

#[test]
fn several_rounds_have_a_median() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let options = "allreduce --backend fabric -b 1K -e 1K -n 3 --rounds 4 -a 0";
    let output = run(&format!("{options} --output {}", file.display()));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let found: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(found["settings"]["rounds"], 4);
    for measurement in found["measurements"].as_array().unwrap() {
        assert_eq!(measurement["operations"], 12);
        let rounds = measurement["rounds_us"].as_array().unwrap();
        let mut rounds: Vec<f64> = rounds.iter().map(|round| round.as_f64().unwrap()).collect();
        rounds.sort_by(f64::total_cmp);
        // With -a 0 the time is the median of the first rank's rounds.
        let median = (rounds[1] + rounds[2]) / 2.0;
        let time = measurement["time_us"].as_f64().unwrap();
        assert!((time / median - 1.0).abs() < 1e-9, "{measurement}");
    }
}

#[test]
fn mpi_without_its_launcher_is_refused_with_how_to_start_it() {
    let text = err(&run("allreduce --backend mpi"));
    assert!(text.contains("started without one") && text.contains("mpirun -np 2 nccl-bench"), "{text}");
    let output =
        nccl_bench("allreduce --backend mpi").env("RANK", "0").env("WORLD_SIZE", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("torchrun started this process"), "{}", err(&output));
    let text = err(&run("allreduce --backend mpi --world tcp"));
    assert!(text.contains("remove --world"), "{text}");
    let text = err(&run("allreduce --vs mpi"));
    assert!(text.contains("--vs mpi needs the ranks of an MPI launcher"), "{text}");
}

#[test]
fn a_size_that_does_not_fit_is_refused_with_what_would() {
    let text = err(&run("allreduce --backend fabric -b 900000G -e 900000G"));
    assert!(text.contains("does not fit") && text.contains("at most (-e)"), "{text}");
}

#[test]
fn two_ranks_share_memory_and_every_size_is_verified() {
    let output = run("allreduce -e 1M -n 2");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    assert!(text.contains("# Backend: fabric "), "{text}");
    assert!(text.contains("because no GPU can be used"), "{text}");
    assert!(text.contains("#  Rank  1 Group  0 Pid"), "{text}");
    let rows = rows(&text);
    let sizes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    let expected: Vec<String> = (3..=20).map(|exponent| (1_u64 << exponent).to_string()).collect();
    assert_eq!(sizes, expected);
    for row in &rows {
        assert_eq!((row.len(), row[8], row[12]), (13, "0", "0"), "{row:?}");
        let (time, algbw, busbw) = (row[5], row[6], row[7]);
        assert!(time.parse::<f64>().unwrap() > 0.0, "{row:?}");
        // Two ranks: busbw = algbw.
        assert_eq!(algbw, busbw, "{row:?}");
    }
    assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
}

#[test]
fn every_type_and_operator_is_exact_over_tcp_with_an_odd_number_of_ranks() {
    for collective in ["allreduce", "allgather"] {
        let arguments = format!(
            "{collective} --backend fabric --provider tcp -t 3 -b 1000 -e 100K -f 10 -n 1 -d all -o all"
        );
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}\n{}", err(&output), out(&output));
        let text = out(&output);
        let operators = if collective == "allreduce" { 5 } else { 1 };
        assert_eq!(rows(&text).len(), 12 * operators * 3, "{text}");
        assert!(rows(&text).iter().all(|row| row[8] == "0" && row[12] == "0"), "{text}");
    }
}

#[test]
fn what_the_host_cannot_do_is_left_out_of_all() {
    let output = run("all --backend fabric -b 1K -e 1K -n 1 -o all");
    assert_eq!(output.status.code(), Some(0), "{}\n{}", err(&output), out(&output));
    let text = out(&output);
    // Three collectives reduce, with five operators. The others are measured once.
    assert_eq!(rows(&text).len(), 3 * 5 + 8, "{text}");
    assert!(text.contains("# mulsum is skipped"), "{text}");
}

/// The wrong elements in a row, out of place and in place. A hypercube's row has no operator.
fn wrong<'a>(row: &[&'a str]) -> (&'a str, &'a str) {
    (row[row.len() - 5], row[row.len() - 1])
}

/// Every line of an output of all collectives must be verified, where the collective has a result to verify.
fn verified(text: &str, sizes: usize, without: &[&str]) {
    let all = [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "alltoall",
        "alltoallv",
        "gather",
        "scatter",
        "sendrecv",
        "hypercube",
    ];
    let expected: Vec<_> = all.into_iter().filter(|name| !without.contains(name)).collect();
    let programs: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# Collective test starting: ")?.strip_suffix("_perf"))
        .collect();
    assert_eq!(programs, expected, "{text}");
    let rows = rows(text);
    assert_eq!(rows.len(), expected.len() * sizes, "{text}");
    for (rows, name) in rows.chunks(sizes).zip(expected) {
        let in_place = if ["alltoall", "alltoallv", "sendrecv"].contains(&name) { "N/A" } else { "0" };
        for row in rows {
            // Some collectives have no element in this size.
            let expected = if row[0] == "0" { ("N/A", "N/A") } else { ("0", in_place) };
            assert_eq!(wrong(row), expected, "{name}: {row:?}");
        }
    }
    assert_eq!(text.matches("# Out of bounds values : 0 OK").count(), programs.len(), "{text}");
}

#[test]
fn every_collective_is_verified_over_host_memory() {
    for (ranks, without) in [(1, &[][..]), (2, &[]), (3, &["hypercube"]), (4, &[])] {
        let output = run(&format!("all --backend fabric -t {ranks} -e 64K -n 2"));
        assert_eq!(output.status.code(), Some(0), "{}\n{}", err(&output), out(&output));
        let text = out(&output);
        verified(&text, 14, without);
        for name in without {
            assert!(text.contains(&format!("# {name} is skipped: it needs 2, 4, 8, ... ranks")), "{text}");
        }
    }
}

#[test]
fn every_collective_is_exact_in_every_type_over_tcp_with_an_odd_number_of_ranks() {
    let output = run("all --backend fabric --provider tcp -t 3 -b 40K -e 40K -n 1 -d all");
    assert_eq!(output.status.code(), Some(0), "{}\n{}", err(&output), out(&output));
    verified(&out(&output), 12, &["hypercube"]);
}

#[test]
fn every_rank_can_be_the_root() {
    let output = run("broadcast,reduce,gather,scatter --backend fabric -t 3 -b 1K -e 1M -f 1024 -n 1 -r -1");
    assert_eq!(output.status.code(), Some(0), "{}\n{}", err(&output), out(&output));
    let text = out(&output);
    let rows = rows(&text);
    let roots: Vec<&str> = rows.iter().map(|row| row[4]).collect();
    assert_eq!(roots, ["0", "0", "1", "1", "2", "2"].repeat(4), "{text}");
    assert!(rows.iter().all(|row| (row[8], row[12]) == ("0", "0")), "{text}");
}

#[test]
fn damage_to_the_results_of_moved_data_is_found() {
    for collective in
        ["reducescatter", "broadcast", "alltoall", "alltoallv", "scatter", "sendrecv", "hypercube"]
    {
        let output =
            run(&format!("{collective} --backend fabric -t 4 -b 1K -e 1K -n 1 -c 1 --inject-fault 2:3"));
        assert_eq!(output.status.code(), Some(7), "{collective}: {}", err(&output));
        let text = out(&output);
        assert_eq!(wrong(&rows(&text)[0]).0, "1", "{text}");
        assert!(text.contains("rank 2 has 1 wrong elements; the first: element 3"), "{text}");
    }
}

#[test]
fn a_damaged_element_is_found_with_rank_index_and_values() {
    let output = run("allreduce --backend fabric -t 3 -b 64 -e 64 -n 1 --inject-fault 1:5");
    assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    let text = out(&output);
    let row = &rows(&text)[0];
    assert_eq!((row[8], row[12]), ("1", "1"), "{text}");
    let note = text.lines().find(|line| line.starts_with("# WRONG out of place")).unwrap();
    for part in ["rank 1 has 1 wrong", "element 5", "expected ", "found "] {
        assert!(note.contains(part), "{note}");
    }
    assert!(text.contains("# Out of bounds values : 2 FAILED"), "{text}");
}

#[test]
fn damage_is_found_in_every_type_and_operator_also_where_a_tolerance_holds() {
    let output = run("allreduce --backend fabric -t 3 -b 64 -e 64 -n 1 -d all -o all --inject-fault 2:1");
    assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    let text = out(&output);
    assert_eq!(rows(&text).len(), 60, "{text}");
    assert!(rows(&text).iter().all(|row| (row[8], row[12]) == ("1", "1")), "{text}");
}

#[test]
fn damage_to_an_element_that_no_result_has_is_refused() {
    let output = run("allreduce --backend fabric -b 8 -e 64 --inject-fault 0:16");
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("names element 16, but the largest result has 16"), "{}", err(&output));
}

#[test]
fn a_rank_with_wrong_data_takes_part_in_the_verifications_that_follow() {
    let output = run("allreduce --backend fabric -t 3 -b 8 -e 16 -n 1 -c 3 --inject-fault 1:0");
    assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    let text = out(&output);
    assert!(rows(&text).iter().all(|row| (row[8], row[12]) == ("1", "1")), "{text}");
    assert_eq!(rows(&text).len(), 2, "{text}");
}

#[test]
fn what_was_not_verified_is_marked() {
    let output = run("allgather --backend fabric -b 1K -e 1K -n 1 -c 0");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    assert_eq!((rows(&text)[0][8], rows(&text)[0][12]), ("N/A", "N/A"), "{text}");
    assert!(text.contains("# Out of bounds values : N/A\n") && !text.contains("OK"), "{text}");
}

#[test]
fn a_closed_pipe_ends_the_run_without_a_panic() {
    let program = env!("CARGO_BIN_EXE_nccl-bench");
    let script = format!("'{program}' allreduce --backend fabric -e 64K -n 1 | head -n 1");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(out(&output).starts_with("# nccl-bench version"), "{output:?}");
    assert!(!err(&output).contains("panicked"), "{output:?}");
}

/// Files in shared memory with this program's name and this process's ID.
fn left_in_shared_memory(pid: u32) -> Vec<String> {
    std::fs::read_dir("/dev/shm")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("collectives-") && name.contains(&format!("-{pid}-")))
        .collect()
}

#[test]
fn nothing_is_left_in_shared_memory() {
    let mut child = nccl_bench("allreduce --backend fabric --provider shm -e 64K -n 1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(left_in_shared_memory(child.id()), Vec::<String>::new());
}

#[test]
fn a_killed_rank_ends_the_others_within_ten_seconds_and_is_named() {
    for (victim, survivor) in [(1, 0), (0, 1)] {
        let port = reserve_port();
        let start = |rank: usize| {
            nccl_bench("allreduce --backend fabric -b 1M -e 1M -n 1000000")
                .env("NCCL_BENCH_RANK", rank.to_string())
                .env("NCCL_BENCH_SIZE", "2")
                .env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut ranks = [start(0), start(1)];
        // The last line of the head: all ranks are connected and measuring.
        let mut lines = BufReader::new(ranks[0].stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("(elements)")));

        ranks[victim].kill().unwrap();
        let killed = Instant::now();
        let status = ranks[survivor].wait().unwrap();
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        assert_eq!(status.code(), Some(1));
        let mut said = String::new();
        ranks[survivor].stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains(&format!("rank {victim} on host")), "{said}");
        ranks[victim].wait().unwrap();
    }
}

#[test]
fn a_brief_table_has_few_comments_and_sizes_in_binary_units() {
    let whole = out(&run("allreduce,broadcast --backend fabric -b 512 -e 2M -f 64 -n 1"));
    let brief = out(&run("allreduce,broadcast --backend fabric -b 512 -e 2M -f 64 -n 1 --brief"));
    let sizes = |text: &str| rows(text).iter().map(|row| row[0].to_owned()).collect::<Vec<_>>();
    assert_eq!(sizes(&whole), ["512", "32768", "2097152", "512", "32768", "2097152"]);
    assert_eq!(sizes(&brief), ["512", "32K", "2M", "512", "32K", "2M"]);
    let comments = |text: &str| text.lines().filter(|line| line.starts_with('#')).count();
    assert!(comments(&brief) * 3 < comments(&whole) * 2, "{brief}\n{whole}");
    for line in ["# Ranks: 2, on 1 host(s)", "# Collective test starting: broadcast_perf"] {
        assert!(brief.lines().any(|found| found == line), "{line}\n{brief}");
    }
    assert_eq!(brief.matches("# Out of bounds values : 0 OK\n").count(), 2, "{brief}");
}

#[test]
fn names_of_files_are_templates() {
    let folder = tempfile::tempdir().unwrap();
    let line = "allreduce --backend fabric -e 8 -n 1 --output %h_%t_5%%.json --output %h_%t_5%%.csv";
    let output = nccl_bench(line).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let time = names[1].strip_prefix(&format!("{}_", host.trim())).unwrap().strip_suffix("_5%.json").unwrap();
    assert_eq!(names[0], format!("{}_{time}_5%.csv", host.trim()));
    let shape: String = time.chars().map(|each| if each.is_ascii_digit() { '0' } else { each }).collect();
    assert_eq!(shape, "00000000T000000Z");
    for (name, unknown) in [("%x.json", "%x"), ("x.json%", "%")] {
        let output = run(&format!("allreduce --backend fabric --output {name}"));
        assert_eq!(output.status.code(), Some(2));
        let expected = format!("'{unknown}' in '{name}' is not known: write %h for the host's name");
        assert!(err(&output).contains(&expected), "{}", err(&output));
    }
}
