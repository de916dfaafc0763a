// E0505

use collectives::nccl::{Collectives, Communicator, Error, Memory};

fn main() {}

fn test(communicator: &Communicator, mut memory: Memory) -> Result<(), Error> {
    let registration = communicator.register(&mut memory)?;
    drop(memory);
    registration.slice::<f32>(..1).map(drop)
}
