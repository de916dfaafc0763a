//! Which libnccl is loaded, and its parameters: those `NCCL_*` variables that it can be asked for, with the values that
//! they have in this process (NCCL 2.30.4). Needs no GPU.
//!
//! ```text
//! NCCL_DEBUG_FILE=log.txt cargo run --example nccl_parameters
//! ```

use collectives::nccl::{Collectives, Error, Library};

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

    // One alone, by its name. Each has one type: this is a text.
    let file = library.parameter("NCCL_DEBUG_FILE")?.text()?;
    assert!(parameters.contains(&("NCCL_DEBUG_FILE".to_owned(), file)));
    // This is a number, which the list above has in words.
    let subsystems: u64 = library.parameter("NCCL_DEBUG_SUBSYS")?.get()?;
    println!("the bits of NCCL_DEBUG_SUBSYS: {subsystems:#b}");
    Ok(())
}
