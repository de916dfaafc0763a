//! Settings of one collective call.

use nccl_sys::{Version, ncclCollConfig_t};

use crate::nccl::error::Error;
use crate::nccl::library::Library;
use crate::nccl::text::Text;

/// The first NCCL with functions that take it.
const SINCE: Version = Version::new(2, 31, 0);

/// Settings of one collective call (`ncclCollConfig_t`, NCCL 2.31): for [`Communicator::with`](crate::nccl::Communicator::with)
/// and [`Call::with`](super::Call::with). All ranks pass the same. What is left out, NCCL chooses. Calls with it are
/// refused when the loaded library is too old.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{CallConfig, Collectives, Communicator, Error, Memory}};
/// # fn example(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
/// let config = CallConfig::new().algorithm("ring").max_ctas(8);
/// communicator.with(&config).all_reduce_in_place(&mut memory.slice_mut::<f32>(..1024)?, ReduceOp::Sum)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CallConfig {
    min_ctas: Option<i32>,
    max_ctas: Option<i32>,
    nvls_ctas: Option<i32>,
    cluster_size: Option<i32>,
    cta_policy: Option<i32>,
    algorithm: Option<Text>,
    optional: bool,
    profiler_tag: Option<u64>,
}

impl CallConfig {
    /// NCCL's choices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fewest thread blocks, which are NCCL's channels. Field `minCTAs`.
    #[must_use]
    pub fn min_ctas(mut self, count: i32) -> Self {
        self.min_ctas = Some(count);
        self
    }

    /// Most thread blocks, no more than the communicator's. Field `maxCTAs`.
    #[must_use]
    pub fn max_ctas(mut self, count: i32) -> Self {
        self.max_ctas = Some(count);
        self
    }

    /// Most thread blocks of kernels that use NVLink SHARP. Field `nvlsCTAs`.
    #[must_use]
    pub fn nvls_ctas(mut self, count: i32) -> Self {
        self.nvls_ctas = Some(count);
        self
    }

    /// Size of the thread block clusters: the same for all collectives of a group. Field `cgaClusterSize`.
    #[must_use]
    pub fn cluster_size(mut self, blocks: i32) -> Self {
        self.cluster_size = Some(blocks);
        self
    }

    /// How thread blocks are used: a mask of `NCCL_CTA_POLICY_*`. Field `CTAPolicy`.
    #[must_use]
    pub fn cta_policy(mut self, policy: i32) -> Self {
        self.cta_policy = Some(policy);
        self
    }

    /// Which algorithms and protocols NCCL may choose from, in the words of NCCL's manual. Field `algSelection`.
    #[must_use]
    pub fn algorithm(mut self, selection: &str) -> Self {
        self.algorithm = Some(Text::new(selection));
        self
    }

    /// Whether the call fails when nothing of [`algorithm`](Self::algorithm) can be used (default), or takes another.
    /// Field `forceAlgSelection`.
    #[must_use]
    pub fn force_algorithm(mut self, force: bool) -> Self {
        self.optional = !force;
        self
    }

    /// A number that profilers see with the call's events; below 2^63. Field `userProfilerTag`, NCCL 2.32.
    #[must_use]
    pub fn profiler_tag(mut self, tag: u64) -> Self {
        self.profiler_tag = Some(tag);
        self
    }

    /// The C struct. Its pointer points into `self`.
    pub(crate) fn raw(&self, library: Library) -> Result<ncclCollConfig_t, Error> {
        library.require("CallConfig", SINCE)?;
        let mut raw = ncclCollConfig_t::default();
        let fields = [
            (self.min_ctas, &mut raw.minCTAs),
            (self.max_ctas, &mut raw.maxCTAs),
            (self.nvls_ctas, &mut raw.nvlsCTAs),
            (self.cluster_size, &mut raw.cgaClusterSize),
            (self.cta_policy, &mut raw.CTAPolicy),
        ];
        for (value, field) in fields {
            if let Some(value) = value {
                *field = value;
            }
        }
        if let Some(text) = &self.algorithm {
            raw.algSelection = text.as_ptr("CallConfig::algorithm")?;
        }
        raw.forceAlgSelection = i32::from(!self.optional);
        if let Some(tag) = self.profiler_tag {
            library.require("CallConfig::profiler_tag", Version::new(2, 32, 0))?;
            raw.userProfilerTag = tag;
        }
        Ok(raw)
    }
}
