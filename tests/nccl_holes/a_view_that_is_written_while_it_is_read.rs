// E0502

use collectives::nccl::{Error, Memory};

fn main() {}

fn test(memory: &mut Memory) -> Result<(), Error> {
    let read = memory.slice::<f32>(..4)?;
    let write = memory.slice_mut::<f32>(4..8)?;
    println!("{} {}", read.address(), write.address());
    Ok(())
}
