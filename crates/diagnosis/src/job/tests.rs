use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::client::{ClientFailure, Poll, Tries, Unanswered};
use super::status::{Absence, Format, State, Status};
use super::watch::{Selection, Watch};
use super::{answer, judge};
use crate::examination::{Examination, Health};
use crate::finding::{Finding, Severity};

pub(super) fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/ras").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(super) fn read(name: &str) -> Status {
    let format = if name.ends_with(".json") { Format::Json } else { Format::Text };
    answer::parse_answer(&fixture(name), format).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Judges two answers, five seconds apart.
fn judged(first: &Status, second: &Status) -> Examination {
    let at = Instant::now();
    let poll = |status: &Status, at| Poll { status: status.clone(), at, tries: Tries::default() };
    judge::examine_job(&Watch {
        address: "localhost:28028".to_owned(),
        first: poll(first, at),
        second: Ok(poll(second, at + Duration::from_secs(5))),
    })
}

fn only(examination: &Examination) -> &Finding {
    let rules: Vec<&str> = examination.findings.iter().map(|finding| finding.rule.as_str()).collect();
    assert_eq!(rules.len(), 1, "{rules:?}");
    &examination.findings[0]
}

#[test]
fn json_of_a_running_job_has_all_ranks() {
    let status = read("2.30.7-ok.1.json");
    assert_eq!(status.nccl_version, "2.30.7");
    assert_eq!((status.cuda_runtime, status.cuda_driver), (Some(12090), Some(13000)));
    let [communicator] = &status.communicators[..] else { panic!("{:?}", status.communicators) };
    assert_eq!(communicator.identity.hash, 0x0855_a49e_b670_9d28);
    assert_eq!(communicator.size, 2);
    assert_eq!(communicator.ranks[1].counts["AllReduce"], 3311);
    assert_eq!(communicator.ranks[1].place.as_ref().unwrap().pid, 4543);
    assert_eq!(communicator.ranks[1].state, Some(State::Running));
    assert!(!status.repaired);
}

#[test]
fn the_comma_that_nccl_2_28_9_leaves_out_is_added() {
    let bytes = fixture("2.28.9-killed.json");
    assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_err());
    let (broken, sound) = (read("2.28.9-killed.json"), read("2.30.7-killed.json"));
    assert!(broken.repaired);
    assert_eq!(broken.communicators, sound.communicators);
    assert_eq!(broken.communicators[0].missing[0].absence, Absence::Unresponsive);
}

#[test]
fn text_and_json_of_one_job_agree() {
    for name in ["absent", "killed", "stopped"] {
        let text = read(&format!("2.30.7-{name}.txt"));
        let json = read(&format!("2.30.7-{name}.json"));
        let (text, json) = (&text.communicators[0], &json.communicators[0]);
        assert_eq!(text.size, json.size, "{name}");
        assert_eq!(text.missing, json.missing, "{name}");
        for rank in &text.ranks {
            let same = json.rank(rank.rank).unwrap();
            assert_eq!(rank.place, same.place, "{name}");
            assert_eq!(rank.state, same.state, "{name}");
            assert_eq!(rank.async_error, same.async_error, "{name}");
            for (collective, count) in &rank.counts {
                assert_eq!(same.counts[collective], *count, "{name}");
            }
        }
    }
    assert_eq!(read("2.30.7-absent.txt").communicators[0].ranks[1].counts["AllReduce"], 5);
}

#[test]
fn text_of_nccl_2_24_has_one_count_for_all_collectives() {
    let status = read("2.24.3-late.txt");
    let communicator = &status.communicators[0];
    assert_eq!((communicator.size, communicator.ranks.len()), (16, 16));
    let late = communicator.rank(11).unwrap();
    assert_eq!(late.counts["collective"], 119);
    let place = late.place.as_ref().unwrap();
    assert_eq!((place.cuda_dev, place.nvml_dev, place.pid), (0, 3, 5311));
    assert_eq!(communicator.rank(0).unwrap().counts["collective"], 120);

    let dead = read("2.24.3-dead.txt");
    assert_eq!(dead.dead.named[0].pid, 5302);
    let missing = &dead.communicators[0].missing;
    assert_eq!((missing[0].rank, missing[0].absence), (2, Absence::Dead));
    assert_eq!(dead.communicators[0].ranks.len(), 3);
    assert!(dead.communicators[0].ranks.iter().all(|rank| rank.async_error.is_some()));
}

