// E0505

use collectives::nccl::{Collectives, Communicator, Error, Memory, WindowKind};

fn main() {}

fn test(communicator: Communicator, mut memory: Memory) -> Result<(), Error> {
    let window = communicator.window(&mut memory, WindowKind::Symmetric)?;
    let stream = communicator.stream().clone();
    let moved = communicator.on_stream(&stream)?;
    moved.send(&window.slice::<f32>(..1)?, 1)
}
