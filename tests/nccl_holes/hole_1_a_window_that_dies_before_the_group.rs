// E0505 E0597

use collectives::nccl::{Collectives, Communicator, Error, Signal, Window, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, window: Window, a: &CudaSlice<f32>) -> Result<(), Error> {
    group(|group| {
        // SAFETY: this program never runs.
        unsafe { group.on(communicator).put(a, &window, 0, Signal::new(1)) }?;
        drop(window);
        Ok(())
    })
}
