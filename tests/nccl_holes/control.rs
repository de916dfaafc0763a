// compiles

use collectives::ReduceOp::{Max, Sum};
use collectives::nccl::{Communicator, Error, Library, Memory, group};
use cudarc::driver::CudaSlice;

fn main() {}

/// What the other programs get wrong, done right.
fn test(
    library: Library,
    communicator: Communicator,
    mut memory: Memory,
    a: CudaSlice<f32>,
    mut b: CudaSlice<f32>,
) -> Result<(), Error> {
    let (part, mut other) = (a.slice(0..1), b.clone());
    group(library, |group| {
        group.on(&communicator).all_reduce(&a, &mut b, Sum)?;
        group.on(&communicator).all_gather(&part, &mut other)
    })?;
    communicator.all_reduce(&a, &mut b, Sum)?;
    drop(a);
    let mut view = memory.slice_mut::<u8>(0, 4)?;
    communicator.all_reduce_in_place(&mut view, Max)?;
    let read = memory.slice::<f32>(0, 4)?;
    println!("{}", read.address());
    let handle = communicator.abort_handle();
    std::thread::scope(|scope| {
        scope.spawn(|| handle.abort());
    });
    std::thread::spawn(move || communicator.close());
    Ok(())
}
