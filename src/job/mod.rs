//! A rank's entry to its job: [`Job`], its [`Group`]s of collectives, and their operations ([`Work`]).
//!
//! One program runs on hosts and on GPUs, with any launcher and any number of ranks:
//!
//! ```
//! use collectives::job::{Backend, Job};
//! use collectives::{ReduceOp, world};
//!
//! // `Job::from_environment()` in a program under mpirun, torchrun, Slurm or Kubernetes.
//! let job = Job::new(world::single());
//! let group = job.group(Backend::Host)?;
//!
//! // The operation owns its buffer while it runs, and the program does something else.
//! let work = group.all_reduce(vec![1.0_f32; 1000], ReduceOp::Avg);
//! let name = format!("rank {} of {}", group.rank(), group.size());
//! let gradients = work.wait()?;
//! assert_eq!(gradients, vec![1.0; 1000]);
//!
//! // Small values in place.
//! let mut loss = [0.5_f64];
//! group.all_reduce_in_place(&mut loss, ReduceOp::Avg)?;
//! assert_eq!((loss, name.as_str()), ([0.5], "rank 0 of 1"));
//! # Ok::<(), collectives::Error>(())
//! ```
//!
//! # Failures
//! A rank that fails tells the others its reason with [`Job::fail`]; their operations return
//! [`Error::RankFailed`] with it. A rank that dies is noticed by its connection. For a rank that is alive but
//! does not come to an operation, set a limit: [`Group::set_timeout`]. The ranks that are left can go on:
//! [`Job::shrink`].

mod backend;
mod buffer;
mod connect;
mod connection;
#[cfg(feature = "nccl")]
mod device_memory;
mod dispatch;
mod gather;
#[cfg(feature = "nccl")]
mod gpu;
#[cfg(feature = "nccl")]
mod gpu_operation;
mod group;
mod group_backend;
mod guard;
mod held;
#[cfg(feature = "fabric")]
mod host;
#[cfg(feature = "fabric")]
mod host_buffer;
#[cfg(feature = "fabric")]
mod host_memory;
mod recovery;
#[cfg(feature = "fabric")]
mod slot;
#[cfg(test)]
#[cfg(feature = "fabric")]
mod tests;
#[cfg(test)]
#[cfg(feature = "fabric")]
mod timeout_tests;
mod under_way;
mod work;
mod work_error;

use std::fmt;
use std::sync::{Arc, Mutex};

pub use backend::Backend;
pub use buffer::Buffer;
#[cfg(feature = "nccl")]
pub use device_memory::DeviceMemory;
pub use group::Group;
#[cfg(feature = "fabric")]
pub use host_memory::HostMemory;
pub use work::Work;
pub use work_error::WorkError;

pub(crate) use buffer::{memory::GroupMemory, pair_memory};
#[cfg(feature = "nccl")]
pub(crate) use gpu_operation::{of_driver, refuse_captured};

use crate::lock::lock;
use crate::{Error, world};
use backend::Choice;
use recovery::Preparation;

/// One rank of a job: a process, or a thread of one, among those that a launcher has started together.
///
/// Clones are the same rank. Dropping the last one, with its groups, leaves the job. Rank 0, over which the
/// others learn of failures, then waits up to a minute for ranks that have not left.
#[derive(Clone)]
pub struct Job {
    world: world::Handle,
    preparation: Preparation,
    /// Number of groups of all ranks. Held while one is made, whose exchanges would mix with those of another
    /// thread's.
    groups: Arc<Mutex<usize>>,
}

impl Job {
    /// Joins the job in which this process was started: see [`world::from_environment`], with the options
    /// that the environment sets ([`world::Options::from_environment`]).
    ///
    /// # Errors
    /// [`Error::World`]: variables of the launcher are missing or contradict each other, or ranks are
    /// missing.
    pub fn from_environment() -> Result<Self, Error> {
        let options = world::Options::from_environment()?;
        Ok(Self::new(world::from_environment(&options)?))
    }

    /// A rank of `world`, which may come from any function of [`world`].
    #[must_use]
    pub fn new(world: world::Handle) -> Self {
        Self::with_preparation(world::guard_world(world), Preparation::default())
    }

    fn with_preparation(world: world::Handle, preparation: Preparation) -> Self {
        Self { world, preparation, groups: Arc::default() }
    }

    /// Makes several ranks of every process, one for each of its threads: see [`world::threads`]. Collective.
    ///
    /// # Errors
    /// [`Error::World`] if `per_process` is 0 or differs between processes, or [`Error::RankFailed`] if
    /// another process has failed.
    pub fn threads(self, per_process: usize) -> Result<Vec<Self>, Error> {
        let ranks = world::threads(self.world, per_process)?;
        Ok(ranks.into_iter().map(Self::new).collect())
    }

    /// This rank, `0..size`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.world.size()
    }

    /// This rank's number among those of its host, `0..local_size`.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.world.local_rank()
    }

    /// Number of ranks on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.world.local_size()
    }

    /// The job's world: barrier, gather of small messages, and failure notices.
    #[must_use]
    pub fn world(&self) -> &world::Handle {
        &self.world
    }

    /// Tells all other ranks that this one has failed. Their operations return [`Error::RankFailed`] with
    /// `reason`: see [`World::fail`](world::World::fail).
    pub fn fail(&self, reason: &str) {
        self.world.fail(reason.into());
    }

    /// Connects all ranks of the job. Collective: returns when every rank has called it, with the same
    /// backend. Ranks may make several groups, all in the same order. The first also prepares for failures
    /// ([`Job::shrink`]). It waits for missing ranks for ever, unless
    /// [`World::set_limit`](world::World::set_limit) has set a limit.
    ///
    /// # Errors
    /// A rank that cannot be connected gets its own error, and all others get [`Error::RankFailed`] with its
    /// reason. All can make another group then, except on GPUs after the ranks have begun to connect over
    /// NCCL, where the failure ends the job.
    pub fn group(&self, backend: Backend) -> Result<Group, Error> {
        self.make_group(Choice { backend, device: None })
    }

    fn make_group(&self, choice: Choice) -> Result<Group, Error> {
        let mut groups = lock(&self.groups);
        self.preparation.prepare_rank(&self.world);
        let group = Group::of_job(&self.world, choice, *groups == 0)?;
        *groups += 1;
        Ok(group)
    }

    /// Connects all ranks of the job on devices that the program uses already, each with one of its own.
    /// Collective. For programs whose framework has made the device's context (the primary one, as
    /// [`CudaContext::new`](cudarc::driver::CudaContext::new) makes it). The group's collectives run on a new
    /// stream of the device, [`Group::stream`].
    ///
    /// ```no_run
    /// # use collectives::{Error, job::Job, nccl::Library};
    /// # fn example(job: &Job) -> Result<(), Box<dyn std::error::Error>> {
    /// use collectives::cudarc::driver::CudaContext;
    ///
    /// let context = CudaContext::new(job.local_rank())?;
    /// let group = job.group_on_gpu(Library::load()?, &context)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`group`](Self::group).
    #[cfg(feature = "nccl")]
    pub fn group_on_gpu(
        &self,
        library: crate::nccl::Library,
        context: &Arc<cudarc::driver::CudaContext>,
    ) -> Result<Group, Error> {
        let device = Some(backend::GroupDevice { library, context: Arc::clone(context) });
        self.make_group(Choice { backend: Backend::Gpu, device })
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Job(rank {} of {}, {})", self.rank(), self.size(), self.world.describe())
    }
}
