// E0133

use collectives::nccl::{Collectives, Communicator, Error, Memory, Signal, Window};

fn main() {}

fn test(communicator: &Communicator, memory: &Memory, window: &Window) -> Result<(), Error> {
    communicator.put(&memory.slice::<f32>(..1)?, window, 1, Signal::new(1))
}
