// E0505

use collectives::nccl::{Collectives, Error, Memory};

fn main() {}

fn test(memory: Memory) -> Result<(), Error> {
    let view = memory.slice::<f32>(..4)?;
    drop(memory);
    println!("{}", view.address());
    Ok(())
}
