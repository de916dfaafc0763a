// E0133

use std::sync::Arc;

use collectives::nccl::Memory;
use cudarc::driver::CudaStream;

fn main() {}

fn test(stream: Arc<CudaStream>) -> Memory {
    Memory::from_raw(0x7000_0000_0000, 1 << 20, stream, ())
}
