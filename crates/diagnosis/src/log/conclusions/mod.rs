//! Conclusions from a digest: proofs, gaps of the log, and faults.

mod cleanup;
mod context;
mod diagnostics;
mod ends;
mod exceptions;
mod explained;
mod facts;
mod failures;
mod gaps;
mod hits;
mod job;
mod jobs;
mod known;
mod moment;
mod needs;
mod order;
mod paths;
mod ranks;
mod start;
mod startup;
#[cfg(test)]
mod tests;
mod torch;
mod transport;
mod variables;

use self::hits::Placed;
use self::job::{Job, ranks_in_words};
use self::transport::Ways;
use super::digest::Digest;
use crate::examination::Examination;
use crate::knowledge::rules::Rules;
use crate::knowledge::texts::compose_finding;

/// Draws the conclusions from the digest of a log. Each of several jobs is judged by itself.
pub fn conclude(digest: &Digest, rules: &Rules) -> Examination {
    let jobs::Parts { jobs, skipped } = jobs::split_jobs(digest, rules);
    if jobs.is_empty() {
        return of_job(digest, rules);
    }
    let mut examination = Examination::new("log");
    let places: Vec<&str> = jobs.iter().map(|job| job.place.as_str()).collect();
    let all = skipped + jobs.len();
    let which = if skipped > 0 { format!("; judged are the last {}", jobs.len()) } else { String::new() };
    examination.findings.push(compose_finding(
        "several-jobs",
        &[("count", &all), ("judged", &which), ("places", &places.join("; "))],
    ));
    let mut is_proven = skipped == 0;
    if skipped > 0 {
        let text =
            format!("the first {skipped} jobs of the log were not judged: pass a separate log for each job");
        examination.unseen.push(text);
    }
    let mut facts = Vec::new();
    for (index, part) in jobs.iter().enumerate() {
        let of = |text: &str| format!("Job {}: {text}", skipped + index + 1);
        let own = of_job(&part.digest, rules);
        is_proven &= !own.proof.is_empty() && part.is_whole;
        if !part.is_whole {
            let text = "messages that other jobs also have are not kept for each job: pass a separate log \
                        for each job";
            examination.unseen.push(of(text));
        }
        examination.proof.extend(own.proof.iter().map(|text| of(text)));
        examination.unseen.extend(own.unseen.iter().map(|text| of(text)));
        examination.findings.extend(own.findings.into_iter().map(|mut finding| {
            finding.diagnosis = of(&finding.diagnosis);
            finding
        }));
        examination.sections.extend(own.sections.into_iter().map(|mut section| {
            section.title = of(&section.title);
            section
        }));
        facts.push(own.facts);
    }
    if let Some(text) = gaps::describe_unjoined_hosts(digest) {
        examination.unseen.insert(0, text);
        is_proven = false;
    }
    if !is_proven {
        // One job proves nothing about another one.
        let proof = std::mem::take(&mut examination.proof);
        examination
            .unseen
            .extend(proof.into_iter().map(|text| format!("{text}; other parts of the log have no proof")));
    }
    examination.facts = serde_json::json!({ "jobs": facts });
    examination.sort_findings();
    examination
}

/// Draws the conclusions about one job.
fn of_job(digest: &Digest, rules: &Rules) -> Examination {
    let job = Job::new(digest);
    let (groups, more) = job.communicators_to_prove();
    let mut groups = groups.into_iter().map(|communicator| Ways::new(&job, communicator));
    let ways = groups.next();
    let others: Vec<Ways<'_>> = groups.collect();
    let proven = match more {
        0 => context::find_proven_uses(&job, ways.iter().chain(&others)),
        _ => std::collections::BTreeSet::new(),
    };
    let mut found: Vec<Placed> = ranks::find_version_differences(&job);
    found.extend(ranks::find_other_sizes(&job));
    found.extend(torch::judge_watchdog_reports(&job));
    found.extend(hits::find_known_messages(&job, rules, &proven));
    explained::add_stack_frames(&job, rules, &mut found);
    explained::explain_consequences(&job, &mut found);
    found.extend(diagnostics::find_reported_checks(&job, rules));
    let failures = failures::find_unreachable_peers(&job);
    found.extend(failures);
    explained::explain_crashes(&mut found);
    cleanup::soften_cleanup_failures(&job, &mut found);
    cleanup::excuse_ends(&job, &mut found);
    let of_ranks = ranks::find_rank_differences(&job, &found);
    found.extend(of_ranks);
    exceptions::judge_exceptions(&job, &mut found);
    if !start::has_failure(&found) {
        found.extend(failures::find_unexplained_failure(&job, rules, &found));
    }
    found.extend(known::find_known_faults(&job, &proven));
    paths::find_transport_problems(&job, rules, ways.as_ref(), &mut found);
    others.iter().for_each(|ways| paths::of_group(&job, ways, &mut found));
    found.extend(startup::find_slow_start(&job).map(Placed::without_line));
    let variables = variables::find_harmful_variables(&job, &found);
    found.extend(variables);
    let mut examination = Examination::new("log");
    examination.findings = order::order_findings(&job, found);
    prove_transport(&job, ways.as_ref(), &others, &mut examination);
    if !examination.proof.is_empty() {
        let unseen = gaps::find_unseen_end(&job);
        if unseen.is_some() {
            let proven = examination.proof.iter_mut();
            proven.for_each(|text| *text += "; the log does not show that an operation finished");
        }
        examination.findings.splice(0..0, unseen);
    }
    if more > 0 {
        let text = format!(
            "{more} further groups of processes were not examined: pass a separate log for each group"
        );
        examination.unseen.push(text);
        examination.proof.clear();
    }
    examination.sections = facts::log_sections(&job, ways.as_ref());
    examination.sections.extend(known::known_faults_section(&job, &proven));
    examination.facts = facts::facts_as_json(digest, ways.as_ref());
    examination.sort_findings();
    examination
}

