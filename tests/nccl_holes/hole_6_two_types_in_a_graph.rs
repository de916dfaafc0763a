// E0271

use collectives::nccl::{Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &CudaSlice<f32>, b: &mut CudaSlice<u8>) -> Result<(), Error> {
    Graph::capture(communicator.library(), |capture| capture.on(communicator).all_gather(a, b))?.launch()
}
