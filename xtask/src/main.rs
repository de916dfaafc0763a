//! Developer commands of this repository. Run `cargo xtask help`.

mod bindings;
mod cache;
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
    /// Generate the committed bindings of a raw crate from the C headers
    Bindings(bindings::Arguments),
    /// Download the libraries that the tests load into the user's cache folder
    Wheels(wheels::Arguments),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Bindings(arguments) => bindings::run(&arguments),
        Command::Wheels(arguments) => wheels::run(&arguments),
    }
}
