//! Settings of one collective call.

use nccl_sys::{Version, ncclCollConfig_t};

use crate::nccl::{
    error::Error,
    library::Library,
    settings::{Text, settings},
};

/// First NCCL with functions that take a configuration.
const SINCE: Version = Version::new(2, 31, 0);

/// Settings of one collective call (`ncclCollConfig_t`, NCCL 2.31), for
/// [`Communicator::with`](crate::nccl::Communicator::with) and [`Call::with`](super::Call::with). All ranks
/// pass the same. NCCL chooses unset fields. Calls with settings are refused if the loaded library is too
/// old.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{CallConfig, Collectives, Communicator, Error, Memory}};
/// # fn example(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
/// let config = CallConfig::new().algorithm("ring").max_ctas(8);
/// communicator.with(&config).all_reduce_in_place(&mut memory.slice_mut::<f32>(..1024)?, ReduceOp::Sum)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallConfig {
    settings: Settings,
}

settings! { CallConfig for ncclCollConfig_t {
    /// Minimum number of thread blocks (NCCL's channels). Field `minCTAs`.
    min_ctas(i32) => minCTAs since SINCE;
    /// Maximum number of thread blocks, at most the communicator's. Field `maxCTAs`.
    max_ctas(i32) => maxCTAs since SINCE;
    /// Maximum number of thread blocks of kernels with NVLink SHARP. Field `nvlsCTAs`.
    nvls_ctas(i32) => nvlsCTAs since SINCE;
    /// Size of the thread block clusters, the same for all collectives of a group. Field `cgaClusterSize`.
    cluster_size(i32) => cgaClusterSize since SINCE;
    /// Policy for thread blocks: a mask of `NCCL_CTA_POLICY_*`. Field `CTAPolicy`.
    cta_policy(i32) => CTAPolicy since SINCE;
    /// True (default) to fail if no algorithm of [`algorithm`](Self::algorithm) can be used; false to use
    /// another one. Field `forceAlgSelection`.
    force_algorithm(bool) => forceAlgSelection since SINCE;
    /// Tag of the call's events for profilers, below 2^63. Field `userProfilerTag`, NCCL 2.32.
    profiler_tag(u64) => userProfilerTag since Version::new(2, 32, 0);
} texts {
    /// Algorithms and protocols that NCCL may choose from, in the syntax of NCCL's manual. Field
    /// `algSelection`.
    algorithm => algSelection since SINCE;
} unsafe {
}}

impl CallConfig {
    /// Returns the settings that must be the same on all ranks; `None` if they are NCCL's defaults.
    pub(crate) fn select_common(&self) -> Option<Self> {
        let settings = Settings { profiler_tag: None, ..self.settings.clone() };
        Some(Self { settings }).filter(|common| *common != Self::default())
    }

    /// The C struct. Its pointer points into `self`.
    pub(crate) fn raw_config(&self, library: Library) -> Result<ncclCollConfig_t, Error> {
        library.require("CallConfig", SINCE)?;
        let mut raw = ncclCollConfig_t::default();
        self.settings.apply(&mut raw, library)?;
        Ok(raw)
    }
}
