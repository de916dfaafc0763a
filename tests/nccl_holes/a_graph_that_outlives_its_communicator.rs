// E0505

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: Communicator, a: CudaSlice<f32>, mut b: CudaSlice<f32>) -> Result<(), Error> {
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce(&a, &mut b, Sum)
    })?;
    communicator.close()?;
    graph.launch()
}
