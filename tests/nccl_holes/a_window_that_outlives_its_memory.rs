// E0505

use collectives::nccl::{Collectives, Communicator, Error, Memory, WindowKind};

fn main() {}

fn test(communicator: &Communicator, mut memory: Memory) -> Result<(), Error> {
    let window = communicator.window(&mut memory, WindowKind::Symmetric)?;
    drop(memory);
    window.slice::<f32>(..1).map(drop)
}
