// E0277

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    let graph = Graph::capture(|capture| {
        std::thread::scope(|scope| {
            scope.spawn(|| capture.on(communicator).all_reduce_in_place(a, Sum));
        });
        Ok(())
    })?;
    graph.launch()
}