/// Adds the log's proofs and gaps. Each communicator not contained in a larger one needs its own proof.
fn prove_transport(
    job: &Job<'_>,
    ways: Option<&Ways<'_>>,
    others: &[Ways<'_>],
    examination: &mut Examination,
) {
    let unseen = &mut examination.unseen;
    for input in job.digest.inputs.iter().filter(|input| input.problem.is_some()) {
        let problem = input.problem.as_deref().unwrap_or_default();
        let part = if input.lines == 0 { "" } else { "the rest of " };
        unseen.push(format!("{part}{}: {problem}", input.name));
    }
    unseen.extend(job.digest.limits.iter().cloned());
    let (blanked, is_ambiguous) = gaps::describe_blanked_names(job).unzip();
    let is_ambiguous = is_ambiguous.unwrap_or_default();
    let Some(ways) = ways else {
        unseen.push(gaps::describe_missing_communicator(job));
        unseen.extend(blanked.into_iter().chain(gaps::describe_left_out_lines(job)));
        return;
    };
    let (mut proof, mut gaps) = (Told::default(), Told::default());
    for group in std::iter::once(ways).chain(others) {
        let (told, texts) = match prove_communicator(job, group) {
            Ok(sentences) => (&mut proof, sentences),
            Err(sentences) => (&mut gaps, sentences),
        };
        texts.into_iter().for_each(|text| told.add_sentence(text, &group.communicator.id));
    }
    let (proof, mut gaps) = (proof.into_sentences(others.is_empty()), gaps.into_sentences(others.is_empty()));
    if !job.digest.limits.is_empty() {
        gaps.push("not everything in the log was kept: the lost lines can change the result".to_owned());
    }
    gaps.extend(gaps::find_gaps_beside_communicators(job));
    let (ambiguous, open) = if is_ambiguous { (blanked, None) } else { (None, blanked) };
    gaps.splice(0..0, ambiguous.into_iter().chain(gaps::describe_empty_table(job)));
    match gaps.is_empty() {
        true => examination.proof = proof,
        false => {
            let proof = proof.into_iter().map(|text| format!("{text}; other parts of the log have no proof"));
            unseen.extend(gaps.into_iter().chain(proof));
        }
    }
    unseen.extend(open);
}

/// Sentences, each with its communicators.
#[derive(Default)]
struct Told<'a>(Vec<(String, Vec<&'a str>)>);

impl<'a> Told<'a> {
    fn add_sentence(&mut self, text: String, communicator: &'a str) {
        match self.0.iter_mut().find(|(known, _)| *known == text) {
            Some((_, communicators)) => communicators.push(communicator),
            None => self.0.push((text, vec![communicator])),
        }
    }

    /// Returns the sentences with the names of the communicators. A job of one group does not need the names.
    fn into_sentences(self, is_single: bool) -> Vec<String> {
        let line = |(text, communicators): (String, Vec<&str>)| match &communicators[..] {
            _ if is_single => text,
            [one] => format!("{}: {text}", job::describe_communicator(one)),
            several => format!("{} communicators: {text}", several.len()),
        };
        self.0.into_iter().map(line).collect()
    }
}

/// Returns the log's proofs about a communicator, or else its gaps. Only a complete log proves anything:
/// absent ranks can use another transport.
fn prove_communicator(job: &Job<'_>, ways: &Ways<'_>) -> Result<Vec<String>, Vec<String>> {
    let communicator = ways.communicator;
    if communicator.ranks == 1 {
        return Err(vec!["a single rank has no transport to prove: run at least 2 ranks".to_owned()]);
    }
    let sentences = ways.describe_ways();
    let proven = match &sentences[..] {
        [] => "no connection is proven".to_owned(),
        some => format!("proven is only: {}", some.join("; ")),
    };
    if communicator.is_size_guessed {
        return Err(gaps::describe_unknown_size(communicator, &proven));
    }
    let absent: Vec<u32> =
        (0..communicator.ranks).filter(|rank| !communicator.members.contains_key(rank)).collect();
    if !absent.is_empty() {
        return Err(vec![format!("the logs of {} are not here; {proven}", ranks_in_words(&absent))]);
    }
    let mut gaps = gaps::find_gaps(job, ways);
    if gaps.is_empty() {
        return Ok(sentences);
    }
    if !sentences.is_empty() {
        gaps.push(format!("the connections in the log: {}", sentences.join("; ")));
    }
    Err(gaps)
}
