//! Checks of this process's limits, below which it would end in the middle with a crash of the system's.

use engine::supervision::Stop;

/// Stack that the main thread needs in a build without optimisation.
const MIN_STACK: u64 = 1 << 20;

/// Address space in which two ranks over host memory fail with an error at least.
const MIN_ADDRESS_SPACE: u64 = 128 << 20;

/// Refuses a stack that the main thread would overflow.
///
/// # Errors
/// [`Stop::Refused`] with the limit and the remedy.
pub(crate) fn check_stack() -> Result<(), Stop> {
    check(libc::RLIMIT_STACK, MIN_STACK, "the stack", "ulimit -s", "8192")
}

/// Refuses an address space in which ranks could not even report that it is too small.
///
/// # Errors
/// [`Stop::Refused`] with the limit and the remedy.
pub(crate) fn check_address_space() -> Result<(), Stop> {
    check(libc::RLIMIT_AS, MIN_ADDRESS_SPACE, "this process's memory", "ulimit -v", "unlimited")
}

fn check(
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
        "the limit of {subject} ({command}) is {} KiB, and nccl-bench needs {} KiB or more: raise it \
         ({command} {usual})",
        limit.rlim_cur >> 10,
        least >> 10
    )))
}
