//! Configuration of a communicator.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::OnceLock;
use std::{env, ptr, time::Duration};

use nccl_sys::{Version, ncclConfig_t};

use crate::nccl::settings::{Text, settings};
use crate::nccl::{error::Error, library::Library};

/// Configuration of a communicator (`ncclConfig_t`). Unset fields have NCCL's defaults; fields not supported
/// by the loaded library are refused.
///
/// ```
/// # use std::time::Duration;
/// # use collectives::nccl::Config;
/// let deadline = Duration::from_secs(60);
/// let config = Config::new().blocking(false).deadline(deadline).max_ctas(16).network("Socket");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Config {
    settings: Settings,
    pub(crate) deadline: Option<Duration>,
    pub(super) unfenced: bool,
}

settings! { Config for ncclConfig_t {
    /// True (default) to let calls wait inside NCCL until it has connected or launched. With `false`, NCCL
    /// works on a thread of its own, calls wait for it up to [`Config::deadline`] and can be aborted. NCCL
    /// 2.14, field `blocking`.
    blocking(bool) => blocking since Version::new(2, 14, 0);
    /// Size of the thread block clusters of NCCL's kernels, 0 to 8. NCCL 2.17, field `cgaClusterSize`.
    cluster_size(i32) => cgaClusterSize since Version::new(2, 17, 0);
    /// Minimum number of thread blocks of NCCL's kernels. NCCL 2.17, field `minCTAs`.
    min_ctas(i32) => minCTAs since Version::new(2, 17, 0);
    /// Maximum number of thread blocks of NCCL's kernels. NCCL 2.17, field `maxCTAs`.
    max_ctas(i32) => maxCTAs since Version::new(2, 17, 0);
    /// Traffic class of the network. NCCL 2.26, field `trafficClass`.
    traffic_class(i32) => trafficClass since Version::new(2, 26, 0);
    /// True to allow in-network reductions (SHARP). NCCL 2.27, field `collnetEnable`.
    collnet(bool) => collnetEnable since Version::new(2, 27, 0);
    /// Policy for thread blocks: a mask of `NCCL_CTA_POLICY_*`. NCCL 2.27, field `CTAPolicy`.
    cta_policy(i32) => CTAPolicy since Version::new(2, 27, 0);
    /// Thread blocks of kernels with NVLink SHARP. NCCL 2.27, field `nvlsCTAs`.
    nvls_ctas(i32) => nvlsCTAs since Version::new(2, 27, 0);
    /// Channels per network peer in send and receive. NCCL 2.28, field `nChannelsPerNetPeer`.
    channels_per_net_peer(i32) => nChannelsPerNetPeer since Version::new(2, 28, 0);
    /// True to schedule work for NVLink. NCCL 2.28, field `nvlinkCentricSched`.
    nvlink_centric_sched(bool) => nvlinkCentricSched since Version::new(2, 28, 0);
    /// Contexts for one-sided operations. NCCL 2.29, field `numRmaCtx`.
    rma_contexts(i32) => numRmaCtx since Version::new(2, 29, 0);
    /// Maximum number of peers of send and receive. NCCL 2.30, field `maxP2pPeers`.
    max_p2p_peers(i32) => maxP2pPeers since Version::new(2, 30, 0);
    /// True to launch operations of several communicators in the order of the host's calls. NCCL 2.31, field
    /// `launchOrderImplicit`.
    launch_order_implicit(bool) => launchOrderImplicit since Version::new(2, 31, 0);
    /// Signals for one-sided operations. NCCL 2.31, field `numRmaSig`.
    rma_signals(i32) => numRmaSig since Version::new(2, 31, 0);
    /// True to set up one-sided operations eagerly. NCCL 2.31, field `rmaEagerInit`.
    rma_eager_init(bool) => rmaEagerInit since Version::new(2, 31, 0);
    /// A value of `ncclHostCftMode_t`. NCCL 2.31, field `hostCftMode`.
    host_cft_mode(i32) => hostCftMode since Version::new(2, 31, 0);
    /// Use of NVLink SHARP: a value of `ncclNvlsHostMode_t`. NCCL 2.31, field `nvlsHostMode`.
    nvls_host_mode(i32) => nvlsHostMode since Version::new(2, 31, 0);
} texts {
    /// Network plugin: `Socket`, `IB`, `AWS Libfabric`, ... NCCL 2.17, field `netName`.
    network => netName since Version::new(2, 17, 0);
    /// Name of the communicator for logs and profilers. NCCL 2.27, field `commName`.
    name => commName since Version::new(2, 27, 0);
} unsafe {
    /// True to let communicators split from this one share its resources. NCCL 2.18, field `splitShare`.
    ///
    /// # Safety
    /// Operations of this communicator and of others with the same resources are never queued at the same
    /// time by several threads, and none is used after one of them was aborted or revoked: NCCL shares its
    /// queues and its flag of the abort, without a lock.
    split_share(bool) => splitShare since Version::new(2, 18, 0);
    /// True to let communicators shrunk from this one share its resources. NCCL 2.27, field `shrinkShare`.
    ///
    /// # Safety
    /// The contract of [`Config::split_share`].
    shrink_share(bool) => shrinkShare since Version::new(2, 27, 0);
    /// Use with CUDA graphs: 0 none, 1 one graph, 2 (default) several graphs, or graphs and other work. NCCL
    /// 2.29, field `graphUsageMode`.
    ///
    /// # Safety
    /// The communicator is used as the value says: with 0 not in a graph, with 1 in one graph only, with its
    /// launches ordered with all other operations of the communicator. NCCL does not order them itself, and
    /// they share its buffers.
    graph_usage_mode(i32) => graphUsageMode since Version::new(2, 29, 0);
    /// True to order launches in a captured graph by stream. NCCL 2.30.7, field `graphStreamOrdering`.
    ///
    /// # Safety
    /// With `false`, the caller orders the communicator's operations in graphs with one another and with its
    /// other operations: they share NCCL's buffers.
    graph_stream_ordering(bool) => graphStreamOrdering since Version::new(2, 30, 7);
}}

