// E0499

use collectives::nccl::{Collectives, Communicator, Error, Memory, WindowKind};

fn main() {}

fn test(communicator: &Communicator, mut memory: Memory) -> Result<(), Error> {
    let window = communicator.window(&mut memory, WindowKind::Symmetric)?;
    communicator.broadcast_in_place(&mut memory.slice_mut::<f32>(..1)?, 0)?;
    window.slice::<f32>(..1).map(drop)
}
