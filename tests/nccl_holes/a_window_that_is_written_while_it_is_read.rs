// E0502

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Memory, WindowKind};

fn main() {}

fn test(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
    let mut window = communicator.window(memory, WindowKind::Symmetric)?;
    communicator.all_reduce(&window.slice::<f32>(..1)?, &mut window.slice_mut::<f32>(4, 1)?, Sum)
}
