//! Order of causes and consequences.
//!
//! A *cascade* (a timeout, an abort, a lost peer) is never the cause if a *root* can have caused it. A root
//! can have caused a cascade unless it is known to be later. This is known in two ways only:
//!
//! 1. One process wrote both, into one file, and both are lines of NCCL, or both are not: its lines are in
//!    order, except nearby lines of its threads ([`THREADS`]).
//! 2. Both lines have times of one form and zone. The clocks of two hosts may differ by a few seconds
//!    ([`CLOCKS_S`]), so a root counts as later only beyond this difference. A root hours after an abort is
//!    not its cause.
//!
//! The order of lines of several processes proves nothing: they are written at the same time, through buffers
//! and launchers. So a root of another process wins, far above or below the cascade, until a time proves it
//! later. Launchers and the kernel's log report earlier events at the end of a file. For them only a time
//! counts, with [`REPORT_S`].
//!
//! Without a root, an unknown warning or a suspicious line may be the cause of the first cascade: the nearest
//! one above it of the same process, then one a few lines below it, then the latest one before it by time,
//! then the nearest one above it in the file, then the nearest one below it, then one of another file.

use super::failures;
use super::hits::{Placed, cite_consequences};
use super::job::Job;
use super::moment::Moment;
use crate::finding::{Finding, Severity};
use crate::knowledge::parts::find_part;
use crate::log::digest::Example;
use crate::log::exceptions::HEAD_RULE;

/// Difference of the clocks of two hosts without a meaning for the order, in seconds.
const CLOCKS_S: f64 = 5.0;

/// Difference of times of one host without a meaning for the order, in seconds: launchers stamp a line when
/// they read it, and a time without fractions of a second can be anywhere in its second.
const STAMPS_S: f64 = 1.0;

/// Time within which a launcher reports a death, in seconds.
const REPORT_S: f64 = 600.0;

/// Lines within which the threads of a process can write a consequence before its cause.
const THREADS: u64 = 10;

/// Largest number of lines of a traceback.
const TRACEBACK: u64 = 60;

/// Order of two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The first message is earlier.
    Earlier,
    /// The first message is later.
    Later,
    /// The order is unknown.
    Open,
}

/// Puts each cascade below a possible root. Without a root, the first cascade becomes a finding without a
/// cause in the log, and the other cascades are its consequences.
pub(super) fn order_findings(job: &Job<'_>, found: Vec<Placed>) -> Vec<Finding> {
    let failing = found.iter().filter(|each| each.is_cascade || each.is_root);
    let failing: Vec<u32> = failing.flat_map(|each| each.finding.ranks.iter().copied()).collect();
    let (mut cascades, mut others): (Vec<Placed>, Vec<Placed>) =
        found.into_iter().partition(|each| each.is_cascade);
    sort_cascades(&mut cascades);
    let mut alone = Vec::new();
    let mut followed: Vec<Vec<Placed>> = others.iter().map(|_| Vec::new()).collect();
    for cascade in cascades {
        match others.iter().position(|each| each.is_root && can_cause(job, each, &cascade)) {
            Some(root) => followed[root].push(cascade),
            None => alone.push(cascade),
        }
    }
    for (other, cascades) in others.iter_mut().zip(followed) {
        other.finding.consequences.extend(cite_consequences(cascades));
    }
    // A failure with consequences comes before other faults.
    others.sort_by_key(|each| each.finding.consequences.is_empty());
    let suspect = alone.first().and_then(|cascade| find_suspect(job, &others, cascade));
    // Other ranks waited for the ranks of a lead: only warnings of the latter can be the cause.
    let is_told = |each: &Placed| each.is_lead && !each.finding.ranks.is_empty();
    let leads: Vec<u32> = alone
        .iter()
        .filter(|each| is_told(each))
        .flat_map(|each| each.finding.ranks.iter().copied())
        .collect();
    let suspect = suspect.filter(|&index| {
        leads.is_empty() || others[index].finding.ranks.iter().any(|rank| leads.contains(rank))
    });
    // A line that says only that something failed explains no failure with a message of its own.
    let is_exact = alone.iter().any(|cascade| !cascade.is_vague && !cascade.examples.is_empty());
    let suspect = suspect.filter(|&index| !(is_exact && others[index].is_vague));
    let suspect = suspect.map(|index| others.remove(index));
    let mut findings: Vec<Finding> = Vec::new();
    let severity = alone.iter().map(|each| each.finding.severity).min();
    let lead = alone.extract_if(.., |each| each.is_lead).next();
    findings.extend(match (suspect, lead) {
        (Some(suspect), lead) => {
            others.extend(lead);
            Some(after_warning(job, suspect, severity, alone))
        }
        (None, Some(lead)) => Some(Finding { consequences: cite_consequences(alone), ..lead.finding }),
        (None, None) => without_cause(job, alone, &failing),
    });
    findings.extend(others.into_iter().map(|each| each.finding));
    findings
}

