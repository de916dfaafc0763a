//! `nccl-bench fabric`: libfabric itself, without collectives.

pub mod algorithms;
pub mod info;
pub mod transfer;

/// What to do with libfabric.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// What libfabric offers on this machine, and why something is missing
    Info(info::Arguments),
    /// Which algorithm carries out each collective over host memory: the table
    Algorithms(algorithms::Arguments),
    /// The latency of messages between two ranks
    Pingpong(transfer::PingPong),
    /// The bandwidth of messages between two ranks
    Bw(transfer::Bandwidth),
    /// Reading or writing another rank's memory
    Rma(transfer::Remote),
}
