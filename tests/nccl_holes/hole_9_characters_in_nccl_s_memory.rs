// E0277

use collectives::nccl::{Collectives, Error, Memory};

fn main() {}

fn test(memory: &Memory) -> Result<(), Error> {
    memory.slice::<char>(..1).map(drop)
}
