// E0502

use collectives::nccl::{Error, Memory};

fn main() {}

fn test(memory: &mut Memory) -> Result<(), Error> {
    let mut view = memory.slice_mut::<f32>(..8)?;
    let read = view.slice(..4)?;
    let write = view.slice_mut(4..)?;
    println!("{} {}", read.address(), write.address());
    Ok(())
}
