//! Limits of a world.

use std::time::Duration;

/// Maximum length of a host name, host identity or job key, in bytes.
pub(crate) const MAX_NAME: usize = 255;
/// Maximum length of one rank's all_gather message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
/// Maximum number of ranks of a job: their list fits into a frame.
pub(crate) const MAX_RANKS: usize = 1 << 18;
/// Time for the waiting ranks to report their calls, once one of them has waited for too long.
pub(crate) const REPORT_TIME: Duration = Duration::from_millis(200);
/// Waiting time of a rank in an operation before it compares its calls with the other ranks'.
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) const COMPARE_AFTER: Duration = Duration::from_secs(1);
