//! Writers of one rank made one.

use super::super::digest::{CallFailure, FAILURES, Retries, Writer};

/// Removes the last failures beyond [`FAILURES`], first failures of the start and of the end: they may be
/// harmless.
pub(super) fn keep_failures(failures: &mut Vec<CallFailure>) {
    while failures.len() > FAILURES {
        let may_be_harmless = |each: &CallFailure| each.is_of_start || each.is_of_end;
        let index = failures.iter().rposition(may_be_harmless).unwrap_or(failures.len() - 1);
        failures.remove(index);
    }
}

/// Adds the lines of a thread without rank to the writer of its process.
pub(super) fn take_over(writer: &mut Writer, other: Writer) {
    if other.last > writer.last {
        (writer.last, writer.last_text) = (other.last, other.last_text);
    }
    writer.first = writer.first.min(other.first);
    writer.operation_failed |= other.operation_failed;
    writer.failures.extend(other.failures);
    writer.failures.sort_by_key(|failure| failure.first);
    keep_failures(&mut writer.failures);
    writer.retries = match (writer.retries.take(), other.retries) {
        (Some(one), Some(two)) => {
            let (earlier, later) = if one.last <= two.last { (one, two) } else { (two, one) };
            Some(Retries {
                count: earlier.count + later.count,
                attempt: earlier.attempt.max(later.attempt),
                attempts: later.attempts.or(earlier.attempts),
                peer: later.peer.or(earlier.peer),
                first: earlier.first.min(later.first),
                ..later
            })
        }
        (one, two) => one.or(two),
    };
}