#[test]
fn text_of_nccl_2_28_has_a_count_per_collective_and_names_only_outliers() {
    let status = read("2.28.3-mixed.txt");
    assert_eq!(status.timeouts, 2);
    assert_eq!(status.communicator_count(), 7);
    assert_eq!(status.silent.count, 2);
    assert_eq!(status.silent.named[0].gpus, "1,2 (NVML 5,6)");
    let first = status.communicators.iter().find(|each| each.size == 14).unwrap();
    assert_eq!(first.identity.hash, 0x006f_2a1c);
    assert_eq!(first.rank(4).unwrap().counts["AllGather"], 299);
    assert_eq!(first.rank(5).unwrap().counts["AllGather"], 299);
    assert_eq!(first.rank(13).unwrap().counts["AllGather"], 300);
    assert_eq!(first.rank(4).unwrap().counts["AllReduce"], 0);
    assert_eq!(first.rank(13).unwrap().counts["AllReduce"], 7);
    let second = status.communicators.iter().find(|each| each.size == 7).unwrap();
    assert_eq!((second.missing[0].rank, second.missing[0].absence), (6, Absence::NotAMember));
    assert_eq!(second.rank(2).unwrap().state, Some(State::Running));
    assert_eq!(second.rank(0).unwrap().state, Some(State::Init));
}

#[test]
fn counts_that_grow_on_all_ranks_are_healthy() {
    let examination = judged(&read("2.30.7-ok.1.json"), &read("2.30.7-ok.2.json"));
    assert_eq!(examination.findings, []);
    assert_eq!(examination.proof, ["all 2 ranks launched 1111 operations in 5.0 s"]);
    assert_eq!(examination.health(), Health::Healthy);
    assert_eq!(examination.facts["second"]["communicators"][0]["ranks"][1]["pid"], 4543);
}

#[test]
fn equal_counts_that_do_not_grow_cannot_tell() {
    let status = read("2.30.7-ok.1.json");
    let examination = judged(&status, &status);
    let finding = only(&examination);
    assert_eq!(finding.rule, "job-no-progress");
    assert!(finding.diagnosis.contains("AllReduce 3311"), "{}", finding.diagnosis);
    assert_eq!(examination.health(), Health::CannotTell);
}

#[test]
fn the_rank_behind_has_not_arrived() {
    for name in ["2.30.7-absent.json", "2.30.7-absent.txt"] {
        let status = read(name);
        let examination = judged(&status, &status);
        let finding = only(&examination);
        assert_eq!((finding.rule.as_str(), finding.severity), ("job-not-arrived", Severity::Broken));
        assert_eq!(
            finding.diagnosis,
            "Rank 1 (GPU 0, process 4858 on 192.0.2.2) has not launched AllReduce 6, which 1 rank launched \
             and waits for, and no rank launched anything in 5.0 s."
        );
        assert_eq!(finding.ranks, [1]);
        assert_eq!(finding.hosts, ["192.0.2.2"]);
        assert!(finding.remedy.as_ref().unwrap().contains("py-spy dump --pid 4858"));
    }
    let late = read("2.24.3-late.txt");
    let examination = judged(&late, &late);
    assert_eq!(only(&examination).ranks, [11]);
    assert!(only(&examination).diagnosis.contains("which 15 ranks launched and wait for"));
}

#[test]
fn a_rank_that_is_behind_while_counts_grow_is_no_fault() {
    let first = read("2.30.7-absent.json");
    let mut second = first.clone();
    for rank in &mut second.communicators[0].ranks {
        *rank.counts.get_mut("AllReduce").unwrap() += 20 + u64::from(rank.rank);
    }
    let examination = judged(&first, &second);
    assert_eq!(examination.findings, []);
    assert_eq!(examination.proof, ["all 2 ranks launched between 20 and 21 operations in 5.0 s"]);
}

#[test]
fn few_ranks_ahead_of_most_cannot_tell() {
    let mut status = read("2.32.3-pairs.json");
    status.communicators.truncate(1);
    for (rank, count) in status.communicators[0].ranks.iter_mut().zip([8, 7, 7, 7]) {
        rank.counts.insert("AllReduce".to_owned(), count);
    }
    let examination = judged(&status, &status);
    assert_eq!(only(&examination).rule, "job-few-ahead");
    assert_eq!(examination.health(), Health::CannotTell);
    assert!(only(&examination).diagnosis.contains("AllReduce 8, which 3 of 4 ranks have not"));
}

