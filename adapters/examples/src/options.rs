//! Command line of all programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The processor that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Processor {
    /// The CPU, and collectives over host memory.
    Cpu,
    /// The GPU with this rank's number on its host, and NCCL (needs a build with --features cuda).
    Gpu,
}

/// Options of all programs.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Samples of a step, computed by all ranks together
    #[arg(long, default_value_t = 64, value_name = "SAMPLES")]
    pub batch: usize,
    /// Learning rate of AdamW
    #[arg(long, default_value_t = 0.003, value_name = "RATE")]
    pub learning_rate: f64,
    /// Seed of the initial weights and of the order of samples
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Divide the optimizer's state among the ranks (ZeRO, stage 1)
    #[arg(long)]
    pub shard: bool,
    /// Processor that computes
    #[arg(long, value_enum, default_value_t = Processor::Cpu)]
    pub device: Processor,
    /// Save parameters, optimizer state and step to this safetensors file at the end and every
    /// --checkpoint-every steps; rank 0 writes, and replaces the file when it is complete
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints
    #[arg(
        long,
        value_name = "STEPS",
        requires = "checkpoint",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub checkpoint_every: Option<u64>,
    /// Continue from the checkpoint, with any number of ranks; all ranks read the file
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// Rank that kills its own process, to show that the other ranks continue
    #[arg(long, value_name = "RANK", requires = "fail_at")]
    pub fail_rank: Option<usize>,
    /// Step before which the rank of --fail-rank kills itself
    #[arg(long, value_name = "STEP", requires = "fail_rank")]
    pub fail_at: Option<u64>,
    /// A folder with the data, instead of the cache that `cargo xtask wheels scikit-learn` fills
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}
