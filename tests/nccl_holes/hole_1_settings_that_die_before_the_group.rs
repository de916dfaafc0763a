// E0597

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, CallConfig, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(library: Library, communicator: &Communicator, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    group(|group| {
        let config = CallConfig::new();
        group.on(communicator).with(&config).all_reduce_in_place(a, Sum)
    })
}