#[test]
fn different_operations_are_told_from_a_late_rank() {
    let mut status = read("2.30.7-absent.json");
    status.communicators[0].ranks[1].counts.insert("Broadcast".to_owned(), 1);
    let examination = judged(&status, &status);
    let finding = only(&examination);
    assert_eq!((finding.rule.as_str(), finding.severity), ("job-different-operations", Severity::Broken));
    let evidence: Vec<&str> = finding.evidence.iter().map(|evidence| evidence.text.as_str()).collect();
    assert!(
        evidence.iter().any(|text| text.ends_with("Rank 1 launched AllReduce 5, Broadcast 1")),
        "{evidence:?}"
    );
}

#[test]
fn the_first_of_several_waiting_communicators_is_named() {
    let status = read("2.32.3-pairs.json");
    let examination = judged(&status, &status);
    let finding = only(&examination);
    assert_eq!(finding.rule, "job-not-arrived");
    assert_eq!(finding.ranks, [3]);
    assert!(
        finding.diagnosis.starts_with(
            "Rank 3 (GPU 1, process 7003 on 192.0.2.11) has not launched AllGather 81 in communicator \
             0xd000000000000020 of 2 ranks"
        ),
        "{}",
        finding.diagnosis
    );
    assert!(finding.evidence.iter().any(|evidence| evidence.text.contains("waits as a consequence")));
}

#[test]
fn ranks_that_wait_for_each_other_in_two_communicators_are_a_circle() {
    let mut status = read("2.32.3-pairs.json");
    status.communicators.remove(0);
    let mut other = status.communicators[1].clone();
    other.identity.hash = 0xd000_0000_0000_0030;
    for (rank, count) in other.ranks.iter_mut().zip([5, 6]) {
        rank.counts.insert("AllGather".to_owned(), count);
    }
    status.communicators.push(other);
    let examination = judged(&status, &status);
    assert_eq!(only(&examination).rule, "job-circle");
    assert_eq!(examination.health(), Health::Broken);
}

#[test]
fn a_rank_that_works_in_another_communicator_is_no_fault() {
    let first = read("2.32.3-pairs.json");
    let mut second = first.clone();
    for communicator in &mut second.communicators[1..] {
        for rank in &mut communicator.ranks {
            *rank.counts.get_mut("AllReduce").unwrap() += 3;
        }
    }
    let examination = judged(&first, &second);
    assert_eq!(examination.findings, []);
    assert_eq!(examination.proof, ["all 4 ranks launched 3 operations in 5.0 s"]);
}

#[test]
fn a_killed_or_stopped_rank_is_named_and_is_the_only_cause() {
    for (name, pid) in [
        ("2.30.7-killed.json", "4603"),
        ("2.30.7-killed.txt", "4603"),
        ("2.28.9-killed.json", "4603"),
        ("2.30.7-stopped.json", "4690"),
        ("2.30.7-stopped.txt", "4690"),
    ] {
        let status = read(name);
        let examination = judged(&status, &status);
        let finding = only(&examination);
        assert_eq!(
            (finding.rule.as_str(), finding.severity),
            ("job-process-silent", Severity::Broken),
            "{name}"
        );
        assert_eq!(
            finding.diagnosis,
            format!("Rank 1 (GPU 0, process {pid} on 192.0.2.2) does not answer the other processes.")
        );
        assert_eq!(finding.ranks, [1]);
        let error = "Rank 0 (GPU 0, process 4602 on 192.0.2.2) reports Remote process error";
        assert_eq!(
            finding.evidence.iter().any(|evidence| evidence.text == error),
            name.contains("killed"),
            "{name}"
        );
    }
    let status = read("2.24.3-dead.txt");
    let examination = judged(&status, &status);
    assert_eq!(only(&examination).rule, "job-process-dead");
    assert_eq!(only(&examination).hosts, ["192.0.2.12"]);
    assert!(only(&examination).diagnosis.contains("5302"), "{}", only(&examination).diagnosis);
}

#[test]
fn a_rank_that_did_not_answer_once_cannot_tell() {
    let mut first = read("2.30.7-stopped.json");
    let mut missing = first.communicators[0].missing.remove(0);
    missing.rank = 1;
    let mut back = first.communicators[0].ranks[0].clone();
    (back.rank, back.place) = (1, missing.place);
    first.communicators[0].ranks.push(back);
    let examination = judged(&first, &read("2.30.7-stopped.json"));
    assert_eq!(examination.findings[0].severity, Severity::Unknown);
    assert_eq!(examination.health(), Health::CannotTell);
}

#[test]
fn an_asynchronous_error_is_broken() {
    let mut status = read("2.30.7-ok.1.json");
    status.communicators[0].ranks[1].async_error = super::status::error_name(2);
    let examination = judged(&status, &read("2.30.7-ok.2.json"));
    assert_eq!(examination.findings.len(), 0, "the later answer counts");
    let examination = judged(&read("2.30.7-ok.2.json"), &status);
    assert_eq!(examination.findings[0].rule, "job-async-error");
    assert_eq!(examination.findings[0].ranks, [1]);
    assert!(examination.findings[0].diagnosis.contains("System error"));
}

