//! Failures of one rank that the others must learn of.

use crate::Error;
use crate::job::Group;

/// Tells the other ranks of an error that only this one has, since they wait for what it does not start any more. Errors of the
/// group's operations are known to them.
pub(super) fn tell(group: &Group, error: &Error) {
    let is_own = match error {
        #[cfg(feature = "nccl")]
        Error::Cuda(_) => true,
        error => error.is_refusal(),
    };
    if is_own {
        group.world().fail(&error.to_string());
    }
}
