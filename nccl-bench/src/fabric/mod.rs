//! `nccl-bench fabric`: libfabric itself, without collectives.

pub mod info;

/// What to do with libfabric.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// What libfabric offers on this machine, and why something is missing
    Info(info::Arguments),
}
