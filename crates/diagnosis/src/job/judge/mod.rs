//! Judgement of a job by two answers of RAS.

mod launches;
mod members;
mod progress;
mod tables;
mod words;

use serde_json::json;

use super::client::{ClientFailure, Unanswered};
use super::status::Status;
use super::watch::{Selection, Watch};
use crate::examination::Examination;
use crate::finding::{Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::words::plural;
use words::RankNames;

/// Judges a job by two answers.
pub fn examine_job(watch: &Watch) -> Examination {
    let mut examination = Examination::new("job");
    let last = &watch.last_answer().status;
    let rank_names = RankNames::new(last);
    let first = watch.second.is_ok().then_some(&watch.first.status);
    examination.findings = members::find_failed_members(first, last, &rank_names);
    match &watch.second {
        Ok(_) => {
            let conclusions =
                launches::conclude_from_counts(&watch.first.status, last, watch.interval(), &rank_names);
            // Ranks stand still after the loss of another one: only the lost rank is the cause.
            let is_explained =
                examination.findings.iter().any(|finding| finding.severity == Severity::Broken);
            let news = conclusions.findings.into_iter();
            examination
                .findings
                .extend(news.filter(|finding| !is_explained || finding.rule == "job-different-operations"));
            examination.proof.extend(conclusions.proof);
            examination.unseen.extend(conclusions.unseen);
        }
        Err(unanswered) => examination.findings.push(describe_ended_job(unanswered)),
    }
    examination.unseen.extend(list_unseen(watch, last));
    examination.sections = tables::job_sections(watch, &rank_names);
    examination.facts = json!({
        "address": watch.address,
        "interval_s": watch.second.is_ok().then(|| watch.interval().as_secs_f64()),
        "connections_without_answer": tables::count_tries(watch).silent,
        "answers_about_other_jobs": tables::count_tries(watch).others,
        "first": watch.first.status,
        "second": watch.second.as_ref().ok().map(|poll| &poll.status),
    });
    examination.sort_findings();
    examination
}

/// Returns the examination of a job without an answer. It names the process in `selection`.
pub fn examine_unanswered(address: &str, selection: &Selection, unanswered: &Unanswered) -> Examination {
    let process = selection.pid.map_or_else(String::new, |pid| format!(" about the job of process {pid}"));
    let mut examination = Examination::new("job");
    let mut finding = compose_finding(
        "job-no-answer",
        &[
            ("address", &address),
            ("process", &process),
            ("failure", &unanswered.failure),
            ("advice", &unanswered.failure.advice()),
        ],
    );
    if unanswered.tries.silent > 1 {
        finding.occurrences = u64::from(unanswered.tries.silent);
    }
    examination.findings.push(finding);
    examination.facts = json!({
        "address": address,
        "pid": selection.pid,
        "failure": unanswered.failure.to_string(),
        "connections_without_answer": unanswered.tries.silent,
        "answers_about_other_jobs": unanswered.tries.others,
    });
    examination
}

/// Returns the finding about a job without a second answer.
fn describe_ended_job(unanswered: &Unanswered) -> Finding {
    let id = match unanswered.failure {
        ClientFailure::NotListening(_) | ClientFailure::Closed(_) => "job-second-answer-missing",
        ClientFailure::OtherJobs(_) => "job-second-answer-missing/other",
        _ => "job-second-answer-missing/silent",
    };
    let failure = &unanswered.failure;
    compose_finding(id, &[("failure", failure), ("advice", &failure.advice())])
}

/// Returns sentences about facts invisible to RAS.
fn list_unseen(watch: &Watch, last: &Status) -> Vec<String> {
    let mut unseen = vec![
        "RAS counts launched operations, not finished operations: data and speed are not visible.".to_owned(),
        "Sends and receives, and all-to-all, gather and scatter made of them, are not counted, nor are \
         operations replayed from a CUDA graph: a job of these looks idle."
            .to_owned(),
        "Ranks that wait for each other before their communicator's first exchange are not visible to RAS."
            .to_owned(),
    ];
    let tries = tables::count_tries(watch);
    if tries.silent > 0 {
        unseen.push(format!(
            "{} {} to {} {} accepted and not answered: a process that listens there may be stopped.",
            tries.silent,
            plural(tries.silent as usize, "connection", "connections"),
            watch.address,
            plural(tries.silent as usize, "was", "were")
        ));
    }
    if tries.others > 0 {
        unseen.push(format!(
            "{} {} about other jobs of this host; `--pid` or `--communicator` selects one.",
            tries.others,
            plural(tries.others as usize, "answer was", "answers were")
        ));
    }
    if last.timeouts > 0 {
        unseen.push(format!(
            "{} {} in time while RAS collected the state.",
            last.timeouts,
            plural(
                usize::try_from(last.timeouts).unwrap_or(usize::MAX),
                "process did not answer",
                "processes did not answer"
            )
        ));
    }
    unseen
}
