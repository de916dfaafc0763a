// E0505 E0597

use collectives::nccl::{Collectives, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(library: Library, communicator: Communicator, a: &CudaSlice<f32>) -> Result<(), Error> {
    group(|group| {
        group.on(&communicator).send(a, 1)?;
        communicator.close()
    })
}
