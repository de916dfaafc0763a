// E0133

use std::sync::Arc;

use collectives::nccl::RawBuffer;
use cudarc::driver::CudaStream;

fn main() {}

fn test(stream: Arc<CudaStream>) -> RawBuffer<f32> {
    RawBuffer::new(0x7000_0000_0000, 1 << 20, stream)
}
