//! Predicts the next character of a text: data-parallel training of a small transformer.

use std::process::ExitCode;

use clap::Parser;
use training_examples::{Common, transformer::Transformer};

/// Trains a small transformer to predict the next character of a text, on all ranks of a job
///
/// The text is the descriptions of scikit-learn's data sets, or the .rst and .txt files in the
/// folder `text` of --data. Runs alone, and under mpirun, srun or torchrun:
///
///   transformer --steps 200                  one rank
///   mpirun -np 4 transformer --shard         four, each with a quarter of the optimizer's state
///
/// To see ranks continue after one has died, start each process yourself:
///
///   export NCCL_BENCH_SIZE=4 NCCL_BENCH_ADDR=127.0.0.1:29500
///   for rank in 0 1 2 3; do
///     NCCL_BENCH_RANK=$rank transformer --fail-at 50 --fail-rank 2 &
///   done; wait
///
/// The batch is divided among the ranks, so the curve is the same for any number of ranks.
/// Rank 0 prints a line for every ten steps: the mean loss, the share of right predictions in
/// text outside of the training set, the time of a step, and communication's share of this time
/// (with waits for slower ranks).
///
/// Exit code: 0 if all steps are done, 1 after a failure, 2 for wrong arguments.
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Arguments {
    /// Number of steps
    #[arg(long, default_value_t = 100)]
    steps: u64,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let Arguments { steps, common } = Arguments::parse();
    training_examples::main(&common, |device| Transformer::new(&common, steps, device))
}
