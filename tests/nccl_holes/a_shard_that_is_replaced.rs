// E0308

use collectives::Error;
use collectives::train::Zero1;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

fn main() {}

fn test(
    optimizer: &mut Zero1<CudaSlice<f32>>,
    gradient: CudaView<'_, f32>,
    parameter: CudaViewMut<'_, f32>,
    mut of_another_stream: CudaSlice<f32>,
) -> Result<(), Error> {
    optimizer.step(0, &[gradient], &mut [parameter], |shard, _| {
        std::mem::swap(shard, &mut of_another_stream);
        Ok(())
    })
}
