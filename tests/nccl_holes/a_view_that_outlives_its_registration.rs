// E0505

use collectives::nccl::{Collectives, Communicator, Error, Memory};

fn main() {}

fn test(communicator: &Communicator, mut memory: Memory) -> Result<(), Error> {
    let registration = communicator.register(&mut memory)?;
    let view = registration.slice::<f32>(..1)?;
    drop(registration);
    communicator.send(&view, 1)
}
