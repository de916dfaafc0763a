// E0502

use collectives::nccl::{Collectives, Communicator, Error, Graph};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, mut a: CudaSlice<f32>) -> Result<(), Error> {
    let graph = Graph::capture(|capture| {
        capture.group(|capture| {
            capture.on(communicator).send(&a, 1)?;
            capture.on(communicator).recv(&mut a, 1)
        })
    })?;
    graph.launch()
}
