//! `nccl-bench fabric pingpong`, `bw` and `rma` between processes of this host.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/port/mod.rs"]
mod port;

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use port::reserve_port;
use serde_json::{Value, json};

/// One rank: its command line and environment.
type Rank<'a> = (Vec<&'a str>, Vec<(&'a str, String)>);

/// Runs `fabric` once for each rank, at the same time.
fn together(ranks: &[Rank<'_>]) -> Vec<Output> {
    let start = |(arguments, environment): &Rank<'_>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
        command.arg("fabric").args(arguments).env_clear();
        // Where libfabric may have to be looked for.
        let kept = ["PATH", "HOME", "LD_LIBRARY_PATH", "FABRIC_LIBRARY"];
        command.envs(std::env::vars_os().filter(|(name, _)| kept.iter().any(|kept| name == kept)));
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = ranks.iter().map(start).collect();
    running.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

fn reserve_address() -> String {
    format!("127.0.0.1:{}", reserve_port())
}

/// The output of a pair that meets by address: of the rank that listens, and of the one that connects.
fn pair(arguments: &str) -> [Output; 2] {
    let address = reserve_address();
    let [one, other] = ["--listen", "--connect"]
        .map(|how| -> Rank<'_> { (arguments.split(' ').chain([how, &address[..]]).collect(), Vec::new()) });
    together(&[one, other]).try_into().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The rows of the first rank's table, of ranks that succeed.
fn rows(arguments: &str) -> Vec<Vec<String>> {
    let [one, other] = pair(arguments);
    assert_eq!(
        (one.status.code(), other.status.code()),
        (Some(0), Some(0)),
        "{arguments}\n{}{}{}",
        text(&one.stdout),
        text(&one.stderr),
        text(&other.stderr)
    );
    let table = text(&one.stdout);
    assert_eq!(text(&other.stdout), table, "each side prints all of it");
    let rows = table.lines().filter(|line| !line.starts_with('#') && !line.trim_start().starts_with('#'));
    rows.map(|row| row.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn each_measurement_moves_verified_data() {
    for provider in ["tcp", "shm"] {
        let tests = [
            "pingpong",
            "pingpong --inject never",
            "bw --window 4",
            "rma --window 4",
            "rma --window 4 --both-ways --inject never",
            "rma --read --window 4",
            "rma --read --window 4 --both-ways",
            "rma --window 4 --both-ways --until completed",
            "pingpong --messages plain",
            "bw --window 4 --messages plain --inject never",
            "bw --window 4 --completion block",
            "bw --window 4 --endpoints 2",
            "rma --window 4 --endpoints 2",
            "bw --window 4 --endpoints 2 --shared-domain",
        ];
        for test in tests {
            let rows = rows(&format!("{test} -p {provider} -b 1 -e 1M -f 1024 -n 6 -w 0"));
            let sizes: Vec<&str> = rows.iter().map(|row| &row[0][..]).collect();
            assert_eq!(sizes, ["1", "1024", "1048576"], "{test} {provider}");
            for row in &rows {
                // Ten rounds, of which a pingpong's go both ways.
                let twice = test.starts_with("pingpong") || test.contains("--endpoints 2");
                assert_eq!(row[1], if twice { "120" } else { "60" }, "{test} {provider}");
                assert_eq!(row[6], "0", "{test} {provider}: nothing is wrong, and that was looked at");
                let times: Vec<f64> = row[2..5].iter().map(|time| time.parse().unwrap()).collect();
                assert!(times[1] <= times[0] && times[0] <= times[2] && times[2] > 0.0, "{times:?}");
            }
        }
    }
    assert_eq!(rows("pingpong -b 8 -e 8 -n 2 -c 0")[0][6], "-", "not verified");
    // More in flight than the provider has room for, and a window that is not whole.
    let row = &rows("bw -p shm -b 8 -e 8 -n 5000 --window 3000 --rounds 2")[0];
    assert_eq!((&row[1][..], &row[6][..]), ("10000", "0"));
}

/// Injected messages wait for later calls with `sockets`, which libfabric 2 does not have.
#[test]
fn the_last_message_arrives_where_handing_it_over_does_not_send_it() {
    let [one, other] = pair("pingpong -p sockets -b 8 -e 8 -n 1 --rounds 2 -T 10");
    let problem = text(&one.stderr);
    if one.status.code() == Some(2) {
        assert!(
            problem.contains("provider 'sockets'") && problem.contains("offers no reliable endpoint"),
            "{problem}"
        );
        return;
    }
    assert_eq!((one.status.code(), other.status.code()), (Some(0), Some(0)), "{problem}");
    assert!(text(&one.stdout).contains("over sockets, injected up to "), "{}", text(&one.stdout));
}

/// The results of a file.
fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The results of three ranks that succeed.
fn results_of_three(arguments: &str) -> Value {
    let address = reserve_address();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let rank = |rank: usize| -> Rank<'_> {
        let variables = [
            ("NCCL_BENCH_RANK", rank.to_string()),
            ("NCCL_BENCH_SIZE", "3".to_owned()),
            ("NCCL_BENCH_ADDR", address.clone()),
        ];
        (arguments.split(' ').chain(["--output", file.to_str().unwrap()]).collect(), variables.into())
    };
    for output in together(&[rank(0), rank(1), rank(2)]) {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    read(&file)
}

#[test]
fn results_have_all_pairs_of_a_job() {
    let run = results_of_three("bw -p tcp -b 64 -e 64 -n 4 --window 2 --endpoints 2 --all-pairs");
    assert_eq!(run["outcome"], json!({"state": "complete"}));
    let (provenance, settings) = (&run["provenance"], &run["settings"]);
    assert_eq!((&provenance["backend"], &provenance["transport"]), (&"fabric".into(), &"tcp".into()));
    let inject = settings["pairs"]["inject_bytes"].as_u64();
    assert!(inject.is_some_and(|longest| longest >= 8), "{settings}");
    let of_pairs = json!({
        "test": "bw", "messages": "tagged", "window": 2, "both_ways": false, "inject_bytes": inject,
        "completion": "poll", "pause_ns": 2000, "endpoints": 2, "shared_domain": false
    });
    assert_eq!(settings["pairs"], of_pairs);
    assert_eq!((&settings["rounds"], &settings["iterations"]), (&10.into(), &4.into()));
    for rank in run["ranks"].as_array().unwrap() {
        assert_eq!((&rank["device_name"], &rank["domains"]), (&"host memory".into(), &json!(["lo"])));
        assert_eq!(rank["addresses"].as_array().unwrap().len(), 2, "{rank}");
    }
    let measurements = run["measurements"].as_array().unwrap();
    let pairs: Vec<_> = measurements.iter().map(|one| one["pair"].clone()).collect();
    assert_eq!(pairs, [[0, 1], [0, 2], [1, 2]].map(|pair| json!(pair)));
    for one in measurements {
        assert_eq!((&one["collective"], &one["bytes"]), (&"bw".into(), &64.into()));
        assert_eq!((&one["operations"], &one["wrong"]), (&80.into(), &0.into()));
        assert_eq!(one["rounds_us"].as_array().unwrap().len(), 10);
        assert!(one["time_us"].as_f64().unwrap() > 0.0);
    }
}

/// The sides disagree on the time at which they began, and each names its own command.
#[test]
fn both_sides_of_a_pair_write_files_that_compare_and_plot_read() {
    let folder = tempfile::tempdir().unwrap();
    let measure = |names: [&str; 2]| {
        let (address, files) = (reserve_address(), names.map(|name| folder.path().join(name)));
        let side = |how, file: usize| -> Rank<'_> {
            let own = [how, &address[..], "--output", files[file].to_str().unwrap()];
            let command = "rma --read -p tcp -b 64 -e 128 -n 4 --window 2".split(' ');
            (command.chain(own).collect(), Vec::new())
        };
        for output in together(&[side("--listen", 0), side("--connect", 1)]) {
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        }
        files.map(|file| record::files::read_run(&file).unwrap())
    };
    let [one, other] = &measure(["one.json", "other.jsonl"]);
    measure(["later.json", "later.jsonl"]);
    assert_eq!(one.measurements.len(), 2);
    for (one, other) in one.measurements.iter().zip(&other.measurements) {
        assert_eq!((one.bytes, one.time_us, one.wrong), (other.bytes, other.time_us, other.wrong));
        assert_eq!((one.collective.as_str(), one.pair), ("rma read", Some([0, 1])));
    }
    let has = |run: &record::Run, flag: &str| run.command.iter().any(|part| part == flag);
    assert!(has(one, "--listen") && has(other, "--connect"), "{:?} {:?}", one.command, other.command);

    let reading = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
        let output = command.current_dir(&folder).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    };
    let limit = ["--threshold", "1000000%"];
    let compared =
        reading(&[&["compare", "other.jsonl", "later.json", "--format", "csv"], &limit[..]].concat());
    let rows: Vec<&str> = compared.lines().collect();
    assert!(rows[0].ends_with(",first_rank,second_rank") && rows.len() == 3, "{compared}");
    assert!(
        rows[1].starts_with("rma read,uint8,,,out_of_place,64,") && rows[1].ends_with(",0,1"),
        "{compared}"
    );
    reading(&["plot", "one.json", "later.jsonl", "--output", "page.html"]);
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("rma read over tcp, window 2"), "{page}");
}

#[test]
fn a_side_that_waits_says_for_whom_and_why_once() {
    let address = reserve_address();
    for (how, said) in [
        (
            "--connect",
            format!(
                "nccl-bench: waiting for {address}; start the other side with the same options, but --listen \
                 there ({address}: Connection refused "
            ),
        ),
        (
            "--listen",
            format!(
                "nccl-bench: waiting at {address}; start the other side with the same options, but --connect \
                 with this host's name; giving up in "
            ),
        ),
    ] {
        let [output] =
            &together(&[("bw -T 4".split(' ').chain([how, &address[..]]).collect(), Vec::new())])[..]
        else {
            panic!("one")
        };
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        let waiting: Vec<&str> = stderr.lines().filter(|line| line.contains("waiting")).collect();
        let [line] = waiting[..] else { panic!("{stderr}") };
        assert!(line.starts_with(&said) && line.ends_with(" s (-T)"), "{line}");
        assert!(!line.contains('\r') && text(&output.stdout).is_empty(), "{stderr}");
    }
}

/// All pairs access the same memory of a rank, one after the other.
#[test]
fn memory_is_verified_in_each_pair() {
    let run = results_of_three("rma -p tcp -b 64 -e 4K -f 64 -n 4 --both-ways --all-pairs");
    let measurements = run["measurements"].as_array().unwrap();
    let found: Vec<_> =
        measurements.iter().map(|one| (one["bytes"].as_u64(), one["wrong"].as_u64())).collect();
    assert_eq!(found, [64, 4096].repeat(3).iter().map(|&bytes| (Some(bytes), Some(0))).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_is_told_before_anything_starts() {
    let alone = |arguments: &str| {
        let [output] = &together(&[(arguments.split(' ').collect(), Vec::new())])[..] else { panic!("one") };
        (output.status.code(), text(&output.stderr))
    };
    let (code, message) = alone("pingpong");
    assert_eq!(code, Some(2));
    assert!(message.contains("--listen HOST:PORT to one rank and --connect HOST:PORT"), "{message}");
    let (code, message) = alone("pingpong -b 1M -e 1K");
    assert_eq!((code, message.as_str()), (Some(2), "error: -b 1M is more than -e 1K\n"));
    let (code, message) = alone(&format!("bw --connect {} -T 1", reserve_address()));
    assert_eq!(code, Some(4), "{message}");
    assert!(message.contains("did not find rank 0 within 1 s"), "{message}");
    let (code, message) = alone("bw --domains lo,eth0 --endpoints 1");
    assert_eq!(code, Some(2));
    assert!(message.contains("--endpoints 1 is less than the 2 domains of --domains"), "{message}");
    let (code, message) = alone("rma --endpoints 2 --shared-domain");
    assert_eq!(code, Some(2));
    assert!(message.contains("--shared-domain is for pingpong and bw"), "{message}");
    let (code, message) = alone("bw -w 18446744073709551615");
    assert_eq!(code, Some(2));
    assert!(message.contains("18446744073709551615 is not in 0..=1000000"), "{message}");
    let (code, message) = alone("rma --listen nowhere");
    assert_eq!(code, Some(2));
    assert!(message.contains("`nowhere` is not an address such as node1:29500"), "{message}");
}

/// The output of a pair with different options.
fn unlike(one: &str, other: &str) -> [Output; 2] {
    let address = reserve_address();
    let ranks = [(one, "--listen"), (other, "--connect")].map(|(arguments, how)| -> Rank<'_> {
        (arguments.split(' ').chain([how, &address[..]]).collect(), Vec::new())
    });
    together(&ranks).try_into().unwrap()
}

#[test]
fn ranks_that_were_not_asked_for_the_same_are_told() {
    let cases = [
        ("bw", "bw --endpoints 2", "they differ in --endpoints:"),
        ("rma", "rma --read", "they differ in the test:"),
        ("rma --both-ways", "rma", "they differ in --both-ways:"),
        ("bw -e 4K", "bw -e 8K", "they differ in -e:"),
        ("bw -p shm", "bw", "they differ in -p:"),
        ("pingpong", "bw", "they differ in --window, the test:"),
        ("bw -n 5", "bw", "they differ in -n:"),
    ];
    for (one, other, told) in cases {
        for output in unlike(one, other) {
            let message = text(&output.stderr);
            assert_eq!((output.status.code(), &text(&output.stdout)[..]), (Some(2), ""), "{message}");
            assert!(message.contains(told), "{message}");
            for side in [one, other] {
                assert!(message.contains(&format!("nccl-bench fabric {side} --")), "{message}");
            }
        }
    }
    // Options that may differ.
    let [one, other] = unlike("bw -e 8 -n 2 --completion block", "bw -e 8 -n 2 --pause 0 -T 20");
    let codes = (one.status.code(), other.status.code());
    assert_eq!(codes, (Some(0), Some(0)), "{}{}", text(&one.stderr), text(&other.stderr));
}

#[test]
fn more_than_the_memory_has_room_for_is_refused() {
    for output in pair("bw -e 4000000G") {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("size 3906.2T does not fit: the memory of "), "{message}");
        assert!(message.contains("has room for transfers of "), "{message}");
    }
}

#[test]
fn a_signal_ends_both_ranks_after_the_size_and_keeps_what_there_is() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let (address, folder) = (reserve_address(), tempfile::tempdir().unwrap());
        let file = folder.path().join("run.json");
        let start = |how: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
            // Many sizes, of which the first are fast.
            command.args("fabric bw -p tcp -b 8 -e 16M -n 1 --rounds 200 -c 0".split(' '));
            if how == "--listen" {
                command.args(["--output", file.to_str().unwrap()]);
            }
            command.args([how, &address]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // Shells start what runs in the background with SIGINT ignored.
            // SAFETY: `signal` may be called between `fork` and `exec`.
            unsafe {
                command.pre_exec(|| {
                    libc::signal(libc::SIGINT, libc::SIG_DFL);
                    Ok(())
                })
            };
            command.spawn().unwrap()
        };
        let (mut one, other) = (start("--listen"), start("--connect"));
        let mut table = BufReader::new(one.stdout.take().unwrap()).lines();
        let is_row = |line: &str| line.trim_start().starts_with("8 ");
        let first = table.find(|line| is_row(line.as_ref().unwrap()));
        assert!(first.is_some(), "no size was measured");
        let killed = Command::new("kill").args([signal, &other.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let rest: Vec<String> = table.map(Result::unwrap).collect();
        assert!(!rest.iter().any(|line| line.trim_start().starts_with("16777216 ")), "{rest:?}");
        for output in [one, other].map(|rank| rank.wait_with_output().unwrap()) {
            assert_eq!(output.status.code(), Some(code), "{signal}: {}", text(&output.stderr));
        }
        let run = read(&file);
        assert_eq!(run["outcome"], json!({"state": "interrupted", "signal": format!("SIG{}", &signal[1..])}));
        let first = &run["measurements"][0];
        assert_eq!((&first["bytes"], first.get("wrong")), (&8.into(), None));
    }
}

#[test]
fn a_rank_that_waits_for_a_stopped_one_ends_in_time() {
    let address = reserve_address();
    let start = |how: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
        // After the first size, a long one.
        command.args("fabric pingpong -b 8 -e 64M -f 8388608 -n 1 --rounds 1000 -c 0 -T 5".split(' '));
        command.args([how, &address]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (mut one, mut other) = (start("--listen"), start("--connect"));
    let mut table = BufReader::new(one.stdout.take().unwrap()).lines();
    assert!(table.any(|line| line.unwrap().trim_start().starts_with("8 ")), "nothing was measured");
    let signal =
        |signal: &str| Command::new("kill").args([signal, &other.id().to_string()]).status().unwrap();
    assert!(signal("-STOP").success());
    let output = one.wait_with_output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{message}");
    assert!(message.contains("not complete after 5 s, the timeout"), "{message}");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_reader_that_has_gone_is_no_failure_to_report() {
    let address = reserve_address();
    let other = {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
        command.args(["fabric", "bw", "-e", "8", "-n", "2", "--connect", &address]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    command.args(["fabric", "bw", "-e", "8", "-n", "2", "--listen", &address]);
    let mut one = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(one.stdout.take());
    let output = one.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    // It may have waited long for the other side.
    let told: Vec<&str> =
        stderr.lines().filter(|line| !line.starts_with("nccl-bench: waiting at ")).collect();
    assert_eq!((output.status.code(), &told[..]), (Some(141), &[][..]));
    other.wait_with_output().unwrap();
}

#[test]
fn ranks_of_a_launcher_on_several_hosts_learn_how_to_meet() {
    // The environment of Open MPI's mpirun for one of two ranks on two hosts, without the sibling, which
    // would join through MPI.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = folder.path().join("nccl-bench");
    // Not a copy: a file that was open for writing while another thread forked cannot be executed.
    std::fs::hard_link(env!("CARGO_BIN_EXE_nccl-bench"), &alone).unwrap();
    let variables = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ("PMIX_NAMESPACE", "job"),
    ];
    let output = Command::new(alone).args(["fabric", "pingpong"]).envs(variables).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    for part in ["nccl-bench-mpi, which was not found", "mpirun -x NCCL_BENCH_ADDR=node1:29500"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn domains_are_used_in_turn_and_those_that_are_not_there_told() {
    let [one, _] = pair("bw -p tcp --domains lo,lo --endpoints 3 -b 8 -e 8 -n 2");
    let table = text(&one.stdout);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].contains(", 3 endpoints; libfabric "), "{table}{}", text(&one.stderr));
    let (head, addresses) = lines[3].split_once(", lo: ").unwrap();
    assert!(head.starts_with("# Rank 0 on ") && addresses.split(' ').count() == 3, "{table}");
    assert!(lines[6].trim_end().ends_with(" 0"), "{table}");
    for output in pair("bw -p tcp --domains lo,nowhere") {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains("it has no domain 'nowhere' for this endpoint") && message.contains("lo"),
            "{message}"
        );
    }
}

#[test]
fn gpu_memory_that_cannot_be_is_told_before_anything_is_measured() {
    let cannot = [
        ("pingpong -p tcp --memory cuda", "it supports host memory only"),
        // Without a driver, and with one.
        ("rma -p shm --memory cuda:4096", "--memory cuda: "),
    ];
    for (arguments, problem) in cannot {
        for output in pair(arguments) {
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{message}");
            assert!(message.contains(problem), "{message}");
            assert_eq!(text(&output.stdout), "", "{arguments}");
        }
    }
    let [output] = &together(&[("bw --memory cuda:one".split(' ').collect(), Vec::new())])[..] else {
        panic!("one")
    };
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("it is host, cuda, or cuda:N for the GPU of this number"), "{message}");
}

/// The other side never comes.
#[test]
fn a_provider_that_is_not_there_is_told_before_the_wait() {
    for how in ["--listen", "--connect"] {
        let address = reserve_address();
        let arguments = ["pingpong", "-p", "cxi", "-T", "600", how, &address];
        let [output] = &together(&[(arguments.to_vec(), Vec::new())])[..] else { panic!("one") };
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
        assert!(message.starts_with("error: ") && message.contains("provider 'cxi'"), "{message}");
    }
}

/// libfabric 1.17 has it as `net`, and a newer one as `tcp`.
#[test]
fn a_provider_has_the_name_that_it_was_asked_for_by() {
    for name in ["tcp", "net"] {
        for output in pair(&format!("bw -p {name} -b 8 -e 8 -n 2")) {
            let table = text(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            assert!(table.contains(&format!("# bw over {name}, ")), "{table}");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
        command.args("allreduce --backend fabric --world single -t 2 -e 8 -n 1 --provider".split(' '));
        let output = command.arg(name).output().unwrap();
        let table = text(&output.stdout);
        assert!(table.contains(&format!("# Transport: {name} on lo at ")), "{table}{}", text(&output.stderr));
    }
}

#[test]
fn a_provider_that_is_not_there_is_told_by_both() {
    for output in pair("pingpong -p cxi") {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains("provider 'cxi'") && message.contains("fabric info -p cxi -t rdm"),
            "{message}"
        );
    }
}