impl Config {
    /// Time limit for calls that wait for NCCL's own threads, and for closing (it waits for queued work).
    /// After the limit the communicator is aborted and the call fails. Default: none. Calls that block inside
    /// NCCL ([`Config::blocking`]) ignore it.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    /// True (default) to order operations in symmetric windows after a preceding kernel that triggers
    /// programmatic launch early. The kernels of NCCL 2.28.3 to 2.30.6 do not do so themselves: see
    /// `docs/limits.md`. It costs about a microsecond per operation, and nothing with other versions. With
    /// `false`, results can be wrong without an error. Graphs and [`captured`](super::Communicator::captured)
    /// collectives are not ordered.
    #[must_use]
    pub fn symmetric_fence(mut self, fence: bool) -> Self {
        self.unfenced = !fence;
        self
    }

    /// Returns false if NCCL works on threads of its own. The environment variable `NCCL_COMM_BLOCKING`, also
    /// from NCCL's configuration file, overrides the setting. For communicators that exist: NCCL reads its
    /// configuration files when it makes the first one.
    pub(super) fn is_blocking(&self) -> bool {
        match blocking_of_environment() {
            Some(0) => false,
            Some(1) => true,
            _ => self.settings.blocking != Some(false),
        }
    }

    /// The C struct. Its pointers are valid while `self` or a clone of it is alive.
    pub(crate) fn raw_config(&self, library: Library) -> Result<ncclConfig_t, Error> {
        let mut raw = ncclConfig_t::default();
        self.settings.apply(&mut raw, library)?;
        Ok(raw)
    }
}

/// Returns the number of `NCCL_COMM_BLOCKING` as NCCL reads it (`strtoll` with base 0: 0 for a word), once
/// per process.
fn blocking_of_environment() -> Option<i64> {
    static NUMBER: OnceLock<Option<i64>> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let value = env::var_os("NCCL_COMM_BLOCKING").filter(|value| !value.is_empty())?;
        let value = CString::new(value.as_bytes()).ok()?;
        // SAFETY: a string with a NUL; no end is written.
        Some(unsafe { libc::strtoll(value.as_ptr(), ptr::null_mut(), 0) })
    })
}
