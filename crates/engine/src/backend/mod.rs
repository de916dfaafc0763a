//! What carries the data: one rank's operations, as the sweep needs them.

use std::sync::Arc;
use std::time::Duration;

use collectives::{DataType, world};
use serde::{Deserialize, Serialize};

use crate::collective::{Collective, Counts, Layout as _, Participant};
use crate::data::traffic::Traffic;
use crate::data::{DataError, DataSpec, ExpectedSegment, Mismatches, Op, Tally};
use record::{Algorithm, Blocking, Placement, Provenance, Rank};

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

mod discovery;
mod fabric;
mod host;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod nccl;
mod operands;
mod paired;
mod selection;

pub use fabric::RANKS_ALONE;
pub use host::{FindHostBackend, HostBackend};
pub use selection::{Search, choose};

/// One operation of one rank.
#[derive(Clone, Debug)]
pub struct Work {
    /// Which collective.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// The operator that the table prints; one that the collective uses only where it reduces.
    pub op: Option<Op>,
    /// The rank, its group and the root.
    pub participant: Participant,
    /// How many elements.
    pub counts: Counts,
    /// Who sends how much to whom, where that differs.
    pub traffic: Option<Arc<Traffic>>,
}

impl Work {
    /// The size that the table prints: bytes of the larger buffer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counts.bytes(self.data_type)
    }

    /// False for a size that gives no rank an element: there is nothing to verify.
    #[must_use]
    pub fn has_elements(&self) -> bool {
        self.traffic.as_ref().map_or(self.bytes(), |traffic| traffic.busiest()) > 0
    }

    /// What the rank's result must be.
    fn result(&self) -> Vec<ExpectedSegment> {
        self.collective.result(&self.counts, self.participant, self.traffic.as_deref())
    }

    /// The lowest bit of an element whose change exceeds the tolerance, however wrong the element is already.
    fn significant_bit(&self) -> Result<u64, DataError> {
        Ok((2 * self.data_spec(0).tolerance()? + 1).next_power_of_two())
    }

    /// Flips the significant bit of an element, so that a check must find it.
    fn corrupt(&self, element: &mut [u8]) -> Result<(), DataError> {
        let bit = self.significant_bit()?.to_le_bytes();
        element.iter_mut().zip(bit).for_each(|(byte, bit)| *byte ^= bit);
        Ok(())
    }

    /// The test data of this operation.
    fn data_spec(&self, seed: u64) -> DataSpec {
        let op = self.op.filter(|_| self.collective.reduces());
        DataSpec { seed, ranks: self.participant.ranks as u32, op, data_type: self.data_type }
    }
}

/// How operations are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedLoop {
    /// How many iterations, at least 1.
    pub iterations: usize,
    /// Operations of an iteration, at least 1.
    pub aggregated: usize,
    /// When the host waits.
    pub blocking: Blocking,
    /// Launches of a graph of all iterations; 0: no graph.
    pub graph_launches: usize,
    /// Whether each iteration is timed on its own, too.
    pub each: bool,
}

impl TimedLoop {
    /// How many operations it makes.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.iterations * self.aggregated * self.graph_launches.max(1)
    }
}

/// Rounds of fill, operation and check that follow each other on a stream. Each has data of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRounds {
    /// How many are queued, or captured in a graph.
    pub rounds: usize,
    /// Launches of a graph of all rounds; 0: no graph.
    pub graph_launches: usize,
    /// The seed of the first round's data; the others have those that follow.
    pub seed: u64,
    /// One element of the result to corrupt before each check, where there is such an element.
    pub corrupt_index: Option<usize>,
}

impl StreamRounds {
    /// `count` rounds, queued one by one.
    #[must_use]
    pub const fn eager(count: usize, seed: u64) -> Self {
        Self { rounds: count, graph_launches: 0, seed, corrupt_index: None }
    }

    /// At least `count` rounds, as a graph that is launched several times. It has two rounds or more, unless `count` is 1:
    /// a round must not find its own right data from the launch before.
    #[must_use]
    pub fn graph(count: usize, seed: u64) -> Self {
        // More launches than these only for graphs that would become large.
        let launches = (count / 2).clamp(1, 4).max(count.div_ceil(64));
        Self { rounds: count.div_ceil(launches), graph_launches: launches, seed, corrupt_index: None }
    }

    /// How many rounds run in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.rounds * self.graph_launches.max(1)
    }
}

/// What a timed_loop took on one rank.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// All operations, from the first one's enqueueing to the last one's completion.
    pub total: Duration,
    /// Their enqueueing.
    pub enqueue: Duration,
    /// Microseconds per operation of each iteration, where they were timed.
    pub each_us: Vec<f64>,
}

/// GPU memory that a rank has taken, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// By connecting.
    pub initialization: u64,
    /// For the buffers.
    pub buffers: u64,
    /// By the operations.
    pub operations: u64,
}

/// Which of two libraries carries the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendRole {
    /// The backend's own.
    Primary,
    /// The one that it is measured in activate with ([`Node::versus`]).
    Baseline,
}

/// One rank's buffers and communicator. Used by one thread.
///
/// Operation number *k* of a loop works at another place of the buffers than the one before, so that caches do not
/// flatter small sizes.
pub trait Backend {
    /// What the data goes through, where that is known once the ranks are connected.
    fn transport(&self) -> Option<String> {
        None
    }

    /// What was changed in what was asked for, and why.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// How an operation is carried out, where this role chooses that.
    fn algorithm(&self, _work: &Work, _placement: Placement) -> Option<Algorithm> {
        None
    }

