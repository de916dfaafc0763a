// E0596

use collectives::nccl::{Collectives, Error, Memory};

fn main() {}

fn test(memory: &Memory) -> Result<u64, Error> {
    Ok(memory.slice_mut::<f32>(..4)?.address())
}
