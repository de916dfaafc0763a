use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::dump::{self, Dump, EntryState};
use super::{examine_dumps, judge_dumps};
use crate::examination::{Examination, Health};
use crate::finding::{Finding, Severity};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/recorder").join(name)
}

fn only(examination: &Examination) -> &Finding {
    let rules: Vec<&str> = examination.findings.iter().map(|finding| finding.rule.as_str()).collect();
    assert_eq!(rules.len(), 1, "{rules:?}");
    &examination.findings[0]
}

/// A collective: sequence number, operation, sizes, state.
type Call<'a> = (i64, &'a str, &'a [i64], &'a str);

/// Returns the dump of a rank in PyTorch's JSON. A group has a name, ranks and calls.
fn json_dump(groups: &[(&str, &str, &[Call<'_>])]) -> Dump {
    let mut entries = Vec::new();
    let mut config = serde_json::Map::new();
    for (number, (group, ranks, calls)) in groups.iter().enumerate() {
        config.insert((*group).to_owned(), json!({ "name": group, "desc": "undefined", "ranks": ranks }));
        for (sequence, operation, sizes, state) in *calls {
            entries.push(json!({
                "record_id": entries.len(), "pg_id": number, "process_group": [group, "undefined"],
                "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence,
                "profiling_name": operation, "input_sizes": [sizes], "input_dtypes": ["Float"],
                "output_sizes": [sizes], "output_dtypes": ["Float"], "state": state,
                "time_created_ns": 1, "timeout_ms": 600_000, "is_p2p": operation.contains("send"),
            }));
        }
    }
    let dump = json!({ "version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries });
    dump::parse_dump(dump.to_string().as_bytes()).unwrap()
}

fn judged(dumps: Vec<Dump>) -> Examination {
    judge_dumps(&(0..).zip(dumps).collect::<BTreeMap<u32, Dump>>())
}

#[test]
fn a_pickle_of_pytorch_is_read() {
    let dump = dump::read_dump(&path("absent.0")).unwrap();
    assert_eq!(dump.comm_lib_version.as_deref(), Some("2.30.7"));
    assert_eq!(dump.pg_config["0"].ranks, "[0, 1]");
    assert_eq!(dump.pg_status["0"].last_enqueued_collective, 6);
    assert_eq!(dump.pg_status["0"].last_completed_collective, 5);
    let entry = dump.entries.last().unwrap();
    assert_eq!((entry.collective_seq_id, entry.state), (6, EntryState::Scheduled));
    assert_eq!(entry.input_sizes, [[1_048_576]]);
    assert_eq!(entry.location.as_deref(), Some("/app/main.py:16"));
}

#[test]
fn the_rank_that_did_not_call_is_named() {
    let examination = examine_dumps(&[path("absent.0"), path("absent.1")]);
    let finding = only(&examination);
    assert_eq!((finding.rule.as_str(), finding.severity), ("recorder-not-arrived", Severity::Broken));
    assert_eq!(
        finding.diagnosis,
        "Rank 1 has not called all_reduce 6 of group 0 (default_pg), in which rank 0 waits."
    );
    assert_eq!(finding.ranks, [1]);
    assert!(finding.evidence.iter().any(|evidence| evidence.place == "/app/main.py:16"));
}

#[test]
fn different_sizes_are_named_with_both_values() {
    let examination = examine_dumps(&[path("shape.0"), path("shape.1")]);
    let finding = only(&examination);
    assert_eq!((finding.rule.as_str(), finding.severity), ("recorder-mismatch", Severity::Broken));
    assert_eq!(
        finding.diagnosis,
        "Ranks called all_reduce 6 of group 0 (default_pg) with different sizes: [1048576] on rank 0; \
         [262144] on rank 1."
    );
    assert_eq!(finding.ranks, [0, 1]);
}

#[test]
fn a_rank_without_a_dump_is_the_first_suspect() {
    let examination = examine_dumps(&[path("order.0")]);
    let finding = only(&examination);
    assert_eq!((finding.rule.as_str(), finding.severity), ("recorder-dump-missing", Severity::Unknown));
    assert_eq!(
        finding.diagnosis,
        "all_reduce 6 of group 0 (default_pg) is not complete on rank 0. Rank 1 has no dump."
    );
    assert_eq!(finding.ranks, [1]);
    assert_eq!(examination.health(), Health::CannotTell);
}

#[test]
fn what_is_complete_everywhere_is_healthy() {
    let calls =
        &[(1, "nccl:all_reduce", &[8_i64][..], "completed"), (2, "nccl:broadcast", &[8], "completed")];
    let dump = json_dump(&[("0", "[0, 1]", calls)]);
    let examination = judged(vec![dump.clone(), dump.clone()]);
    assert_eq!(examination.findings, []);
    assert_eq!(examination.proof, ["all 2 collectives of 1 groups that 2 ranks recorded are complete"]);
    // Not with a dump less.
    let examination = judged(vec![dump]);
    assert_eq!(examination.health(), Health::CannotTell);
    assert_eq!(examination.unseen[0], "Rank 1 has no dump: not given, or ended before it was written.");
}

#[test]
fn a_collective_that_all_have_called_cannot_tell() {
    let dump = json_dump(&[("0", "[0, 1]", &[(7, "nccl:all_reduce", &[8], "started")])]);
    let done = json_dump(&[("0", "[0, 1]", &[(7, "nccl:all_reduce", &[8], "completed")])]);
    let examination = judged(vec![dump, done]);
    assert_eq!(only(&examination).rule, "recorder-stuck-inside");
    assert_eq!(
        only(&examination).diagnosis,
        "all_reduce 7 of group 0 (undefined) is not complete on rank 0, and is complete on rank 1."
    );
}

#[test]
fn different_operations_are_named() {
    let call = |operation| json_dump(&[("0", "[0, 1, 2]", &[(3, operation, &[8], "scheduled")])]);
    let examination = judged(vec![call("nccl:all_reduce"), call("nccl:broadcast"), call("nccl:all_reduce")]);
    let finding = only(&examination);
    assert_eq!(
        finding.diagnosis,
        "Ranks called different operations as collective 3 of group 0 (undefined): all_reduce on ranks 0, 2; \
         broadcast on rank 1."
    );
    assert_eq!(finding.ranks, [1]);
}

#[test]
fn shapes_of_equal_length_and_uneven_splits_are_no_mismatch() {
    let call = |operation, sizes: &'static [i64]| {
        json_dump(&[("0", "[0, 1]", &[(1, operation, sizes, "completed")])])
    };
    let examination = judged(vec![call("nccl:all_reduce", &[4, 4]), call("nccl:all_reduce", &[16])]);
    assert_eq!(examination.findings, []);
    let examination = judged(vec![call("nccl:all_to_all", &[4]), call("nccl:all_to_all", &[9])]);
    assert_eq!(examination.findings, []);
}

#[test]
fn a_group_that_waits_for_a_rank_in_another_group_is_a_consequence() {
    let world = "[0, 1, 2]";
    let wait = |sequence| (sequence, "nccl:all_reduce", &[8_i64][..], "scheduled");
    let done = |sequence| (sequence, "nccl:all_reduce", &[8_i64][..], "completed");
    let dumps = vec![
        json_dump(&[("0", world, &[done(1), wait(2)])]),
        json_dump(&[("0", world, &[done(1)]), ("1", "[1, 2]", &[wait(1)])]),
        json_dump(&[("0", world, &[done(1)]), ("1", "[1, 2]", &[])]),
    ];
    let examination = judged(dumps);
    assert!(!examination.findings.is_empty());
    for finding in &examination.findings {
        assert_eq!((finding.rule.as_str(), &finding.ranks[..]), ("recorder-not-arrived", &[2][..]));
    }
}

#[test]
fn sends_that_are_not_complete_cannot_tell() {
    let dump = json_dump(&[("0", "[0]", &[(0, "nccl:send 0->1", &[8], "scheduled")])]);
    let examination = judged(vec![dump]);
    assert_eq!(only(&examination).rule, "recorder-point-to-point");
}

#[test]
fn a_file_that_is_no_dump_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("nccl_trace_rank_0");
    std::fs::write(&empty, b"").unwrap();
    let other = directory.path().join("notes");
    std::fs::write(&other, b"x").unwrap();
    let examination = examine_dumps(&[empty, other, directory.path().join("rank_7")]);
    let texts: Vec<&str> = examination.findings.iter().map(|finding| finding.diagnosis.as_str()).collect();
    assert!(texts[0].contains("its name has no rank"), "{texts:?}");
    assert!(texts[1].contains("the file is empty"), "{texts:?}");
    assert!(texts[2].contains("No such file"), "{texts:?}");
    assert_eq!(examination.health(), Health::CannotTell);
}

#[test]
fn the_rank_is_in_the_name() {
    let of = |name| dump::rank_of(Path::new(name));
    assert_eq!(of("/tmp/nccl_trace_rank_12"), Some(12));
    assert_eq!(of("/tmp/job7_rank3_1690000000.json"), Some(3));
    assert_eq!(of("dump.5"), Some(5));
    assert_eq!(of("/data/4/trace"), None);
}

#[test]
fn no_mutation_of_a_dump_panics() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % end as u64).unwrap()
    };
    let names = ["absent.0", "absent.1", "shape.1"];
    let originals = names.map(|name| std::fs::read(path(name)).unwrap());
    let mut readable = 0;
    for round in 0..1500 {
        let mut bytes = originals[round % 3].clone();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(3) {
                0 => bytes[at] = u8::try_from(below(256)).unwrap(),
                1 => bytes.truncate(at.max(2)),
                _ => bytes.insert(at, b"(]}.eu\x85hq"[below(9)]),
            }
        }
        if let Ok(dump) = dump::parse_dump(&bytes) {
            readable += 1;
            judged(vec![dump, dump::parse_dump(&originals[1]).unwrap()]);
        }
    }
    assert!(readable > 50, "{readable}");
}