#[test]
fn an_unfinished_start_names_who_is_not_in() {
    let status = read("2.31.2-init.json");
    let examination = judged(&status, &status);
    let finding = &examination.findings[0];
    assert_eq!((finding.rule.as_str(), finding.severity), ("job-init-unfinished", Severity::Unknown));
    assert!(finding.diagnosis.contains("rank 3 (GPU 1, process 7003 on 192.0.2.11) has not entered it"));
    assert_eq!(finding.ranks, [3]);
}

#[test]
fn text_without_differences_cannot_tell() {
    let status = read("2.30.7-ok.txt");
    let examination = judged(&status, &status);
    assert_eq!(only(&examination).rule, "job-counts-hidden");
    assert_eq!(examination.health(), Health::CannotTell);
}

/// A text names a communicator only while its ranks differ, so its first counts are not growth.
#[test]
fn a_difference_that_is_new_in_a_text_answer_proves_no_progress() {
    let hangs = read("2.30.7-absent.txt");
    assert_eq!(hangs.communicators[0].ranks.len(), 2);
    let mut equal = hangs.clone();
    equal.communicators.clear();
    // The same when the ranks were named before, for another difference.
    let mut without_counts = hangs.clone();
    for rank in &mut without_counts.communicators[0].ranks {
        rank.counts.clear();
    }
    for first in [equal, without_counts] {
        let examination = judged(&first, &hangs);
        assert_eq!(only(&examination).rule, "job-counts-hidden");
        assert_eq!(examination.proof, [""; 0]);
        assert_eq!(examination.health(), Health::CannotTell);
        let examination = judged(&hangs, &first);
        assert_eq!(only(&examination).rule, "job-counts-hidden");
        assert!(
            !examination.unseen.iter().any(|text| text.contains("destroyed")),
            "{:?}",
            examination.unseen
        );
    }
}

#[test]
fn a_rank_that_is_missing_in_the_first_answer_proves_no_progress() {
    let status = read("2.30.7-ok.2.json");
    let mut first = status.clone();
    first.communicators[0].ranks.remove(1);
    let examination = judged(&first, &status);
    assert_eq!(only(&examination).rule, "job-growth-unknown");
    assert_eq!(examination.health(), Health::CannotTell);
}

#[test]
fn a_job_that_ends_between_the_answers_cannot_tell() {
    let at = Instant::now();
    let failure = ClientFailure::NotListening(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
    let examination = judge::examine_job(&Watch {
        address: "localhost:28028".to_owned(),
        first: Poll { status: read("2.30.7-ok.1.json"), at, tries: Tries::default() },
        second: Err(Unanswered { failure, tries: Tries::default() }),
    });
    assert_eq!(only(&examination).cause.as_deref(), Some("The job has ended."));
    assert_eq!(examination.health(), Health::CannotTell);
}

#[test]
fn a_job_is_selected_by_process_or_communicator() {
    let status = read("2.30.7-ok.1.json");
    let select = |pid, communicator| Selection { pid, communicator }.accepts_answer(&status);
    assert!(select(Some(4542), None) && select(None, Some(0x0855_a49e_b670_9d28)) && select(None, None));
    assert!(!select(Some(1), None) && !select(Some(4542), Some(1)));
}

/// A generator of numbers for mutations: xorshift.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

#[test]
fn no_mutation_of_an_answer_panics() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let names: Vec<String> =
        std::fs::read_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/ras"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
    assert!(names.len() >= 12);
    let mut readable = 0;
    for name in &names {
        let format = if name.ends_with(".json") { Format::Json } else { Format::Text };
        let original = fixture(name);
        for _ in 0..150 {
            let mut bytes = original.clone();
            for _ in 0..=numbers.below(4) {
                let (at, other) = (numbers.below(bytes.len()), numbers.below(bytes.len()));
                match numbers.below(4) {
                    0 => bytes[at] = u8::try_from(numbers.below(256)).unwrap(),
                    1 => bytes[at] = b"0123456789-,{}\n"[numbers.below(15)],
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.swap(at, other),
                }
            }
            if let Ok(status) = answer::parse_answer(&bytes, format) {
                readable += 1;
                judged(&status, &status);
                judged(&read(name), &status);
            }
        }
    }
    assert!(readable > 200, "{readable}");
}
