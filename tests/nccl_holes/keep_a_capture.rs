// E0521

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    let mut kept = None;
    let graph = Graph::capture(|capture| {
        kept = Some(capture);
        Ok(())
    })?;
    kept.unwrap().on(communicator).all_reduce_in_place(a, Sum)?;
    graph.launch()
}
