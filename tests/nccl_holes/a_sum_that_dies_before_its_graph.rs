// E0597

use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    let graph = Graph::capture(|capture| {
        let sum = communicator.scaled_sum(0.5)?;
        capture.on(communicator).all_reduce_in_place(a, &sum)
    })?;
    graph.launch()
}
