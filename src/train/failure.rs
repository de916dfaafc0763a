//! Failures of one rank that the others must learn about.

use crate::Error;
use crate::job::Group;
use crate::log;
use crate::purpose::MAX_STEP;
use crate::world::Reason;

/// Tells the other ranks about an error that only this rank has: they wait for operations that it will not
/// start. They know errors of the group's operations already.
pub(super) fn tell_failure(group: &Group, error: &Error) {
    let is_own = match error {
        #[cfg(feature = "nccl")]
        Error::Cuda(_) => true,
        error => error.is_refusal(),
    };
    if is_own {
        group.world().fail(Reason::from(error));
    }
}

/// Makes a preparation succeed on all ranks of the group or on none. Collective.
///
/// # Errors
/// This rank's own error; [`Error::Job`] with that of another rank.
pub(super) fn succeed_together<T>(group: &Group, own: Result<T, Error>) -> Result<T, Error> {
    let own = own.map_err(|error| match error {
        #[cfg(feature = "nccl")]
        Error::Cuda(_) => Error::Job(error.to_string()),
        other => other,
    });
    let text = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    // The other ranks wait in this exchange: a refusal is a failure.
    let all = group.all_gather_bytes(text.as_bytes()).inspect_err(|error| tell_failure(group, error));
    let value = own?;
    match all?.iter().enumerate().find(|(_, text)| !text.is_empty()) {
        None => Ok(value),
        Some((rank, text)) => {
            let text = String::from_utf8_lossy(text);
            Err(Error::Job(format!("rank {rank} of the group is not prepared: {text}")))
        }
    }
}

/// Warns of memory that is leaked, since its release cannot be ordered after its uses.
pub(super) fn warn_of_leak(owner: &str, error: &Error) {
    log::warn(format_args!("the memory of {owner} is leaked, since streams may still use it: {error}"));
}

/// Refuses a number that is too large, or that the last step had: ranks could not tell these steps apart.
pub(super) fn check_step_number(number: u64, last: Option<u64>) -> Result<(), Error> {
    if last == Some(number) {
        return Err(Error::Job(format!(
            "step {number} is complete: pass the number of the next step of the program's loop"
        )));
    }
    if number > MAX_STEP {
        return Err(Error::Job(format!("step {number} is refused: the largest number is {MAX_STEP}")));
    }
    Ok(())
}