/// Sorts cascades: by time if all have one, else by place. A failure from a conclusion, without a line of its
/// own, comes after the messages.
fn sort_cascades(cascades: &mut [Placed]) {
    cascades.sort_by_key(|each| {
        (each.first_example().is_none(), each.first_example().map(|example| example.position))
    });
    let messages = cascades.iter().take_while(|each| each.first_example().is_some()).count();
    let times = cascades[..messages].iter().map(|each| Moment::parse(each.first_example()?.time.as_deref()?));
    let Some(times) = times.collect::<Option<Vec<Moment>>>() else { return };
    if times.windows(2).all(|pair| pair[0].seconds_since(&pair[1]).is_some()) {
        let time = |each: &Placed| Moment::parse(each.first_example()?.time.as_deref()?);
        cascades[..messages].sort_by(|one, other| {
            let difference = time(one).zip(time(other)).and_then(|(one, other)| one.seconds_since(&other));
            difference.unwrap_or(0.0).total_cmp(&0.0)
        });
    }
}

/// Returns true unless all messages of the root are known to be later than one of the cascade.
fn can_cause(job: &Job<'_>, root: &Placed, cascade: &Placed) -> bool {
    let later = |one: &Example| {
        cascade.examples.iter().any(|other| match root.is_reported_late {
            true => by_time(job, one, other, REPORT_S) == Order::Later,
            false => compare_messages(job, one, other) == Order::Later,
        })
    };
    // The digest keeps the first messages only: dropped messages of other processes can be earlier.
    let is_shown = |writer: &usize| {
        let process = job.process_of(*writer);
        root.examples.iter().any(|example| job.process_of_message(example) == process)
    };
    root.examples.is_empty() || !root.writers.iter().all(is_shown) || !root.examples.iter().all(later)
}

/// Returns the order of two messages.
fn compare_messages(job: &Job<'_>, one: &Example, other: &Example) -> Order {
    if one.position.input == other.position.input && is_of_one_process(job, one, other) {
        return match (one.position <= other.position, one.position.line.abs_diff(other.position.line)) {
            (true, _) => Order::Earlier,
            (false, lines) if lines <= THREADS => Order::Open,
            (false, _) => Order::Later,
        };
    }
    by_time(job, one, other, CLOCKS_S)
}

/// Returns the order of two messages by their times.
fn by_time(job: &Job<'_>, one: &Example, other: &Example, tolerance_s: f64) -> Order {
    let moment = |example: &Example| example.time.as_deref().and_then(Moment::parse);
    let Some((first, second)) = moment(one).zip(moment(other)) else { return Order::Open };
    let Some(difference) = first.seconds_since(&second) else { return Order::Open };
    let host = |example: &Example| job.process_of_message(example).map(|(host, _)| host);
    let is_one_clock = host(one).is_some() && host(one) == host(other);
    let tolerance_s = if is_one_clock && tolerance_s <= CLOCKS_S { STAMPS_S } else { tolerance_s };
    match difference {
        later if later > tolerance_s => Order::Later,
        earlier if earlier < -tolerance_s => Order::Earlier,
        _ => Order::Open,
    }
}

/// Returns true for two messages of one process, both of NCCL or both of the program: these have an order.
/// NCCL and its program write through different streams.
fn is_of_one_process(job: &Job<'_>, one: &Example, other: &Example) -> bool {
    let is_one_stream = one.writer.is_some() == other.writer.is_some();
    is_one_stream
        && job.process_of_message(one).is_some_and(|process| job.process_of_message(other) == Some(process))
}

/// Returns the index of the unknown warning or suspicious line that may be the cause of a cascade.
fn find_suspect(job: &Job<'_>, others: &[Placed], cascade: &Placed) -> Option<usize> {
    let unknown = |each: &Placed| each.finding.severity == Severity::Unknown && !each.is_aftermath;
    let cascade = cascade.first_example();
    let candidates = others.iter().enumerate().filter(|(_, each)| unknown(each) && !ends_in(each, cascade));
    let ranked = candidates.filter_map(|(index, each)| {
        let ranks = each.examples.iter().filter_map(|example| rank_suspect(job, example, cascade));
        Some((ranks.min()?, index))
    });
    ranked.min().map(|(_, index)| index)
}

/// Returns true for the traceback of Python that the cascade ends, and for tracebacks below the cascade: they
/// name no reason.
fn ends_in(each: &Placed, cascade: Option<&Example>) -> bool {
    let is_above = |traceback: &Example, last: &Example| {
        let lines = last.position.line.checked_sub(traceback.position.line);
        traceback.position.input == last.position.input && lines.is_some_and(|lines| lines <= TRACEBACK)
    };
    let is_below = |traceback: &Example, first: &Example| {
        traceback.position.input == first.position.input && traceback.position > first.position
    };
    each.finding.rule == HEAD_RULE
        && cascade.is_some_and(|cascade| {
            each.examples.iter().any(|example| is_above(example, cascade))
                || each.examples.iter().all(|example| is_below(example, cascade))
        })
}

