//! Conclusions from a digest: what the log proves, what it lacks, and what went wrong.

mod diagnostics;
mod facts;
mod gaps;
mod hits;
mod job;
mod known;
mod moment;
mod order;
mod paths;
mod ranks;
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

/// Draws the conclusions from the digest of a log.
pub fn conclude(digest: &Digest, rules: &Rules) -> Examination {
    let job = Job::new(digest);
    let ways = job.main.map(|main| Ways::new(&job, main));
    let mut found: Vec<Placed> = ranks::versions(&job);
    found.extend(torch::find(&job));
    found.extend(hits::find(&job, rules));
    found.extend(diagnostics::find(&job, rules));
    found.extend(ranks::find(&job));
    found.extend(known::find(&job));
    paths::find(&job, rules, ways.as_ref(), &mut found);
    found.extend(startup::find(&job).map(Placed::derived));
    let variables = variables::find(&job, &found);
    found.extend(variables);
    let mut examination = Examination::new("log");
    examination.findings = order::order(&job, found);
    prove(&job, ways.as_ref(), &mut examination);
    examination.sections = facts::sections(&job, ways.as_ref());
    examination.sections.extend(known::section(&job));
    examination.facts = facts::value(digest, ways.as_ref());
    examination.sort();
    examination
}

/// Adds what the log proves, and what it lacks. Only a complete log proves anything: the ranks that it lacks can use another
/// transport.
fn prove(job: &Job<'_>, ways: Option<&Ways<'_>>, examination: &mut Examination) {
    let unseen = &mut examination.unseen;
    for input in job.digest.inputs.iter().filter(|input| input.problem.is_some()) {
        let problem = input.problem.as_deref().unwrap_or_default();
        unseen.push(format!("the rest of {}: {problem}", input.name));
    }
    unseen.extend(job.digest.limits.iter().cloned());
    let lines: u64 = job.digest.inputs.iter().map(|input| input.nccl_lines).sum();
    let Some(ways) = ways else {
        unseen.push(match lines {
            0 => "there is no line of NCCL: run the job with NCCL_DEBUG=INFO, and pass the output of all ranks".to_owned(),
            _ => "no communicator was started in this log: run the job with NCCL_DEBUG=INFO, and pass its whole output".to_owned(),
        });
        return;
    };
    let communicator = ways.communicator;
    if communicator.ranks == 1 {
        unseen.push("a single rank has no transport to prove: run at least 2 ranks".to_owned());
        return;
    }
    let absent: Vec<u32> =
        (0..communicator.ranks).filter(|rank| !communicator.members.contains_key(rank)).collect();
    let sentences = ways.sentences();
    if !absent.is_empty() {
        let proven = match &sentences[..] {
            [] => "no connection is proven".to_owned(),
            some => format!("proven is only: {}", some.join("; ")),
        };
        unseen.push(format!("the logs of {} are not here; {proven}", ranks_in_words(&absent)));
        return;
    }
    let gaps = gaps::find(job, ways);
    if !gaps.is_empty() {
        unseen.extend(gaps);
        return;
    }
    examination.proof = sentences;
}
