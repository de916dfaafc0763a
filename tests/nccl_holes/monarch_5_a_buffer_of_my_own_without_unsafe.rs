// E0200

use std::sync::Arc;

use collectives::nccl::{Collectives, Access, DeviceBuffer};
use cudarc::driver::CudaStream;

struct Strided(Arc<CudaStream>);

impl DeviceBuffer for Strided {
    type Element = f32;

    fn len(&self) -> usize {
        1 << 20
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.0
    }

    fn read<'a>(&'a self, _: &'a CudaStream) -> Access<'a> {
        Access::new(0, None)
    }
}

fn main() {}
