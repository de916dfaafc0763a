// E0502

use collectives::nccl::{Collectives, Error, Memory};

fn main() {}

fn test(memory: &mut Memory) -> Result<(), Error> {
    let read = memory.slice::<f32>(..4)?;
    let write = memory.slice_mut::<f32>(16, 4)?;
    println!("{} {}", read.address(), write.address());
    Ok(())
}
