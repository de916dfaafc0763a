//! Developer commands of this repository. Run `cargo xtask help`.

use clap::{Parser, Subcommand, ValueEnum};

mod bindings {
    pub(crate) mod fabric;
}
mod wheels {
    pub(crate) mod fabric;
}

/// Developer commands of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate the raw bindings of a library from its headers (needs libclang).
    Bindings {
        library: Library,
        /// Change nothing; fail when the committed bindings differ from freshly generated ones.
        #[arg(long)]
        check: bool,
    },
    /// Download and unpack the library versions that the tests load.
    Wheels { library: Library },
}

#[derive(Clone, Copy, ValueEnum)]
enum Library {
    Fabric,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Bindings { library: Library::Fabric, check } => bindings::fabric::generate(check),
        Command::Wheels { library: Library::Fabric } => {
            for library in wheels::fabric::unpack()? {
                println!("{}", library.display());
            }
            Ok(())
        }
    }
}
