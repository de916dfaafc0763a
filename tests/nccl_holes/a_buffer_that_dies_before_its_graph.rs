// E0597

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &CudaSlice<f32>) -> Result<(), Error> {
    let graph = Graph::capture(|capture| {
        let mut b = a.clone();
        capture.on(communicator).all_reduce(a, &mut b, Sum)
    })?;
    graph.launch()
}
