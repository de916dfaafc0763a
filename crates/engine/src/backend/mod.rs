//! Backends, which perform the operations of a rank.

use std::time::Duration;

use collectives::{DataType, world};
use serde::{Deserialize, Serialize};

use crate::collective::{Collective, RankWork};
use crate::data::{Mismatches, Op, Tally};
use crate::groups::Groups;
use record::{Algorithm, Blocking, Provenance, Rank};

/// Runs `$body` with the type `$T` that a [`DataType`] names.
macro_rules! with_element {
    ($data_type:expr, $T:ident => $body:expr) => {{
        use collectives::DataType;
        macro_rules! run {
            ($type:ty) => {{
                type $T = $type;
                $body
            }};
        }
        match $data_type {
            DataType::Int8 => run!(i8),
            DataType::Uint8 => run!(u8),
            DataType::Int32 => run!(i32),
            DataType::Uint32 => run!(u32),
            DataType::Int64 => run!(i64),
            DataType::Uint64 => run!(u64),
            DataType::Float16 => run!(half::f16),
            DataType::Float32 => run!(f32),
            DataType::Float64 => run!(f64),
            DataType::Bfloat16 => run!(half::bf16),
            DataType::Float8E4M3 => run!(float8::F8E4M3),
            DataType::Float8E5M2 => run!(float8::F8E5M2),
            other => anyhow::bail!("this version cannot measure the type {other}"),
        }
    }};
}

mod connections;
pub(crate) mod fabric;
pub(crate) mod host;
mod idle;
#[cfg(feature = "mpi")]
pub mod mpi;
mod nccl;
mod operands;
mod paired;
mod selection;

pub use connections::Connections;
pub use fabric::RANKS_ALONE;
pub use host::{FindHostBackend, HostBackend};
pub(crate) use idle::Idle;
pub(crate) use selection::choose_backend;
pub use selection::missing_gpus;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedLoop {
    /// Number of iterations, at least 1.
    pub iterations: usize,
    /// Operations of an iteration, at least 1.
    pub aggregated: usize,
    /// When the host waits for completion.
    pub blocking: Blocking,
    /// Launches of a graph of all iterations; 0: no graph.
    pub graph_launches: usize,
    /// True to time each iteration as well.
    pub each: bool,
}

impl TimedLoop {
    pub(crate) fn total_operations(&self) -> usize {
        self.iterations * self.aggregated * self.graph_launches.max(1)
    }

    /// Number of barriers of a loop ([`Backend::time_loop`]).
    pub(crate) fn count_barriers(&self) -> usize {
        match self.blocking {
            Blocking::No | Blocking::Wait => 1,
            Blocking::WaitAndBarrier | Blocking::Outer => 1 + self.iterations,
        }
    }
}

/// Rounds of fill, operation and check that follow each other on a stream, each with data of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRounds {
    /// Number of rounds that are queued, or captured in a graph.
    pub rounds: usize,
    /// Launches of a graph of all rounds; 0: no graph.
    pub graph_launches: usize,
    /// Seed of the first round's data; the following rounds have the following seeds.
    pub seed: u64,
    /// Index of an element of the result that is corrupted before each check, if the result has that element.
    pub corrupt_index: Option<usize>,
}

impl StreamRounds {
    /// Returns `count` rounds, queued one by one.
    pub(crate) const fn eager_rounds(count: usize, seed: u64) -> Self {
        Self { rounds: count, graph_launches: 0, seed, corrupt_index: None }
    }

    /// Returns at least `count` rounds as a graph that is launched several times. The graph has two rounds or
    /// more, unless `count` is 1: a round must not find its own right data of the launch before.
    pub(crate) fn graph_rounds(count: usize, seed: u64) -> Self {
        // More launches only for graphs that would become large.
        let launches = (count / 2).clamp(1, 4).max(count.div_ceil(64));
        Self { rounds: count.div_ceil(launches), graph_launches: launches, seed, corrupt_index: None }
    }

    pub(crate) fn total_rounds(&self) -> usize {
        self.rounds * self.graph_launches.max(1)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// Time of all operations, from the start of the first to the completion of the last.
    pub total: Duration,
    /// Time to enqueue all operations.
    pub enqueue: Duration,
    /// Microseconds per operation of each iteration, if each was timed.
    pub each_us: Vec<f64>,
}

/// GPU memory that a rank uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Memory taken by connecting.
    pub initialization: u64,
    /// Memory of the buffers.
    pub buffers: u64,
    /// Memory taken by the operations.
    pub operations: u64,
}

/// Role of a backend in a run with a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendRole {
    /// The measured backend.
    Primary,
    /// The backend that is measured in turn with it ([`Node::versus`]).
    Baseline,
}

pub(crate) type Barrier<'a> = dyn Fn() -> anyhow::Result<()> + 'a;

/// One rank's buffers and communicator. Used by one thread. Methods fail when the device or the communicator
/// does.
///
/// Operations of a loop use different elements of the buffers, so that caches do not flatter small sizes.
pub(crate) trait Backend {
    /// The transport, if it is known once the ranks are connected.
    fn transport_name(&self) -> Option<String> {
        None
    }

