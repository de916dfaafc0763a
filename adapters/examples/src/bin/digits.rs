//! Recognises handwritten digits: data-parallel training of a small network.

use std::process::ExitCode;

use clap::Parser;
use training_examples::{Common, digits::Digits};

/// Trains a network with one hidden layer on scikit-learn's handwritten digits, on all ranks of a job
///
/// Runs alone, and under mpirun, srun or torchrun:
///
///   digits                            one rank
///   mpirun -np 4 digits --shard       four, each with a quarter of the optimizer's state
///
/// The batch is divided among the ranks, so the curve is the same for any number of ranks.
/// Rank 0 prints a line for each epoch: the mean loss, the accuracy on images outside of the
/// training set, the time of a step, and communication's share of this time (with waits for
/// slower ranks).
///
/// Exit code: 0 if all steps are done, 1 after a failure, 2 for wrong arguments.
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Arguments {
    /// Passes over the images
    #[arg(long, default_value_t = 20)]
    epochs: u64,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let Arguments { epochs, common } = Arguments::parse();
    training_examples::main(&common, |device| Digits::new(&common, epochs, device))
}
