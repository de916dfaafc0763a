//! Developer commands of this repository. Run `cargo xtask help`.

mod kernels;

use clap::Parser;

/// Developer commands of this repository.
#[derive(Debug, Parser)]
enum Command {
    Kernels(kernels::Args),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Kernels(args) => kernels::run(&args),
    }
}