    /// Changes to the request with their reasons, for the record.
    fn list_notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The algorithm of an operation, if this backend selects it.
    fn operation_algorithm(&self, _work: &RankWork) -> Option<Algorithm> {
        None
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    /// Selects the backend that runs the operations that follow; at first it is the primary one. No rank may
    /// be inside an operation.
    fn activate_role(&mut self, _side: BackendRole) {}

    /// Writes this rank's input, and clears the result; in the buffers of both backends where each has its
    /// own.
    fn fill_buffers(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<()>;

    /// Starts operation `index` of a loop, which may still run on return. With `graph` it is launched as a
    /// CUDA graph.
    fn start_operation(&mut self, work: &RankWork, index: usize, graph: bool) -> anyhow::Result<()>;

    /// Waits for all started operations.
    fn await_completion(&mut self) -> anyhow::Result<()>;

    /// Runs a timed loop. Calls `barrier` once, after preparing and right before the clock starts, and after
    /// each iteration if [`TimedLoop::blocking`] has one there: [`TimedLoop::count_barriers`] times.
    fn time_loop(
        &mut self,
        work: &RankWork,
        timed_loop: &TimedLoop,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Times>;

    /// Replaces element `index` of the result, if there is such an element, so that the check with this seed
    /// must find it.
    fn corrupt_result(&mut self, work: &RankWork, seed: u64, index: usize) -> anyhow::Result<()>;

    /// Compares the result with the expected one, after [`Backend::fill_buffers`] with the same seed.
    fn check_result(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<Mismatches>;

    /// Fills, operates and checks on the stream, round by round, without waiting on the host. Returns the
    /// wrong elements of all rounds, if any. Called only when
    /// [`Settings::stream_checks`](record::Settings::stream_checks) was accepted. Calls `barrier` once,
    /// before the first round.
    fn check_on_stream(
        &mut self,
        _work: &RankWork,
        _rounds: &StreamRounds,
        _barrier: &Barrier<'_>,
    ) -> anyhow::Result<Option<Tally>> {
        anyhow::bail!("this backend does not support checks on a stream")
    }
}

/// Sizes of a rank's two buffers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferSizes {
    pub send: usize,
    /// The largest size of the sweep.
    pub receive: usize,
}

/// Capabilities of a backend. Every backend has all collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Supported element types.
    pub data_types: Vec<DataType>,
    /// Supported operators.
    pub ops: Vec<Op>,
    /// Collectives that are supported out of place only.
    pub out_of_place_only: Vec<Collective>,
}

impl Capabilities {
    /// Intersection with the capabilities of another backend, regardless of placement.
    fn shared_with(mut self, others: &Self) -> Self {
        self.data_types.retain(|data_type| others.data_types.contains(data_type));
        self.ops.retain(|op| others.ops.contains(op));
        self
    }
}

impl Default for Capabilities {
    /// All types and operators, in both placements.
    fn default() -> Self {
        Self { data_types: DataType::ALL.to_vec(), ops: Op::ALL.to_vec(), out_of_place_only: Vec::new() }
    }
}

/// A process's part of a backend, prepared before anything is started.
pub(crate) struct Node {
    /// Threads per process.
    pub threads: usize,
    /// GPUs per thread. Every GPU is a rank with a thread of its own; 1 where ranks have no GPU.
    pub gpus: usize,
    /// The ranks that measure.
    pub groups: Groups,
    /// True if a rank that connects learns through the world that another rank has failed to connect.
    /// Otherwise it may wait forever, and the job must end.
    pub connects_over_world: bool,
    /// Capabilities of all ranks.
    pub capabilities: Capabilities,
    /// Capabilities of the baseline, if there is one: all of `capabilities`, but perhaps not in
    /// place.
    pub versus: Option<Capabilities>,
    /// Backend and library, for the record.
    pub provenance: Provenance,
    /// Notes on the choice of this backend, for the record.
    pub notes: Vec<String>,
    /// Largest size when the request has none, in bytes.
    pub default_max_bytes: u64,
    /// Opens the device of rank `index` of this process. Called on the rank's thread.
    pub open: Box<OpenDevice>,
}

pub(crate) type OpenDevice = dyn Fn(usize) -> anyhow::Result<RankDevice> + Sync;

/// A rank's device, before the rank is connected.
pub(crate) struct RankDevice {
    /// Description for the record. The caller fills in rank, process and host.
    pub rank: Rank,
    /// Bytes available for the rank's two buffers together.
    pub capacity: u64,
    /// Location of the buffers: `GPU 3`, `host memory`.
    pub memory: String,
    /// Joins the communicator of the ranks of a world, allocates the buffers, and calls the function with
    /// them. The world's collective calls work until the function is called.
    pub connect: Box<Connect>,
}

pub(crate) type Connect = dyn FnOnce(&world::Handle, BufferSizes, &mut RankBody<'_>) -> anyhow::Result<()>;

pub(crate) type RankBody<'a> = dyn FnMut(&mut dyn Backend) -> anyhow::Result<()> + 'a;
