// E0133

use std::sync::Arc;

use collectives::nccl::RawBuffer;

fn main() {}

fn test(buffer: RawBuffer<f32>) -> RawBuffer<f32> {
    buffer.owned_by(Arc::new(()))
}
