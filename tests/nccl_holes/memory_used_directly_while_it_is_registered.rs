// E0499

use collectives::nccl::{Collectives, Communicator, Error, Memory};

fn main() {}

fn test(communicator: &Communicator, mut memory: Memory) -> Result<(), Error> {
    let registration = communicator.register(&mut memory)?;
    communicator.broadcast_in_place(&mut memory.slice_mut::<f32>(..1)?, 0)?;
    registration.slice::<f32>(..1).map(drop)
}
