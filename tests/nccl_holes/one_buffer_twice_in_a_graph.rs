// E0499

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, mut a: CudaSlice<f32>) -> Result<(), Error> {
    let graph = Graph::capture(|capture| {
        capture.on(communicator).all_reduce_in_place(&mut a, Sum)?;
        capture.on(communicator).all_reduce_in_place(&mut a, Sum)
    })?;
    graph.launch()
}
