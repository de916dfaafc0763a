use super::super::parse_text;
use super::*;
use crate::sample;

const ALL_REDUCE: &str = include_str!("../../../../tests/data/all_reduce.json");

#[test]
fn a_real_file_says_the_same_as_a_run() {
    let run = parse_text(ALL_REDUCE.as_bytes()).unwrap();
    assert_eq!(run.outcome, RunOutcome::Complete);
    assert_eq!(
        (run.started_at.as_str(), run.ended_at.as_deref()),
        ("2026-11-20T14:57:55", Some("2026-11-20T14:58:11"))
    );
    assert_eq!(run.provenance.library_version, "2.28.9");
    assert_eq!((run.ranks.len(), run.ranks[7].device_name.as_str()), (8, "NVIDIA H200"));
    assert_eq!((run.ranks[7].device, run.ranks[7].pci.as_deref()), (Some(7), Some("0000:00:0d")));
    assert_eq!((run.settings.min_bytes, run.settings.max_bytes), (8, 8 << 30));
    assert_eq!((run.settings.iterations, run.settings.warm_up), (20, 5));
    assert_eq!(run.measurements.len(), 62);
    let last = run.measurements.last().unwrap();
    assert_eq!((last.collective.as_str(), last.data_type.as_str()), ("allreduce", "float"));
    assert_eq!((last.op.as_deref(), last.root), (Some("sum"), None));
    assert_eq!((last.bytes, last.count, last.placement), (8 << 30, 1 << 31, Placement::InPlace));
    assert_eq!((last.time_us, last.busbw_gbps, last.wrong), (40_976.488_013, 366.853_927, Some(0)));
    assert_eq!(last.operations, 20);
    // The file's own average.
    assert!((run.mean_busbw_gbps().unwrap() - 127.576_547).abs() < 1e-6);
}

#[test]
fn a_file_that_counts_wrong_values_is_no_complete_run() {
    let right = "\"out_of_bounds\":{\"count\":0,\"okay\":\"true\"}";
    assert!(ALL_REDUCE.contains(right));
    for wrong in [
        "{\"count\":5,\"okay\":\"false\"}",
        "{\"count\":0,\"okay\":\"false\"}",
        "{\"count\":5,\"okay\":\"true\"}",
    ] {
        let run =
            parse_text(ALL_REDUCE.replace(right, &format!("\"out_of_bounds\":{wrong}")).as_bytes()).unwrap();
        let expected = RunOutcome::Failed { message: "it counts wrong values".to_owned() };
        assert_eq!(run.outcome, expected, "{wrong}");
    }
}

#[test]
fn our_own_of_host_memory_that_was_interrupted_is_read() {
    let mut run = sample::full_run();
    run.provenance.backend = "fabric".to_owned();
    run.outcome = RunOutcome::Interrupted { signal: "SIGINT".to_owned() };
    run.measurements = vec![sample::sample_measurement("allreduce", Placement::OutOfPlace, 64, 10.0)];
    let read = parse_text(crate::files::nccl_tests::render_json(&run).as_bytes()).unwrap();
    assert_eq!(read.provenance.backend, "fabric");
    assert_eq!(read.provenance.library_version, "");
    let sizes: Vec<_> = read.measurements.iter().map(|it| (it.placement, it.bytes, it.time_us)).collect();
    assert_eq!(sizes, [(Placement::OutOfPlace, 64, 10.0)]);
    assert!(matches!(&read.outcome, RunOutcome::Failed { message } if message.contains("SIGINT")));
}