#[test]
fn json_of_pytorch_has_texts_for_numbers_and_no_empty_list_of_operations() {
    let progress = |last: &str| {
        json!({
            "last_enqueued_collective": last,
            "last_started_collective": "-1",
            "last_completed_collective": "5",
        })
    };
    let dump = |last| {
        let status = json!({ "0": progress(last) });
        json!({ "version": "2.10", "comm_lib_version": "2.27.5", "pg_config": {}, "pg_status": status })
    };
    let read = dump::parse_dump(dump("7").to_string().as_bytes()).unwrap();
    assert_eq!(read.pg_status["0"].last_enqueued_collective, 7);
    assert_eq!(read.pg_status["0"].last_completed_collective, 5);
    assert!(read.entries.is_empty());
    dump::parse_dump(dump("many").to_string().as_bytes()).unwrap_err();
    dump::parse_dump(b"{}").unwrap_err();
}

#[test]
fn dumps_of_several_jobs_are_not_judged() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, ranks: &str| {
        let group = json!({ "name": "0", "desc": "default_pg", "ranks": ranks });
        let dump = json!({ "version": "2.10", "pg_config": { "0": group } });
        let path = folder.path().join(name);
        std::fs::write(&path, dump.to_string()).unwrap();
        path
    };
    let rules = |paths: &[PathBuf]| {
        let examination = examine_dumps(paths);
        assert_eq!(examination.health(), Health::CannotTell);
        examination.findings.iter().map(|finding| finding.diagnosis.clone()).collect::<Vec<_>>()
    };
    let (first, second) = (write("a_rank_0", "[0, 1]"), write("b_rank_0", "[0, 1]"));
    let found = rules(&[first.clone(), second]);
    assert!(found.len() == 1 && found[0].contains("several jobs: 2 files are of rank 0"), "{found:?}");
    let old = write("a_rank_1", "[0, 1, 2, 3]");
    let found = rules(&[first.clone(), old]);
    assert!(
        found.len() == 1 && found[0].contains("with 2 ranks, but the dump of rank 1 of a job with 4"),
        "{found:?}"
    );
    let same = write("a_rank_2", "[0, 1]");
    assert!(!rules(&[first, same]).iter().any(|diagnosis| diagnosis.contains("several jobs")));
}

#[test]
fn dumps_that_cannot_be_read_are_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(path("absent.0")).unwrap();
    for (content, reason) in [
        (&b""[..], "is empty"),
        (&whole[..whole.len() / 2], "(byte "),
        (b"hello", "neither a pickle nor JSON"),
        (b"nothing", "name a file that PyTorch wrote"),
    ] {
        let file = folder.path().join("trace_rank_0");
        std::fs::write(&file, content).unwrap();
        let examination = examine_dumps(&[file]);
        assert_eq!(examination.health(), Health::CannotTell);
        let finding = only(&examination);
        assert!(finding.rule == "recorder-unreadable" && finding.diagnosis.contains(reason), "{finding:?}");
    }
}
