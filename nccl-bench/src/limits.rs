//! Checks of this process's resource limits. Below the required values it would crash in the middle of a run.

use engine::supervision::Stop;

/// Stack needed by the main thread in a build without optimisation, in bytes.
const MIN_STACK: u64 = 1 << 20;

/// Address space, in bytes, in which two ranks over host memory at least fail with an error.
const MIN_ADDRESS_SPACE: u64 = 128 << 20;

/// Refuses a stack too small for the main thread.
///
/// # Errors
/// [`Stop::Refused`] with the limit and the remedy.
pub(crate) fn check_stack() -> Result<(), Stop> {
    check_limit(libc::RLIMIT_STACK, MIN_STACK, "the stack", "ulimit -s", "8192")
}

/// Refuses an address space too small for the ranks to report an error.
///
/// # Errors
/// [`Stop::Refused`] with the limit and the remedy.
pub(crate) fn check_address_space() -> Result<(), Stop> {
    check_limit(libc::RLIMIT_AS, MIN_ADDRESS_SPACE, "this process's memory", "ulimit -v", "unlimited")
}

fn check_limit(
    resource: libc::__rlimit_resource_t,
    least: u64,
    subject: &str,
    command: &str,
    usual: &str,
) -> Result<(), Stop> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for writes.
    let is_known = unsafe { libc::getrlimit(resource, &raw mut limit) } == 0;
    if !is_known || limit.rlim_cur >= least {
        return Ok(());
    }
    Err(Stop::Refused(format!(
        "the limit of {subject} ({command}) is {} KiB, but nccl-bench needs {} KiB or more: raise it \
         ({command} {usual})",
        limit.rlim_cur >> 10,
        least >> 10
    )))
}