/// Returns the priority of a warning as the possible cause of a message, the likeliest first, or `None` for a
/// later warning.
fn rank_suspect(job: &Job<'_>, warning: &Example, cascade: Option<&Example>) -> Option<(u8, u64)> {
    let Some(cascade) = cascade else { return Some((5, warning.position.line)) };
    let is_same_file = warning.position.input == cascade.position.input;
    let lines = cascade.position.line.checked_sub(warning.position.line);
    match compare_messages(job, warning, cascade) {
        Order::Later => None,
        Order::Earlier if is_of_one_process(job, warning, cascade) && is_same_file => Some((0, lines?)),
        // The warning can be of another thread, a few lines below.
        Order::Open if is_of_one_process(job, warning, cascade) && is_same_file => {
            Some((1, warning.position.line.abs_diff(cascade.position.line)))
        }
        Order::Earlier => {
            let moment = |example: &Example| example.time.as_deref().and_then(Moment::parse);
            let seconds = moment(cascade)?.seconds_since(&moment(warning)?)?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
            Some((2, (seconds * 1e3) as u64))
        }
        Order::Open if is_same_file => {
            // The order of lines of several processes proves nothing: one below comes after those above.
            Some(lines.map_or((4, warning.position.line.abs_diff(cascade.position.line)), |lines| (3, lines)))
        }
        Order::Open => Some((5, warning.position.line)),
    }
}

/// Returns the finding of a failure after an unknown warning or a suspicious line.
fn after_warning(job: &Job<'_>, suspect: Placed, severity: Option<Severity>, alone: Vec<Placed>) -> Finding {
    let mut finding = suspect.finding;
    finding.severity = severity.unwrap_or(finding.severity);
    finding.diagnosis = match finding.source {
        None => {
            let part = suspect.examples.iter().find_map(|example| find_part(&example.place));
            let part = part.or_else(|| failures::find_first_failed_part(job));
            let place = part.map(|part| format!(" in {}", part.name)).unwrap_or_default();
            finding.cause = finding.cause.or_else(|| Some(part?.cause.clone()));
            finding.remedy = finding.remedy.or_else(|| Some(part?.remedy.clone()));
            format!("The job failed, perhaps after this warning of NCCL{place}: {}", warning_text(&finding))
        }
        Some(_) => format!("The job failed, perhaps for this reason: {}", finding.diagnosis),
    };
    finding.consequences = cite_consequences(alone);
    finding
}

/// Returns the text of an unknown warning.
fn warning_text(finding: &Finding) -> &str {
    finding.evidence.first().map_or("", |evidence| evidence.text.trim())
}

/// Returns the finding of a failure without a cause in the log.
fn without_cause(job: &Job<'_>, mut alone: Vec<Placed>, failing: &[u32]) -> Option<Finding> {
    let severity = alone.iter().map(|each| each.finding.severity).min()?;
    // The conclusions without a line come last.
    let is_exact = |each: &Placed| !each.examples.is_empty() && !each.is_vague;
    let first = alone.iter().position(is_exact).or_else(|| alone.iter().position(|each| each.is_class));
    let first = alone.remove(first.unwrap_or(0));
    if first.examples.is_empty() {
        // Incomplete ranks: the conclusion is the diagnosis.
        let mut finding = first.finding;
        finding.evidence.extend(failures::first_failed_call(job));
        return Some(finding);
    }
    // Of the ranks of the log, the lost one reports nothing.
    let all = job.main.iter().flat_map(|main| main.members.keys().copied());
    let silent: Vec<u32> = all.filter(|rank| !failing.is_empty() && !failing.contains(rank)).collect();
    let (is_vague, is_waiting) = (first.is_vague, first.is_waiting);
    let mut finding = first.finding;
    finding.severity = severity;
    finding.evidence.extend(failures::first_failed_call(job));
    if let Some(part) = failures::find_first_failed_part(job).filter(|_| is_vague) {
        finding.diagnosis = format!("NCCL failed in {}", part.name);
        (finding.cause, finding.remedy) = (Some(part.cause.clone()), Some(part.remedy.clone()));
    }
    let failed = format!("{}; the cause is not in this log", finding.diagnosis.trim_end_matches('.'));
    finding.diagnosis = match &silent[..] {
        [] => failed,
        [rank] => format!("{failed}; look first at rank {rank}, which reports nothing"),
        several => {
            let ranks = super::job::ranks_in_words(several);
            format!("{failed}; look first at {ranks}, which report nothing")
        }
    };
    if let Some(bar) = job.digest.open_bar.as_ref().filter(|_| is_waiting) {
        let busy =
            format!("A bar of progress stands at {}: its process may still be busy with it.", bar.text);
        finding.cause = Some(match finding.cause {
            Some(cause) => format!("{busy} {cause}"),
            None => busy,
        });
        finding.evidence.push(job.cite_example(bar));
    }
    finding.consequences = cite_consequences(alone);
    Some(finding)
}

#[cfg(test)]
mod tests;
