// E0521

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    let mut kept = None;
    group(|group| {
        kept = Some(group.on(communicator));
        Ok::<_, Error>(())
    })?;
    kept.unwrap().all_reduce_in_place(a, Sum)
}