    /// The memory that has been taken, where that is known.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    /// Has this role carry the operations that follow; primary does at the start. No rank is inside an operation then.
    fn activate(&mut self, _side: BackendRole) {}

    /// Writes this rank's input where `placement` has it, and clears the result; of both sides where they have buffers of
    /// their own.
    ///
    /// # Errors
    /// When the device or the communicator fails; so in all methods.
    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()>;

    /// Starts operation `index` of a loop; it may still run when this returns. Through a graph, if so.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn start(&mut self, work: &Work, placement: Placement, index: usize, graph: bool) -> anyhow::Result<()>;

    /// Returns when all started operations are complete.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn complete(&mut self) -> anyhow::Result<()>;

    /// Runs a timed_loop. `barrier` waits for all ranks; it is called before the clock starts where something has to be
    /// prepared, and where the timed_loop says so.
    ///
    /// # Errors
    /// See [`Backend::fill`], and `barrier`'s.
    fn time(
        &mut self,
        work: &Work,
        placement: Placement,
        timed_loop: &TimedLoop,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times>;

    /// Flips a bit of one element of the result, where there is such an element: one that the check must find.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn corrupt(&mut self, work: &Work, placement: Placement, index: usize) -> anyhow::Result<()>;

    /// Compares the whole result with what it must be, after [`Backend::fill`] with the same seed.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn check(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<Mismatches>;

    /// Fills, operates and checks on the stream, round by round, without the host between, and returns what all rounds
    /// found together, if anything. Only where [`Request::stream_checks`](crate::request::Request::stream_checks) is accepted. `barrier`
    /// waits for all ranks; it is called before the first round.
    ///
    /// # Errors
    /// See [`Backend::fill`], and `barrier`'s; always where there is no stream.
    fn check_on_stream(
        &mut self,
        _work: &Work,
        _placement: Placement,
        _rounds: &StreamRounds,
        _barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Tally>> {
        anyhow::bail!("--check-on-stream: this backend has no stream")
    }
}

/// Bytes of a rank's two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// The largest size of the sweep, through which operations move on.
    pub size: usize,
    /// Of the send buffer.
    pub send: usize,
    /// Of the receive buffer.
    pub receive: usize,
}

/// Where a rank is in its group: the ranks that measure together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPosition {
    /// The rank's number in the group.
    pub rank: usize,
    /// How many ranks the group has.
    pub ranks: usize,
    /// The group's number.
    pub color: u64,
}

/// What a backend can measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// These collectives.
    pub collectives: Vec<Collective>,
    /// Elements of these types.
    pub data_types: Vec<DataType>,
    /// These operators.
    pub ops: Vec<Op>,
    /// Of these collectives only the form with two buffers.
    pub out_of_place_only: Vec<Collective>,
}

impl Capabilities {
    /// What the others have as well. In place they need not.
    fn shared_with(mut self, others: &Self) -> Self {
        self.collectives.retain(|collective| others.collectives.contains(collective));
        self.data_types.retain(|data_type| others.data_types.contains(data_type));
        self.ops.retain(|op| others.ops.contains(op));
        self
    }
}

impl Default for Capabilities {
    /// Everything.
    fn default() -> Self {
        Self {
            collectives: Collective::ALL.to_vec(),
            data_types: DataType::ALL.to_vec(),
            ops: Op::ALL.to_vec(),
            out_of_place_only: Vec::new(),
        }
    }
}

/// What one process contributes to a run, found out before anything is started.
pub trait Node: Sync {
    /// `-t`: threads per process.
    fn threads(&self) -> usize;

    /// `-g`: GPUs per thread. Every GPU is a rank with a thread of its own; 1 where ranks have no GPU.
    fn gpus(&self) -> usize;

    /// Where rank `index` of this process is in its group.
    fn position(&self, index: usize) -> GroupPosition;

    /// What all ranks can measure.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// What the other role can do, where there is one (`--vs`): all that [`Node::capabilities`] has, but perhaps not in place.
    fn versus(&self) -> Option<Capabilities> {
        None
    }

    /// What it measures with.
    fn provenance(&self) -> Provenance;

    /// What a reader should know of the choice of this backend.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The largest size that is measured when none is asked for.
    fn default_max_bytes(&self) -> u64;

    /// Takes the device of rank `index` of this process. Called on the rank's own thread.
    ///
    /// # Errors
    /// When the device does not answer.
    fn open(&self, index: usize) -> anyhow::Result<Box<dyn RankDevice>>;
}

/// What is done with a connected rank.
pub type RankBody<'a> = dyn FnMut(&mut dyn Backend) -> anyhow::Result<()> + 'a;

/// A rank's device, before it has met the other ranks.
pub trait RankDevice {
    /// The device in the list of ranks; whose rank, process and host are filled in by the caller.
    fn describe(&self) -> Rank;

    /// Bytes that the rank's two buffers may have together.
    fn capacity(&self) -> u64;

    /// Where the buffers are: `GPU 3`, `host memory`.
    fn memory(&self) -> String;

    /// Joins the communicator of the rank's group, allocates the buffers, and calls `body` with them.
    ///
    /// # Errors
    /// When memory or the communicator cannot be had; and `body`'s.
    fn connect(
        self: Box<Self>,
        world: &world::Handle,
        buffer_sizes: BufferSizes,
        body: &mut RankBody<'_>,
    ) -> anyhow::Result<()>;
}
