//! Copies between the ranks' memory and the host's.
//!
//! The driver copies from and to pageable memory with a lock of the context held, and waits there for what
//! the stream has to do before. Where that is a collective with another rank of the same GPU, the rank could
//! not launch its kernel. So these wait for the stream first, which needs no lock.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};

pub(crate) trait Copies {
    /// Returns the buffer's elements, after all queued work of the stream and all writes to the buffer.
    #[track_caller]
    fn read<T: DeviceRepr>(&self, buffer: &impl DevicePtr<T>) -> Vec<T>;
    /// Writes the buffer, after all queued work of the stream and all uses of the buffer.
    #[track_caller]
    fn write<T: DeviceRepr>(&self, values: &[T], buffer: &mut impl DevicePtrMut<T>);
}

impl Copies for Arc<CudaStream> {
    #[track_caller]
    fn read<T: DeviceRepr>(&self, buffer: &impl DevicePtr<T>) -> Vec<T> {
        // Orders the stream after the buffer's events.
        drop(buffer.device_ptr(self));
        self.synchronize().unwrap();
        let values = self.clone_dtoh(buffer).unwrap();
        self.synchronize().unwrap();
        values
    }

    #[track_caller]
    fn write<T: DeviceRepr>(&self, values: &[T], buffer: &mut impl DevicePtrMut<T>) {
        drop(buffer.device_ptr_mut(self));
        self.synchronize().unwrap();
        self.memcpy_htod(values, buffer).unwrap();
    }
}
