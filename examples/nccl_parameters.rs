//! Prints the loaded libnccl and its parameters: the `NCCL_*` variables that it lists, with their values in
//! this process (NCCL 2.30.4). Needs no GPU.
//!
//! ```text
//! NCCL_DEBUG_FILE=log.txt cargo run --example nccl_parameters
//! ```

use collectives::nccl::{Error, Library};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let library = Library::load()?;
    println!("NCCL {} from {}", library.version(), library.path().display());
    let parameters = match library.parameters() {
        Err(error @ Error::MissingSymbol(_)) => {
            println!("{error}");
            return Ok(());
        }
        parameters => parameters?,
    };
    for (name, value) in &parameters {
        println!("{name}={value}");
    }

    // A single one, by name.
    println!("the log goes to: {:?}", library.parameter("NCCL_DEBUG_FILE")?);
    Ok(())
}