#[test]
fn bare_words_for_numbers_are_read_and_words_in_strings_left_alone() {
    let text = ALL_REDUCE
        .replacen("\"time\":12.936469", "\"time\":inf", 1)
        .replacen("\"bus_bw\":0.001082", "\"bus_bw\":-nan", 1)
        .replacen("\"alg_bw\":0.0006,", "\"alg_bw\":\"nan\",", 1)
        .replacen("\"hostname\":\"vm\"", r#""hostname":"a\"inf nan""#, 1);
    assert!(serde_json::from_str::<Value>(&text).is_err());
    let run = parse_text(text.as_bytes()).unwrap();
    let first = &run.measurements[0];
    assert!(first.time_us.is_nan() && first.busbw_gbps.is_nan());
    assert_eq!(first.algbw_gbps, 0.000_618);
    assert!(run.measurements[1].algbw_gbps.is_nan());
    assert_eq!(run.ranks[0].host, "a\"inf nan");
    assert_eq!(run.measurements.len(), 62);
    assert_eq!(run.measurements[1].time_us, 13.340_813);
}

#[test]
fn what_only_the_command_line_says_is_taken_from_there() {
    let args = r#""-R2","-N","31","--average=3","-z","1","--stream_null","1","-C","1","-J""#;
    let text = ALL_REDUCE
        .replacen("\"-J\"", args, 1)
        .replacen("(omitted)", "NCCL_ALGO=a=b\",\"HOME=/root\",\"NCCL_KEY=hunter2", 1)
        .replacen("./all_reduce_perf", "build\\/reduce_scatter_perf_mpi", 1)
        .replacen("\"time\":40982.487938", "\"cpu_time\":7.5", 1);
    let run = parse_text(text.as_bytes()).unwrap();
    assert_eq!(run.settings.registration, Registration::Symmetric);
    assert_eq!((run.settings.average, run.settings.blocking), (Average::Max, Blocking::WaitAndBarrier));
    assert!(run.settings.default_stream && run.settings.cpu_time && !run.settings.time_stamps);
    let environment = [("NCCL_ALGO", "a=b"), ("NCCL_KEY", "(left out)")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(run.provenance.environment, environment.into());
    assert_eq!(run.settings.cycles, 31);
    assert_eq!((run.measurements[1].cycle, run.measurements[2].cycle), (0, 1));
    assert_eq!(run.measurements[0].collective, "reducescatter");
    let last = &run.measurements[60];
    assert_eq!(last.cpu_time_us, Some(7.5));
    assert!((last.time_us / 40_982.487_938 - 1.0).abs() < 1e-6, "{}", last.time_us);
}

#[test]
fn times_of_iterations_become_statistics() {
    let times = r#"},"in_place_per_iter":{"skipped_iterations":1,"min_us":1,"max_us":3,"avg_us":2,"p50_us":2,
        "p95_us":3,"p99_us":3,"stdev_us":0.8,"cv_pct":40,"times_us":[50.0,1.0,2.0,3.0],
        "per_process_max_times_us":[[50.0,1.0,2.0,3.0],[9.0,1.0,2.0,3.0]]},"actual_iterations":4,"#;
    let text = ALL_REDUCE.replacen("},\"actual_iterations\":20,", times, 1);
    let run = parse_text(text.as_bytes()).unwrap();
    let found = &run.measurements[1];
    let statistics = found.statistics.unwrap();
    assert_eq!((statistics.samples, statistics.min_us, statistics.median_us), (3, 1.0, 2.0));
    let times = found.per_iteration.as_ref().unwrap();
    assert_eq!((times.skipped, times.times_us[0], times.processes_us[1][0]), (1, 50.0, 9.0));
    assert_eq!(run.measurements[0].statistics, None);
}

#[test]
fn versions_of_nccl_are_those_that_it_prints() {
    let versions = [22_809, 2_804, 23_203].map(library_version);
    assert_eq!(versions, ["2.28.9", "2.8.4", "2.32.3"]);
}

#[test]
fn a_run_that_did_not_end_is_a_failure() {
    let text = ALL_REDUCE.replacen(",\"end_time\":\"2026-11-20 14:58:11\"", "", 1);
    let text = text.replacen("\"errors\":[\"\"]", "\"errors\":[\"remote process exited\"]", 1);
    let run = parse_text(text.as_bytes()).unwrap();
    assert_eq!(run.outcome, RunOutcome::Failed { message: "remote process exited".to_owned() });
}

#[test]
fn another_version_and_a_cut_file_are_explained() {
    let text = ALL_REDUCE.replacen("\"version\":3", "\"version\":9", 1);
    let message = parse_text(text.as_bytes()).unwrap_err().to_string();
    assert!(message.contains("version 9") && message.contains("version 3"), "{message}");
    let message = parse_text(&ALL_REDUCE.as_bytes()[..5000]).unwrap_err().to_string();
    assert!(message.contains("ends in the middle") && message.contains("crashes"), "{message}");
}
