// E0505 E0597

use collectives::nccl::{Collectives, Communicator, Error, Library, Signal, Window, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(
    library: Library,
    communicator: &Communicator,
    window: Window<'_>,
    a: &CudaSlice<f32>,
) -> Result<(), Error> {
    group(|group| {
        group.on(communicator).put(a, &window, 0, Signal::new(1))?;
        drop(window);
        Ok(())
    })
}
