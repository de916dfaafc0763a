//! What carries the data: one rank's operations, as the sweep needs them.

use collectives::{DataType, ReduceOp, world};

use crate::collective::{Collective, Counts, Placement};
use crate::data::{DataError, Mismatches, Problem};

/// Runs `$body` with the type `$T` that a [`DataType`] names.
macro_rules! with_element {
    ($data_type:expr, $T:ident => $body:expr) => {{
        use collectives::DataType;
        use half::{bf16, f16};
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
            DataType::Float16 => run!(f16),
            DataType::Float32 => run!(f32),
            DataType::Float64 => run!(f64),
            DataType::Bfloat16 => run!(bf16),
            other => anyhow::bail!("this version cannot measure the type {other}"),
        }
    }};
}

mod choice;
pub mod fabric;
pub mod nccl;

pub use choice::choose;

/// One operation, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Which collective.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// How values are combined, where the collective combines them.
    pub op: Option<ReduceOp>,
    /// How many elements.
    pub counts: Counts,
}

impl Work {
    /// The size that the table prints: bytes of the larger buffer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counts.bytes(self.data_type)
    }

    /// The lowest bit of an element whose change is wrong, whatever the tolerance has let pass before.
    fn significant_bit(&self, ranks: usize) -> Result<u64, DataError> {
        Ok((2 * self.problem(0, ranks).tolerance()? + 1).next_power_of_two())
    }

    /// The test data of this operation.
    fn problem(&self, seed: u64, ranks: usize) -> Problem {
        Problem { seed, ranks: ranks as u32, op: self.op, data_type: self.data_type }
    }
}

/// One rank's buffers and communicator. Used by one thread.
///
/// The buffers have room for the largest size of the sweep; operations start at byte 0 plus `shift`.
pub trait Backend {
    /// What the data goes through, where that is known once the ranks are connected.
    fn transport(&self) -> Option<String> {
        None
    }

    /// Writes this rank's input where `placement` has it, and clears the result.
    ///
    /// # Errors
    /// When the device or the communicator fails; so in all methods.
    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()>;

    /// Starts the operation; it may still run when this returns.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn start(&mut self, work: &Work, placement: Placement, shift: usize) -> anyhow::Result<()>;

    /// Returns when all started operations are complete.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn complete(&mut self) -> anyhow::Result<()>;

    /// Flips a bit of one element of the result, where there is such an element: one that the check must find.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn damage(&mut self, work: &Work, index: usize) -> anyhow::Result<()>;

    /// Compares the whole result with what it must be, after [`Backend::fill`] with the same seed.
    ///
    /// # Errors
    /// See [`Backend::fill`].
    fn check(&mut self, work: &Work, seed: u64) -> anyhow::Result<Mismatches>;
}

/// What one process contributes to a run, found out before anything is started.
pub trait Node: Sync {
    /// `-t`: threads per process.
    fn threads(&self) -> usize;

    /// `-g`: GPUs per thread. Every GPU is a rank with a thread of its own; 1 where ranks have no GPU.
    fn gpus(&self) -> usize;

    /// Lines for the report's head: libraries with versions and paths, and why this backend was chosen.
    fn provenance(&self) -> Vec<String>;

    /// The largest size that is measured when none is asked for.
    fn default_max_bytes(&self) -> u64;

    /// Takes the device of rank `index` of this process. Called on the rank's own thread.
    ///
    /// # Errors
    /// When the device does not answer.
    fn open(&self, index: usize) -> anyhow::Result<Box<dyn Device>>;
}

/// A rank's device, before it has met the other ranks.
pub trait Device {
    /// The device in the report's list of ranks.
    fn line(&self) -> String;

    /// Bytes that each of the rank's two buffers may have.
    fn capacity(&self) -> u64;

    /// Where the buffers are: `GPU 3`, `host memory`.
    fn memory(&self) -> String;

    /// Allocates two buffers of `bytes` and joins the communicator of all ranks of `world`.
    ///
    /// # Errors
    /// When memory or the communicator cannot be had.
    fn connect(self: Box<Self>, world: &world::Handle, bytes: usize) -> anyhow::Result<Box<dyn Backend>>;
}
