// E0277

use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

#[derive(Clone, Copy)]
struct Pair {
    _number: f32,
    _letter: char,
}

fn test(communicator: &Communicator, a: &CudaSlice<Pair>) -> Result<(), Error> {
    communicator.send(a, 1)
}
