//! Developer commands of this repository. Run `cargo xtask help`.

mod bindings;
mod cache;
mod dist;
mod functions;
mod generated;
mod kernels;
mod shape;
mod wheels;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of this repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate the committed bindings of the raw crates from the C headers
    Bindings(bindings::Arguments),
    /// Compare the table of NCCL's functions with the nccl.h of NVIDIA's newest wheels (asks the package
    /// index)
    Functions,
    /// Compile the kernels of nccl-bench's test data to PTX with NVRTC 12.0 (needs no GPU and no CUDA)
    Kernels(kernels::Arguments),
    /// Download the libraries and data that the tests read into the user's cache folder
    Wheels(wheels::Arguments),
    /// Pack binaries, GPU tests and a run script for a machine with GPUs, MPI and no Rust
    Dist(dist::Arguments),
    /// Print lengths of files and functions, circles among modules, and shares of doc comments as Markdown
    Shape(shape::Arguments),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Bindings(arguments) => bindings::run(&arguments),
        Command::Functions => functions::run(),
        Command::Kernels(arguments) => kernels::run(&arguments),
        Command::Wheels(arguments) => wheels::run(&arguments),
        Command::Dist(arguments) => dist::run(&arguments),
        Command::Shape(arguments) => shape::run(&arguments),
    }
}
