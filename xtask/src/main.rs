//! Developer commands of this repository. Run `cargo xtask help`.

mod bindings;
mod cache;
mod dist;
mod functions;
mod generated;
mod host_ratios;
mod kernels;
mod ratios;
mod shape;
mod wheels;

use std::path::PathBuf;

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
    /// Write the table of NCCL's functions, their versions and their places in the safe layer
    Functions(functions::Arguments),
    /// Compile the kernels of nccl-bench's test data to PTX with NVRTC 12.0 (needs no GPU and no CUDA)
    Kernels(kernels::Arguments),
    /// Download the libraries that the tests load into the user's cache folder
    Wheels(wheels::Arguments),
    /// Pack binaries, GPU tests and a run script for a machine with GPUs, MPI and no Rust
    Dist(dist::Arguments),
    /// Print lengths of files and functions, circles among modules, and shares of doc comments as Markdown
    Shape(shape::Arguments),
    /// Print ratios of times from the tables that the tarball's run-gpu wrote
    Ratios {
        /// The folders with the tables, whose rounds are taken together
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// Print best times and ratios from the files that tools/host_collectives.sh wrote
    HostRatios {
        /// The folder with the files, or with a folder of them per run
        folder: PathBuf,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Bindings(arguments) => bindings::run(&arguments),
        Command::Functions(arguments) => functions::run(&arguments),
        Command::Kernels(arguments) => kernels::run(&arguments),
        Command::Wheels(arguments) => wheels::run(&arguments),
        Command::Dist(arguments) => dist::run(&arguments),
        Command::Shape(arguments) => shape::run(&arguments),
        Command::Ratios { folders } => {
            print!("{}", ratios::run(&folders)?);
            Ok(())
        }
        Command::HostRatios { folder } => {
            print!("{}", host_ratios::run(&folder)?);
            Ok(())
        }
    }
}
