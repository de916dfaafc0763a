// E0271

use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &CudaSlice<f32>, b: &mut CudaSlice<u8>) -> Result<(), Error> {
    Graph::capture(|capture| capture.on(communicator).all_gather(a, b))?.launch()
}
