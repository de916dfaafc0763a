// E0521

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(library: Library, communicator: &Communicator, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    let mut kept = None;
    group(|group| {
        kept = Some(group.on(communicator));
        Ok(())
    })?;
    kept.unwrap().all_reduce_in_place(a, Sum)
}
